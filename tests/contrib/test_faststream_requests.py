"""Requests and replies of FastStream, by pymq's own protocol."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

pytest.importorskip("faststream")

from faststream import AckPolicy, BaseMiddleware, Response
from faststream.exceptions import RejectMessage

import pymq
import pymq.aio
from pymq.contrib.faststream import PymqMessage, PymqRouter
from pymq.errors import ConfigError, NoResponders, RequestFailed, RequestTimeout, UnknownTopic
from tests.contrib.faststream_apps import SECONDS, SOON, Seen, make, play, settled, started


def test_a_reply_has_type_headers_and_id() -> None:
    async def script() -> None:
        broker = make()

        @broker.subscriber("prices")
        async def price(item: str, message: PymqMessage) -> Any:
            assert message.reply_to.startswith("pymq.replies/")
            return Response({item: 9.9}, headers={"shop": message.headers["from"]})

        publisher = broker.publisher("prices", headers={"from": "south"})
        async with started(broker):
            reply = await broker.request(
                "tea", "prices", headers={"from": "north"}, correlation_id="c", timeout=SECONDS
            )
            assert isinstance(reply, PymqMessage.__origin__)  # type: ignore[attr-defined] # of Annotated
            assert await reply.decode() == {"tea": 9.9}
            assert (reply.correlation_id, reply.headers["shop"]) == ("c", "north")
            reply = await publisher.request("cup", timeout=SECONDS)
            assert (await reply.decode(), reply.headers["shop"]) == ({"cup": 9.9}, "south")
            await settled(broker, "prices")

    play(script)


def test_nobody_answers() -> None:
    """The error comes long before the timeout, and no topic is created."""

    async def script() -> None:
        broker = make()

        @broker.subscriber("orders", group="billing")
        async def other(_: str) -> str:
            return "this group is not the service"

        async with started(broker):
            began = time.monotonic()
            with pytest.raises(NoResponders):
                await broker.request("tea", "nothing", timeout=600)
            with pytest.raises(NoResponders):
                await broker.request("tea", "orders", timeout=600)
            assert time.monotonic() - began < SECONDS
            with pytest.raises(UnknownTopic):
                await broker.client.describe_topic("nothing")

    play(script)


def test_only_the_group_of_the_service_answers() -> None:
    """Another group and a reader also get the request, but do not answer."""

    async def script() -> None:
        broker, seen = make(), Seen()

        @broker.subscriber("prices", group="audit")
        @broker.subscriber("prices", mode="reader")
        async def audit(item: str, message: PymqMessage) -> str:
            await seen.put(message.reply_to)
            return "wrong"

        @broker.subscriber("prices")
        async def price(item: str) -> str:
            await seen.several(2)
            return "right"

        async with started(broker):
            reply = await broker.request("tea", "prices", timeout=SECONDS)
            assert await reply.decode() == "right"

    play(script)


@pytest.mark.parametrize("policy", [AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.ACK_FIRST])
def test_a_failure_is_told_at_once(policy: AckPolicy) -> None:
    """A failed request does not become a dead letter, because the requester gets the reason."""

    async def script() -> None:
        broker = make()

        @broker.subscriber("prices", ack_policy=policy)
        async def price(item: int) -> int:
            raise LookupError(f"no price of {item}")

        async with started(broker):
            with pytest.raises(RequestFailed, match="LookupError: no price of 7"):
                await broker.request(7, "prices", timeout=600)
            with pytest.raises(RequestFailed, match="validation error"):
                await broker.request("no number", "prices", timeout=600)
            await settled(broker, "prices")
            with pytest.raises(UnknownTopic):
                await broker.client.dead_letters("prices.dlq")

    play(script)


def test_a_handler_rejects_a_request() -> None:
    async def script() -> None:
        broker = make()

        @broker.subscriber("prices")
        async def price(item: str) -> str:
            raise RejectMessage from KeyError(item)

        async with started(broker):
            with pytest.raises(RequestFailed, match="KeyError: 'tea'"):
                await broker.request("tea", "prices", timeout=600)

    play(script)


def test_a_request_that_is_returned_may_still_succeed() -> None:
    async def script() -> None:
        broker = make()

        @broker.subscriber("prices", ack_policy=AckPolicy.NACK_ON_ERROR, retry=SOON)
        async def price(item: str, message: PymqMessage) -> int:
            if message.delivery_count < 3:
                raise ConnectionError("not yet")
            return message.delivery_count

        async with started(broker):
            reply = await broker.request("tea", "prices", timeout=SECONDS)
            assert await reply.decode() == 3

    play(script)


def test_no_reply_in_time() -> None:
    async def script() -> None:
        broker, release = make(), asyncio.Event()

        @broker.subscriber("prices")
        async def price(item: str) -> str:
            await release.wait()
            return "late"

        async with started(broker):
            with pytest.raises(RequestTimeout):
                await broker.request("tea", "prices", timeout=0.2)
            release.set()

    play(script)


def test_no_handler_begins_after_the_deadline() -> None:
    async def script() -> None:
        broker, seen, release = make(), Seen(), asyncio.Event()

        @broker.subscriber("prices")
        async def price(item: str) -> str:
            await seen.put(item)
            await release.wait()
            return item

        async with started(broker):
            first = asyncio.create_task(broker.request("first", "prices", timeout=SECONDS))
            assert await seen.next() == "first"
            with pytest.raises(RequestTimeout):
                await broker.request("second", "prices", timeout=0.1)
            release.set()
            assert await (await first).decode() == "first"
            await settled(broker, "prices")
            assert seen.empty()

    play(script)


def test_requests_have_a_key_and_no_other_option() -> None:
    async def script() -> None:
        broker = make()

        @broker.subscriber("prices")
        async def price(item: str, message: PymqMessage) -> str:
            return repr(message.records[0].key)

        publisher = broker.publisher("prices", key="of the publisher", priority=3)
        async with started(broker):
            reply = await broker.request("tea", "prices", key="given", timeout=SECONDS)
            assert await reply.decode() == "b'given'"
            reply = await publisher.request("tea", timeout=SECONDS)
            assert await reply.decode() == "b'of the publisher'"
            with pytest.raises(ConfigError):
                await broker.request("tea", "prices", timeout=-1)

    play(script)


def test_many_at_once_over_routers_and_middlewares() -> None:
    async def script() -> None:
        class Double(BaseMiddleware[Any, Any]):
            async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
                cmd.body *= 2
                return await call_next(cmd)

        router = PymqRouter("shop.", middlewares=[Double])

        @router.subscriber("double", max_workers=10)
        async def double(number: int) -> int:
            await asyncio.sleep(0.01)
            return number

        broker = make(routers=[router])
        async with started(broker):
            asked = [broker.request(n, "shop.double", timeout=SECONDS) for n in range(100)]
            replies = await asyncio.gather(*asked)
            assert [await reply.decode() for reply in replies] == [2 * n for n in range(100)]

    play(script)


def test_programs_without_faststream_ask_and_answer() -> None:
    """FastStream's requests use the protocol of ``Client.request`` and ``Client.reply``."""

    async def script() -> None:
        async with pymq.aio.open("memory:") as mq:
            broker = make(mq)

            @broker.subscriber("prices")
            async def price(item: str) -> str:
                return f"{item}: 9.90"

            def stock(request: pymq.Request) -> bytes:
                return request.value + b": 7"

            async with started(broker), mq.reply("stock", stock):
                assert (await mq.request("prices", b"tea", SECONDS)).value == b"tea: 9.90"
                reply = await broker.request(b"tea", "stock", timeout=SECONDS)
                assert await reply.decode() == b"tea: 7"

    play(script)


def test_without_a_reply() -> None:
    """A handler without a result answers with an empty message; with ``no_reply`` it sends no
    answer.
    """

    async def script() -> None:
        broker = make()

        @broker.subscriber("silent", no_reply=True)
        async def silent(_: str) -> str:
            return "unheard"

        @broker.subscriber("empty")
        async def empty(_: str) -> None: ...

        async with started(broker):
            assert (await broker.request("tea", "empty", timeout=SECONDS)).body == b""
            with pytest.raises(RequestTimeout):
                await broker.request("tea", "silent", timeout=0.3)

    play(script)
