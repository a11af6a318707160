"""A broker's copies between its own partitions: each batch is copied once and completely, a few at
a time.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import attrs
import pytest

import pymq
from pymq.broker.batch_copies import (
    COPIES,
    COPIES_MAX,
    PIECES_MAX,
    READS,
    UNSAFE_BYTES,
    BatchCopies,
)
from pymq.client.admin.appends import append
from pymq.core import message as msg
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Copied, Copy, Fetch, Fetched, Message, Piece, Produce, Produced
from pymq.core.partition.partition import Partition
from pymq.core.pending.fetch_limits import Boundless
from pymq.core.types import NEVER, OFFSETS_TOPIC, AckMode
from pymq.errors import (
    CorruptBatch,
    InvalidRequest,
    NotLeader,
    OutOfOrderSequence,
    ProducerFenced,
    PymqError,
    ReplicaNotAvailable,
)
from pymq.testing import Cluster

COPY = Copy(1, "t", "0", AckMode.RAFT, 7, 0, 0, "o", (Piece("0", 0, 2), Piece("0", 2, 1)))


def batch(*values: bytes) -> EncodedBatch:
    return EncodedBatch.encode(values, timestamp_ms=5)


def put(mq: pymq.Client, partition: str, *batches: EncodedBatch) -> None:
    for each in batches:
        append(mq.questions, mq.questions.topic_metadata("o"), {partition: each}, 10.0)


def ask(mq: pymq.Client, copy: Copy) -> Copied:
    make = partial(_numbered, copy)
    return cast(Copied, mq.questions.ask_leader(copy.topic, copy.partition, make))


def _numbered(copy: Copy, request: int) -> Message:
    return attrs.evolve(copy, id=request)


def values(mq: pymq.Client, topic: str) -> list[bytes]:
    with mq.consumer(topic, mode="psb") as consumer:
        return [record.value for record in consumer.until_end()]


# --- in a cluster -------------------------------------------------------------------------------


def test_batches_are_copied_once_under_the_numbers_that_were_asked_for() -> None:
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("o", partitions=2)
        mq.create_topic("t", partitions=1)
        put(mq, "0", batch(b"a", b"b"), batch(b"c"))
        put(mq, "1", batch(b"d"))
        pieces = (*COPY.pieces, Piece("1", 0, 1))
        copy = attrs.evolve(COPY, pieces=pieces, base_sequence=0, producer_epoch=3)
        assert attrs.evolve(ask(mq, copy), id=0, size=0) == Copied(0, 4)
        assert values(mq, "t") == [b"a", b"b", b"c", b"d"]
        ask(mq, copy)
        assert values(mq, "t") == [b"a", b"b", b"c", b"d"]
        more = attrs.evolve(copy, pieces=pieces[2:], base_sequence=4)
        assert ask(mq, more).records == 1
        assert values(mq, "t") == [b"a", b"b", b"c", b"d", b"d"]
        with pytest.raises(OutOfOrderSequence):
            ask(mq, attrs.evolve(more, base_sequence=9))
        with pytest.raises(ProducerFenced):
            ask(mq, attrs.evolve(more, base_sequence=5, producer_epoch=2))
        assert len(values(mq, "t")) == 5


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ((Piece("0", 0, 3),), "has no batch of 3 records at offset 0"),
        ((Piece("0", 1, 1),), "has no batch of 1 record at offset 1"),
        ((Piece("0", 0, 0),), "a piece of a copy must have an offset, and records"),
        ((Piece("0", -1, 1),), "a piece of a copy must have an offset, and records"),
        ((Piece("0", 0, 1),) * (PIECES_MAX + 1), f"at most {PIECES_MAX} pieces"),
    ],
)
def test_what_is_not_there_is_not_copied(pieces: tuple[Piece, ...], why: str) -> None:
    with Cluster(brokers=1, seed=1) as cluster:
        mq = cluster.client()
        mq.create_topic("o", partitions=1)
        mq.create_topic("t", partitions=1)
        put(mq, "0", batch(b"a", b"b"), batch(b"c"))
        with pytest.raises(InvalidRequest, match=why):
            ask(mq, attrs.evolve(COPY, pieces=pieces))
        assert values(mq, "t") == []


def test_only_what_the_same_broker_leads_is_copied() -> None:
    """A broker that leads only one of the two partitions names it, so that the client need not ask
    another broker.
    """
    with Cluster(brokers=3, seed=2) as cluster:
        mq = cluster.client()
        mq.create_topic("o", partitions=3, replicas=3, acks="raft")
        mq.create_topic("t", partitions=3, replicas=3, acks="raft")
        leaders = {
            topic: {each.name: each.leader for each in mq.describe_topic(topic).partitions}
            for topic in "ot"
        }
        for partition in leaders["o"]:
            put(mq, partition, batch(b"x"))
        mq.questions.topic_metadata("t")
        met = set()
        for partition, leader in leaders["t"].items():
            for origin, other in leaders["o"].items():
                copy = attrs.evolve(COPY, partition=partition, pieces=(Piece(origin, 0, 1),))
                met.add(leader == other)
                call = mq.questions.begin("t", partition, partial(_numbered, copy))
                assert call is not None
                answer = mq.questions.end(call)
                if leader == other:
                    assert isinstance(answer, Copied)
                else:
                    assert isinstance(call.error, ReplicaNotAvailable)
                    assert f"does not lead o/{origin}" in str(call.error)
        assert met == {True, False}


# --- one broker's -------------------------------------------------------------------------------


class Here:
    """A partition that this broker leads."""

    leads = True


class Purse(Boundless):
    """A quota of bytes."""

    wait = 0
    written = 0

    def write_wait_ms(self, account: str) -> int:
        return self.wait

    def wrote(self, account: str, size: int) -> None:
        self.written += size


class Host:
    """A host that records a copy's requests, for the test to answer."""

    me = "b0"

    def __init__(self) -> None:
        self.outbox = Purse()
        self.copies = BatchCopies(self)
        self.asked: list[Produce | Fetch] = []
        self.answers: list[tuple[str, Copied]] = []
        self.refusal: PymqError | None = None  # raised at once by each append

    def hosted(self, topic: str, partition: str) -> Partition | None:
        return cast(Partition, Here()) if topic in ("t", OFFSETS_TOPIC) else None

    def on_partition(self, source: str, m: Produce | Fetch, now: int) -> None:
        assert source == COPIES
        self.asked.append(m)
        if self.refusal is not None and isinstance(m, Produce):
            self.copies.answered(Produced(m.id, error=self.refusal), now)

    def reply(self, source: str, message: Message, now: int) -> None:
        assert isinstance(message, Copied)
        self.answers.append((source, message))

    @property
    def fetches(self) -> list[Fetch]:
        return [each for each in self.asked if isinstance(each, Fetch)]

    @property
    def produces(self) -> list[Produce]:
        return [each for each in self.asked if isinstance(each, Produce)]

    def read(self, fetch: Fetch, data: bytes = b"", error: PymqError | None = None) -> None:
        answer = Fetched(fetch.id, "o", fetch.partition, fetch.offset, 0, 99, data, error)
        self.copies.answered(answer, 0)


def stored(*values: bytes) -> bytes:
    """Return a batch at offset 0, as stored in a log."""
    one = batch(*values)
    return bytes(one.head) + bytes(one.body)


def test_some_copies_read_at_a_time() -> None:
    host = Host()
    for number in range(3 * READS):
        host.copies.begin("c", attrs.evolve(COPY, id=number, producer_id=number), 0)
    assert len(host.fetches) == READS
    host.read(host.fetches[0], error=CorruptBatch("it is damaged"))
    assert len(host.fetches) == READS + 1
    ((source, answer),) = host.answers
    assert (source, answer.id, type(answer.error)) == ("c", 0, CorruptBatch)


def test_pieces_that_lie_together_are_read_together() -> None:
    host = Host()
    pieces = (Piece("0", 4, 2), Piece("0", 6, 1), Piece("0", 8, 1), Piece("1", 9, 1))
    host.copies.begin("c", attrs.evolve(COPY, pieces=pieces), 0)
    (fetch,) = host.fetches
    assert (fetch.partition, fetch.offset, fetch.end, fetch.max_wait_ms) == ("0", 4, 7, 0)


def test_a_batch_that_is_damaged_is_not_passed_on_as_a_sound_one() -> None:
    host = Host()
    host.copies.begin("c", COPY, 0)
    data = bytearray(stored(b"a", b"b"))
    data[-1] ^= 1
    host.read(host.fetches[0], bytes(data))
    assert not host.produces
    assert isinstance(host.answers[0][1].error, CorruptBatch)


def test_a_batch_that_no_reader_could_decode_is_not_copied() -> None:
    """A batch stored before brokers refused such batches is not copied."""
    host = Host()
    host.copies.begin("c", attrs.evolve(COPY, pieces=(Piece("0", 0, 2),)), 0)
    one = batch(b"a")
    lie = EncodedBatch.sealed(one.header._replace(count=2, span=2), one.body).stamp(0, 1, 0)
    host.read(host.fetches[0], bytes(lie.head) + bytes(lie.body))
    assert not host.produces
    assert isinstance(host.answers[0][1].error, CorruptBatch)


def test_what_cannot_be_seen_yet_is_to_be_asked_for_again() -> None:
    host = Host()
    host.copies.begin("c", COPY, 0)
    host.read(host.fetches[0])
    assert isinstance(host.answers[0][1].error, ReplicaNotAvailable)


def test_much_that_is_not_safe_yet_holds_a_copy_up() -> None:
    host = Host()
    count = 20
    one = batch(bytes(1 << 20))
    # the copy reads each piece separately
    pieces = tuple(Piece(str(number), 0, 1) for number in range(count))
    host.copies.begin("c", attrs.evolve(COPY, pieces=pieces), 0)
    answered = 0
    while not host.answers:
        if len(host.fetches) > len(host.produces):
            host.read(host.fetches[-1], bytes(one.head) + bytes(one.body))
            assert (len(host.produces) - answered - 1) * one.size < UNSAFE_BYTES
        else:
            produce = host.produces[answered]
            assert produce.batch.header.base_sequence == answered
            answered += 1
            host.copies.answered(Produced(produce.id, answered), 0)
    ((_, answer),) = host.answers
    assert (answer.records, answer.error) == (count, None)
    assert answer.size == sum(each.batch.size for each in host.produces)


def test_who_asks_again_takes_its_copy_over() -> None:
    host = Host()
    host.copies.begin("c", COPY, 0)
    host.copies.begin("d", attrs.evolve(COPY, id=2), 0)
    first, second = host.fetches
    host.read(first, stored(b"a", b"b"))
    assert not host.produces
    host.read(second, error=CorruptBatch("it is damaged"))
    ((source, answer),) = host.answers
    assert (source, answer.id) == ("d", 2)


@pytest.mark.parametrize("wait", [0, 700])
def test_a_copy_that_is_asked_for_again_and_again_waits_once(wait: int) -> None:
    """If a request is repeated, its copy waits only once for other reads or a quota, and stores its
    pieces once.
    """
    host = Host()
    for number in range(READS):
        host.copies.begin("others", attrs.evolve(COPY, id=number, producer_id=number), 0)
    if wait:
        for fetch in host.fetches:
            host.read(fetch, error=CorruptBatch("it is damaged"))
    host.outbox.wait = wait
    for number in range(100):
        host.copies.begin("c", attrs.evolve(COPY, id=number, producer_id=READS), 0)
    lines = sum(len(jobs) for jobs in host.copies._line.values())
    assert lines + len(host.copies._held_up) == 1
    host.outbox.wait = 0
    host.answers.clear()
    host.read(host.fetches[0], error=CorruptBatch("it is damaged"))
    host.copies.tick(wait)
    host.read(host.fetches[-1], error=CorruptBatch("it is damaged"))
    assert ("c", 99) in [(source, answer.id) for source, answer in host.answers]


def test_an_append_that_is_refused_ends_a_copy() -> None:
    host = Host()
    host.copies.begin("c", COPY, 0)
    host.read(host.fetches[0], stored(b"a", b"b"))
    (produce,) = host.produces
    host.copies.answered(Produced(produce.id, error=NotLeader("it has moved", leader="b1")), 0)
    host.copies.answered(Produced(produce.id, 0), 0)
    ((_, answer),) = host.answers
    assert isinstance(answer.error, NotLeader)


def test_what_follows_an_append_that_is_refused_at_once_is_not_looked_at() -> None:
    host = Host()
    host.refusal = NotLeader("it has moved", leader="b1")
    host.copies.begin("c", COPY, 0)
    host.read(host.fetches[0], stored(b"a", b"b") + b"no batch")
    ((_, answer),) = host.answers
    assert answer.error is host.refusal


@pytest.mark.parametrize(
    ("copy", "error"),
    [
        (attrs.evolve(COPY, topic="u"), NotLeader),
        (attrs.evolve(COPY, topic=OFFSETS_TOPIC), InvalidRequest),
        (attrs.evolve(COPY, acks=AckMode.NONE), InvalidRequest),
        (attrs.evolve(COPY, base_sequence=-1), InvalidRequest),
        (attrs.evolve(COPY, base_sequence=(1 << 63) - 1), InvalidRequest),
        (attrs.evolve(COPY, producer_id=-1), InvalidRequest),
        (attrs.evolve(COPY, producer_epoch=-1), InvalidRequest),
    ],
)
def test_what_makes_no_sense_is_refused(copy: Copy, error: type[PymqError]) -> None:
    host = Host()
    host.copies.begin("c", copy, 0)
    assert not host.asked
    ((_, answer),) = host.answers
    assert isinstance(answer.error, error)


def test_there_are_only_so_many_copies() -> None:
    """The first principal gets at most half of the copies, and each later one half of the rest."""
    host = Host()
    for number in range(3 * COPIES_MAX):
        copy = attrs.evolve(COPY, id=number, producer_id=number)
        host.copies.begin(f"c{number * 20 // (3 * COPIES_MAX)}", copy, 0)
    assert len(host.answers) == 2 * COPIES_MAX
    assert {type(answer.error) for _, answer in host.answers} == {ReplicaNotAvailable}


def test_a_principal_has_half_of_the_copies_and_others_do_not_wait_for_all_of_its() -> None:
    host = Host()
    for number in range(COPIES_MAX):
        host.copies.begin("greedy", attrs.evolve(COPY, id=number, producer_id=number), 0)
    assert len(host.answers) == COPIES_MAX // 2
    assert {type(answer.error) for _, answer in host.answers} == {ReplicaNotAvailable}
    host.answers.clear()
    host.copies.begin("good", attrs.evolve(COPY, id=1, producer_id=1 << 20), 0)
    host.copies.begin("good", attrs.evolve(COPY, id=2, producer_id=2 << 20), 0)
    assert not host.answers
    for number in range(4):
        host.read(host.fetches[number], error=CorruptBatch("it is damaged"))
    assert [source for source, _ in host.answers[:READS]] == ["greedy"] * READS
    for number in range(READS, READS + 4):
        host.read(host.fetches[number], error=CorruptBatch("it is damaged"))
    assert [source for source, _ in host.answers].count("good") == 2, "they take turns"
    for number in range(READS + 4, COPIES_MAX // 2 + 2):
        host.read(host.fetches[number], error=CorruptBatch("it is damaged"))
    assert (host.copies._held, host.copies._jobs, host.copies._line) == ({}, {}, {})


def test_nothing_is_copied_at_once() -> None:
    host = Host()
    host.copies.begin("c", attrs.evolve(COPY, pieces=()), 0)
    assert host.answers == [("c", msg.Copied(1))]


def test_a_copy_is_paid_for_as_it_is_made() -> None:
    """A request of a few bytes may ask for gigabytes; above the quota no further data is read."""
    host = Host()
    data = stored(b"a", b"b")
    copy = attrs.evolve(COPY, pieces=(Piece("0", 0, 2),) * 3)
    host.copies.begin("client", copy, 0)
    assert len(host.fetches) == 1
    host.outbox.wait = 700
    host.read(host.fetches[0], data)
    assert len(host.produces) == 1
    assert host.outbox.written == host.produces[0].batch.size
    assert len(host.fetches) == 1
    assert host.copies.deadline == 700
    host.copies.tick(700)
    assert len(host.fetches) == 1, "the quota has no room yet"
    host.outbox.wait = 0
    host.copies.tick(1_400)
    assert len(host.fetches) == 2
    assert host.copies.deadline == NEVER
