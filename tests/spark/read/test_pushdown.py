"""The reason why the source accepts no filters: Spark forgets the filters of a planned read.

If this test fails, Spark may have mended this. See
docs/decisions/0176-spark-filters-are-not-pushed-into-the-source.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that pushes filters into Python sources; by default Spark does not."""
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.unset(PUSHDOWN)


def test_spark_reads_a_frame_with_the_filters_of_another_query(pushing: SparkSession) -> None:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        EqualTo,
        Filter,
        InputPartition,
    )
    from pyspark.sql.types import StructType

    class Reader(DataSourceReader):
        """Reads the numbers 0 to 3; with a filter for one number, only that number."""

        def __init__(self) -> None:
            self.wanted: list[int] = []

        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
            for each in filters:
                if isinstance(each, EqualTo):
                    self.wanted.append(each.value)
                else:
                    yield each

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return ((n,) for n in range(4) if all(n == each for each in self.wanted))

    class Four(DataSource):
        @classmethod
        def name(cls) -> str:
            return "four"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: StructType) -> Reader:
            return Reader()

    pushing.dataSource.register(Four)
    frame = pushing.read.format("four").load()
    assert frame.where("n = 1").count() == 1
    assert frame.count() == 1, "Spark has read all four: it may be right now"
    frame = pushing.read.format("four").load()
    both = frame.where("n = 1").union(frame.where("n = 2")).collect()
    assert [row.n for row in both] == [2, 2], "Spark has read 1 and 2: it may be right now"
