"""A topic of very many partitions is created and deleted on real processes, while other topics are
used.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import pymq
from pymq.testing.child import environment
from tests.nodes.processes import processes
from tests.simulator.processes import ProcessCluster

# Run this in a separate process, because its work would delay the other threads of the test.
LARGE = """
import sys
import pymq

with pymq.open(sys.argv[1]) as mq:
    count = int(sys.argv[2])
    mq.create_topic("large", partitions=count)
    assert len(mq.describe_topic("large").partitions) == count
    with mq.producer() as producer:
        producer.send("large", b"x", partition=count - 1).result(60)
    mq.delete_topic("large")
"""
SEND_MAX_S = 1.0  # longest time for a record to another topic; the session of brokers is 2 s


class Others:
    """A producer that always sends, and checks that all brokers are alive."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.slowest_s = 0.0
        self.sent = self.looked = 0
        self.dead: list[str] = []
        self._stop = threading.Event()
        self._url = cluster.url
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._look)]
        self._problems: list[BaseException] = []

    def __enter__(self) -> Others:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._problems:
            raise self._problems[0]

    def _send(self) -> None:
        try:
            with pymq.open(self._url) as mq, mq.producer(linger_ms=0) as producer:
                producer.send("small", b"first").result(10)
                while not self._stop.wait(0.02):
                    began = time.monotonic()
                    producer.send("small", b"x").result(60)
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                    self.sent += 1
        except BaseException as problem:
            self._problems.append(problem)

    def _look(self) -> None:
        try:
            with pymq.open(self._url) as mq:
                while not self._stop.wait(0.2):
                    self.dead += [b.name for b in mq.cluster().brokers if not b.alive]
                    self.looked += 1
        except BaseException as problem:
            self._problems.append(problem)


@pytest.mark.parametrize(
    "count", [1_500, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_nobody_notices_that_very_many_partitions_are_made_and_deleted(
    count: int, tmp_path: Path
) -> None:
    """While a topic of 20,000 partitions is created, sends stay fast and brokers keep their
    sessions.
    """
    with processes(tmp_path) as cluster, pymq.open(cluster.url) as mq:
        mq.create_topic("small", replicas=3, acks="raft")
        with Others(cluster) as others:
            done = subprocess.run(
                [sys.executable, "-c", LARGE, cluster.url, str(count)],
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        assert others.dead == []
        assert others.sent > 20
        assert others.looked > 2
        assert others.slowest_s < SEND_MAX_S
        events = [line["event"] for node in cluster.nodes.values() for line in node.lines()]
        assert "topic_created" in events
        assert "broker_dead" not in events
