"""A stream's reader whose options are wrong."""

from __future__ import annotations

from typing import Any, Never

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from pymq.errors import PymqError
from pymq.spark.process import one_sentence


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error of its options at the first call.

    Spark's planner fails in another way, and hides the error, if making the reader raises.
    """

    def __init__(self, error: PymqError) -> None:
        self._error = error

    def _refuse(self) -> Never:
        with one_sentence():
            raise self._error.with_traceback(None)

    def getDefaultReadLimit(self) -> Never:
        """Raise the error: the first call of a query with a trigger that goes on."""
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> Never:
        """Raise the error: the first call of a query that ends."""
        self._refuse()

    def initialOffset(self) -> Never:
        """Raise the error."""
        self._refuse()

    def latestOffset(self, start: Any = None, limit: Any = None) -> Never:
        """Raise the error."""
        self._refuse()

    def partitions(self, start: Any, end: Any) -> Never:
        """Raise the error."""
        self._refuse()

    def read(self, partition: Any) -> Never:
        """Raise the error."""
        self._refuse()

    def stop(self) -> None:
        """Do nothing."""
