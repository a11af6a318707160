"""Many random producers and consumers at a time: no record is lost or done twice.

Leases last longer than the test, so it is an error if a consumer gets a record which another
consumer holds. The test has no time limit, but LIMIT_S without progress is an error too.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from pathlib import Path

import pytest

import pymq
from pymq.client.option_types import Assignor

Place = tuple[str, int]
ASSIGNORS: tuple[Assignor, ...] = ("range", "ring", "sticky")
LIMIT_S = 30.0


class Ledger:
    """The state shared by all threads: leases, finished records and errors."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.lock = threading.Lock()
        self.values: dict[Place, bytes] = {}
        self.holders: dict[Place, str] = {}
        self.done: set[Place] = set()  # records whose acknowledgement is committed
        self.problems: list[str] = []
        self.is_over = threading.Event()

    def fail(self, problem: str) -> None:
        self.problems.append(problem)
        self.is_over.set()


class Shopper:
    """One thread of the group: it opens one consumer after the other, and acts at random."""

    def __init__(
        self, mq: pymq.Client, ledger: Ledger, name: str, seed: int, rule: Assignor, in_order: bool
    ) -> None:
        self.mq, self.ledger, self.name, self.rule = mq, ledger, name, rule
        self.in_order = in_order
        self.dice = random.Random(f"{seed}/{name}")
        self.held: list[pymq.Record] = []
        # the highest offset of a first delivery, by partition
        self.last: dict[str, int] = defaultdict(lambda: -1)

    def run(self) -> None:
        try:
            while not self.ledger.is_over.is_set():
                self.life()
        except BaseException as error:
            self.ledger.fail(f"{self.name}: {error!r}")

    def life(self) -> None:
        self.held.clear()
        self.last.clear()
        consumer = self.mq.consumer(
            "t",
            group="g",
            max_deliver=0,
            ack_wait_s=10 * LIMIT_S,
            assignor=self.rule,
            ordered=True if self.in_order else None,
        )
        try:
            for _ in range(self.dice.randrange(1, 40)):
                if self.ledger.is_over.is_set():
                    break
                self.poll(consumer)
                self.settle(consumer)
            if self.dice.random() < 0.5:
                self.commit(consumer, self.held)
        finally:
            # the lock is held until the event is recorded, so that the group cannot lease the
            # records to others before
            with self.ledger.lock:
                self.let_go(self.held)
            consumer.close()

    def poll(self, consumer: pymq.Consumer) -> None:
        with self.ledger.lock:
            done = set(self.ledger.done)
        records: list[pymq.Record] = []
        if not self.held and self.dice.random() < 0.2:
            # Iterate only without own records: the iteration waits for leases of others, which may
            # wait for these records.
            for record in consumer.until_end():
                records.append(record)
                if len(records) == 3 or self.dice.random() < 0.5:
                    break
        else:
            records = consumer.poll(self.dice.randrange(1, 60), self.dice.choice([0, 0.02]))
        with self.ledger.lock:
            for record in records:
                place = record.partition, record.offset
                if place in done:
                    self.ledger.fail(f"{self.name} got {place}, which was done")
                holder = self.ledger.holders.setdefault(place, self.name)
                if holder != self.name:
                    self.ledger.fail(f"{self.name} got {place}, which {holder} holds")
                if self.ledger.values.setdefault(place, record.value) != record.value:
                    self.ledger.fail(f"{place} has changed")
                if self.in_order and record.delivery_count == 1:
                    if record.offset <= self.last[record.partition]:
                        self.ledger.fail(f"{self.name} got {place} out of order")
                    self.last[record.partition] = record.offset
        self.held += records

    def settle(self, consumer: pymq.Consumer) -> None:
        self.dice.shuffle(self.held)
        cut = self.dice.randrange(len(self.held) + 1)
        chosen, self.held = self.held[:cut], self.held[cut:]
        if self.dice.random() < 0.8:
            self.commit(consumer, chosen)
            return
        with self.ledger.lock:
            self.let_go(chosen)
        consumer.nack(chosen, self.dice.choice([0, 0.01]))

    def commit(self, consumer: pymq.Consumer, records: list[pymq.Record]) -> None:
        # Record the event before the coordinator can know of it, so that the order of threads does
        # not matter.
        with self.ledger.lock:
            self.let_go(records)
        consumer.ack(records)
        consumer.commit()
        if consumer.status().unacknowledged_refused:
            self.ledger.fail(f"an acknowledgement of {self.name} was refused")
        with self.ledger.lock:
            self.ledger.done.update((r.partition, r.offset) for r in records)
            if len(self.ledger.done) == self.ledger.total:
                self.ledger.is_over.set()

    def let_go(self, records: list[pymq.Record]) -> None:
        for record in records:
            self.ledger.holders.pop((record.partition, record.offset), None)


def produce(
    mq: pymq.Client, ledger: Ledger, name: str, seed: int, partitions: int, records: int
) -> None:
    """Send numbered records to random partitions; per partition they keep their order."""
    dice = random.Random(f"{seed}/{name}")
    try:
        with mq.producer(linger_ms=dice.choice([0, 1, 5]), batch_bytes=500) as producer:
            for number in range(records):
                where = dice.randrange(partitions)
                producer.send("t", b"%s %d" % (name.encode(), number), partition=where)
                if dice.random() < 0.02:
                    producer.flush()
    except BaseException as error:
        ledger.fail(f"{name}: {error!r}")


@pytest.mark.parametrize("where", ["memory", "folder"])
@pytest.mark.parametrize("seed", range(6))
def test_a_busy_group(seed: int, where: str, tmp_path: Path) -> None:
    run("memory:" if where == "memory" else tmp_path, seed, 400)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["memory", "folder"])
@pytest.mark.parametrize("seed", range(6, 30))
def test_a_busy_group_for_long(seed: int, where: str, tmp_path: Path) -> None:
    run("memory:" if where == "memory" else tmp_path, seed, 4_000)


def run(url: str | Path, seed: int, records: int) -> None:
    dice = random.Random(seed)
    partitions, producers, consumers = (dice.randrange(1, 5) for _ in range(3))
    rule = dice.choice(ASSIGNORS)
    ledger = Ledger(producers * records)
    with pymq.open(url) as mq:
        mq.create_topic("t", partitions=partitions, block_bytes=4096)
        # Members that share a partition give back their undelivered records in any order. Records
        # without a key have an order only if the topic asks for one.
        in_order = consumers <= partitions and seed % 2 == 0
        shoppers = [Shopper(mq, ledger, f"c{n}", seed, rule, in_order) for n in range(consumers)]
        threads = [threading.Thread(target=shopper.run) for shopper in shoppers]
        threads += [
            threading.Thread(target=produce, args=(mq, ledger, f"p{n}", seed, partitions, records))
            for n in range(producers)
        ]
        for thread in threads:
            thread.start()
        before = -1
        while not ledger.is_over.wait(LIMIT_S):
            assert len(ledger.done) > before, f"{before} of {ledger.total} are done, and no more"
            before = len(ledger.done)
        for thread in threads:
            thread.join(LIMIT_S)
        assert ledger.problems == []
        with mq.consumer("t", mode="psb") as reader:
            kept = list(reader.until_end())
        check(kept, ledger, producers)
        assert sum(mq.describe_group("g").lag.values()) == 0


def check(kept: list[pymq.Record], ledger: Ledger, producers: int) -> None:
    """Check that each record is in the log once, where the group got it, and in its producer's
    order.
    """
    assert {(record.partition, record.offset): record.value for record in kept} == ledger.values
    assert len({record.value for record in kept}) == len(kept) == ledger.total
    for producer in range(producers):
        mine = [r for r in kept if r.value.startswith(b"p%d " % producer)]
        for partition in {record.partition for record in mine}:
            numbers = [int(r.value.split()[1]) for r in mine if r.partition == partition]
            assert numbers == sorted(numbers)
