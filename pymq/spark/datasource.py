"""The data source class behind ``format("pymq")``."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pymq.errors import ConfigError
from pymq.spark import columns
from pymq.spark.options import check_source, sink_options, source_options
from pymq.spark.process import one_sentence, settle
from pymq.spark.read.refused import RefusedReader
from pymq.spark.read.source import StreamReader, TableReader
from pymq.spark.write.sink import StreamWriter, TableWriter


class PymqDataSource(DataSource):
    """Data source for a pymq cluster, or for an embedded queue's folder."""

    slots: ClassVar[int | None] = None  # of the session, if known

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        settle()

    @classmethod
    def with_slots(cls, slots: int) -> type[PymqDataSource]:
        """Return a subclass for a session that runs *slots* tasks at a time."""
        # Spark pickles this class by value and its base class by name.
        return type(cls.__name__, (cls,), {"slots": slots})

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "pymq"

    def schema(self) -> StructType:
        """Return the source's columns, if the query gives no schema."""
        with one_sentence():
            check_source(self.options)
        has_headers = (self.options.get("includeheaders") or "").lower() == "true"
        return columns.schema(has_headers=has_headers)

    def reader(self, schema: StructType) -> TableReader:
        """Return the reader for ``spark.read``."""
        with one_sentence():
            return TableReader(source_options(self.options, is_stream=False), schema, self.slots)

    def streamReader(self, schema: StructType) -> StreamReader | RefusedReader:
        """Return the reader for ``spark.readStream``."""
        try:
            return StreamReader(source_options(self.options, is_stream=True), schema, self.slots)
        except ConfigError as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        """Return the writer for ``df.write``."""
        with one_sentence():
            return TableWriter(sink_options(self.options), schema, is_overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer for ``df.writeStream``."""
        with one_sentence():
            options = sink_options(self.options, is_stream=True)
            return StreamWriter(options, schema, is_overwrite=overwrite)
