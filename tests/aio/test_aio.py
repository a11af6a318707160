"""Producing and consuming from an event loop."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import pymq
import pymq.aio
from pymq import Record, errors
from pymq.aio import AsyncClient, AsyncConsumer, AsyncDelivery
from pymq.client.base import ClientLoop
from pymq.client.option_types import ConsumerMode

Script = Callable[[AsyncClient], Awaitable[None]]


def play(script: Script, url: str = "memory:") -> None:
    """Run a script against a queue that has the topic ``t``."""

    async def main() -> None:
        async with pymq.aio.open(url) as mq:
            await mq.create_topic("t", exist_ok=True)
            await asyncio.wait_for(script(mq), 60)

    asyncio.run(main(), debug=False)


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until *condition* returns true."""
    while not condition():
        await asyncio.sleep(0.001)


async def values(mq: AsyncClient, topic: str = "t") -> list[bytes]:
    async with mq.consumer(topic, mode="psb") as consumer:
        return [record.value async for record in consumer.until_end()]


class Held:
    """Holds the lock of pymq's loop, so that no request is answered."""

    def __init__(self, mq: AsyncClient) -> None:
        self._driver = mq._client.driver
        self._is_held, self._is_over = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        def hold(loop: ClientLoop) -> None:
            self._is_held.set()
            self._is_over.wait(30)

        self._driver.soon(hold)
        assert self._is_held.wait(30)

    def __exit__(self, *_: object) -> None:
        self._is_over.set()


# --- opening and closing ------------------------------------------------------------------------


def test_open_may_be_awaited() -> None:
    async def main() -> None:
        mq = await pymq.aio.open("memory:")
        producer = await mq.producer()
        await mq.create_topic("t")
        assert (await producer.send("t", b"x")).offset == 0
        await mq.close()
        assert mq.closed
        await mq.close()
        with pytest.raises(errors.Closed):
            producer.send("t", b"y")
        with pytest.raises(errors.Closed):
            await mq.topics()

    asyncio.run(main())


def test_a_folder_is_durable_and_locked(tmp_path: Path) -> None:
    async def send(mq: AsyncClient) -> None:
        async with mq.producer() as producer:
            producer.send("t", b"kept")
        with pytest.raises(errors.StoreLocked):
            await pymq.aio.open(tmp_path)

    async def read(mq: AsyncClient) -> None:
        assert await values(mq) == [b"kept"]

    play(send, str(tmp_path))
    play(read, str(tmp_path))


def test_admin() -> None:
    async def script(mq: AsyncClient) -> None:
        await mq.create_topic("orders", partitions=["xian", "beijing"])
        await mq.create_partition("orders", "extra")
        await mq.alter_topic("orders", retention_bytes=1_000_000)
        described = await mq.describe_topic("orders")
        assert [p.name for p in described.partitions] == ["xian", "beijing", "extra"]
        assert described.config.retention_bytes == 1_000_000
        assert await mq.topics() == ["orders", "t"]
        await mq.delete_topic("orders")
        assert await mq.topics() == ["t"]
        assert [broker.name for broker in (await mq.cluster()).brokers] == ["broker-0"]
        with pytest.raises(errors.TopicExists):
            await mq.create_topic("t")

    play(script)


def test_a_cancelled_opening_lets_go_of_the_folder(tmp_path: Path) -> None:
    async def main() -> None:
        opening = asyncio.ensure_future(pymq.aio.open(tmp_path))
        await asyncio.sleep(0)  # open() has begun ...
        opening.cancel()  # ... and no caller waits for its result any more
        with pytest.raises(asyncio.CancelledError):
            await opening

        async def free() -> bool:
            try:
                async with pymq.aio.open(tmp_path):
                    return True
            except errors.StoreLocked:
                return False

        while not await free():
            pass

    asyncio.run(main())


# --- producing ----------------------------------------------------------------------------------


def test_send_is_awaited_or_left_alone() -> None:
    async def script(mq: AsyncClient) -> None:
        async with mq.producer(linger_ms=600_000) as producer:
            left_alone = producer.send("t", b"0")
            awaited = await producer.send("t", b"1", key=b"k", headers=[("h", b"v")])
            assert (awaited.topic, awaited.partition, awaited.offset) == ("t", "0", 1)
            assert left_alone.done()  # this delivery was done before, in the same batch
            assert (await left_alone.result()).offset == 0
            assert await left_alone.exception() is None
            producer.send("t", b"2", timestamp_ms=7)
        assert await values(mq) == [b"0", b"1", b"2"]

    play(script)


def test_many_tasks_share_batches() -> None:
    async def script(mq: AsyncClient) -> None:
        async with mq.producer(linger_ms=600_000) as producer:

            async def send(number: int) -> list[int]:
                return [(await producer.send("t", b"%d" % number)).offset for _ in range(20)]

            found = await asyncio.gather(*(send(number) for number in range(64)))
        assert sorted(offset for offsets in found for offset in offsets) == list(range(1280))
        assert all(offsets == sorted(offsets) for offsets in found)
        assert len(await values(mq)) == 1280

    play(script)


def test_awaiting_several_times_and_from_several_tasks() -> None:
    async def script(mq: AsyncClient) -> None:
        async with mq.producer() as producer:
            delivery = producer.send("t", b"x")
            first, second = await asyncio.gather(delivery.result(), delivery.result(5))
            assert first == second == await delivery

    play(script)


def test_order_is_kept_while_the_topic_is_looked_up() -> None:
    async def script(mq: AsyncClient) -> None:
        async with mq.producer() as producer:
            held = [producer.send("t", b"%d" % n) for n in range(100)]
            await held[0]
            for n in range(100, 200):
                producer.send("t", b"%d" % n)
        assert await values(mq) == [b"%d" % n for n in range(200)]

    play(script)


def test_callbacks_come_in_the_event_loop() -> None:
    async def script(mq: AsyncClient) -> None:
        seen: list[tuple[AsyncDelivery, threading.Thread]] = []

        def note(delivery: AsyncDelivery) -> None:
            seen.append((delivery, threading.current_thread()))

        async with mq.producer(linger_ms=600_000) as producer:
            early = producer.send("t", b"0")  # sent before the topic is known
            early.add_done_callback(note)
            await until(lambda: len(seen) == 1)
            later = producer.send("t", b"1")
            later.add_done_callback(note)
            await until(lambda: len(seen) == 2)
            later.add_done_callback(note)  # the delivery is already done
            await until(lambda: len(seen) == 3)
        assert seen == [(d, threading.current_thread()) for d in (early, later, later)]

    play(script)


def test_send_many_and_flush() -> None:
    async def script(mq: AsyncClient) -> None:
        await mq.create_topic("wide", partitions=4)
        async with mq.producer() as producer:
            deliveries = await producer.send_many("t", [b"%d" % n for n in range(1000)])
            assert len(deliveries) == 1000
            assert [found.offset for found in await deliveries] == list(range(1000))
            assert deliveries.done()
            keys: list[bytes | None] = [b"%d" % (n % 7) for n in range(100)]
            spread = await producer.send_many("wide", (b"%d" % n for n in range(100)), keys)
            await spread.wait(30)
            assert len({found.partition for found in await spread.result()}) > 1
            assert await spread.exception() is None
            producer.send("t", b"last")
            await producer.flush(30)
            assert (await values(mq))[-1] == b"last"
            assert await producer.next_sequence("t", 0) == 1001

    play(script)


def test_errors_of_a_record() -> None:
    async def script(mq: AsyncClient) -> None:
        await mq.create_topic("small", max_record_bytes=10)
        async with mq.producer() as producer:
            for bad in ("text", None, 1):
                with pytest.raises(TypeError):
                    producer.send("t", bad)  # type: ignore[arg-type] # on purpose
            await producer.send("small", b"fits")
            with pytest.raises(errors.RecordTooLarge):
                producer.send("small", b"does not fit")
            with pytest.raises(errors.UnknownTopic):
                await producer.send("nowhere", b"x")
            assert isinstance(await producer.send("nowhere", b"x").exception(), errors.UnknownTopic)
            with pytest.raises(errors.UnknownPartition):
                await producer.send("t", b"x", partition=7)
            with pytest.raises(errors.UnknownTopic):
                await producer.send_many("nowhere", [b"x"])
            with pytest.raises(errors.ConfigError, match="linger_ms"):
                await mq.producer(linger=5)  # type: ignore[arg-type] # on purpose
            await producer.flush()  # the application has read every failure

    play(script)


def test_a_failure_that_nobody_looked_at_is_raised_on_leaving() -> None:
    async def script(mq: AsyncClient) -> None:
        with pytest.raises(errors.DeliveryFailed, match="nowhere") as caught:
            async with mq.producer() as producer:
                lost = producer.send("nowhere", b"x")
        assert caught.value.records == [lost]

    play(script)


def test_a_full_buffer_is_an_error_at_once_and_bulk_sends_wait() -> None:
    async def script(mq: AsyncClient) -> None:
        async with mq.producer(buffer_bytes=1000, linger_ms=600_000) as producer:
            await producer.send("t", b"so that the topic is known")
            sent = 1
            with Held(mq):
                while producer._backlog.buffered < 1000:
                    producer.send("t", bytes(100))
                    sent += 1
                with pytest.raises(errors.BufferFull):
                    producer.send("t", b"x")
                bulk = asyncio.ensure_future(producer.send_many("t", [bytes(100)] * 50))
                assert sent <= 11
            await (await bulk)
            await producer.flush()
            await producer.send("t", b"there is room again")
        assert len(await values(mq)) == sent + 51

    play(script)


def test_waiting_may_end_before_the_record_is_written() -> None:
    async def script(mq: AsyncClient) -> None:
        async with mq.producer() as producer:
            await producer.send("t", b"0")
            with Held(mq):
                late = producer.send("t", b"1")
                with pytest.raises(errors.DeliveryTimeout):
                    await late.result(0.01)
                with pytest.raises(errors.DeliveryTimeout):
                    await late.exception(0)
                waiting = asyncio.ensure_future(late.result())
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                assert not late.done()
            assert (await late).offset == 1

    play(script)


def test_the_event_loop_runs_while_pymq_is_busy(tmp_path: Path) -> None:
    """Sending does not wait, even if the disk blocks the thread that turns pymq's loop."""

    async def script(mq: AsyncClient) -> None:
        async with mq.producer(batch_bytes=100) as producer, mq.consumer("t") as consumer:
            await producer.send("t", b"0")
            with Held(mq):  # the lock is held, as during a very long fsync
                deliveries = [producer.send("t", bytes(60)) for _ in range(100)]
                deliveries += [producer.send("unknown", b"x")]
                for record in await consumer.poll(1, 0.01):
                    consumer.ack(record)
                assert not any(delivery.done() for delivery in deliveries)
            for delivery in deliveries[:-1]:
                await delivery
            assert await deliveries[-1].exception() is not None

    play(script, str(tmp_path))


# --- consuming ----------------------------------------------------------------------------------


async def fill(mq: AsyncClient, count: int, topic: str = "t") -> None:
    async with mq.producer() as producer:
        await producer.send_many(topic, [b"%d" % n for n in range(count)])


def test_poll_waits_for_records() -> None:
    async def script(mq: AsyncClient) -> None:
        async with mq.consumer("t", group="g") as consumer, mq.producer() as producer:
            assert await consumer.poll(timeout=0) == []
            assert await consumer.poll(timeout=0.01) == []
            polling = asyncio.ensure_future(consumer.poll(timeout=None))
            await producer.send("t", b"x")
            (record,) = await polling
            assert record.value == b"x"
            consumer.ack(record)
            await consumer.commit()
            assert await consumer.committed() == {"0": 1}
            assert await consumer.lag() == {"0": 0}
            assert consumer.assignment() == ("0",)
            assert (await consumer.status()).idle is not None

    play(script)


def test_poll_without_waiting_finds_what_is_there() -> None:
    async def script(mq: AsyncClient) -> None:
        await fill(mq, 10)
        async with mq.consumer("t", group="g") as consumer:
            assert len(await consumer.poll(3, timeout=0)) == 3
            assert sum(map(len, await consumer.poll_batches(timeout=0))) == 7
            with pytest.raises(errors.ConfigError):
                await consumer.poll(0)

    play(script)


@pytest.mark.parametrize("mode", ["ptp", "psb"])
def test_iterate_until_closed(mode: ConsumerMode) -> None:
    async def script(mq: AsyncClient) -> None:
        await fill(mq, 1200)
        consumer = await mq.consumer("t", mode=mode)
        seen: list[bytes] = []

        async def read() -> None:
            async for record in consumer:
                seen.append(record.value)  # noqa: PERF401 # looked at meanwhile

        reading = asyncio.ensure_future(read())
        await until(lambda: len(seen) == 1200)
        await fill(mq, 1)
        await until(lambda: len(seen) == 1201)
        await consumer.close()
        await reading
        assert seen == [*(b"%d" % n for n in range(1200)), b"0"]
        await consumer.close()
        with pytest.raises(errors.Closed):
            await consumer.poll()

    play(script)


def test_a_loop_that_never_waits_lets_others_run() -> None:
    async def script(mq: AsyncClient) -> None:
        await fill(mq, 20_000)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.ensure_future(count())
        async with mq.consumer("t", mode="psb") as consumer:
            while await consumer.poll(100):
                if (
                    consumer._consumer._reader is not None
                    and await consumer.position("0") == 20_000
                ):
                    break
        counting.cancel()
        assert turns > 100

    play(script)


def test_a_cancelled_poll_loses_nothing() -> None:
    async def script(mq: AsyncClient) -> None:
        seen: list[bytes] = []
        async with mq.consumer("t", group="g") as consumer, mq.producer() as producer:
            for number in range(200):
                polling = asyncio.ensure_future(consumer.poll(timeout=None))
                delivery = producer.send("t", b"%d" % number)
                if number % 2:
                    await delivery  # the cancelled task may be at any stage of the poll
                else:
                    for _ in range(number % 7):
                        await asyncio.sleep(0)
                polling.cancel()
                try:
                    seen += [record.value for record in await polling]
                except asyncio.CancelledError:
                    pass
            await producer.flush()
            while len(seen) < 200:
                seen += [record.value for record in await consumer.poll(timeout=30)]
        assert seen == [b"%d" % number for number in range(200)]

    play(script)


def test_workers_share_and_what_is_refused_comes_again() -> None:
    async def script(mq: AsyncClient) -> None:
        await mq.create_topic("jobs", partitions=4)
        async with mq.producer() as producer:
            keys: list[bytes | None] = [b"%d" % n for n in range(400)]
            await producer.send_many("jobs", [b"%d" % n for n in range(400)], keys)
        seen: list[tuple[bytes, int]] = []

        async def work(consumer: AsyncConsumer) -> None:
            async for record in consumer.until_end():
                if record.value == b"7" and record.delivery_count == 1:
                    consumer.nack(record)
                    continue
                seen.append((record.value, record.delivery_count))
                consumer.ack(record)

        workers = [await mq.consumer("jobs", group="g") for _ in range(3)]
        await asyncio.gather(*map(work, workers))
        for worker in workers:
            await worker.close()
        assert sorted(seen) == sorted((b"%d" % n, 2 if n == 7 else 1) for n in range(400))
        assert await mq.groups() == ["g"]
        assert set((await mq.describe_group("g")).lag.values()) == {0}

    play(script)


def test_dead_letters() -> None:
    async def script(mq: AsyncClient) -> None:
        await fill(mq, 3)
        async with mq.consumer("t", group="g", max_deliver=2) as consumer:
            tries = 0
            async for record in consumer.until_end():
                if record.value == b"1":
                    tries += 1
                    consumer.nack(record)
                else:
                    consumer.ack(record)
        assert tries == 2
        assert await values(mq, "t.dlq") == [b"1"]

    play(script)


def test_auto_ack() -> None:
    async def script(mq: AsyncClient) -> None:
        await fill(mq, 10)
        async with mq.consumer("t", group="g", auto_ack=True) as consumer:
            assert len([record async for record in consumer.until_end()]) == 10
            await consumer.commit()
            assert await consumer.committed() == {"0": 10}

    play(script)


def test_auto_ack_does_not_count_what_an_exception_interrupted() -> None:
    async def script(mq: AsyncClient) -> None:
        await fill(mq, 10)

        async def iterate() -> None:
            async with mq.consumer("t", group="g", auto_ack=True) as consumer:
                async for record in consumer:
                    if record.value == b"5":
                        raise ArithmeticError

        async def poll() -> None:
            async with mq.consumer("t", group="g", auto_ack=True) as consumer:
                assert (await consumer.poll())[0].value == b"5"
                raise ArithmeticError

        for fail in (iterate, poll):
            with pytest.raises(ArithmeticError):
                await fail()
            assert (await mq.describe_group("g")).committed == {("t", "0"): 5}

    play(script)


def test_a_client_that_an_exception_ends_acknowledges_nothing_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with pymq.aio.open(tmp_path) as mq:
            await mq.create_topic("t")
            await fill(mq, 10)
            consumer = await mq.consumer("t", group="g", auto_ack=True)
            assert (await consumer.poll())[0].value == b"0"
            raise ArithmeticError

    async def look(mq: AsyncClient) -> None:
        assert (await mq.describe_group("g")).committed.get(("t", "0"), 0) == 0

    with pytest.raises(ArithmeticError):
        asyncio.run(main())
    play(look, str(tmp_path))


def test_an_abandoned_consumer_does_not_keep_its_partitions() -> None:
    async def script(mq: AsyncClient) -> None:
        await fill(mq, 10)
        consumer = await mq.consumer("t", group="g")
        assert len(await consumer.poll(10)) == 10
        del consumer
        gc.collect()
        async with mq.consumer("t", group="g") as other:
            assert len(await other.poll(10, 30)) == 10
            assert len((await mq.describe_group("g")).members) == 1

    play(script)


def test_batches_of_a_group_are_leased_as_far_as_was_asked() -> None:
    async def script(mq: AsyncClient) -> None:
        await fill(mq, 5000)
        async with mq.consumer("t", group="g") as consumer:
            views = await consumer.poll_batches(max_bytes=100_000)
            assert 0 < sum(map(len, views)) < 1000
            assert (await mq.describe_group("g")).in_flight["t", "0"] < 1000

    play(script)


def test_positions() -> None:
    async def script(mq: AsyncClient) -> None:
        async with mq.producer() as producer:
            for number in range(10):
                producer.send("t", b"%d" % number, timestamp_ms=1000 + number)
        async with mq.consumer("t", mode="psb", partition=0) as consumer:
            assert await consumer.begin_offsets() == {"0": 0}
            assert await consumer.end_offsets() == {"0": 10}
            await consumer.seek("0", 8)
            assert await consumer.position("0") == 8
            assert [r.offset async for r in consumer.until_end()] == [8, 9]
            assert await consumer.offset_at("0", 1005) == 5
            await consumer.seek_to_time("0", 1005)
            await consumer.pause("0")
            assert await consumer.poll(timeout=0) == []
            await consumer.resume("0")
            assert [r.offset for r in await consumer.poll()] == [5, 6, 7, 8, 9]
            with pytest.raises(errors.InvalidRequest):
                consumer.ack([])
            with pytest.raises(errors.InvalidRequest):
                await consumer.commit()

    play(script)


def test_callbacks_of_the_group_may_be_coroutines() -> None:
    async def script(mq: AsyncClient) -> None:
        gained: list[tuple[str, ...]] = []

        async def on_assigned(partitions: tuple[str, ...]) -> None:
            await asyncio.sleep(0)
            gained.append(partitions)

        async with mq.consumer("t", group="g", on_assigned=on_assigned):
            assert gained == [("0",)]

    play(script)


# --- pushing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
def test_push(is_async: bool) -> None:
    async def script(mq: AsyncClient) -> None:
        await fill(mq, 100)
        seen: list[bytes] = []
        consumer: AsyncConsumer

        def plain(record: Record) -> None:
            assert threading.current_thread() is threading.main_thread()
            seen.append(record.value)
            consumer.ack(record)

        async def waiting(record: Record) -> None:
            await asyncio.sleep(0)
            plain(record)

        on_record = waiting if is_async else plain
        consumer = await mq.consumer("t", group="g", delivery="push", on_record=on_record)
        await until(lambda: len(seen) == 100)
        await consumer.commit()
        assert await consumer.committed() == {"0": 100}
        await consumer.close()
        assert seen == [b"%d" % n for n in range(100)]
        with pytest.raises(errors.ConfigError):
            await mq.consumer("t", delivery="push")

    play(script)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_push_that_fails_gets_the_record_again_and_then_it_dies(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As with threads, if a handler fails on a record, the record is returned to the group, and the
    other records are handled.
    """

    async def script(mq: AsyncClient) -> None:
        await fill(mq, 10)
        seen: list[tuple[bytes, int]] = []

        def plain(record: Record) -> None:
            seen.append((record.value, record.delivery_count))
            if record.value == b"4":
                raise ValueError("four")

        async def waiting(record: Record) -> None:
            await asyncio.sleep(0)
            plain(record)

        async with mq.consumer(
            "t",
            group="g",
            delivery="push",
            on_record=waiting if is_async else plain,
            auto_ack=True,
            max_deliver=3,
        ) as consumer:
            while await consumer.committed() != {"0": 10}:
                await asyncio.sleep(0)
        assert [count for value, count in seen if value == b"4"] == [1, 2, 3]
        assert sorted({value for value, _ in seen}) == [b"%d" % n for n in range(10)]
        assert len(seen) == 12
        assert await values(mq, "t.dlq") == [b"4"]

    with caplog.at_level(logging.ERROR, "pymq"):
        play(script)
    assert len([r for r in caplog.records if r.exc_info and "four" in str(r.exc_info[1])]) == 3


def test_a_push_can_be_closed_by_its_own_handler() -> None:
    async def script(mq: AsyncClient) -> None:
        await fill(mq, 10)
        closed = asyncio.Event()

        async def handle(record: Record) -> None:
            await consumer.close()
            closed.set()

        consumer = await mq.consumer(
            "t", group="g", delivery="push", on_record=handle, credit=5, auto_ack=True
        )
        await closed.wait()
        # The consumer got five records and showed one; the other four were never delivered.
        async with mq.consumer("t", group="g") as again:
            counts = [record.delivery_count async for record in again.until_end()]
        assert counts == [2] + [1] * 9

    play(script)


def test_what_a_push_without_a_group_raises_is_raised_by_close() -> None:
    async def script(mq: AsyncClient) -> None:
        await fill(mq, 1)
        called = asyncio.Event()

        async def on_record(record: Record) -> None:
            called.set()
            raise LookupError("the application's own")

        consumer = await mq.consumer("t", mode="psb", delivery="push", on_record=on_record)
        await called.wait()
        with pytest.raises(LookupError):
            await consumer.close()
        await consumer.close()

    play(script)


def test_a_push_is_finished_before_its_consumer_closes() -> None:
    async def script(mq: AsyncClient) -> None:
        await fill(mq, 10)
        started, may_end = asyncio.Event(), asyncio.Event()
        done: list[bytes] = []

        async def on_record(record: Record) -> None:
            started.set()
            await may_end.wait()
            done.append(record.value)
            consumer.ack(record)

        consumer = await mq.consumer("t", group="g", delivery="push", on_record=on_record)
        await started.wait()
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        may_end.set()
        await closing
        assert done == [b"0"]
        group = await mq.describe_group("g")
        assert group.committed == {("t", "0"): 1}

    play(script)


def test_closing_the_client_closes_everything() -> None:
    async def script(mq: AsyncClient) -> None:
        consumer = await mq.consumer("t", delivery="push", on_record=lambda record: None)
        producer = await mq.producer(linger_ms=600_000)
        delivery = producer.send("t", b"flushed by closing")
        await mq.close()
        assert (await delivery).offset == 0
        with pytest.raises(errors.Closed):
            await consumer.poll()

    play(script)


@pytest.mark.parametrize("credit", [1, 100])
def test_credit_bounds_what_a_reader_that_pushes_has_at_hand(credit: int) -> None:
    """In an earlier version, the first fetch of each partition returned up to a MiB, regardless of
    the credit.
    """
    batch, is_called, may_go_on = 50, asyncio.Event(), asyncio.Event()

    async def handle(record: Record) -> None:
        is_called.set()
        await may_go_on.wait()

    async def script(mq: AsyncClient) -> None:
        async with mq.producer(linger_ms=0) as producer:
            for _ in range(40):
                await producer.send_many("t", [bytes(1000)] * batch)
                await producer.flush()
        reader = await mq.consumer(
            "t", mode="psb", delivery="push", on_record=handle, credit=credit
        )
        try:
            await is_called.wait()
            # all requests that were sent before have been answered now
            await reader.begin_offsets()
            assert (await reader.status()).buffered <= 2 * credit + batch
        finally:
            may_go_on.set()
            await reader.close()

    play(script)


@pytest.mark.parametrize("timeout", ["5", True])
def test_a_time_to_wait_is_a_number_of_seconds(timeout: Any) -> None:
    async def script(mq: AsyncClient) -> None:
        async with (
            mq.producer(linger_ms=600_000) as producer,
            mq.consumer("t", group="g") as consumer,
        ):
            delivery = producer.send("t", b"x")
            deliveries = await producer.send_many("t", [b"y"])
            for call in (
                producer.flush,
                producer.close,
                delivery.result,
                delivery.exception,
                deliveries.wait,
                deliveries.result,
                deliveries.exception,
                lambda timeout: consumer.commit(timeout=timeout),
                lambda timeout: consumer.poll(timeout=timeout),
                lambda timeout: consumer.poll_batches(timeout=timeout),
                lambda timeout: mq.decommission("broker-0", wait=True, timeout=timeout),
            ):
                with pytest.raises(errors.ConfigError, match="number of seconds"):
                    await call(timeout)
            assert not any(broker.is_draining for broker in (await mq.cluster()).brokers)
            await producer.send("t", b"z")
            assert len([record async for record in consumer.until_end()]) == 3

    play(script)


def test_a_flag_is_no_partition_and_a_name_needs_answers() -> None:
    async def script(mq: AsyncClient) -> None:
        async with mq.producer() as producer:
            await producer.send("t", b"x")  # The topic is known from here on.
            with pytest.raises(errors.UnknownPartition, match="False"):
                await producer.send("t", b"x", partition=False)
            with pytest.raises(errors.UnknownPartition, match="False"):
                await producer.send_many("t", [b"x"], partition=False)
        with pytest.raises(errors.ConfigError, match="producer_id needs acknowledgements"):
            await mq.producer(producer_id="loader", acks="none")

    play(script)


def test_a_closed_consumer_has_no_partitions() -> None:
    async def script(mq: AsyncClient) -> None:
        async with mq.consumer("t", group="g") as consumer:
            pass
        with pytest.raises(errors.Closed):
            consumer.assignment()

    play(script)


def test_a_forgotten_await_says_so() -> None:
    async def main() -> None:
        async with pymq.aio.open("memory:") as mq:
            await mq.create_topic("t")
            consumer: Any = mq.consumer("t", mode="reader")
            with pytest.raises(TypeError, match="write 'await' before the call"):
                async for _ in consumer:
                    pass
            with pytest.raises(AttributeError, match="no attribute 'poll': this is not open yet"):
                consumer.poll()
            with pytest.raises(TypeError, match="async with"), consumer:
                pass
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                copy.copy(mq)

    asyncio.run(main())
