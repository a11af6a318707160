"""All kinds of consumers over sockets, while brokers die and partitions move."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pymq
from tests.nodes.processes import processes

COUNT = 400
WAIT_S = 60.0


class Seen:
    """The records of one consumer; *is_all* is set once the consumer has all of them."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.is_all = threading.Event()
        self._missing = set(range(COUNT))

    def take(self, record: pymq.Record) -> None:
        number = int(record.value)
        self.numbers.append(number)
        self._missing.discard(number)
        if not self._missing:
            self.is_all.set()


def pull(mq: pymq.Client, seen: Seen, **options: Any) -> Callable[[], None]:
    """Consume in a thread; returns the function that ends it."""
    consumer = mq.consumer("t", **options)

    def work() -> None:
        while not seen.is_all.is_set():
            for record in consumer.poll(timeout=0.2):
                seen.take(record)
                if options["mode"] == "ptp":
                    consumer.ack(record)

    thread = threading.Thread(target=work)
    thread.start()

    def end() -> None:
        seen.is_all.set()
        thread.join()
        consumer.close()

    return end


def push(mq: pymq.Client, seen: Seen, **options: Any) -> Callable[[], None]:
    """Consume by ``on_record``; returns the function that ends it."""
    if options["mode"] == "ptp":
        options["auto_ack"] = True
    return mq.consumer("t", delivery="push", on_record=seen.take, **options).close


@pytest.mark.timeout(240)
def test_every_kind_of_consumer_goes_on_through_deaths_and_moves(tmp_path: Path) -> None:
    """The leader dies and returns, the partition moves, and blocks are small all the time."""
    with processes(tmp_path, brokers=4) as cluster, ExitStack() as stack:
        mq = stack.enter_context(pymq.open(cluster.url))
        mq.create_topic("t", replicas=3, acks="raft", block_bytes=4096)
        seen: dict[tuple[str, str], Seen] = {}
        for mode in ("ptp", "psb"):
            for name, begin in (("pull", pull), ("push", push)):
                found = seen[mode, name] = Seen()
                own = {"group": name} if mode == "ptp" else {"offset": "begin"}
                stack.callback(begin(mq, found, mode=mode, **own))
        victim = ""
        with mq.producer(linger_ms=0) as producer:
            for number in range(COUNT):
                producer.send("t", b"%0100d" % number).result(WAIT_S)
                if number == COUNT // 4:
                    victim = mq.describe_topic("t").partitions[0].leader or ""
                    cluster.nodes[victim].kill()
                elif number == COUNT // 2:
                    cluster.nodes[victim].start()
                    cluster.nodes[victim].wait_ready()
                elif number == COUNT * 3 // 4:
                    old = mq.describe_topic("t").partitions[0].replicas
                    new = [name for name in cluster.brokers if name not in old]
                    mq.reassign("t", 0, replicas=[*new, *old[:2]])
        until = time.monotonic() + WAIT_S
        for kind, found in seen.items():
            assert found.is_all.wait(until - time.monotonic()), (kind, len(set(found.numbers)))
        for name in ("pull", "push"):
            assert seen["psb", name].numbers == list(range(COUNT)), name
        assert len(mq.describe_topic("t").partitions[0].blocks) > 5
