"""Queries while no zkserver answers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("zmq", reason="pyzmq is not installed: pip install 'pymq-log[zmq]'")

import pymq
from pymq.client.options import REQUEST_S
from tests.simulator.processes import ProcessCluster
from tests.spark.conftest import ROOT, started
from tests.spark.write.test_sink import values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

AWAY_S = 40.0  # longer than the wait of any single request


def test_queries_go_on_without_zkservers(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """Both zkservers die: a query that only reads continues at once, and a query that writes waits
    until a zkserver is back.
    """
    assert AWAY_S > 2 * REQUEST_S
    rows: list[int] = []

    def take(frame: DataFrame, _: int) -> None:
        rows.extend(int(row.value) for row in frame.collect())

    def source(url: str) -> Any:
        options = {"url": url, "subscribe": "in", "startingOffsets": "earliest"}
        return spark.readStream.format("pymq").options(**options).load().select("value")

    scripts = ROOT / "examples"
    with (
        ProcessCluster(tmp_path, scripts, brokers=1, zkservers=2, zookeepers=1) as cluster,
        pymq.open(cluster.url) as mq,
        mq.producer() as producer,  # a new producer would ask a zkserver for the topic
    ):

        def send(start: int) -> None:
            producer.send_many("in", [b"%d" % n for n in range(start, start + 10)]).result()

        for topic in ("in", "out"):
            mq.create_topic(topic)
        send(0)
        reads = source(cluster.url).writeStream.foreachBatch(take)
        reading = started(reads.option("checkpointLocation", f"{checkpoint}/reads"))
        writes = source(cluster.url).writeStream.format("pymq")
        writes = writes.options(url=cluster.url, topic="out")
        writing = started(writes.option("checkpointLocation", f"{checkpoint}/writes"))
        try:
            cluster.nodes["zkserver-0"].kill()
            send(10)
            cluster.wait_for(lambda: len(rows) == 20, "the query reads with one zkserver")
            cluster.wait_for(lambda: len(values(mq, "out")) == 20, "the other writes with it")
            cluster.nodes["zkserver-1"].kill()
            send(20)
            cluster.wait_for(lambda: len(rows) == 30, "the query reads with none")
            threading.Event().wait(AWAY_S)
            send(30)
            cluster.wait_for(lambda: len(rows) == 40, "the query still reads with none")
            assert reading.exception() is None
            assert writing.exception() is None
            cluster.nodes["zkserver-1"].start()
            cluster.nodes["zkserver-1"].wait_ready()
            cluster.wait_for(lambda: len(values(mq, "out")) >= 40, "all is written", 120)
        finally:
            reading.stop()
            writing.stop()
        assert sorted(rows) == list(range(40))
        assert values(mq, "out") == list(range(40))
