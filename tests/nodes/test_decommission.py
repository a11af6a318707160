"""A broker is emptied over the network, and stopped for good."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pymq
from pymq.testing.child import environment
from tests.nodes.processes import ROOT, processes

RECORDS = [b"%d " % number + b"x" * 1_000 for number in range(60)]


@pytest.mark.slow
def test_a_broker_is_emptied_over_the_network(tmp_path: Path) -> None:
    """``pymq cluster decommission --wait`` ends when other brokers have all blocks and the files
    are removed.
    """
    with processes(tmp_path) as cluster, pymq.open(cluster.url) as mq:
        mq.create_topic("one", replicas=1, block_bytes=8192)
        mq.create_topic("two", replicas=2, acks="raft", block_bytes=8192)
        with mq.producer(linger_ms=0) as producer:
            for topic in ("one", "two"):
                for value in RECORDS:
                    producer.send(topic, value).result(60)
        (victim,) = mq.describe_topic("one").partitions[0].replicas
        command = ["cluster", "decommission", victim, "--wait", "--url", cluster.url]
        done = subprocess.run(
            [sys.executable, "-m", "pymq", *command],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert (
            done.stdout.splitlines()[-1]
            == "it may be stopped: other brokers have all of its records"
        )
        assert list(cluster.data(victim).rglob("*.block")) == []
        found = {broker.name: broker for broker in mq.cluster().brokers}
        assert (found[victim].blocks, found[victim].kept_by) == (0, ())
        cluster.nodes[victim].stop()
        for topic in ("one", "two"):
            with mq.consumer(topic, mode="psb", offset="begin") as consumer:
                assert [record.value for record in consumer.until_end()] == RECORDS
