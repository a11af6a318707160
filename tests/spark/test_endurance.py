"""Four queries of one session, while executors, brokers and zkservers die in turn.

Ten minutes by default; ``make endurance`` takes an hour (``PYMQ_ENDURANCE_S``).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("zmq", reason="pyzmq is not installed: pip install 'pymq-log[zmq]'")

import pyarrow.parquet as pq

import pymq
from tests.nodes.processes import processes
from tests.simulator.processes import ProcessCluster
from tests.spark.in_cluster import kill_an_executor
from tests.spark.test_faults import in_cluster
from tests.spark.write.test_sink import values

DURATION_S = float(os.environ.get("PYMQ_ENDURANCE_S", "600"))
PAUSE_S = 15.0  # between a process that is back, or an executor's death, and the next death
DOWN_S = 3.0  # how long a broker or zkserver stays dead
SECOND_S, RECORDS = 1.0, 100  # so many records are sent a second
END_S = 900.0  # within which the queries must have written everything
VICTIMS = (
    *("executor", "broker-0", "executor", "zkserver-0", "broker-1"),
    *("executor", "broker-2", "executor", "zkserver-1"),
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(DURATION_S + 2 * END_S)]


def send(mq: pymq.Client, is_over: threading.Event) -> int:
    """Send numbers until the event is set; return how many."""
    count = 0
    with mq.producer(delivery_timeout_s=300) as producer:
        while not is_over.wait(SECOND_S):
            rows = [b"%08d" % number for number in range(count, count + RECORDS)]
            producer.send_many("in", rows).result()
            count += RECORDS
    return count


def kill_in_turn(cluster: ProcessCluster, application: Path, until: float) -> Counter[str]:
    """Kill one process after the other; return how often each died."""
    died: Counter[str] = Counter()
    turn = 0
    while time.monotonic() < until:
        victim = VICTIMS[turn % len(VICTIMS)]
        turn += 1
        if victim == "executor":
            if application.exists():
                died[victim] += kill_an_executor(application.read_text(encoding="utf-8"), turn)
        else:
            node = cluster.nodes[victim]
            node.kill()
            died[victim] += 1
            threading.Event().wait(DOWN_S)
            node.start()
            node.wait_ready()
        threading.Event().wait(PAUSE_S)
    return died


def rest(found: list[int], count: int) -> str:
    """Describe the difference to each number below *count* once; "" if there is none."""
    times = Counter(found)
    lost = [number for number in range(count) if number not in times]
    doubled = [number for number, found in times.items() if found > 1]
    if not lost and not doubled and len(times) == count:
        return ""
    return f"lost {len(lost)} ({lost[:5]}), doubled {len(doubled)} ({doubled[:5]})"


def committed(folder: Path) -> list[int]:
    """Return the numbers in the Parquet files that Spark's sink has committed.

    Tasks that died leave other files in the folder.
    """
    entries = [
        json.loads(line)
        for log in (folder / "_spark_metadata").iterdir()
        if not log.name.startswith(".")
        for line in log.read_text(encoding="utf-8").splitlines()[1:]
    ]
    files = {unquote(urlsplit(each["path"]).path) for each in entries if each["action"] == "add"}
    columns = [pq.read_table(file, columns=["value"])["value"].to_pylist() for file in files]
    return [int(value) for column in columns for value in column]


def test_four_queries_lose_double_and_stop_nothing(java: None, tmp_path: Path) -> None:
    is_over = threading.Event()
    with (
        processes(tmp_path, brokers=3, zkservers=2) as cluster,
        pymq.open(cluster.url) as mq,
        ThreadPoolExecutor(3) as pool,
    ):
        for topic in ("in", "out-0", "out-1", "out-2"):
            mq.create_topic(topic, partitions=2, replicas=3, acks="raft")
        sent = pool.submit(send, mq, is_over)
        ran: Future[dict[str, Any]] = pool.submit(in_cluster, "endure", cluster.url, tmp_path)
        try:
            until = time.monotonic() + DURATION_S
            died = kill_in_turn(cluster, tmp_path / "application", until)
        finally:
            is_over.set()
            with suppress(Exception):  # the first error is the one to report
                sent.exception(END_S)
            (tmp_path / "stop").touch()
        count, found = sent.result(), ran.result(END_S)
        sys.stdout.write(
            f"\nsent {count} records; batches {found['batches']}; died: {dict(died)}\n"
        )
        assert found["errors"] == []
        assert count > DURATION_S / SECOND_S * RECORDS / 10
        assert min(found["batches"]) > DURATION_S / 60
        assert set(died) == set(VICTIMS)
        for topic in ("out-0", "out-1", "out-2"):
            assert rest(values(mq, topic), count) == "", topic
        assert rest(committed(tmp_path / "out-3"), count) == "", "out-3"
