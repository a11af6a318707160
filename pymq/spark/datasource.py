"""The data source class behind ``format("pymq")``."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pymq.errors import PymqError
from pymq.spark import columns
from pymq.spark.options import SinkOptions, check_source, sink_options, source_options
from pymq.spark.process import one_sentence, settle
from pymq.spark.read.refused import RefusedReader
from pymq.spark.read.source import StreamReader, TableReader
from pymq.spark.read.value_schema import resolve_source
from pymq.spark.write.sink import StreamWriter, TableWriter


class PymqDataSource(DataSource):
    """Data source for a pymq cluster, or for an embedded queue's folder."""

    slots: ClassVar[int | None] = None  # slots of the session, if known

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

    def schema(self) -> StructType | str:
        """Return the source's columns, if the query gives no schema."""
        with one_sentence():
            options = check_source(self.options)
            if options.values.format == "binary":
                return columns.schema(has_headers=options.include_headers)
            from pymq.spark.values.checked import source_type  # on demand: it loads much

            value = source_type(resolve_source(options).values)
        if isinstance(value, str):
            return columns.schema_text(has_headers=options.include_headers, value=value)
        return columns.schema(has_headers=options.include_headers, value=value)

    def reader(self, schema: StructType) -> TableReader:
        """Return the reader for ``spark.read``."""
        with one_sentence():
            options = resolve_source(source_options(self.options, is_stream=False), schema)
            return TableReader(options, schema, self.slots)

    def streamReader(self, schema: StructType) -> StreamReader | RefusedReader:
        """Return the reader for ``spark.readStream``."""
        try:
            options = resolve_source(source_options(self.options, is_stream=True), schema)
            return StreamReader(options, schema, self.slots)
        except PymqError as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        """Return the writer for ``df.write``."""
        with one_sentence():
            return TableWriter(_resolve(sink_options(self.options)), schema, is_overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer for ``df.writeStream``."""
        with one_sentence():
            options = _resolve(sink_options(self.options, is_stream=True))
            return StreamWriter(options, schema, is_overwrite=overwrite)


def _resolve(options: SinkOptions) -> SinkOptions:
    if options.values.format == "binary":
        return options
    from pymq.spark.values.registered import resolve_sink

    return resolve_sink(options)
