"""What Spark finds under ``format("pymq")``."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pymq.spark import columns
from pymq.spark.options import sink_options, source_options
from pymq.spark.process import settle
from pymq.spark.read.source import StreamReader, TableReader
from pymq.spark.write.sink import StreamWriter, TableWriter


class PymqDataSource(DataSource):
    """Tables and streams of a pymq cluster, or of an embedded queue's folder."""

    slots: ClassVar[int | None] = None  # of the session, when it is known

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        settle()

    @classmethod
    def with_slots(cls, slots: int) -> type[PymqDataSource]:
        """The same for a session that runs so many tasks at a time."""
        # Spark pickles this class by what it says here, and the one below it by its name.
        return type(cls.__name__, (cls,), {"slots": slots})

    @classmethod
    def name(cls) -> str:
        """What ``format`` is called with."""
        return "pymq"

    def schema(self) -> StructType:
        """The source's columns, when nobody asks for some of them."""
        has_headers = (self.options.get("includeheaders") or "").lower() == "true"
        return columns.schema(has_headers=has_headers)

    def reader(self, schema: StructType) -> TableReader:
        """For ``spark.read``."""
        return TableReader(source_options(self.options, is_stream=False), schema, self.slots)

    def streamReader(self, schema: StructType) -> StreamReader:
        """For ``spark.readStream``."""
        return StreamReader(source_options(self.options, is_stream=True), schema, self.slots)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        """For ``df.write``."""
        return TableWriter(sink_options(self.options), schema, is_overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """For ``df.writeStream``."""
        return StreamWriter(sink_options(self.options), schema, is_overwrite=overwrite)
