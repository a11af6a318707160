"""Handlers that fail, are slow, or stop: which messages come again, and which become dead
letters.
"""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("faststream")

from faststream import AckPolicy, BaseMiddleware, ExceptionMiddleware, FastStream
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, StopConsume
from pydantic import BaseModel

import pymq
import pymq.aio
from pymq.contrib.faststream import PymqBroker, PymqMessage, PymqRouter
from pymq.core.partition import produce
from pymq.errors import ConfigError
from tests.contrib.faststream_apps import (
    SOON,
    Seen,
    letters,
    make,
    play,
    reason,
    settled,
    started,
)
from tests.testing.test_what_lies_inside import count_lie, put


class Order(BaseModel):
    item: str


# --- ack policies -------------------------------------------------------------------------------


def failing(broker: PymqBroker, seen: Seen, **options: Any) -> None:
    @broker.subscriber("orders", **options)
    async def handle(body: str, message: PymqMessage) -> None:
        await seen.put(message.delivery_count)
        raise ValueError(f"no {body}")


@pytest.mark.parametrize("policy", [None, AckPolicy.REJECT_ON_ERROR])
def test_by_default_a_failure_is_a_dead_letter(policy: AckPolicy | None) -> None:
    async def script() -> None:
        broker, seen = make(), Seen()
        failing(broker, seen, **({} if policy is None else {"ack_policy": policy}))
        async with started(broker):
            await broker.publish("tea", "orders", headers={"shop": "north"})
            (letter,) = await letters(broker, "orders")
            assert (letter.value, reason(letter)) == (b"tea", "ValueError: no tea")
            assert dict(letter.headers)["shop"] == b"north"
            await settled(broker, "orders")
            assert seen.qsize() == 1

    play(script)


def test_a_returned_message_comes_again_after_a_while_and_at_last_is_a_dead_letter() -> None:
    async def script() -> None:
        broker = make()
        times: list[tuple[float, int]] = []

        @broker.subscriber(
            "orders",
            ack_policy=AckPolicy.NACK_ON_ERROR,
            retry=pymq.Backoff(first_s=0.1, factor=3, jitter=0),
            max_deliver=3,
        )
        async def handle(_: str, message: PymqMessage) -> None:
            times.append((time.monotonic(), message.delivery_count))
            raise ValueError(f"failure {message.delivery_count}")

        async with started(broker):
            await broker.publish("tea", "orders")
            (letter,) = await letters(broker, "orders")
            assert reason(letter) == "ValueError: failure 3"
            assert [count for _, count in times] == [1, 2, 3]
            waits = [later - sooner for (sooner, _), (later, _) in pairwise(times)]
            assert waits[0] >= 0.1
            assert waits[1] >= 0.3

    play(script)


def test_acknowledged_whatever_happens() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()
        failing(broker, seen, ack_policy=AckPolicy.ACK)
        failing(broker, seen, ack_policy=AckPolicy.ACK_FIRST, group="first")
        async with started(broker):
            await broker.publish("tea", "orders")
            assert await seen.several(2) == [1, 1]
            await settled(broker, "orders")
            await settled(broker, "first")
            assert await seen.nothing_for(0.1)

    play(script)


def test_acknowledged_before_the_handler_runs() -> None:
    async def script() -> None:
        broker, begun, release = make(), asyncio.Event(), asyncio.Event()

        @broker.subscriber("orders", ack_policy=AckPolicy.ACK_FIRST)
        async def handle(_: str) -> None:
            begun.set()
            await release.wait()

        async with started(broker):
            await broker.publish("tea", "orders")
            await begun.wait()
            await settled(broker, "orders")  # while the handler runs
            release.set()

    play(script)


def test_manual() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()

        @broker.subscriber("orders", ack_policy=AckPolicy.MANUAL, retry=SOON)
        async def handle(body: str, message: PymqMessage) -> None:
            await seen.put((body, message.delivery_count))
            if message.delivery_count == 1:
                await message.nack()
            elif body == "good":
                await message.ack()
                await message.reject()  # too late
            else:
                await message.reject()

        async with started(broker):
            await broker.publish_batch("good", "bad", topic="orders")
            assert sorted(await seen.several(4)) == [
                ("bad", 1),
                ("bad", 2),
                ("good", 1),
                ("good", 2),
            ]
            (letter,) = await letters(broker, "orders")
            assert letter.value == b"bad"
            await settled(broker, "orders")

    play(script)


def test_exceptions_that_decide() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()

        @broker.subscriber("orders")
        async def handle(body: str, message: PymqMessage) -> None:
            await seen.put((body, message.delivery_count, time.monotonic()))
            if body == "ack":
                raise AckMessage
            if body == "reject":
                try:
                    raise LookupError("no such shop")
                except LookupError as error:
                    raise RejectMessage from error
            if message.delivery_count == 1:
                raise NackMessage(delay=0.3)

        async with started(broker):
            await broker.publish("ack", "orders")
            await broker.publish("reject", "orders")
            (letter,) = await letters(broker, "orders")
            assert (letter.value, reason(letter)) == (b"reject", "LookupError: no such shop")
            await seen.several(2)
            await broker.publish("nack", "orders")
            (_, one, first), (_, two, second) = await seen.several(2)
            assert (one, two) == (1, 2)
            assert second - first >= 0.3
            await settled(broker, "orders")

    play(script)


def test_the_policy_of_broker_and_router() -> None:
    """The subscriber's own policy comes first, then the broker's, then the router's."""

    async def script() -> None:
        seen = Seen()
        router = PymqRouter(ack_policy=AckPolicy.ACK)
        failing(router, seen)  # type: ignore[arg-type] # it has subscribers, too
        broker = make(routers=[router])
        other = make(ack_policy=AckPolicy.ACK)
        failing(other, seen, group="own", ack_policy=AckPolicy.REJECT_ON_ERROR)
        failing(other, seen, group="default")
        async with started(broker, other):
            await broker.publish("tea", "orders")
            await seen.several(3)
            for group in ("orders", "own", "default"):
                await settled(broker, group)
            (letter,) = await letters(broker, "orders")
            assert dict(letter.headers)["pymq.group"] == b"own"

    play(script)


def test_a_reader_has_no_policy() -> None:
    with pytest.raises(ConfigError, match="acknowledges nothing"):
        make().subscriber("orders", mode="reader", ack_policy=AckPolicy.ACK)


def test_a_batch_is_acknowledged_as_a_whole() -> None:
    async def script() -> None:
        broker, seen = make(partitions=1), Seen()

        @broker.subscriber("orders", batch=True, ack_policy=AckPolicy.NACK_ON_ERROR, retry=SOON)
        async def handle(bodies: list[int], message: PymqMessage) -> None:
            await seen.put((sorted(bodies), message.delivery_count))
            if message.delivery_count == 1:
                raise ValueError("not yet")

        @broker.subscriber("bad", batch=True)
        async def reject(bodies: list[int]) -> None:
            raise ValueError(f"{len(bodies)} of them")

        await broker.connect()
        await broker.publish_batch(1, 2, 3, topic="orders")
        await broker.publish_batch(1, 2, topic="bad")
        async with started(broker):
            numbers: list[int] = []
            while len(numbers) < 6:
                bodies, _ = await seen.next()
                numbers += bodies
            assert sorted(numbers) == [1, 1, 2, 2, 3, 3]
            await settled(broker, "orders")
            found = await letters(broker, "bad", 2)
            assert [reason(letter) for letter in found] == ["ValueError: 2 of them"] * 2

    play(script)


# --- messages that nobody can handle ------------------------------------------------------------


def test_what_cannot_be_decoded_is_a_dead_letter_and_the_rest_goes_on() -> None:
    """The undecodable messages are bytes that are no JSON, JSON of another type, and headers that
    are no text.
    """

    async def script() -> None:
        broker, seen = make(partitions=1), Seen()

        @broker.subscriber("orders")
        async def handle(order: Order) -> None:
            await seen.put(order.item)

        async with started(broker):
            async with broker.client.producer() as producer:
                await producer.send("orders", b"{", headers=[("content-type", b"application/json")])
                await producer.send("orders", b"\xff", headers=[("content-type", b"text/plain")])
                await producer.send("orders", b"\xff", headers=[("content-type", b"\xff")])
                await producer.send("orders", b'{"cups": 3}')
                await producer.send("orders", b"")
                await producer.send("orders", b'{"item": "tea"}')
            assert await seen.next() == "tea"
            found = await letters(broker, "orders", 5)
            assert [letter.value for letter in found] == [
                b"{",
                b"\xff",
                b"\xff",
                b'{"cups": 3}',
                b"",
            ]
            assert "JSON" in reason(found[0])
            assert "UnicodeDecodeError" in reason(found[1])
            assert all("validation error" in reason(letter) for letter in found[2:])
            await settled(broker, "orders")

    play(script)


def test_it_is_one_also_where_failures_are_returned() -> None:
    async def script() -> None:
        broker = make()

        @broker.subscriber("orders", ack_policy=AckPolicy.NACK_ON_ERROR, retry=SOON, max_deliver=2)
        async def handle(order: Order) -> None: ...

        async with started(broker):
            await broker.publish("no order", "orders")
            (letter,) = await letters(broker, "orders")
            assert dict(letter.headers)["pymq.deliveries"] == b"2"

    play(script)


def test_a_parser_that_fails() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()

        def parser(record: pymq.Record) -> Any:
            raise ArithmeticError("not mine")

        @broker.subscriber("orders", parser=parser)
        async def handle(_: Any) -> None: ...

        @broker.subscriber("other")
        async def other(body: str) -> None:
            await seen.put(body)

        async with started(broker):
            await broker.publish("tea", "orders")
            (letter,) = await letters(broker, "orders")
            assert reason(letter) == "ArithmeticError: not mine"
            await broker.publish("cup", "other")
            assert await seen.next() == "cup"

    play(script)


def test_no_handler_wants_it() -> None:
    async def script() -> None:
        broker = make()

        @broker.subscriber("orders")(filter=lambda _: False)
        async def handle(_: Any) -> None: ...

        async with started(broker):
            await broker.publish("tea", "orders")
            (letter,) = await letters(broker, "orders")
            assert reason(letter).startswith("SubscriberNotFound")

    play(script)


@pytest.mark.parametrize("mode", ["group", "reader"])
def test_damaged_messages_are_passed_over(
    mode: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def script() -> None:
        async with pymq.aio.open("memory:") as mq:
            await mq.create_topic("t", partitions=1)
            broker, seen = PymqBroker(mq), Seen()

            @broker.subscriber("t", mode=mode)
            async def handle(body: str) -> None:
                await seen.put(body)

            await broker.connect()
            await broker.publish("before", "t")
            with monkeypatch.context() as earlier:
                earlier.setattr(produce, "check", lambda batch: None)
                await asyncio.to_thread(put, mq._client, count_lie())
            await broker.publish("after", "t")
            async with started(broker):
                assert await seen.several(2) == ["before", "after"]
                if mode == "group":
                    await letters(broker, "t")
                    await settled(broker, "t")

    play(script)
    assert "cannot read t" in caplog.text


def test_a_handled_exception_is_no_failure() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()
        handler = ExceptionMiddleware()

        @handler.add_handler(ValueError, publish=True)
        async def told(error: ValueError) -> str:
            return f"told: {error}"

        broker.add_middleware(handler)

        @broker.subscriber("orders")
        @broker.publisher("answers")
        async def handle(_: str) -> str:
            raise ValueError("no tea")

        @broker.subscriber("answers")
        async def answer(body: str) -> None:
            await seen.put(body)

        async with started(broker):
            await broker.publish("tea", "orders")
            assert await seen.next() == "told: no tea"
            await settled(broker, "orders")
            with pytest.raises(pymq.errors.UnknownTopic):
                await broker.client.dead_letters("orders.dlq")

    play(script)


# --- slow handlers and the end ------------------------------------------------------------------


def test_a_handler_that_takes_too_long_is_run_by_another() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()

        @broker.subscriber("orders", ack_wait_s=0.3, max_workers=2)
        async def handle(_: str, message: PymqMessage) -> None:
            await seen.put(message.delivery_count)
            if message.delivery_count == 1:
                await asyncio.sleep(0.8)

        async with started(broker):
            await broker.publish("tea", "orders")
            assert await seen.several(2) == [1, 2]
            await settled(broker, "orders")

    play(script)


def test_the_end_waits_for_handlers_at_work() -> None:
    async def script() -> None:
        async with pymq.aio.open("memory:") as mq:
            broker, seen, begun = make(mq), Seen(), asyncio.Event()

            @broker.subscriber("orders")
            async def handle(body: str) -> None:
                begun.set()
                await asyncio.sleep(0.2)
                await seen.put(body)

            await broker.start()
            await broker.publish("tea", "orders")
            await broker.publish("cup", "orders")
            await begun.wait()
            await broker.stop()
            assert seen.get_nowait() == "tea"
            assert sum((await mq.describe_group("orders")).lag.values()) == 1

    play(script)


def test_what_does_not_end_in_time_goes_to_others_at_once() -> None:
    """Other members get the message long before its lease or the session would expire."""

    async def script() -> None:
        async with pymq.aio.open("memory:") as mq:
            seen = Seen()
            stuck, other = make(mq, graceful_timeout=0.1), make(mq)

            @stuck.subscriber("orders", ack_wait_s=600, session_timeout_s=600, max_workers=2)
            async def hang(body: str) -> None:
                await seen.put(("stuck", body))
                await asyncio.Event().wait()

            @other.subscriber("orders")
            async def handle(body: str, message: PymqMessage) -> None:
                await seen.put((body, message.delivery_count))

            await stuck.start()
            await stuck.publish_batch("a", "b", topic="orders")
            await seen.several(2)
            async with started(other):
                await stuck.stop()
                assert sorted(await seen.several(2)) == [("a", 2), ("b", 2)]

    play(script)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_handler_stops_its_subscriber(workers: int) -> None:
    async def script() -> None:
        broker, seen = make(partitions=1), Seen()

        @broker.subscriber("orders", max_workers=workers)
        async def handle(body: int) -> None:
            await seen.put(body)
            raise StopConsume

        async with started(broker):
            await broker.publish(1, "orders")
            await seen.next()
            while (await broker.client.describe_group("orders")).members:
                await asyncio.sleep(0.01)
            await broker.publish(2, "orders")
            assert await seen.nothing_for(0.1)

    play(script)


def test_a_handler_ends_the_application() -> None:
    async def script() -> None:
        broker = make()
        app = FastStream(broker)

        @broker.subscriber("orders")
        async def handle(_: int) -> None:
            raise SystemExit

        @app.after_startup
        async def send() -> None:
            await broker.publish(1, "orders")

        await app.run()  # run() returns
        assert not broker.running

    play(script)


def test_a_subscriber_may_be_started_again() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()
        subscriber = broker.subscriber("orders")

        @subscriber
        async def handle(body: int) -> None:
            await seen.put(body)

        async with started(broker):
            await broker.start()  # a second start changes nothing
            await broker.publish(1, "orders")
            assert await seen.next() == 1
            await subscriber.stop()
            await broker.publish(2, "orders")
            assert await seen.nothing_for(0.1)
            await subscriber.start()
            assert await seen.next() == 2

    play(script)


def test_a_closed_client_ends_its_subscribers(caplog: pytest.LogCaptureFixture) -> None:
    async def script() -> None:
        mq = await pymq.aio.open("memory:")
        broker = PymqBroker(mq)
        subscriber = broker.subscriber("orders")

        @subscriber
        async def handle(_: int) -> None: ...

        await broker.start()
        await mq.close()
        while subscriber.running:
            await asyncio.sleep(0.01)
        await broker.stop()

    play(script)
    assert "it was closed" in caplog.text


def test_a_deleted_topic_does_not_end_a_subscriber() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()

        class Note(BaseMiddleware[Any, Any]):
            async def on_receive(self) -> None:
                await seen.put(self.msg.value)

        broker.add_middleware(Note)

        @broker.subscriber("orders", mode="reader")
        async def handle(_: Any) -> None: ...

        async with started(broker):
            await broker.publish("one", "orders")
            assert await seen.next() == b"one"
            await broker.client.delete_topic("orders")
            await broker.client.create_topic("orders", partitions=1)
            async with broker.client.producer() as producer:
                await producer.send("orders", b"two")
            assert await seen.next() == b"two"

    play(script)
