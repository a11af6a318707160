"""Spark data source: ``format("pymq")`` for tables and streams.

::

    pymq.spark.register(spark)
    options = {"url": "zmq+tcp://127.0.0.1:7878", "subscribe": "orders"}
    spark.read.format("pymq").options(**options).load().groupBy("key").count().show()
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pymq.errors import MissingExtra
from pymq.spark.read.progress import describe, lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pymq.spark.read.listener import ProgressListener
    from pymq.spark.values.functions import from_value, to_value
    from pymq.spark.write.produce import (
        ACK_SCHEMA,
        foreach_batch,
        foreach_partition,
        produce_in_arrow,
        produce_in_pandas,
        send_udf,
    )
    from pymq.table.view import TableProgress, TableView, table_view

_WRITE, _VALUES = "pymq.spark.write.produce", "pymq.spark.values.functions"
_TABLE = "pymq.table.view"
_LAZY = {  # the module of each name that needs pyspark, or pyarrow alone: a table view
    "ACK_SCHEMA": _WRITE,
    "ProgressListener": "pymq.spark.read.listener",
    "TableProgress": _TABLE,
    "TableView": _TABLE,
    "foreach_batch": _WRITE,
    "foreach_partition": _WRITE,
    "from_value": _VALUES,
    "produce_in_arrow": _WRITE,
    "produce_in_pandas": _WRITE,
    "send_udf": _WRITE,
    "table_view": _TABLE,
    "to_value": _VALUES,
}

__all__ = [
    "ACK_SCHEMA",
    "ProgressListener",
    "TableProgress",
    "TableView",
    "describe",
    "foreach_batch",
    "foreach_partition",
    "from_value",
    "lag",
    "produce_in_arrow",
    "produce_in_pandas",
    "register",
    "send_udf",
    "table_view",
    "to_value",
]


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
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_LAZY[name])
    except ImportError as error:
        raise _missing(error) from error
    return getattr(module, name)


def _missing(error: ImportError) -> MissingExtra:
    return MissingExtra.of(f"{error.name} is missing or too old", "spark")
