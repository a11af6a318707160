"""A log contains batches that no reader can decode, from before brokers refused them.

Consumers report the place, return all other records, and skip it when the application requests
that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import pymq
from pymq.client.admin.appends import append
from pymq.client.consumer.consumer import Consumer
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.columns import TIMESTAMPS, VALUES, encode_bytes, encode_numbers
from pymq.core.batch.record import EncodedBatch
from pymq.core.block import log
from pymq.core.partition import produce
from pymq.errors import CorruptBatch, CorruptBlock, InvalidRequest, PymqError
from pymq.testing import Cluster
from pymq.testing.simulation.world import WALL_MS

GOOD = [b"before0", b"before1", b"after0", b"after1"]


def batch(*values: bytes) -> EncodedBatch:
    made = EncodedBatch.encode(values, timestamp_ms=WALL_MS)
    return EncodedBatch(bytes(made.head), bytes(made.body), made.header)


def count_lie() -> EncodedBatch:
    one = batch(b"x")
    made = EncodedBatch.sealed(one.header._replace(count=5, span=5), one.body)
    return EncodedBatch(bytes(made.head), bytes(made.body), made.header)


def wrong_body() -> EncodedBatch:
    made = batch(*[b"x"] * 5)
    return EncodedBatch(made.head, bytes(made.body[:-1]) + b"y", made.header)


def wrong_times() -> EncodedBatch:
    """A batch whose CRC is valid, with three records and only one time."""
    encoded = {VALUES: encode_bytes([b"x"] * 3), TIMESTAMPS: encode_numbers([0])}
    return EncodedBatch.of_columns(3, encoded, WALL_MS + 5_000, WALL_MS + 5_000)


def put(mq: pymq.Client, *batches: EncodedBatch, partition: str = "0") -> None:
    for each in batches:
        append(mq.questions, mq.questions.topic_metadata("t"), {partition: each}, 10.0)


@pytest.fixture(params=[count_lie, wrong_body])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Offsets 2 to 6 of partition 0 are a batch that consumers cannot decode."""
    with Cluster(brokers=1, seed=5) as made:
        mq = made.client()
        mq.create_topic("t", partitions=2)
        put(mq, batch(GOOD[0]), batch(GOOD[1]))
        with monkeypatch.context() as earlier:
            earlier.setattr(produce, "check", lambda batch: None)
            put(mq, request.param())
        put(mq, batch(GOOD[2]), batch(GOOD[3]))
        put(mq, batch(b"other"), partition="1")
        yield made


Get = Callable[[Consumer], list[bytes]]


def polled(consumer: Consumer) -> list[bytes]:
    found = consumer.poll(timeout=1.0)
    if consumer.group:
        consumer.ack(found)
    return [record.value for record in found]


def polled_in_batches(consumer: Consumer) -> list[bytes]:
    views = consumer.poll_batches(timeout=1.0)
    if consumer.group:
        for view in views:
            consumer.ack(view)
    return [value for view in views for value in view.values]


def iterated(consumer: Consumer) -> list[bytes]:
    for record in consumer:
        if consumer.group:
            consumer.ack(record)
        return [record.value]
    raise AssertionError("it does not end")


WAYS: dict[str, Get] = {"poll": polled, "poll_batches": polled_in_batches, "iterate": iterated}
OPTIONS: dict[str, dict[str, object]] = {
    "reader": {"mode": "psb", "offset": "begin"},
    "group": {"group": "g"},
}


def collect(consumer: Consumer, get: Get, polls: int) -> tuple[list[bytes], list[PymqError]]:
    got: list[bytes] = []
    errors: list[PymqError] = []
    for _ in range(polls):
        try:
            got += get(consumer)
        except (CorruptBatch, CorruptBlock) as error:
            errors.append(error)
    return got, errors


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", OPTIONS)
def test_its_place_is_named_and_nothing_is_skipped(cluster: Cluster, way: str, kind: str) -> None:
    mq = cluster.client()
    with mq.consumer("t", **OPTIONS[kind]) as consumer:  # type: ignore[arg-type] # of a table
        got, errors = collect(consumer, WAYS[way], 12)
        assert errors
        assert sorted(got) == [*GOOD[:2], b"other"], "of other partitions everything is handed out"
        for error in errors:
            assert error.details["partition"] == "0"
            assert (error.details["offset"], error.details["end"]) == (2, 7)
            assert "t/0, offsets 2 to 7 cannot be read" in str(error)
        if kind == "reader":
            assert consumer.position("0") == 2
        consumer.skip(errors[-1])
        got, errors = collect(consumer, WAYS[way], 2 if way == "iterate" else 4)
        assert (got, errors) == (GOOD[2:], [])
        if kind == "group":
            consumer.commit()
            assert consumer.committed() == {"0": 9, "1": 1}


def test_a_member_that_gives_up_leaves_it_to_the_next(cluster: Cluster) -> None:
    mq = cluster.client()
    for _ in range(2):
        with mq.consumer("t", group="g") as consumer:
            _, errors = collect(consumer, polled, 8)
            assert errors
    with mq.consumer("t", group="g") as consumer:
        _, errors = collect(consumer, polled, 4)
        assert errors
        consumer.skip(errors[0])
        got, errors = collect(consumer, polled, 4)
        assert (got, errors) == (GOOD[2:], [])


def test_its_place_is_told_to_the_dead_letter_topic(cluster: Cluster) -> None:
    mq = cluster.client()
    with mq.consumer("t", group="g", dead_letter="t.dead") as consumer:
        _, errors = collect(consumer, polled, 4)
        consumer.skip(errors[0])
        assert collect(consumer, polled, 4)[1] == []
    with mq.consumer("t.dead", mode="psb", offset="begin") as consumer:
        (letter,) = consumer.until_end()
    told = dict(letter.headers)
    assert (told["pymq.topic"], told["pymq.partition"]) == (b"t", b"0")
    assert (told["pymq.offset"], told["pymq.end_offset"]) == (b"2", b"7")
    assert told["pymq.error"]


def test_until_end_ends_with_the_error(cluster: Cluster) -> None:
    mq = cluster.client()
    with mq.consumer("t", mode="psb", offset="begin") as consumer:
        got: list[bytes] = []
        with pytest.raises((CorruptBatch, CorruptBlock)) as met:
            got += [record.value for record in consumer.until_end()]
        assert met.value.details["offset"] == 2
        consumer.skip(met.value)
        assert GOOD[3] in [record.value for record in consumer.until_end()]


def test_what_names_no_place_cannot_be_gone_past(cluster: Cluster) -> None:
    mq = cluster.client()
    with mq.consumer("t", mode="psb") as consumer, pytest.raises(InvalidRequest):
        consumer.skip(CorruptBatch("somewhere"))


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_time_inside_a_batch_that_came_so_is_no_disk_error(
    brokers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the batch, no replica is taken offline, and searches in other partitions and
    for other times succeed.
    """
    with Cluster(brokers=brokers, seed=5) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=2, replicas=brokers, acks="raft")
        put(mq, batch(GOOD[0]), batch(GOOD[1]))
        with monkeypatch.context() as earlier:
            earlier.setattr(produce, "check", lambda batch: None)
            earlier.setattr(produce, "check_produced", lambda batch, latest_ms: None)
            put(mq, wrong_times())
        late = EncodedBatch.encode([b"late"], timestamp_ms=WALL_MS + 9_000)
        put(mq, late)
        put(mq, late, partition="1")
        with mq.consumer("t", mode="psb") as consumer:
            with pytest.raises(CorruptBatch, match=r"t/0: the times in the batch \[2, 5\)") as met:
                consumer.offset_at("0", WALL_MS + 4_000)
            assert (met.value.details["offset"], met.value.details["end"]) == (2, 5)
            assert met.value.details["partition"] == "0"
            with pytest.raises(CorruptBatch, match="t/0"):
                consumer.seek_to_time("0", WALL_MS + 4_000)
            assert consumer.offset_at("0", WALL_MS) == 0
            assert consumer.offset_at("0", WALL_MS + 6_000) == 5
            assert consumer.offset_at("1", WALL_MS + 4_000) == 0
        cluster.run(seconds=3)
        found = mq.describe_topic("t").partitions
        assert not any(partition.offline for partition in found)
        put(mq, batch(b"more"))


def restamped(data: bytes, durable: int) -> list[EncodedBatch]:
    """Stamp the batch as a follower did that checked only headers."""
    return [each.stamp(each.base_offset, each.header.leader_epoch, 0) for each in split(data)]


@pytest.mark.parametrize("kind", OPTIONS)
def test_what_every_copy_has_wrong_was_so_when_it_came(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If every copy has the same bytes, no disk is at fault, and another copy does not help."""
    with Cluster(brokers=3, seed=5) as cluster:
        mq = cluster.client()
        mq.create_topic("t", partitions=1, replicas=3, acks="raft")
        put(mq, batch(GOOD[0]), batch(GOOD[1]))
        with monkeypatch.context() as earlier:
            earlier.setattr(produce, "check", lambda batch: None)
            earlier.setattr(log, "restamp", restamped)
            put(mq, wrong_body())
            cluster.run(seconds=2)
        put(mq, batch(GOOD[2]), batch(GOOD[3]))
        with mq.consumer("t", **OPTIONS[kind]) as consumer:  # type: ignore[arg-type] # of a table
            got, errors = collect(consumer, polled, 6)
            assert got == GOOD[:2]
            assert {type(error) for error in errors} == {CorruptBatch}
            assert "the producer sent a damaged batch" in str(errors[0])
            assert (errors[0].details["offset"], errors[0].details["end"]) == (2, 7)
            consumer.skip(errors[0])
            got, errors = collect(consumer, polled, 4)
            assert (got, errors) == (GOOD[2:], [])
