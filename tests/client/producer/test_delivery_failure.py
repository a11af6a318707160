"""The error of a record that timed out: its reason, and whether the record was written."""

from __future__ import annotations

import pytest

import pymq
from pymq.client.option_types import Acks
from pymq.core.message import Produce, Produced
from pymq.errors import (
    DeliveryTimeout,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    PymqError,
    ReplicaNotAvailable,
    is_not_written,
    not_written,
)
from pymq.testing import Cluster
from tests.client.producer.test_sender import Bench

TIMEOUT_MS = 120_000


class Waiting(Bench):
    """A sender whose batches are refused or not answered until they time out."""

    def refuse(self, produce: Produce, error: PymqError, now: int) -> list[Produce]:
        self.sender.step("broker", Produced(produce.id, error=error), now)
        self.sender.tick(now + 300)
        return self.left(now + 300)

    def timeouts(self, now: int = TIMEOUT_MS) -> list[DeliveryTimeout]:
        waiting = [*self.queue.in_flight, *self.queue.sealed]
        self.sender.tick(now)
        found = [batch.error for batch in waiting]
        assert all(isinstance(error, DeliveryTimeout) for error in found)
        return [error for error in found if isinstance(error, DeliveryTimeout)]


def test_what_was_refused_each_time_was_not_written() -> None:
    bench = Waiting()
    (sent,) = bench.send(b"1", 0)
    for turn in range(3):
        error = not_written(NotEnoughReplicas("t/0 has fewer than 2 replicas in sync"))
        (sent,) = bench.refuse(sent, error, turn * 1_000)
    bench.sender.step("broker", Produced(sent.id, error=error), TIMEOUT_MS - 1)
    bench.queue.retry_at = 2 * TIMEOUT_MS
    (told,) = bench.timeouts()
    assert not told.may_be_written
    assert told.details["reason"] == "NOT_ENOUGH_REPLICAS"
    assert "broker: t/0 has fewer than 2 replicas in sync" in str(told)


@pytest.mark.parametrize("certain", [True, False])
def test_a_refusal_says_whether_the_record_was_written(certain: bool) -> None:
    """If a leader has resigned, its refusal says that the record may have been written."""
    bench = Waiting()
    (sent,) = bench.send(b"1", 0)
    error: PymqError = ReplicaNotAvailable("its disk fails")
    bench.sender.step(
        "broker", Produced(sent.id, error=not_written(error) if certain else error), 1
    )
    bench.queue.retry_at = 2 * TIMEOUT_MS
    (told,) = bench.timeouts()
    assert told.may_be_written is not certain
    assert ("was not written" in str(told)) is certain
    assert told.details["reason"] == "REPLICA_NOT_AVAILABLE"


def test_what_was_not_answered_may_have_been_written_whatever_comes_then() -> None:
    bench = Waiting()
    (first,) = bench.send(b"1", 0)
    bench.sender.tick(2_000)
    (again,) = bench.left(2_000)
    assert first.id != again.id
    bench.sender.step("broker", Produced(again.id, error=not_written(NotLeader("no"))), 2_100)
    bench.queue.retry_at = 2 * TIMEOUT_MS
    (told,) = bench.timeouts()
    assert told.may_be_written
    assert told.details["reason"] == "NOT_LEADER"


def test_a_refusal_that_comes_late_counts() -> None:
    """After a refusal of the first batch all batches are sent again, before the others are
    answered.
    """
    bench = Waiting()
    sent = bench.send(b"1", 0) + bench.send(b"2", 0)
    error = not_written(NotLeader("t/0 has no leader now"))
    for produce in sent:
        bench.sender.step("broker", Produced(produce.id, error=error), 1)
    bench.queue.retry_at = 2 * TIMEOUT_MS
    first, second = bench.timeouts()
    assert not first.may_be_written
    assert not second.may_be_written
    assert not bench.sender._in_flight.given_up


def test_what_is_answered_at_last_leaves_nothing_behind() -> None:
    bench = Waiting()
    bench.send(b"1", 0)
    bench.sender.tick(2_000)
    (again,) = bench.left(2_000)
    bench.answer(again, 2_100)
    assert not bench.sender._in_flight.given_up
    assert bench.queue.trouble is None


def test_who_does_not_answer_is_named() -> None:
    bench = Waiting()
    bench.send(b"1", 0)
    (told,) = bench.timeouts()
    assert told.may_be_written
    assert told.details["reason"] == "REQUEST_TIMEOUT"
    assert "broker did not answer" in str(told)


def test_a_lost_connection_is_named() -> None:
    bench = Waiting()
    bench.send(b"1", 0)
    bench.router.lost("broker", True, 1)
    (told,) = bench.timeouts()
    assert told.details["reason"] == "DISCONNECTED"


def test_an_older_broker_is_taken_at_its_word_where_that_is_certain() -> None:
    assert is_not_written(NotEnoughReplicas("x"))
    assert not is_not_written(NotLeader("x"))
    assert is_not_written(not_written(OutOfOrderSequence("x", expected=3)))
    assert not_written(OutOfOrderSequence("x", expected=3)).details["expected"] == 3


def failing(mq: pymq.Client, acks: Acks | None = None) -> DeliveryTimeout:
    with mq.producer(acks=acks, delivery_timeout_s=4) as producer:
        found = producer.send("t", b"x").exception(timeout=20)
    assert isinstance(found, DeliveryTimeout)
    return found


def test_too_few_in_sync_are_the_reason_and_nothing_is_written() -> None:
    with Cluster(brokers=3, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, min_in_sync=2)
        for name in mq.describe_topic("t").partitions[0].replicas[1:]:
            cluster.crash(name)
        cluster.run(seconds=15)
        told = failing(mq, "raft")
        assert not told.may_be_written
        assert told.details["reason"] == "NOT_ENOUGH_REPLICAS"
        assert mq.describe_topic("t").partitions[0].end_offset == 0


def test_without_a_leader_nothing_is_sent() -> None:
    with Cluster(brokers=3, seed=2) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=1, acks="leader")
        (leader,) = mq.describe_topic("t").partitions[0].replicas
        cluster.crash(leader)
        cluster.run(seconds=15)
        told = failing(mq)
        assert not told.may_be_written, str(told)
        assert told.details["reason"] == "NOT_LEADER"
        assert "none was elected yet" in str(told)


def test_a_leader_without_its_majority_may_have_written_it() -> None:
    with Cluster(brokers=3, seed=3) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        with mq.producer() as producer:
            producer.send("t", b"before").result(20)
        leader = mq.describe_topic("t").partitions[0].leader
        for name in {*cluster.brokers} - {leader}:
            cluster.crash(name)
        told = failing(mq)
        assert told.may_be_written, str(told)
        assert "may have been written" in str(told)
