"""Dead executors, dead brokers and missing rights, on a real Spark."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("zmq", reason="pyzmq is not installed: pip install 'pymq-log[zmq]'")

import pymq
from pymq.testing.child import environment
from tests.nodes.processes import processes
from tests.nodes.test_security import POLICY, Secured
from tests.spark.conftest import ROOT, fill, run
from tests.spark.write.test_sink import values, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SPARKS = """
[[rule]]
principal = "alice"
operations = ["All"]
resources = ["topic:pymq-spark.*", "producer:pymq-spark.*"]
[[rule]]
principal = "alice"
operations = ["Describe"]
resources = ["cluster"]
"""


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    cluster = Secured(tmp_path, 1, POLICY + SPARKS)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.mark.slow
def test_keys_by_url_and_a_policy(
    spark: SparkSession, secured: Secured, load: Callable[..., DataFrame]
) -> None:
    """Spark reads and writes as a principal, with the rights of that principal."""
    with secured.open("root") as mq:
        for topic in ("orders", "others"):
            mq.create_topic(topic)
        fill(mq, "others", 10)
    url = f"zmq+{secured.zkserver.endpoint}?curve_dir={secured.keys}&principal=alice"
    write(spark.range(100).selectExpr("cast(id as string) value"), url, topic="orders")
    assert load(url, subscribe="orders").count() == 100
    with pytest.raises(Exception, match="may not"):
        load(url, subscribe="others").count()
    with pytest.raises(Exception, match="may not"):
        write(spark.range(1).selectExpr("'x' value"), url, topic="others")


def in_cluster(what: str, url: str, folder: Path) -> dict[str, Any]:
    """Run a program on a Spark with executors of its own; returns its findings."""
    script = Path(__file__).with_name("in_cluster.py")
    package = shutil.make_archive(str(folder / "given"), "zip", ROOT, "pymq")
    done = subprocess.run(
        [sys.executable, str(script), what, url, package, str(folder)],
        cwd=folder,
        env={**environment(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_queries_of_one_session_do_not_fence_each_other(java: None, tmp_path: Path) -> None:
    """Spark's driver may use any idle Python process for a commit. In an earlier version four
    queries fenced each other within 12 s.
    """
    count, batches = 5_000, 100
    with processes(tmp_path, brokers=1) as cluster, pymq.open(cluster.url) as mq:
        mq.create_topic("big", partitions=2)
        for number in range(4):
            mq.create_topic(f"out-{number}", partitions=2)
        fill(mq, "big", count)
        found = in_cluster("queries", cluster.url, tmp_path)
        assert found["errors"] == []
        assert found["killed"] >= 2
        assert min(found["batches"]) >= batches - 1
        for number in range(4):
            assert values(mq, f"out-{number}") == list(range(count))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_executors_of_their_own(java: None, tmp_path: Path) -> None:
    """Data does not go through the driver; a slow task and a dead executor do no harm.

    The driver could receive no more than 64 KiB of results, and send no more than 1 MiB. Executors
    load pymq from the file that Spark sends to them.
    """
    size, count = 400, 20_000
    with processes(tmp_path, brokers=1) as cluster, pymq.open(cluster.url) as mq:
        for topic in ("big", "copied", "hung", "produced", "killed"):
            mq.create_topic(topic, partitions=2)
        with mq.producer() as producer:
            rows = [b"%0*d" % (size, number) for number in range(count)]
            producer.send_many("big", rows).result()
        found = in_cluster("writes", cluster.url, tmp_path)
        assert found["read"] == count
        assert all("given.zip" in path for path in found["from"]), found["from"]
        assert "maxResultSize" in found["collect"]  # Larger results would fail.
        assert values(mq, "copied") == list(range(count))
        assert found["acknowledged"] == 8000
        for topic in ("hung", "produced", "killed"):
            assert values(mq, topic) == list(range(8000)), topic


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_executor_dies_within_a_long_read(java: None, tmp_path: Path) -> None:
    """The next attempt of a task reads the same range of a partition that is cut into tasks."""
    count = 1_200_000
    with processes(tmp_path, brokers=1) as cluster, pymq.open(cluster.url) as mq:
        mq.create_topic("long", block_bytes=1 << 18)
        with mq.producer() as producer:
            for _ in range(0, count, 100_000):
                producer.send_many("long", [b"x"] * 100_000)
        end = mq.questions.bounds("long", "0")[1]
        with mq.consumer("long", mode="psb") as consumer:
            offsets = sum(record.offset for record in consumer.until_end())
        found = in_cluster("reads", cluster.url, tmp_path)
        assert found["attempts"] >= 1
        assert found["tasks"] == 4
        assert (found["rows"], found["sum"]) == (count, offsets)
        assert 0 <= found["first"] <= found["last"] < end


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_brokers_die_under_a_query(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    """Brokers are killed one after the other while a query reads, stages, decides and copies."""
    count, is_over = 20_000, threading.Event()
    with processes(tmp_path, brokers=3) as cluster, pymq.open(cluster.url) as mq:
        for topic in ("in", "out"):
            mq.create_topic(topic, partitions=3, replicas=3, acks="raft")
        fill(mq, "in", count)

        def kill() -> None:
            """Kill and restart one broker after the other, until the query has ended."""
            turn = 0
            while not is_over.wait(2.0):
                node = cluster.nodes[f"broker-{turn % 3}"]
                turn += 1
                node.kill()
                is_over.wait(2.0)
                node.start()
                node.wait_ready()
            killed.append(turn)

        killed: list[int] = []
        killer = threading.Thread(target=kill)
        source = spark.readStream.format("pymq").options(url=cluster.url, subscribe="in")
        source = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=2000)
        sink = source.load().select("value", "key").writeStream.format("pymq")
        sink = sink.options(url=cluster.url, topic="out", checkpointLocation=checkpoint)
        killer.start()
        try:
            run(sink.trigger(availableNow=True))
        finally:
            is_over.set()
            killer.join()
        assert killed[0] >= 3
        assert values(mq, "out") == list(range(count))
