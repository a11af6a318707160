"""Work queues of the public client under faults: times of day, and a backlog with priorities.

Three brokers and two zkservers crash, pause and are cut off, as the seed decides, while one client
after the other does its work. The checkers of the simulator watch as well. Redrives, cancellations,
routes and requests are operations of plans (:mod:`pymq.testing.faults.queue_operations`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar

import pytest

import pymq
from pymq.errors import PymqError
from pymq.testing import Cluster, Faults
from pymq.testing.simulation.world import WALL_MS
from tests.seeds import seeds

T = TypeVar("T")

KINDS = (
    *("crash", "boundary", "crash_zk", "pause", "isolate", "cut", "one_way", "reset"),
    *("slow_link", "slow_disk", "expire", "late"),
)
FAULTS_S = 30.0  # so long faults begin
SEEDS = seeds(2, 150)
PATIENCE_S = 120.0  # virtual seconds in which a call must succeed, with repetitions


@contextmanager
def shaken(seed: int) -> Iterator[Cluster]:
    """A cluster under faults."""
    faults = Faults(tuple(k for k in KINDS if Random(f"{seed} {k}").random() < 0.5), FAULTS_S)
    with Cluster(3, 2, seed=seed, faults=faults) as cluster:
        yield cluster


def until_done(cluster: Cluster, call: Callable[[], T]) -> T:
    """Repeat a call that faults let fail."""
    until = cluster.now + PATIENCE_S
    while True:
        try:
            return call()
        except PymqError:
            if cluster.now > until:
                raise
            cluster.run(0.2)


def end_of_faults(cluster: Cluster) -> None:
    """End all faults, and let the cluster settle."""
    cluster.run(max(0.0, FAULTS_S - cluster.now))
    cluster.calm()
    cluster.run(10)


def topic(cluster: Cluster, mq: pymq.Client, name: str, partitions: int = 2, **config: Any) -> None:
    """Create a topic that survives the loss of a minority of the brokers."""
    until_done(
        cluster, lambda: mq.create_topic(name, partitions, 3, acks="raft", exist_ok=True, **config)
    )


def drained(cluster: Cluster, mq: pymq.Client, group: str, name: str) -> list[pymq.Record]:
    """Consume and acknowledge all records that a group has left."""
    found = list[pymq.Record]()
    with mq.consumer(name, group=group) as consumer:
        while True:
            records = consumer.poll(timeout=1)
            found += records
            consumer.ack(records)
            until_done(cluster, consumer.commit)
            if not records and not sum(mq.describe_group(group).lag.values()):
                return found


# --- times of day ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_comes_early_or_after_its_end(seed: int) -> None:
    """With the public client: the times of day that a program has given."""
    rng = Random(seed)

    def now() -> datetime:
        ms = WALL_MS + cluster.world.now / 1000
        return datetime.fromtimestamp(ms / 1000, UTC)

    with shaken(seed) as cluster:
        mq = cluster.client()
        topic(cluster, mq, "t")
        due, ends, seen = dict[int, datetime](), dict[int, datetime](), set[int]()
        with (
            mq.producer(delivery_timeout_s=PATIENCE_S, linger_ms=0) as producer,
            mq.consumer("t", group="g") as consumer,
        ):
            for number in range(60):
                due[number] = now() + timedelta(seconds=rng.choice([0.0, 0.5, 5.0]))
                lasts_s = rng.choice([0.1, 2.0, 600.0])
                ends[number] = due[number] + timedelta(seconds=lasts_s)
                when = due[number] if due[number] > now() else None
                producer.send("t", b"%d" % number, deliver_at=when, expires_s=lasts_s)
                for record in until_done(cluster, lambda: consumer.poll(10, rng.random())):
                    seen.add(int(record.value))
                    slack = timedelta(milliseconds=2)
                    assert due[int(record.value)] <= now() + slack
                    assert now() <= ends[int(record.value)] + slack
                    consumer.ack(record)
            end_of_faults(cluster)
            producer.flush()
            seen |= {int(record.value) for record in drained(cluster, mq, "h", "t")}
        assert {number for number, end in ends.items() if end > now()} <= seen


# --- priorities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_what_waits_goes_by_its_priority(seed: int) -> None:
    """Brokers fail while the backlog is written, and a group finds it in order."""
    rng = Random(seed)
    with shaken(seed) as cluster:
        mq = cluster.client()
        topic(cluster, mq, "t", 1)
        levels = [rng.choice([0, 0, 1, 9]) for _ in range(80)]
        with mq.producer(delivery_timeout_s=PATIENCE_S, linger_ms=0) as producer:
            for number, level in enumerate(levels):
                producer.send("t", b"%d" % number, priority=level)
                cluster.run(rng.random() * 0.5)
            producer.flush(PATIENCE_S)
        end_of_faults(cluster)
        found = list[int]()
        with mq.consumer("t", group="g", prefetch=1) as consumer:
            while len(found) < 80:
                (record,) = consumer.poll(1, 30)
                found.append(int(record.value))
                consumer.ack(record)
        assert sorted(found) == list(range(80))
        assert [levels[n] for n in found] == sorted(levels, reverse=True)
