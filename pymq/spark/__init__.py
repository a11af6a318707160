"""Spark data source: ``format("pymq")`` for tables and streams.

::

    pymq.spark.register(spark)
    options = {"url": "zmq+tcp://127.0.0.1:7878", "subscribe": "orders"}
    spark.read.format("pymq").options(**options).load().groupBy("key").count().show()
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pymq.errors import MissingExtra
from pymq.spark.read.progress import lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pymq.spark.write.produce import (
        ACK_SCHEMA,
        foreach_batch,
        foreach_partition,
        produce_in_arrow,
        produce_in_pandas,
        send_udf,
    )
    from pymq.table.view import TableProgress, TableView, table_view

__all__ = [
    "ACK_SCHEMA",
    "TableProgress",
    "TableView",
    "foreach_batch",
    "foreach_partition",
    "lag",
    "produce_in_arrow",
    "produce_in_pandas",
    "register",
    "send_udf",
    "table_view",
]
_TABLES = {"TableProgress", "TableView", "table_view"}  # which need pyarrow, and not pyspark


def register(spark: SparkSession) -> None:
    """Register ``format("pymq")`` with a session.

    Raises:
        MissingExtra: pyspark or pyarrow is not installed, or too old.
    """
    try:
        from pyspark.errors import PySparkException

        from pymq.spark.datasource import PymqDataSource
    except ImportError as error:
        raise _missing(error) from error
    source: type[PymqDataSource] = PymqDataSource
    with suppress(PySparkException):  # A Spark Connect client cannot know the number of slots.
        source = PymqDataSource.with_slots(spark.sparkContext.defaultParallelism)
    spark.dataSource.register(source)


def __getattr__(name: str) -> Any:
    """Import the names that need pyspark on first access."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name in _TABLES:
            from pymq.table import view

            return getattr(view, name)
        from pymq.spark.write import produce
    except ImportError as error:
        raise _missing(error) from error
    return getattr(produce, name)


def _missing(error: ImportError) -> MissingExtra:
    return MissingExtra(f"{error.name} is missing or too old: pip install 'pymq-log[spark]'")
