"""Work queues of the public client under faults: redrives, cancelled delays, routes, requests.

Three brokers and two zkservers crash, pause and are cut off, as the seed decides, while one client
after the other does its work. Each test records the answers that it gets, and compares them with
the log once the faults have ended. The checkers of the simulator watch as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any, TypeVar

import pytest

import pymq
from pymq.client.admin import owned_topic
from pymq.client.admin.appends import append
from pymq.client.redrive import redrive as redrive_module
from pymq.client.rpc.responder import Responder
from pymq.errors import PymqError, RequestTimeout
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
def shaken(seed: int, *, knobs: dict[str, Any] | None = None) -> Iterator[Cluster]:
    """A cluster under faults."""
    faults = Faults(tuple(k for k in KINDS if Random(f"{seed} {k}").random() < 0.5), FAULTS_S)
    with Cluster(3, 2, seed=seed, faults=faults, **(knobs or {})) as cluster:
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


def send(producer: pymq.Producer, name: str, value: bytes, **options: Any) -> pymq.RecordMetadata:
    """Send a record that is written once, for certain."""
    return producer.send(name, value, **options).result(PATIENCE_S)


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


# --- dead letters -------------------------------------------------------------------------------


class Dead(BaseException):
    """A process dies here."""


@pytest.mark.parametrize("seed", SEEDS)
def test_each_letter_goes_back_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that redrive die one after the other, between any two of their appends."""
    rng = Random(seed)
    left = 0  # appends until the process dies

    def dying(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and rng.random() < 0.5:
            raise Dead
        found = append(*arguments, **options)
        if left <= 0:
            raise Dead
        return found

    monkeypatch.setattr(redrive_module, "ROUND", rng.choice([1, 4, 500]))
    with shaken(seed) as cluster:
        mq = cluster.client()
        topic(cluster, mq, "t")
        topic(cluster, mq, "t.dlq")
        with mq.producer(delivery_timeout_s=PATIENCE_S) as producer:
            for number in range(30):
                headers = [("pymq.topic", b"t"), ("pymq.partition", b"%d" % (number % 2))]
                send(producer, "t.dlq", b"%d" % number, headers=headers, partition=number % 2)
        with pytest.MonkeyPatch.context() as patch:
            for module in (redrive_module, owned_topic):
                patch.setattr(module, "append", dying)
            for process in range(8):
                left = rng.randrange(1, 12)
                name = f"redriver-{process}"
                try:
                    cluster.client(name).redrive("t.dlq", limit=rng.choice([None, 3, 20]))
                except (Dead, PymqError):
                    cluster.crash(name)
                cluster.run(rng.random() * 4)
        end_of_faults(cluster)
        last = cluster.client()
        until_done(cluster, lambda: last.redrive("t.dlq"))
        assert last.redrive("t.dlq").count == 0
        with last.consumer("t", mode="reader") as reader:
            found = sorted(int(record.value) for record in reader.until_end())
        assert found == list(range(30))


# --- delays that are cancelled ------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cancelled_record_is_not_delivered_and_no_other_is_lost(seed: int) -> None:
    rng = Random(seed)
    with shaken(seed) as cluster:
        mq = cluster.client()
        topic(cluster, mq, "t")
        sent = dict[int, pymq.RecordMetadata]()
        cancelled, told_late = set[int](), set[int]()
        with mq.producer(delivery_timeout_s=PATIENCE_S, linger_ms=0) as producer:
            for number in range(40):
                delay = rng.choice([0.5, 3.0, 15.0])
                sent[number] = send(producer, "t", b"%d" % number, delay_s=delay)
                if rng.random() < 0.6:
                    other = rng.choice(list(sent))
                    at = sent[other]
                    is_cancelled = until_done(
                        cluster, partial(mq.cancel, "t", at.partition, at.offset)
                    )
                    (cancelled if is_cancelled else told_late).add(other)
                cluster.run(rng.random())
        assert not cancelled & told_late
        end_of_faults(cluster)
        cluster.run(20)
        places = defaultdict[int, set[tuple[str, int]]](set)
        for record in drained(cluster, mq, "g", "t"):
            places[int(record.value)].add((record.partition, record.offset))
        assert places.keys() == sent.keys() - cancelled
        assert all(len(copies) == 1 for copies in places.values())


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


# --- routes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_record_goes_one_way_while_its_route_changes(seed: int) -> None:
    rng = Random(seed)
    routes = ["canary:0%", "canary:30%", "canary:100%", "canary:key=k1*", "canary:header.a=b"]
    with shaken(seed) as cluster:
        mq = cluster.client()
        topic(cluster, mq, "t", route="canary:20%")
        sent = set[bytes]()
        with mq.producer(delivery_timeout_s=PATIENCE_S) as producer:
            for first in range(0, 100, 10):
                for number in range(first, first + 10):
                    key = rng.choice([None, b"k%d" % rng.randrange(3)])
                    headers = [("a", rng.choice([b"b", b"c"]))]
                    producer.send("t", b"%d" % number, key=key, headers=headers)
                    sent.add(b"%d" % number)
                route = rng.choice(routes)
                until_done(cluster, partial(mq.alter_topic, "t", route=route))
                cluster.run(rng.random() * 5)
            producer.flush(PATIENCE_S)
        end_of_faults(cluster)
        ways = {
            group: {record.value for record in drained(cluster, cluster.client(), group, "t")}
            for group in ("canary", "workers", "others")
        }
        assert not ways["canary"] & ways["workers"]
        assert ways["canary"] | ways["workers"] == sent
        assert ways["workers"] == ways["others"]


# --- requests -----------------------------------------------------------------------------------


def upper(request: pymq.Request) -> bytes:
    return request.value.upper()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reply_is_that_of_its_request(seed: int) -> None:
    """Responders die, and their place is taken. A reply is right, or none comes in time."""
    rng = Random(seed)
    with shaken(seed) as cluster:
        asking = [cluster.client() for _ in range(2)]
        topic(cluster, asking[0], "upper")

        def begin(number: int) -> Responder:
            client = cluster.client(f"responder-{number}")
            return until_done(
                cluster, lambda: Responder(client, "upper", upper, 1, {"session_timeout_s": 2.0})
            )

        def serve() -> None:
            try:
                responders[-1].serve(0.05)
            except PymqError:
                cluster.run(0.05)

        responders, answered, late = [begin(0)], 0, 0
        for round_ in range(40):
            if round_ == 30:
                end_of_faults(cluster)
            elif rng.random() < 0.15:
                cluster.crash(f"responder-{len(responders) - 1}")
                responders.append(begin(len(responders)))
            value = b"v%d" % round_
            requester = rng.choice(asking)._requests()
            try:
                id, pending, until = requester.submit("upper", value, None, None, 8.0)
            except PymqError:
                assert round_ < 30
                serve()
                continue
            while pending.reply is None and cluster.now < until:
                serve()
                try:
                    requester.read(pending, 0.05)
                except PymqError:
                    cluster.run(0.05)
            try:
                assert requester.wait("upper", id, pending, until).value == value.upper()
                answered += 1
            except RequestTimeout:
                assert round_ < 30
                late += 1
        assert answered >= 10
        assert late < 20


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
