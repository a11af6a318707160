"""A stream's reader whose options are wrong."""

from __future__ import annotations

from typing import Any, Never

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from pymq.errors import PymqError
from pymq.spark.process import one_sentence


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error of its options at the first call.

    If creating the reader raised the error, Spark's planner would hide it behind another one.
    """

    def __init__(self, error: PymqError) -> None:
        self._error = error

    def _refuse(self) -> Never:
        with one_sentence():
            raise self._error.with_traceback(None)

    def getDefaultReadLimit(self) -> Never:
        """Raise the error: a query whose trigger repeats makes this call first."""
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> Never:
        """Raise the error: a query that ends by itself makes this call first."""
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
