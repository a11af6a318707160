"""A producer's promises: order, batches, back-pressure, failures, exactly once, no losses."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import pytest

import pymq
from pymq.client.base import Outbox
from pymq.client.option_types import Compression
from pymq.client.producer.delivery import Deliveries, Delivery
from pymq.client.producer.sender import Sender
from pymq.coord import paths
from pymq.coord.sqlite import SqliteCoordinator, SqliteTree
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import AlterTopic, Message, Produce, Produced
from pymq.core.metadata.coordination import Commit, Put
from pymq.core.metadata.nodes import ProducerNode, decode_node, encode_node
from pymq.errors import (
    BufferFull,
    DeliveryFailed,
    DeliveryTimeout,
    OutOfOrderSequence,
    PartitionUnset,
    ProducerFenced,
    PymqError,
    RecordTooLarge,
    UnknownTopic,
)
from tests.acceptance.helpers import contents, values
from tests.client.helpers import wait_until

LONG_MS = 600_000  # longer than any test: a batch lingers until a thread waits for it


@pytest.fixture
def mq() -> Iterator[pymq.Client]:
    with pymq.open("memory:") as found:
        found.create_topic("t", partitions=4)
        found.create_topic("one")
        yield found


def batches(mq: pymq.Client, topic: str) -> list[int]:
    """Return how many records each batch of a topic has."""
    with mq.consumer(topic, mode="psb") as consumer:
        left = sum(consumer.end_offsets().values())
        found: list[int] = []
        while sum(found) < left:
            found += [len(batch) for batch in consumer.poll_batches()]
    return found


# --- where records go -----------------------------------------------------------------------------


def test_keys_choose_partitions(mq: pymq.Client) -> None:
    """Records of a key share a partition and keep their order; keys use all partitions."""
    with mq.producer(batch_bytes=500) as producer:
        for number in range(2_000):
            producer.send("t", b"%d" % number, key=b"key %d" % (number % 50))
    found = contents(mq, "t")
    assert len(found) == 4
    homes: dict[bytes | None, str] = {}
    for partition, records in found.items():
        for record in records:
            assert homes.setdefault(record.key, partition) == partition
        for key in {record.key for record in records}:
            mine = [int(record.value) for record in records if record.key == key]
            assert mine == sorted(mine)
            assert len(mine) == 40


def test_many_and_single_sends_agree(mq: pymq.Client) -> None:
    """``send`` and ``send_many`` choose the same partition for a key."""
    keys = [b"key %d" % number for number in range(100)]
    with mq.producer() as producer:
        singly = [producer.send("t", b"", key=key) for key in keys]
        together = producer.send_many("t", [b""] * len(keys), keys)
        assert [d.result().partition for d in singly] == [m.partition for m in together.result()]


def test_records_without_a_key_stick_for_a_batch(mq: pymq.Client) -> None:
    """Records without a key go to one partition until a batch is full, then to the next
    partition.
    """
    with mq.producer(batch_bytes=1_000, linger_ms=LONG_MS) as producer:
        deliveries = [producer.send("t", bytes(100)) for _ in range(80)]
        producer.flush()
    partitions = [delivery.result().partition for delivery in deliveries]
    runs = [(partition, len(list(run))) for partition, run in groupby(partitions)]
    assert [partition for partition, _ in runs] == [str(turn % 4) for turn in range(len(runs))]
    assert all(5 <= length <= 10 for _, length in runs[:-1]), runs


def test_partition_by_name_and_by_index(mq: pymq.Client) -> None:
    mq.create_topic("cities", partitions=["xian", "beijing"])
    with mq.producer() as producer:
        assert producer.send("cities", b"", partition="beijing").result().partition == "beijing"
        assert producer.send("cities", b"", partition=0).result().partition == "xian"
        assert producer.send("cities", b"", key=b"k", partition=1).result().partition == "beijing"
        mq.create_partition("cities", "new")
        assert producer.send("cities", b"", partition="new").result().partition == "new"


def test_an_unset_partition_says_so(mq: pymq.Client) -> None:
    mq.create_topic("idle", acks="unset")
    with mq.producer() as producer:
        with pytest.raises(PartitionUnset, match="set_partition_state") as caught:
            producer.send("idle", b"")
        assert caught.value.code == "PARTITION_UNSET"
        mq.set_partition_state("idle", "0", acks="leader")
        assert producer.send("idle", b"").result().offset == 0


# --- batches --------------------------------------------------------------------------------------


def test_linger_makes_batches(mq: pymq.Client) -> None:
    """Records that are sent within one linger time share a batch, which leaves without a call."""
    with mq.producer(linger_ms=20) as producer:
        started = time.monotonic()
        for _ in range(10):
            last = producer.send("one", b"")
        poll_until(last.done)
        assert time.monotonic() - started >= 0.02
    assert batches(mq, "one") == [10]


def poll_until(condition: Callable[[], bool]) -> None:
    """Poll until a condition becomes true that no event signals.

    Waiting for a delivery would seal its batch at once, and these tests must not do that. The
    result does not depend on the length of the pause.
    """
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.001)


def test_waiting_ends_the_linger(mq: pymq.Client) -> None:
    with mq.producer(linger_ms=LONG_MS) as producer:
        first, second = producer.send("one", b"1"), producer.send("one", b"2")
        assert not first.done()
        assert first.result(timeout=10).offset == 0
        assert second.done()
    assert batches(mq, "one") == [2]


def test_batch_bytes(mq: pymq.Client) -> None:
    """The producer sends a full batch before the linger time ends, and no batch is much larger."""
    with mq.producer(batch_bytes=1_000, linger_ms=LONG_MS) as producer:
        deliveries = [producer.send("one", bytes(100)) for _ in range(35)]
        poll_until(deliveries[20].done)
    *full, last = batches(mq, "one")
    assert all(5 <= length <= 10 for length in full)
    assert last < 10


def test_a_bulk_send_while_another_thread_turns_the_loop(mq: pymq.Client) -> None:
    """The result of a bulk send waits until all records of the call are sent."""
    turning, enough = threading.Event(), threading.Event()

    def turn() -> None:
        with mq.driver:
            turning.set()
            assert enough.wait(10)

    other = threading.Thread(target=turn)
    with mq.producer(linger_ms=LONG_MS) as producer:
        producer.send("one", b"0").result()
        other.start()
        assert turning.wait(10)
        sent = producer.send_many("one", [b"1", b"2"])
        timer = threading.Timer(0.05, enough.set)
        timer.start()
        try:
            assert [found.offset for found in sent.result(timeout=10)] == [1, 2]
        finally:
            enough.set()
            other.join()
            timer.join()


def test_bulk_sends_are_cut_into_batches(mq: pymq.Client) -> None:
    with mq.producer(batch_bytes=1_000) as producer:
        sent = producer.send_many("one", [bytes(100)] * 35)
        assert len(sent) == 35
        assert [found.offset for found in sent.result()] == list(range(35))
        producer.send_many("one", [bytes(10 * size) for size in range(20)]).result()
    assert max(batches(mq, "one")) <= 20
    assert sum(batches(mq, "one")) == 55


class Overtaken(list[Any]):
    """A buffer whose queue is sealed just before the first record is appended to it."""

    def __init__(self, producer: pymq.Producer) -> None:
        super().__init__()
        self._sender: Sender | None = producer._sender

    def append(self, item: Any) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.seal()
        super().append(item)


@pytest.mark.parametrize("is_bulk", [False, True])
def test_a_thread_that_is_overtaken_by_a_seal(mq: pymq.Client, is_bulk: bool) -> None:
    """The record of the overtaken thread is written in the next batch, in order, and gets its
    offset.
    """
    with mq.producer(linger_ms=LONG_MS) as producer:
        sent = [producer.send("one", b"0")]
        gathering = producer._topics["one"].sticky.gathering
        before, gathering.items = gathering.items, Overtaken(producer)
        gathering.items += before
        if is_bulk:
            assert producer.send_many("one", [b"1"]).result(30)[0].offset == 1
        else:
            sent.append(producer.send("one", b"1"))
        sent.append(producer.send("one", b"2", key=b"k"))
        assert not sent[-1].done()
        assert [delivery.result(30).offset for delivery in sent] == (
            [0, 2] if is_bulk else [0, 1, 2]
        )
    assert values(mq, "one") == [b"0", b"1", b"2"]


def test_records_that_wait_are_nothing_for_the_garbage_collector(mq: pymq.Client) -> None:
    """Waiting records do not trigger garbage collections, which would scan all objects of the
    application.
    """
    with mq.producer(linger_ms=LONG_MS) as producer:
        producer.send("one", b"0")
        gc.collect()
        before = len(gc.get_objects())
        for number in range(2_000):
            producer.send("one", b"%d" % number)
            producer.send("one", b"%d" % number, key=b"k")
        gc.collect()
        assert len(gc.get_objects()) - before < 500


def test_a_list_may_be_changed_once_it_was_sent(mq: pymq.Client) -> None:
    """A ``clear()`` after the call neither loses unsealed records nor sends later ones twice."""
    rows, keys = [b"1", b"2"], [b"k", None]
    with mq.producer(linger_ms=LONG_MS) as producer:
        producer.send("one", b"0")  # the producer now knows the topic

        def send() -> None:
            producer.send_many("one", rows)
            producer.send_many("one", rows, keys)
            rows.clear()
            keys.clear()

        with mq.driver:  # While this thread holds the driver, no other thread can run the loop.
            thread = threading.Thread(target=send)
            thread.start()
            thread.join()
    assert values(mq, "one") == [b"0", b"1", b"2", b"1", b"2"]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression(tmp_path: Path, compression: Compression) -> None:
    """A compressed batch is smaller, and its records are the same."""
    sent = [b'{"name": "number %d", "kind": "test"}' % number for number in range(5_000)]
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t")
        with mq.producer(compression=compression) as producer:
            producer.send_many("t", sent)
            for value in sent:
                producer.send("t", value, key=b"k", headers=[("h", value)])
        assert values(mq, "t") == sent * 2
        size = mq.describe_topic("t").partitions[0].blocks[0].size_bytes
        assert 1_000 < size < sum(map(len, sent))


# --- many at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["send", "keys", "many"])
def test_eight_threads(mq: pymq.Client, way: str) -> None:
    """No record is lost or doubled, and each thread's records keep their order."""
    each, threads = 3_000, 8
    barrier = threading.Barrier(threads)
    with mq.producer(batch_bytes=2_000, linger_ms=1) as producer:

        def work(me: int) -> None:
            barrier.wait()
            for number in range(0, each, 10):
                rows = [b"%d %d" % (me, number + more) for more in range(10)]
                if way == "many":
                    producer.send_many("one", rows)
                else:
                    key = b"%d" % me if way == "keys" else None
                    for row in rows:
                        producer.send("one", row, key=key)
                if number % 500 == 0:
                    producer.flush(timeout=30)

        workers = [threading.Thread(target=work, args=(me,)) for me in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    found = [tuple(map(int, value.split())) for value in values(mq, "one")]
    assert len(found) == threads * each
    for me in range(threads):
        assert [number for thread, number in found if thread == me] == list(range(each))


def test_the_first_sends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that send to a new topic at the same moment share the producer's state of that
    topic.
    """
    threads = 4
    with pymq.open("memory:") as mq, mq.producer(linger_ms=1) as producer:
        mq.create_topic("t")
        barrier, ask = threading.Barrier(threads), mq.questions.topic_metadata

        def all_ask(topic: str) -> Any:
            found = ask(topic)
            barrier.wait(10)  # all threads send at the same moment
            return found

        monkeypatch.setattr(mq.questions, "topic_metadata", all_ask)
        workers = [
            threading.Thread(target=lambda me=me: producer.send("t", b"%d" % me))
            for me in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        monkeypatch.undo()
        producer.flush()
        assert sorted(values(mq, "t")) == [b"0", b"1", b"2", b"3"]


# --- bulk -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 63, 64, 65, 5_000])
def test_metadata_is_in_the_order_of_the_call(mq: pymq.Client, count: int) -> None:
    """Row i of the metadata belongs to value i, for any keys."""
    rows = [b"%d" % number for number in range(count)]
    keys = [b"%d" % (number % 7) if number % 3 else None for number in range(count)]
    with mq.producer(batch_bytes=700) as producer:
        answers = [
            producer.send_many("t", rows, keys),
            producer.send_many("t", rows),
            producer.send_many("t", iter(rows), iter(keys), partition=3),
            producer.send_many("t", rows, partition="2"),
        ]
        found = [answer.result(timeout=10) for answer in answers]
    records = contents(mq, "t")
    for answer in found:
        assert [records[m.partition][m.offset].value for m in answer] == rows
    assert [records[m.partition][m.offset].key for m in found[0]] == keys
    assert {m.partition for m in found[2]} == {"3"}
    assert [m.offset for m in found[3]] == list(
        range(found[3][0].offset, found[3][0].offset + count)
    )


def test_deliveries_of_a_bulk_send(mq: pymq.Client) -> None:
    with mq.producer(linger_ms=LONG_MS) as producer:
        sent = producer.send_many("one", [b"1", b"2"])
        assert isinstance(sent, Deliveries)
        assert sent.exception(timeout=10) is None
        assert sent.done()
        sent.wait(timeout=0)
        assert sent.result() == sent.result()


# --- waiting and failing --------------------------------------------------------------------------


class Deaf:
    """A connection between a client and its broker that drops chosen messages."""

    def __init__(self, mq: pymq.Client) -> None:
        machines = mq.driver.loop.machines  # type: ignore[attr-defined] # a node's loop
        self.broker = machines["broker-0"]
        self.step = self.broker.step
        self.drops: Callable[[Message], bool] = lambda _: False
        self.broker.step = self.hear

    def hear(self, source: str, message: Message, now: int) -> None:
        if not self.drops(message):
            self.step(source, message, now)


def drops_produce(message: Message) -> bool:
    return isinstance(message, Produce)


def test_flush_with_a_timeout(mq: pymq.Client) -> None:
    """If flush times out, it raises; the records are sent nevertheless."""
    deaf = Deaf(mq)
    with mq.producer(linger_ms=LONG_MS) as producer:
        producer.send("one", b"0").result()
        producer.flush(timeout=0)
        deaf.drops = drops_produce
        delivery = producer.send("one", b"1")
        with pytest.raises(DeliveryTimeout, match=r"within 0\.05 s") as caught:
            producer.flush(timeout=0.05)
        assert caught.value.code == "DELIVERY_TIMEOUT"
        with pytest.raises(DeliveryTimeout):
            delivery.result(timeout=0.01)
        with pytest.raises(DeliveryTimeout):
            producer.send_many("one", [b"2"]).result(timeout=0.01)
        assert not delivery.done()
        deaf.drops = lambda _: False
        # The client repeats an unanswered request after some time; this step makes that time pass.
        later(mq, 20_000)
        assert delivery.result(timeout=10).offset == 1
    assert values(mq, "one") == [b"0", b"1", b"2"]


def later(mq: pymq.Client, milliseconds: int) -> None:
    """Let time pass for the loop of a client."""
    loop: Any = mq.driver.loop
    clock = loop.clock
    with mq.driver:
        loop.clock = lambda: clock() + milliseconds


def test_delivery_timeout(mq: pymq.Client) -> None:
    """A record that no broker acknowledges in time fails, and the failure is reported once."""
    deaf = Deaf(mq)
    producer = mq.producer(linger_ms=0, delivery_timeout_s=0.05)
    producer.send("one", b"fine").result()
    deaf.drops = drops_produce
    started = time.monotonic()
    with pytest.raises(DeliveryTimeout, match="may have been written"):
        producer.send("one", b"lost").result(timeout=10)
    assert time.monotonic() - started < 5
    deaf.drops = lambda _: False
    assert producer.send("one", b"after").result(timeout=10).offset == 1
    producer.close()
    assert values(mq, "one") == [b"fine", b"after"]


def test_unseen_failures_are_raised_by_flush(mq: pymq.Client) -> None:
    """The error has the failed records.

    Failures that the application has read are not raised again.
    """
    Deaf(mq).drops = drops_produce
    with mq.producer(linger_ms=LONG_MS, delivery_timeout_s=0.03) as producer:
        seen, unseen = producer.send("one", b"seen"), producer.send("one", b"unseen", key=b"k")
        assert isinstance(seen.exception(timeout=10), DeliveryTimeout)
        with pytest.raises(DeliveryFailed, match="1 record failed") as caught:
            producer.flush()
        assert caught.value.code == "DELIVERY_FAILED"
        (failed,) = caught.value.records
        assert failed == unseen
        # so an application finds its own data for the failed record
        assert {failed: True}.get(unseen)
        assert isinstance(failed, Delivery)
        assert (failed.topic, failed.partition) == ("one", "0")
        assert (failed.value, failed.key) == (b"unseen", b"k")
        assert isinstance(failed.exception(), DeliveryTimeout)
        assert isinstance(caught.value.__cause__, DeliveryTimeout)
        producer.flush()  # the failure was raised before, so it counts as reported


def test_failures_that_nobody_looks_at_are_not_kept_without_end(mq: pymq.Client) -> None:
    """A producer whose results are never read must not use up the memory while a broker is away."""
    Deaf(mq).drops = drops_produce
    with mq.producer(delivery_timeout_s=0.03, buffer_bytes=10_000) as producer:
        for _ in range(6):
            for _ in range(5):
                last = producer.send("one", bytes(1_000))
            wait_until(last.done)
        with pytest.raises(DeliveryFailed, match="30 records failed") as caught:
            producer.flush()
        assert 10 <= len(caught.value.records) <= 20
        producer.flush()


def test_unseen_failures_are_raised_on_leaving(mq: pymq.Client) -> None:
    Deaf(mq).drops = drops_produce
    producer = mq.producer(delivery_timeout_s=0.03)
    for _ in range(3):
        producer.send("one", b"")
    with pytest.raises(DeliveryFailed, match="3 records"), producer:
        pass
    producer = mq.producer(delivery_timeout_s=0.03)
    producer.send("one", b"")
    with pytest.raises(KeyError, match="mine") as caught:
        fail_within(producer)
    assert "on closing the producer" in caught.value.__notes__[0]


def fail_within(producer: pymq.Producer) -> None:
    """Leave the ``with`` of a producer by an error."""
    with producer:
        raise KeyError("mine")


def test_failures_of_bulk_sends_carry_the_records(mq: pymq.Client) -> None:
    Deaf(mq).drops = drops_produce
    rows = [b"1", b"2", b"3"]
    with mq.producer(delivery_timeout_s=0.03) as producer:
        producer.send_many("one", rows, [b"k", None, b"l"])
        with pytest.raises(DeliveryFailed, match="3 records") as caught:
            producer.flush()
        records: Any = caught.value.records
        assert [(record.value, record.key) for record in records] == [
            (b"1", b"k"),
            (b"2", None),
            (b"3", b"l"),
        ]


def test_a_failed_bulk_send_that_was_looked_at(mq: pymq.Client) -> None:
    Deaf(mq).drops = drops_produce
    with mq.producer(delivery_timeout_s=0.03, batch_bytes=10) as producer:
        sent = producer.send_many("one", [bytes(10)] * 4)
        with pytest.raises(DeliveryTimeout):
            sent.result()
        producer.flush()


def test_a_topic_that_is_deleted(mq: pymq.Client) -> None:
    """Records for a deleted topic fail soon, and the error gives the reason."""
    with mq.producer(linger_ms=0) as producer:
        producer.send("one", b"").result()
        mq.delete_topic("one")
        with pytest.raises(UnknownTopic):
            producer.send("one", b"").result(timeout=5)
        with pytest.raises(UnknownTopic):
            producer.send("one", b"").result(timeout=5)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_topic_that_is_made_anew(mq: pymq.Client, partitions: int) -> None:
    """A recreated topic is a new topic: its partitions begin at 0, and the producer can send at
    once.
    """
    mq.create_topic("again", partitions=2)
    with mq.producer(linger_ms=0) as producer:
        for partition in (0, 1):
            for _ in range(3):
                producer.send("again", b"old", partition=partition).result()
        mq.delete_topic("again")
        mq.create_topic("again", partitions=partitions)
        assert producer.send("again", b"new", partition=0).result(timeout=5).offset == 0
    assert values(mq, "again") == [b"new"]


# --- back-pressure --------------------------------------------------------------------------------


def test_a_tiny_buffer_slows_down_and_loses_nothing(mq: pymq.Client) -> None:
    with mq.producer(buffer_bytes=1_000, batch_bytes=500) as producer:
        for number in range(3_000):
            producer.send("one", b"%0100d" % number)
        producer.send_many("one", [b"%0100d" % number for number in range(3_000, 6_000)])
    assert [int(value) for value in values(mq, "one")] == list(range(6_000))


def test_a_buffer_that_stays_full(mq: pymq.Client) -> None:
    """``send`` blocks until the earlier records have failed, or until its own timeout."""
    deaf = Deaf(mq)
    producer = mq.producer(buffer_bytes=1_000, batch_bytes=500, delivery_timeout_s=0.3)
    deaf.drops = drops_produce
    started = time.monotonic()
    with contextlib.suppress(BufferFull):
        for _ in range(20):
            producer.send("one", bytes(100))
    assert 0.3 <= time.monotonic() - started < 10
    with pytest.raises(DeliveryFailed):
        producer.close()


@contextlib.contextmanager
def stalled(producer: pymq.Producer) -> Iterator[None]:
    """A loop blocked in a callback, as a hanging disk would block it."""
    stands, goes_on = threading.Event(), threading.Event()

    def hang(delivery: Delivery) -> None:
        stands.set()
        goes_on.wait(60)

    def send() -> None:
        delivery = producer.send("one", b"stalls")
        delivery.add_done_callback(hang)
        delivery.result()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert stands.wait(10)
        yield
    finally:
        goes_on.set()
        thread.join()


def send_all(producer: pymq.Producer, taken: list[int]) -> None:
    for number in range(20):
        producer.send("one", b"%0100d" % number)
        taken.append(number)


def test_what_a_full_buffer_refuses_is_not_sent(mq: pymq.Client) -> None:
    """A refused record is never sent; accepted records are sent once the loop continues."""
    with mq.producer(buffer_bytes=1_000, delivery_timeout_s=1) as producer:
        with stalled(producer):
            taken: list[int] = []
            with pytest.raises(BufferFull, match="this record was not sent") as caught:
                send_all(producer, taken)
            assert (caught.value.code, caught.value.retriable) == ("BUFFER_FULL", True)
            assert 0 < len(taken) < 10
            with pytest.raises(BufferFull):
                producer.send_many("one", [b"never"] * 3)
        producer.flush()
        producer.send("one", b"%0100d" % len(taken))
    sent = [int(value) for value in values(mq, "one")[1:]]
    assert sent == [*taken, len(taken)]


def test_the_buffer_is_bounded_over_all_partitions(mq: pymq.Client) -> None:
    """The limit of the buffer applies to the sum over many partitions with few records each."""
    mq.create_topic("wide", partitions=200)
    Deaf(mq).drops = drops_produce
    producer = mq.producer(buffer_bytes=10_000, linger_ms=LONG_MS, delivery_timeout_s=0.05)
    with contextlib.suppress(BufferFull):
        for number in range(2_000):
            producer.send("wide", bytes(100), partition=number % 200)
            assert producer._backlog.buffered <= 20_000
    with pytest.raises(PymqError):
        producer.close()


# --- callbacks ------------------------------------------------------------------------------------


def test_callbacks(mq: pymq.Client) -> None:
    """Each callback gets its delivery once, in order, whether the callback was added before or
    after the end.
    """
    called: list[tuple[int, int]] = []

    def note(place: int, delivery: Delivery) -> None:
        called.append((delivery.result().offset, place))

    with mq.producer(linger_ms=1) as producer:
        for number in range(100):
            delivery = producer.send("one", b"%d" % number)
            for turn in (1, 2):
                delivery.add_done_callback(partial(note, number * 10 + turn))
        producer.flush()
        delivery.add_done_callback(partial(note, 993))
    expected = [(number, number * 10 + turn) for number in range(100) for turn in (1, 2)]
    assert sorted(called) == [*expected, (99, 993)]


def test_a_callback_learns_of_a_failure(mq: pymq.Client) -> None:
    """If a callback has read a failure, flush does not report it again."""
    Deaf(mq).drops = drops_produce
    errors: list[PymqError | None] = []
    with mq.producer(delivery_timeout_s=0.03) as producer:
        delivery = producer.send("one", b"")
        delivery.add_done_callback(lambda d: errors.append(d.exception()))
        producer.flush()
    assert [type(error) for error in errors] == [DeliveryTimeout]


# --- acks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["topic", "producer"])
def test_no_acks(mq: pymq.Client, where: str) -> None:
    """With acks="none" a delivery is done at once, without an offset, and the record is written."""
    mq.create_topic("fast", acks="none" if where == "topic" else "leader")
    with mq.producer(acks="none" if where == "producer" else None) as producer:
        found = producer.send("fast", b"1").result()
        assert (found.topic, found.partition, found.offset) == ("fast", "0", -1)
        assert [m.offset for m in producer.send_many("fast", [b"2", b"3"]).result()] == [-1, -1]
    assert values(mq, "fast") == [b"1", b"2", b"3"]


def test_more_acks_than_the_partition_gives(mq: pymq.Client) -> None:
    """A producer may request the acks that the partition gives, or fewer, but not more."""
    for acks in ("leader", "raft", 1, pymq.AckMode.RAFT):
        with mq.producer(acks=acks) as producer:
            assert producer.send("one", b"").result(timeout=10).offset >= 0


# --- once only ------------------------------------------------------------------------------------


class Stranger(Outbox):
    """A machine that sends any message and keeps the answers."""

    def __init__(self, mq: pymq.Client) -> None:
        super().__init__()
        self.heard: list[Message] = []
        self._mq = mq
        with mq.driver as loop:
            loop.add("stranger", self)

    def step(self, source: str, message: Message, now: int) -> None:
        self.heard.append(message)

    def tick(self, now: int) -> None:
        raise AssertionError("nothing is ever due")

    def produce(self, count: int, sequence: int, *, producer: int = 7, epoch: int = 0) -> Produced:
        batch = EncodedBatch.encode(
            [b"%d" % (sequence + number) for number in range(count)],
            timestamp_ms=0,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        with self._mq.driver as loop:
            produce = Produce(len(self.heard) + 1, "one", "0", pymq.AckMode.LEADER, batch)
            self.post("broker-0", produce)
            loop.touch("stranger")
        answer = self.heard[-1]
        assert isinstance(answer, Produced)
        return answer


def test_a_repeat_is_written_once(mq: pymq.Client) -> None:
    """The broker answers a repetition of any of the last five batches as before, and refuses a gap
    or an older batch.
    """
    stranger = Stranger(mq)
    for batch in range(7):
        assert stranger.produce(2, 2 * batch).base_offset == 2 * batch
    for batch in (6, 2, 5):
        answer = stranger.produce(2, 2 * batch)
        assert (answer.base_offset, answer.error) == (2 * batch, None)
    for count, sequence, code in (
        (2, 0, "DUPLICATE_SEQUENCE"),
        (1, 12, "DUPLICATE_SEQUENCE"),
        (2, 16, "OUT_OF_ORDER_SEQUENCE"),
    ):
        error = stranger.produce(count, sequence).error
        assert error is not None
        assert error.code == code
    assert len(values(mq, "one")) == 14


def test_a_new_producer_begins_at_zero(mq: pymq.Client) -> None:
    stranger = Stranger(mq)
    error = stranger.produce(1, 5, producer=8).error
    assert isinstance(error, OutOfOrderSequence)
    assert error.details["expected"] == 0


def test_an_older_epoch_is_fenced(mq: pymq.Client) -> None:
    stranger = Stranger(mq)
    stranger.produce(2, 0, epoch=1)
    error = stranger.produce(2, 2, epoch=0).error
    assert isinstance(error, ProducerFenced)
    assert stranger.produce(2, 2, epoch=2).base_offset == 2


def test_a_reused_number_is_no_repeat(mq: pymq.Client) -> None:
    """A producer abandons a batch, raises its epoch and uses the sequence for other records.

    The abandoned batch had been written after all. If the answer took the new batch for a duplicate
    of the old one, the new batch would be lost.
    """
    stranger = Stranger(mq)
    assert stranger.produce(1, 0, epoch=0).base_offset == 0
    answer = stranger.produce(1, 0, epoch=1)
    assert answer.error is not None or answer.base_offset == 1


def test_a_late_answer_loses_nothing(mq: pymq.Client) -> None:
    """A batch is written, but its answer comes too late; the next batch must still be written."""
    broker: Any = Deaf(mq).broker._environment
    producer = mq.producer(linger_ms=0, delivery_timeout_s=0.05)
    replies, kept = broker.reply, []

    def mute(source: str, message: Message, now: int) -> None:
        if isinstance(message, Produced):
            kept.append(message)
        else:
            replies(source, message, now)

    broker.reply = mute
    with pytest.raises(DeliveryTimeout):
        producer.send("one", b"first").result(timeout=10)
    assert kept
    del broker.reply
    second = producer.send("one", b"second").result(timeout=10)
    producer.close()
    assert values(mq, "one")[second.offset] == b"second"


def test_a_named_producer_goes_on_where_it_stood(tmp_path: Path) -> None:
    """A named producer resumes in every partition after its process was restarted."""
    for life in range(3):
        with pymq.open(tmp_path) as mq:
            mq.create_topic("t", partitions=2, exist_ok=True)
            with mq.producer(producer_id="me") as producer:
                assert producer.next_sequence("t", "0") == 10 * life
                assert producer.next_sequence("t", 1) == life
                producer.send_many("t", [b""] * 10, partition=0)
                producer.send("t", b"", partition=1).result()
                assert producer.next_sequence("t", 1) == life + 1
    with pymq.open(tmp_path) as mq:
        assert [len(records) for _, records in sorted(contents(mq, "t").items())] == [30, 3]


def test_a_newer_instance_fences_the_older(mq: pymq.Client) -> None:
    """Of two producers with one name, only the one opened last may write."""
    older = mq.producer(producer_id="me", linger_ms=0)
    older.send("one", b"1").result()
    newer = mq.producer(producer_id="me", linger_ms=0)
    assert newer.next_sequence("one", 0) == 1
    newer.send("one", b"2").result()
    with pytest.raises(ProducerFenced, match="replaced") as caught:
        older.send("one", b"3").result(timeout=10)
    assert caught.value.code == "PRODUCER_FENCED"
    assert not caught.value.retriable
    older.close()
    with mq.producer(producer_id="other") as other:
        other.send("one", b"4").result()
    newer.send("one", b"5").result()
    newer.close()
    assert values(mq, "one") == [b"1", b"2", b"4", b"5"]


@pytest.mark.parametrize("opened", [65_535, 65_536, (1 << 32) - 2])
def test_a_name_is_opened_for_ever(tmp_path: Path, opened: int) -> None:
    """After any number of openings of a name, the next producer resumes and fences the previous
    one.
    """
    with pymq.open(tmp_path) as mq:
        mq.create_topic("one")
        with mq.producer(producer_id="me") as first:
            first.send("one", b"0").result()
    tree = SqliteTree(tmp_path / "metadata.db")
    (entry,) = tree.entries(paths.producer("me"))
    known = decode_node(ProducerNode, entry.data)
    node = encode_node(attrs.evolve(known, epoch=opened - 1))
    SqliteCoordinator(tree).submit(Commit(1, (Put(entry.path, node, entry.version),)))
    tree.close()
    with pymq.open(tmp_path) as mq:
        older = mq.producer(producer_id="me", linger_ms=0)
        assert older.next_sequence("one", 0) == 1
        older.send("one", b"1").result(timeout=10)
        newer = mq.producer(producer_id="me", linger_ms=0)
        newer.send("one", b"2").result(timeout=10)
        with pytest.raises(ProducerFenced):
            older.send("one", b"never").result(timeout=10)
        newer.send("one", b"3").result(timeout=10)
        newer.close()
        older.close()
        assert values(mq, "one") == [b"0", b"1", b"2", b"3"]


def test_a_producer_that_lost_much_is_fenced_too(mq: pymq.Client) -> None:
    """Each abandoned batch raises the lower half of the producer's epoch. The epoch stays below
    that of the next producer with the same name.
    """
    older = mq.producer(producer_id="me", linger_ms=0)
    older.send("one", b"1").result()
    # The state is as if the producer had abandoned so many batches.
    older._topics["one"].queues[0].epoch += 100_000
    older.send("one", b"2").result()
    newer = mq.producer(producer_id="me", linger_ms=0)
    newer.send("one", b"3").result(timeout=10)
    with pytest.raises(ProducerFenced):
        older.send("one", b"never").result(timeout=10)
    newer.close()
    older.close()
    assert values(mq, "one") == [b"1", b"2", b"3"]


def test_a_refused_batch_does_not_stop_the_next(mq: pymq.Client) -> None:
    """The limit was lowered without the producer's knowledge: one batch fails, the others are
    written.
    """
    mq.create_topic("shrunk", max_record_bytes=32 << 20)
    with mq.producer(linger_ms=0) as producer:
        producer.send("shrunk", b"1").result()
        mq.questions.ask(lambda r: AlterTopic(r, "shrunk", {"max_record_bytes": 100}))
        deliveries = [producer.send("shrunk", value) for value in (bytes(20 << 20), b"2", b"3")]
        assert isinstance(deliveries[0].exception(timeout=10), RecordTooLarge)
        assert [d.result(timeout=10).offset for d in deliveries[1:]] == [1, 2]


# --- under change ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "idempotent"),
    [
        ("memory", True),
        pytest.param("memory", False, marks=pytest.mark.slow),
        pytest.param("folder", True, marks=pytest.mark.slow),
        pytest.param("folder", False, marks=pytest.mark.slow),
    ],
)
def test_ack_modes_change_under_load(tmp_path: Path, place: str, idempotent: bool) -> None:
    """No transition of the ack mode under load loses, duplicates or reorders a record."""
    with pymq.open("memory:" if place == "memory" else tmp_path) as mq:
        mq.create_topic("t", partitions=2)
        stop = threading.Event()
        sent = [0, 0]

        def work() -> None:
            with mq.producer(
                batch_bytes=2_000, buffer_bytes=50_000, linger_ms=0, idempotent=idempotent
            ) as producer:
                while not stop.is_set():
                    for index in (0, 1):
                        for _ in range(50):
                            producer.send("t", b"%0100d" % sent[index], partition=index)
                            sent[index] += 1

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for round_ in range(4):
                for acks in ("raft", "leader", "none", "raft", "none", "leader"):
                    for partition in ("0", "1"):
                        assert mq.set_partition_state("t", partition, acks=acks)
                    goal = sent[1] + 200
                    poll_until(partial(lambda goal: sent[1] >= goal, goal))
                assert not mq.set_partition_state("t", "0", acks="leader"), round_
        finally:
            stop.set()
            worker.join()
        found = contents(mq, "t")
        for index in (0, 1):
            numbers = [int(record.value) for record in found[str(index)]]
            assert numbers == list(range(sent[index]))
        blocks = mq.describe_topic("t").partitions[0].blocks
        assert len(blocks) >= 10  # the limit is 24 blocks; empty blocks are removed
        assert [block.start_offset for block in blocks[1:]] == [b.end_offset for b in blocks[:-1]]


@pytest.mark.parametrize(
    "config",
    [{"block_bytes": 4096}, pytest.param({"block_ms": 1}, marks=pytest.mark.slow)],
    ids=str,
)
def test_rolls_under_load(tmp_path: Path, config: Any) -> None:
    """Rolls by size and by age lose no record and change no offset."""
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t", **config)
        with mq.producer(batch_bytes=1_000, linger_ms=0) as producer:
            for number in range(5_000):
                producer.send("t", b"%0100d" % number)
        assert [int(value) for value in values(mq, "t")] == list(range(5_000))
        assert len(mq.describe_topic("t").partitions[0].blocks) > 3
    with pymq.open(tmp_path) as mq:
        assert len(values(mq, "t")) == 5_000


def test_an_old_block_is_rolled_without_traffic(mq: pymq.Client) -> None:
    """The block is rolled because of its age, some time after its last record."""
    mq.create_topic("aging", block_ms=30)
    with mq.producer(linger_ms=0) as producer:
        producer.send("aging", b"").result()
    poll_until(lambda: len(mq.describe_topic("aging").partitions[0].blocks) == 2)


# --- many -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("topics", [100, pytest.param(2_000, marks=pytest.mark.slow)])
def test_many_topics(tmp_path: Path, topics: int) -> None:
    """Thousands of partitions take little memory each, and no work while idle."""
    partitions = 5 * topics
    if topics == 100:  # measure only in the small run, since this slows everything down
        tracemalloc.start()
    with pymq.open(tmp_path) as mq:
        mq.create_topic("first")  # this call loads the modules that topics need
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(topics):
            mq.create_topic(f"topic-{number}", partitions=5)
        gc.collect()  # In a large process Python delays its own full collections.
        assert (tracemalloc.get_traced_memory()[0] - before) / partitions < 8_000
        with mq.producer(linger_ms=LONG_MS) as producer:
            for number in range(0, topics, 10):
                producer.send(f"topic-{number}", b"%d" % number)
    tracemalloc.stop()
    with pymq.open(tmp_path) as mq:
        assert len(mq.topics()) == topics + 1
        for number in range(0, topics, 10):
            (records,) = contents(mq, f"topic-{number}").values()
            assert [record.value for record in records] == [b"%d" % number]
        turns = count_turns(mq)
        # Let the work end that is due soon after the start; then the client is idle.
        for _ in range(10):
            before, began = turns(), time.process_time()
            threading.Event().wait(0.3)  # the measured period
            used, turned = time.process_time() - began, turns() - before
            if turned < 20 and used < 0.1:
                break
        assert (turned < 20, used < 0.1) == (True, True), (turned, used)


def count_turns(mq: pymq.Client) -> Callable[[], int]:
    """Count how often the loop of a client runs from now on."""
    loop: Any = mq.driver.loop
    turn, count = loop.turn, [0]

    def counted() -> bool:
        count[0] += 1
        return bool(turn())

    loop.turn = counted
    return lambda: count[0]
