"""``kill -9`` of the mirror, again and again, while a client of Kafka goes on producing.

In the end the copy has each record once, in the order of its partition.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import pymq
from pymq.testing.kafka import KafkaForTests
from tests.mirror.conftest import rows, url

PARTITIONS = 3
MIRROR = """
import sys
import pymq
from pymq.mirror.start import mirror

with pymq.open(sys.argv[2]) as mq:
    made = mirror(sys.argv[1], mq, "orders", records=int(sys.argv[3]), once=len(sys.argv) > 4)
    made.run(lambda: False, lambda progress: print(progress.records, flush=True))
    made.close()
"""


def killed(source: str, folder: Path, rng: random.Random) -> int:
    """Run a mirror and kill it after some rounds; returns how many records it told of."""
    process = subprocess.Popen(
        [sys.executable, "-c", MIRROR, source, str(folder), str(rng.choice((3, 20, 100)))],
        stdout=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    assert process.stdout is not None
    try:
        count = 0
        for _ in range(rng.randrange(1, 12)):
            count = int(process.stdout.readline() or count)
        # The mirror is in the middle of some later round.
        os.kill(process.pid, signal.SIGKILL)
    finally:
        watchdog.cancel()
        process.wait()
        process.stdout.close()
    return count


@pytest.mark.parametrize("rounds", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_each_record_is_there_once(kafka: KafkaForTests, tmp_path: Path, rounds: int) -> None:
    import confluent_kafka

    kafka.mq.create_topic("orders", PARTITIONS)
    rng, is_over = random.Random(rounds), threading.Event()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap, "log_level": 0, "linger.ms": 1}
    )

    def produce() -> None:
        number = 0
        while not is_over.is_set():
            for _ in range(20):
                producer.produce("orders", b"%d" % number, partition=number % PARTITIONS)
                number += 1
            producer.poll(0.005)
        producer.flush(30)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        told = [killed(url(kafka), tmp_path / "queue", rng) for _ in range(rounds)]
    finally:
        is_over.set()
        thread.join(60)
    assert sum(told) > 0
    argv = [sys.executable, "-c", MIRROR, url(kafka), str(tmp_path / "queue"), "10000", "once"]
    subprocess.run(argv, check=True, timeout=100, stdout=subprocess.DEVNULL)
    with pymq.open(tmp_path / "queue") as mq:
        assert rows(mq, "orders") == rows(kafka.mq, "orders")
