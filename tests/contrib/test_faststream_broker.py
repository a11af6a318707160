"""FastStream's requirements for a broker: subscribers, publishers, routers, middlewares, parsers.

FastStream does not ship the test suite of its own brokers. The tests here cover the same
behaviours, and pymq's additions (decision 167).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("faststream")

from faststream import BaseMiddleware, Context, FastStream, Header, Response, TestApp
from faststream._internal.broker import BrokerRouter
from faststream._internal.configs import BrokerConfig
from faststream.exceptions import IncorrectState, SetupError
from pydantic import BaseModel

import pymq.aio
from pymq.contrib.faststream import (
    PymqBroker,
    PymqMessage,
    PymqPublisher,
    PymqResponse,
    PymqRoute,
    PymqRouter,
)
from pymq.contrib.faststream.annotations import Client
from pymq.contrib.faststream.annotations import PymqBroker as Injected
from pymq.core.batch.record import Record
from pymq.errors import ConfigError, InvalidName, UnknownTopic
from tests.contrib.faststream_apps import SECONDS, Seen, make, play, settled, started


class Order(BaseModel):
    item: str
    cups: int = 1


@dataclass
class Point:
    x: int
    y: int


# --- publishing and consuming -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sent", "got", "content_type"),
    [
        (str, "text \u2615", "text \u2615", "text/plain"),
        (bytes, b"\x00\xff", b"\x00\xff", None),
        (int, 7, 7, "application/json"),
        (dict[str, int], {"a": 1}, {"a": 1}, "application/json"),
        (list[int], [1, 2], [1, 2], "application/json"),
        (Order, Order(item="tea"), Order(item="tea"), "application/json"),
        (Order, {"item": "tea", "cups": "3"}, Order(item="tea", cups=3), "application/json"),
        (Point, Point(1, 2), Point(1, 2), "application/json"),
        (datetime, datetime(2026, 1, 2), datetime(2026, 1, 2), "application/json"),  # noqa: DTZ001 # also one without a zone comes back
    ],
)
def test_a_message_arrives_with_its_type(
    kind: Any, sent: object, got: object, content_type: str | None
) -> None:
    async def script() -> None:
        broker, seen = make(), Seen()

        @broker.subscriber("orders")
        async def handle(body: kind, message: PymqMessage) -> None:
            await seen.put((body, message.content_type))

        async with started(broker):
            await broker.publish(sent, "orders")
            assert await seen.next() == (got, content_type)

    play(script)


def test_what_a_message_carries() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()

        @broker.subscriber("orders", group="billing")
        async def handle(
            body: str,
            message: PymqMessage,
            shop: str = Header(),
            got: Record = Context("message.raw_message"),
        ) -> None:
            await seen.put((body, message, shop, got))

        async with started(broker):
            place = await broker.publish(
                "tea",
                "orders",
                key="customer 7",
                headers={"shop": "north", "cups": 3, "raw": b"\xff", "none": None},
                correlation_id="c1",
                partition="2",
                timestamp_ms=1_700_000_000_000,
            )
            body, message, shop, record = await seen.next()
            assert (body, shop) == ("tea", "north")
            assert record == message.raw_message
            assert record[:6] == (*place[:3], 1_700_000_000_000, b"customer 7", b"tea")
            assert place.partition == "2"
            assert message.headers == {
                "content-type": "text/plain",
                "correlation_id": "c1",
                "shop": "north",
                "cups": "3",
                "raw": b"\xff",
            }
            assert (message.correlation_id, message.message_id) == ("c1", "2-0")
            assert message.delivery_count == 1

    play(script)


def test_keys_choose_the_partition() -> None:
    async def script() -> None:
        broker = make()
        async with started(broker):
            places = [await broker.publish(n, "t", key=b"same") for n in range(10)]
            assert len({place.partition for place in places}) == 1

    play(script)


def test_topics_are_created_when_they_are_needed() -> None:
    async def script() -> None:
        async with pymq.aio.open("memory:") as mq:
            await mq.create_topic("mine", partitions=1)
            broker = make(mq, partitions=3, retention_ms=60_000)
            broker.publisher("published")

            @broker.subscriber("mine")
            async def one(_: Any) -> None: ...

            @broker.subscriber("consumed")
            async def other(_: Any) -> None: ...

            async with started(broker):
                await broker.publish(1, "sent")
                counts = {}
                for name in ("mine", "published", "consumed", "sent"):
                    topic = await mq.describe_topic(name)
                    counts[name] = len(topic.partitions)
                    if name != "mine":
                        assert topic.config.retention_ms == 60_000
                assert counts == {"mine": 1, "published": 3, "consumed": 3, "sent": 3}
                await mq.delete_topic("sent")
                await until_sent(broker, "sent")

    play(script)


async def until_sent(broker: PymqBroker, topic: str) -> None:
    """Publish to a deleted topic until it succeeds: the first error makes the broker create the
    topic again.
    """
    with pytest.raises(UnknownTopic):
        await broker.publish("lost", topic)
    while True:
        try:
            await broker.publish("kept", topic)
            return
        except UnknownTopic:
            await asyncio.sleep(0.01)


def test_messages_wait_for_their_time() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()

        @broker.subscriber("orders")
        async def handle(body: str) -> None:
            await seen.put((body, time.time()))

        async with started(broker):
            sent = time.time()
            await broker.publish("late", "orders", delay_s=0.4)
            await broker.publish(
                "later", "orders", deliver_at=datetime.now(UTC) + timedelta(seconds=0.6)
            )
            await broker.publish("now", "orders")
            got = await seen.several(3)
            assert [body for body, _ in got] == ["now", "late", "later"]
            assert got[0][1] < sent + 0.4 <= got[1][1]
            assert got[2][1] >= sent + 0.6

    play(script)


def test_expired_and_urgent_messages() -> None:
    async def script() -> None:
        broker, seen = make(partitions=1), Seen()

        @broker.subscriber("orders")
        async def handle(body: str) -> None:
            await seen.put(body)

        await broker.connect()
        stale = await broker.publish("stale", "orders", expires_s=0.001)
        await broker.publish("plain", "orders", expires_s=600)
        await broker.publish("urgent", "orders", priority=9)
        while time.time() * 1000 < stale.timestamp_ms + 10:
            await asyncio.sleep(0.001)
        async with started(broker):
            assert await seen.several(2) == ["urgent", "plain"]
            await settled(broker, "orders")
            assert seen.empty()

    play(script)


@pytest.mark.parametrize("option", [{"delay_s": -1}, {"expires_s": -1}, {"priority": 10}])
def test_options_out_of_range(option: dict[str, Any]) -> None:
    async def script() -> None:
        broker = make()
        async with started(broker):
            with pytest.raises(ConfigError):
                await broker.publish(1, "orders", **option)

    play(script)


def test_unknown_options_are_told_at_once() -> None:
    """The error comes where the option is written, and suggests the right name."""
    broker = make()
    with pytest.raises(ConfigError, match="did you mean 'priority'"):
        broker.publisher("t", prority=1)  # type: ignore[call-overload] # what is tested
    with pytest.raises(ConfigError, match="did you mean 'max_deliver'"):
        broker.subscriber("t", max_delivery=1)  # type: ignore[call-arg] # what is tested
    with pytest.raises(ConfigError, match="did you mean 'delay_s'"):
        PymqResponse(1, delay=1)  # type: ignore[call-arg] # what is tested
    with pytest.raises(ConfigError, match="ack_policy"):
        broker.subscriber("t", auto_ack=True)
    with pytest.raises(ConfigError, match="max_workers=0"):
        broker.subscriber("t", max_workers=0)
    with pytest.raises(ConfigError, match="no group"):
        broker.subscriber("t", mode="reader", group="g")
    with pytest.raises(ConfigError, match="offset"):
        broker.subscriber("t", offset="end")
    with pytest.raises(InvalidName):
        broker.subscriber("t", group="no name!")


def test_publish_says_which_option_it_does_not_know() -> None:
    async def script() -> None:
        broker = make()
        async with started(broker):
            with pytest.raises(ConfigError, match="did you mean 'delay_s'"):
                await broker.publish(1, "t", delay=1)  # type: ignore[call-arg] # what is tested

    play(script)


def test_before_the_start_and_after_the_end() -> None:
    async def script() -> None:
        broker = make()
        for call in (
            broker.publish(1, "t"),
            broker.request(1, "t"),
            broker.publish_batch(1, topic="t"),
        ):
            with pytest.raises(IncorrectState, match=r"broker\.start\(\)"):
                await call
        assert not await broker.ping(timeout=1)
        async with started(broker):
            assert await broker.ping(timeout=SECONDS)
        with pytest.raises(IncorrectState):
            await broker.publish(1, "t")
        assert not await broker.ping(timeout=1)
        async with started(broker):  # a second start
            await broker.publish(1, "t")

    play(script)


# --- groups, readers, batches -------------------------------------------------------------------


def test_members_share_and_groups_copy() -> None:
    async def script() -> None:
        brokers, seen = [make(), make()], Seen()

        @brokers[0].subscriber("orders", group="shared")
        @brokers[1].subscriber("orders", group="shared")
        async def shared(body: int) -> None:
            await seen.put(("shared", body))

        @brokers[0].subscriber("orders", group="own")
        async def own(body: int) -> None:
            await seen.put(("own", body))

        async with started(*brokers):
            for number in range(20):
                await brokers[0].publish(number, "orders")
            got = await seen.several(40)
            assert sorted(got) == [(g, n) for g in ("own", "shared") for n in range(20)]

    play(script)


@pytest.mark.parametrize("quick_first", [0, 20])
def test_with_prefetch_1_a_busy_member_keeps_hardly_anything(quick_first: int) -> None:
    """The same holds for a member that was quick and is stuck now; one more message may be in
    flight to it.
    """

    async def script() -> None:
        stuck, release = asyncio.Event(), asyncio.Event()
        brokers, ran, seen = [make(), make()], [], Seen()

        def define(member: int) -> Any:
            async def work(number: int) -> None:
                ran.append((member, number))
                if number == 0:
                    stuck.set()
                    await release.wait()
                await seen.put(number)

            return brokers[member].subscriber("work", ack_wait_s=600, prefetch=1)(work)

        handlers = [define(member) for member in range(2)]
        async with started(*brokers):
            if quick_first:
                await brokers[0].publish_batch(*[-1] * quick_first, topic="work")
                await seen.several(quick_first)
            await brokers[0].publish_batch(*range(100), topic="work")
            await stuck.wait()
            others = await seen.several(97)
            release.set()
            assert sorted(others + await seen.several(3)) == list(range(100))
        assert len(handlers) == 2

    play(script)


def test_readers_get_everything_and_acknowledge_nothing() -> None:
    async def script() -> None:
        broker, seen = make(partitions=1), Seen()

        @broker.subscriber("orders", mode="reader")
        async def first(body: int, message: PymqMessage) -> None:
            await message.reject()  # There is no message to reject.
            await seen.put(("first", body))

        @broker.subscriber("orders", mode="reader", offset="end")
        async def late(body: int) -> None:
            await seen.put(("late", body))
            raise RuntimeError("it goes on")

        @broker.subscriber("orders", mode="reader", partition="0", offset=1)
        async def second(body: int) -> None:
            await seen.put(("second", body))

        await broker.connect()
        for number in range(2):
            await broker.publish(number, "orders")
        async with started(broker):
            await broker.publish(2, "orders")
            await broker.publish(3, "orders")
            got = sorted(await seen.several(9))
            assert got == [
                *(("first", n) for n in range(4)),
                *(("late", n) for n in (2, 3)),
                *(("second", n) for n in (1, 2, 3)),
            ]
            with pytest.raises(UnknownTopic):
                await broker.client.describe_topic("orders.dlq")

    play(script)


def test_batches() -> None:
    async def script() -> None:
        broker, seen = make(partitions=1), Seen()

        @broker.subscriber("orders", batch=True, max_records=3)
        async def handle(bodies: list[Order], message: PymqMessage) -> None:
            await seen.put((bodies, message.batch_headers, message.records))

        await broker.connect()
        orders = [Order(item="tea", cups=n) for n in range(7)]
        places = await broker.publish_batch(
            *orders, topic="orders", headers={"shop": "north"}, key=b"k"
        )
        assert [place.offset for place in places] == list(range(7))
        async with started(broker):
            got = await seen.several(3)
            assert [order for bodies, *_ in got for order in bodies] == orders
            assert [len(bodies) for bodies, *_ in got] == [3, 3, 1]
            assert all(h["shop"] == "north" for _, headers, _ in got for h in headers)
            assert [r.key for *_, records in got for r in records] == [b"k"] * 7
            await settled(broker, "orders")

    play(script)


def test_several_at_a_time() -> None:
    async def script() -> None:
        broker, full = make(), asyncio.Event()
        now: set[int] = set()
        most = 0

        @broker.subscriber("orders", max_workers=3)
        async def handle(body: int) -> None:
            nonlocal most
            now.add(body)
            most = max(most, len(now))
            if len(now) == 3:
                full.set()
            await full.wait()
            now.discard(body)

        async with started(broker):
            await broker.publish_batch(*range(30), topic="orders")
            await settled(broker, "orders")
            assert most == 3

    play(script)


def test_one_at_a_time_keeps_the_order_of_a_key() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()

        @broker.subscriber("orders")
        async def handle(body: int) -> None:
            await asyncio.sleep(0)
            await seen.put(body)

        async with started(broker):
            await broker.publish_batch(*range(50), topic="orders", key="same")
            assert await seen.several(50) == list(range(50))

    play(script)


def test_without_a_handler() -> None:
    """``get_one`` and iteration: the caller acknowledges."""

    async def script() -> None:
        broker = make()
        single, batch = broker.subscriber("a"), broker.subscriber("b", batch=True, max_records=2)
        handled = broker.subscriber("c")

        @handled
        async def handle(_: Any) -> None: ...

        with pytest.raises(IncorrectState, match="not started"):
            await single.get_one()
        async with started(broker):
            assert await single.get_one(timeout=0.01) is None
            with pytest.raises(IncorrectState, match="has a handler"):
                await handled.get_one()
            await broker.publish("one", "a")
            message = await single.get_one(timeout=SECONDS)
            assert message is not None
            assert await message.decode() == "one"
            await message.ack()
            await settled(broker, "a")
            await broker.publish_batch(1, 2, topic="b", partition=0)
            message = await batch.get_one(timeout=SECONDS)
            assert message is not None
            assert await message.decode() == [1, 2]
            await broker.publish_batch("two", "three", topic="a", key="same")
            values = []
            async for found in single:
                values.append(await found.decode())
                await found.ack()
                if len(values) == 2:
                    break
            assert values == ["two", "three"]

    play(script)


# --- publishers, routers, middlewares -----------------------------------------------------------


def test_a_handler_publishes_what_it_returns() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()
        invoices = broker.publisher("invoices", headers={"from": "billing"}, key="always")

        @broker.subscriber("orders")
        @broker.publisher("copies")
        @invoices
        async def bill(cups: int) -> Any:
            if cups == 2:
                return PymqResponse(cups, headers={"two": "yes"}, key="own", correlation_id="c2")
            return Response(cups, headers={"plain": "yes"}) if cups == 3 else cups

        @broker.subscriber("invoices")
        @broker.subscriber("copies")
        async def receive(cups: int, message: PymqMessage) -> None:
            (record,) = message.records
            head = {k: v for k, v in message.headers.items() if k in {"from", "two", "plain"}}
            await seen.put((record.topic, cups, record.key, head, message.correlation_id))

        async with started(broker):
            for cups in (1, 2, 3):
                await broker.publish(cups, "orders", correlation_id=f"c{cups}")
            got = sorted(await seen.several(6), key=lambda found: found[:2])
            assert got == [
                ("copies", 1, None, {}, "c1"),
                ("copies", 2, b"own", {"two": "yes"}, "c2"),
                ("copies", 3, None, {"plain": "yes"}, "c3"),
                ("invoices", 1, b"always", {"from": "billing"}, "c1"),
                ("invoices", 2, b"own", {"from": "billing", "two": "yes"}, "c2"),
                ("invoices", 3, b"always", {"from": "billing", "plain": "yes"}, "c3"),
            ]
            place = await invoices.publish(4, headers={"two": "2"}, key="given")
            assert (place.topic, (await seen.next())[1:4]) == (
                "invoices",
                (4, b"given", {"from": "billing", "two": "2"}),
            )
            assert (await invoices.publish(5, "copies")).topic == "copies"

    play(script)


def test_a_batch_publisher_sends_each_item() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()
        parts = broker.publisher("parts", batch=True)

        @broker.subscriber("orders")
        @parts
        async def split(_: str) -> list[int]:
            return [1, 2, 3]

        @broker.subscriber("parts")
        async def part(number: int) -> None:
            await seen.put(number)

        async with started(broker):
            await broker.publish("", "orders")
            assert sorted(await seen.several(3)) == [1, 2, 3]
            assert len(await parts.publish(4, 5)) == 2
            assert sorted(await seen.several(2)) == [4, 5]

    play(script)


def test_a_topic_for_the_reply() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()

        @broker.subscriber("orders")
        async def handle(body: int) -> int:
            return 2 * body

        @broker.subscriber("quiet", no_reply=True)
        async def quiet(body: int) -> int:
            return 3 * body

        @broker.subscriber("answers")
        async def answer(body: int, message: PymqMessage) -> None:
            await seen.put((body, message.correlation_id))

        async with started(broker):
            await broker.publish(7, "quiet", reply_to="answers")
            # a sender cannot choose this reply topic
            await broker.publish(4, "orders", reply_to="pymq.replies")
            await settled(broker, "quiet")
            await broker.publish(5, "orders", reply_to="answers", correlation_id="c")
            assert await seen.next() == (10, "c")
            await settled(broker, "orders")
            with pytest.raises(UnknownTopic):
                await broker.client.describe_topic("pymq.replies")

    play(script)


def test_no_message_creates_the_topic_of_its_reply() -> None:
    async def script() -> None:
        broker = make()

        @broker.subscriber("orders")
        async def handle(_: int) -> int:
            return 1

        async with started(broker):
            await broker.publish(5, "orders", reply_to="nowhere")
            await settled(broker, "orders")
            with pytest.raises(UnknownTopic):
                await broker.client.describe_topic("nowhere")

    play(script)


def test_routers() -> None:
    async def script() -> None:
        seen = Seen()

        async def routed(body: str) -> str:
            return f"{body} routed"

        inner = PymqRouter("inner.", [PymqRoute(routed, "a", publishers=[PymqPublisher("b")])])
        outer = PymqRouter("outer.", routers=[inner])

        @outer.subscriber("inner.b", group="readers")
        async def handle(body: str, message: PymqMessage) -> None:
            await seen.put((message.records[0].topic, body))

        broker = make()
        broker.include_router(outer, prefix="shop.")
        async with started(broker):
            await broker.publish("tea", "shop.outer.inner.a")
            assert await seen.next() == ("shop.outer.inner.b", "tea routed")

    play(script)


def test_a_router_of_another_broker() -> None:
    class Other(BrokerRouter[Any, Any]):
        """A router of another broker."""

        def subscriber(self, *_: Any, **__: Any) -> Any: ...

        def publisher(self, *_: Any, **__: Any) -> Any: ...

    other = Other(config=BrokerConfig(), handlers=(), routers=())
    with pytest.raises(SetupError, match="Other is no router for a PymqBroker"):
        make().include_router(other)


def test_middlewares_parsers_and_decoders() -> None:
    async def script() -> None:
        calls: list[str] = []

        class Shout(BaseMiddleware[Any, Any]):
            async def on_receive(self) -> None:
                calls.append(f"receive {self.msg.value.decode()}")
                await super().on_receive()

            async def consume_scope(self, call_next: Any, msg: Any) -> Any:
                msg.body = msg.body.upper()
                return await call_next(msg)

            async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
                cmd.body = f"{cmd.body}!"
                return await call_next(cmd)

        async def parser(record: Record, original: Any) -> Any:
            message = await original(record)
            message.message_id = "parsed"
            return message

        async def decoder(message: Any, original: Any) -> Any:
            return f"<{await original(message)}>"

        broker, seen = make(middlewares=[Shout], parser=parser), Seen()

        @broker.subscriber("orders", decoder=decoder)
        async def handle(body: str, message: PymqMessage) -> None:
            await seen.put((body, message.message_id))

        async with started(broker):
            await broker.publish("tea", "orders")
            assert await seen.next() == ("<TEA!>", "parsed")
            assert calls == ["receive tea!"]

    play(script)


def test_filters_choose_the_handler() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()
        orders = broker.subscriber("orders")

        @orders(filter=lambda message: message.content_type == "application/json")
        async def structured(body: dict[str, int]) -> None:
            await seen.put(("json", body))

        @orders
        async def other(body: str) -> None:
            await seen.put(("text", body))

        async with started(broker):
            await broker.publish("tea", "orders")
            assert await seen.next() == ("text", "tea")
            await broker.publish({"tea": 1}, "orders")
            assert await seen.next() == ("json", {"tea": 1})

    play(script)


def test_what_a_handler_may_ask_for() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()

        @broker.subscriber("orders")
        async def handle(body: str, client: Client, injected: Injected) -> None:
            await seen.put((client is broker.client, injected is broker))

        async with started(broker):
            await broker.publish("tea", "orders")
            assert await seen.next() == (True, True)

    play(script)


def test_a_class_that_cannot_be_injected_is_told() -> None:
    async def script() -> None:
        broker = make()

        @broker.subscriber("orders")
        async def handle(body: str, client: pymq.aio.AsyncClient) -> None: ...

        with pytest.raises(SetupError, match=r"annotations import Client"):
            await broker.start()
        await broker.stop()

    play(script)


# --- the connection -----------------------------------------------------------------------------


def test_brokers_share_a_folder(tmp_path: Path) -> None:
    """Only one client can open a folder, so brokers share it; unhandled messages are there at the
    next start.
    """

    async def first() -> None:
        one, other = make(tmp_path / "data"), make(str(tmp_path / "data"))
        async with started(one, other):
            assert one.client is other.client
            await other.publish("tea", "orders")

    async def second() -> None:
        broker, seen = make(tmp_path / "data"), Seen()

        @broker.subscriber("orders")
        async def handle(body: str) -> None:
            await seen.put(body)

        async with started(broker):
            assert await seen.next() == "tea"

    play(first)
    play(second)


def test_a_client_of_the_application_stays_open() -> None:
    async def script() -> None:
        async with pymq.aio.open("memory:") as mq:
            broker = make(mq)
            async with started(broker):
                assert broker.client is mq
            assert await mq.topics() == []

    play(script)


def test_an_application_starts_and_stops_it() -> None:
    async def script() -> None:
        broker, seen = make(), Seen()
        app = FastStream(broker)

        @broker.subscriber("orders")
        async def handle(body: str) -> None:
            await seen.put(body)

        @app.after_startup
        async def send() -> None:
            await broker.publish("tea", "orders")

        async with TestApp(app):
            assert await seen.next() == "tea"
        assert not broker.running

    play(script)


def test_taskiq_and_faststream_share_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("taskiq")
    from pymq.contrib.taskiq import PymqBroker as Tasks

    async def script() -> None:
        tasks, broker = Tasks(tmp_path), PymqBroker(tmp_path)
        await tasks.startup()
        async with started(broker):
            assert tasks.client is broker.client
        await tasks.shutdown()

    play(script)
