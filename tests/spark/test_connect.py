"""Spark Connect: the session runs in a server, to which the program connects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("zmq", reason="pyzmq is not installed: pip install 'pymq-log[zmq]'")
pytest.importorskip(
    "grpc_status", reason="Connect is not installed: pip install 'pyspark[connect]'"
)

import pymq
from pymq.testing.child import environment
from tests.nodes.processes import processes
from tests.spark.conftest import ROOT, fill

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


def test_foreach_batch_writes_totals_under_connect(
    java: None, tmp_path: Path, checkpoint: str
) -> None:
    """The sink's name identifies its batches, because Spark Connect gives no id of the query."""
    script = Path(__file__).with_name("in_connect.py")
    with processes(tmp_path, brokers=1) as cluster, pymq.open(cluster.url) as mq:
        for topic in ("in", "totals"):
            mq.create_topic(topic)
        fill(mq, "in", 30, keys=[b"%d" % (n % 3) for n in range(30)])
        done = subprocess.run(
            [sys.executable, str(script), cluster.url, checkpoint],
            cwd=tmp_path,
            env={
                **environment(),
                "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["rows"] == found["again"] == 9  # three keys in each of three batches
        assert "under Spark Connect give foreach_batch(sink='...')" in found["error"]
        with mq.consumer("totals", mode="psb") as consumer:
            last = {record.key: record.value for record in consumer.until_end()}
        assert last == {b"0": b"10", b"1": b"10", b"2": b"10"}
