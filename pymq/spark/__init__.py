"""pymq in Spark: ``format("pymq")`` for tables and streams.

::

    pymq.spark.register(spark)
    options = {"url": "zmq+tcp://127.0.0.1:7878", "subscribe": "orders"}
    spark.read.format("pymq").options(**options).load().groupBy("key").count().show()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymq.errors import MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make ``format("pymq")`` known to a session.

    Raises:
        MissingExtra: pyspark or pyarrow is not installed, or too old.
    """
    try:
        from pymq.spark.datasource import PymqDataSource
    except ImportError as error:
        raise MissingExtra(
            f"{error.name} is missing or too old: pip install 'pymq-log[spark]'"
        ) from error
    spark.dataSource.register(PymqDataSource)
