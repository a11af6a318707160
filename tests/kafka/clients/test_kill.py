"""``kill -9`` of the process that serves a folder, while confluent-kafka produces.

Each acknowledged record is there once, at the offset in the acknowledgement.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pymq

ck = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

SERVER = """
import sys, threading
import pymq

with pymq.open(sys.argv[1]) as mq, mq.kafka() as kafka:
    print(kafka.bootstrap, flush=True)
    threading.Event().wait()
"""


def killed_while_producing(folder: Path, first: int, acknowledged: dict[bytes, int]) -> int:
    """Serve *folder* in another process, produce, and kill it; returns the next number."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    number = first

    def done(error: Any, message: Any) -> None:
        if error is None:
            acknowledged[message.value()] = message.offset()

    try:
        options = {
            "bootstrap.servers": server.stdout.readline().strip(),
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 1,
            "message.timeout.ms": 3_000,
            "log_level": 0,
        }
        producer = ck.Producer(options)
        enough = len(acknowledged) + 500
        until = time.monotonic() + 20
        while len(acknowledged) < enough and time.monotonic() < until:
            for _ in range(20):
                producer.produce("t", b"%d" % number, partition=0, on_delivery=done)
                number += 1
            producer.poll(0.002)
    finally:
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        server.stdout.close()
    producer.purge()
    producer.flush(3)
    assert len(acknowledged) >= enough
    return number


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, rounds: int) -> None:
    folder, number = tmp_path / "queue", 0
    acknowledged: dict[bytes, int] = {}
    for _ in range(rounds):
        number = killed_while_producing(folder, number, acknowledged)
    with pymq.open(folder) as mq, mq.consumer("t", mode="reader") as consumer:
        records = list(consumer.until_end())
    counts = Counter(record.value for record in records)
    places = {record.value: record.offset for record in records}
    assert {value for value in acknowledged if value not in counts} == set()
    assert {value for value, count in counts.items() if count > 1} == set()
    assert {value: places[value] for value in acknowledged} == acknowledged
