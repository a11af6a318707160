"""FastStream's tools with pymq: its test broker, AsyncAPI and telemetry."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("faststream")

from faststream import AckPolicy, FastStream, TestApp
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from pymq.contrib.faststream import (
    PymqBroker,
    PymqMessage,
    PymqResponse,
    PymqRouter,
    TestPymqBroker,
)
from pymq.errors import NoResponders
from tests.contrib.faststream_apps import SECONDS, Seen, make, play, started


class Order(BaseModel):
    item: str
    cups: int = 1


# --- the test broker ----------------------------------------------------------------------------


def test_handlers_are_called_before_publish_returns() -> None:
    async def script() -> None:
        # no broker is at this address, and none is needed
        broker = PymqBroker("zmq+tcp://127.0.0.1:1")

        @broker.subscriber("orders", group="billing")
        @broker.publisher("invoices", headers={"from": "billing"})
        async def bill(order: Order) -> PymqResponse:
            return PymqResponse(order.cups * 9.9, key=order.item)

        @broker.subscriber("invoices", batch=True)
        async def collect(invoices: list[float]) -> None: ...

        publisher = broker.publisher("elsewhere")
        async with TestPymqBroker(broker) as br:
            place = await br.publish(
                Order(item="tea", cups=2), "orders", key="k", partition=3, delay_s=60, priority=9
            )
            assert place[:3] == ("orders", "3", 0)
            bill.mock.assert_called_once_with({"item": "tea", "cups": 2})
            collect.mock.assert_called_once_with([19.8])
            await collect.assert_called_once_with([19.8])
            await br.publish_batch(1.5, 2.5, topic="invoices")
            collect.mock.assert_called_with([1.5, 2.5])
            await publisher.publish("text", headers={"shop": "north"})
            publisher.mock.assert_called_once_with("text")
            await publisher.assert_called_once_with("text", headers={"shop": "north"})

    play(script)


def test_errors_and_what_a_handler_decides() -> None:
    async def script() -> None:
        broker = PymqBroker("memory:")
        messages: list[Any] = []

        @broker.subscriber("orders", ack_policy=AckPolicy.MANUAL)
        async def handle(order: Order, message: PymqMessage) -> None:
            messages.append(message)
            await message.nack()

        async with TestPymqBroker(broker) as br:
            await br.publish({"item": "tea"}, "orders")
            assert [message.committed for message in messages] == ["NACKED"]
            with pytest.raises(ValueError, match="validation error"):
                await br.publish("no order", "orders")

    play(script)


def test_one_of_each_group_and_every_reader() -> None:
    async def script() -> None:
        broker, other = make(), make()
        calls: list[str] = []

        def note(br: PymqBroker, name: str, **options: Any) -> Any:
            @br.subscriber("orders", **options)
            async def handle(_: str) -> None:
                calls.append(name)

            return handle

        kept = [
            note(broker, "group"),
            note(other, "group"),
            note(other, "other group", group="g"),
            note(broker, "reader", mode="reader"),
            note(other, "reader", mode="reader"),
        ]
        async with TestPymqBroker(broker, other) as (br, _):
            await br.publish("tea", "orders")
            assert sorted(calls) == ["group", "other group", "reader", "reader"]
        assert len(kept) == 5

    play(script)


def test_requests_under_the_test_broker() -> None:
    async def script() -> None:
        broker = PymqBroker("memory:")

        @broker.subscriber("prices")
        async def price(item: str) -> PymqResponse:
            return PymqResponse({item: 9.9}, headers={"shop": "north"})

        @broker.subscriber("slow")
        async def slow(_: str) -> None:
            await asyncio.Event().wait()

        async with TestPymqBroker(broker) as br:
            reply = await br.request("tea", "prices", correlation_id="c")
            assert await reply.decode() == {"tea": 9.9}
            assert (reply.correlation_id, reply.headers["shop"]) == ("c", "north")
            with pytest.raises(TimeoutError):
                await br.request("tea", "slow", timeout=0.01)
            with pytest.raises(NoResponders):
                await br.request("tea", "stock")

    play(script)


def test_a_whole_application_under_the_test_broker() -> None:
    async def script() -> None:
        router = PymqRouter("shop.")

        @router.subscriber("orders")
        async def handle(_: str) -> None: ...

        broker = PymqBroker("memory:", routers=[router])
        app = FastStream(broker)

        @app.after_startup
        async def send() -> None:
            await broker.publish("tea", "shop.orders")

        async with TestPymqBroker(broker), TestApp(app):
            handle.mock.assert_called_once_with("tea")

    play(script)


def test_with_the_real_queue() -> None:
    """Calls are recorded, and messages are acknowledged and kept."""

    async def script() -> None:
        broker = make()
        results = broker.publisher("results")

        @broker.subscriber("orders")
        @results
        async def handle(body: str) -> str:
            return f"{body}!"

        async with TestPymqBroker(broker, with_real=True) as br:
            await br.publish("tea", "orders")
            await handle.wait_call(SECONDS)
            handle.mock.assert_called_once_with("tea")
            while not results.mock.called:
                await asyncio.sleep(0.01)
            results.mock.assert_called_once_with("tea!")
            async with br.client.consumer("results", mode="reader") as reader:
                assert [record.value for record in await reader.poll()] == [b"tea!"]

    play(script)


# --- AsyncAPI -----------------------------------------------------------------------------------


def described() -> FastStream:
    broker = PymqBroker(
        "zmq+tcp://127.0.0.1:7878", description="the shop's", specification_url="pymq.example:7878"
    )
    router = PymqRouter("shop.")

    @router.subscriber("orders", title="Orders")
    @router.publisher("invoices", description="what is to be paid")
    async def bill(order: Order) -> float:
        """Write the invoice."""
        return order.cups * 9.9

    @broker.subscriber("hidden", include_in_schema=False)
    async def hidden(_: str) -> None: ...

    broker.include_router(router)
    return FastStream(broker, specification=AsyncAPI(title="Shop", version="7"))


@pytest.mark.parametrize("version", ["2.6.0", "3.0.0"])
def test_the_document(version: Any) -> None:
    broker = described().broker
    assert broker is not None
    factory = AsyncAPI(broker, title="Shop", schema_version=version)
    found = factory.to_specification().to_jsonable()
    assert found["asyncapi"] == version
    (server,) = found["servers"].values()
    assert server["protocol"] == "pymq"
    assert server["description"] == "the shop's"
    assert "pymq.example:7878" in json.dumps(server)
    assert set(found["channels"]) == {"Orders", "shop.invoices:Publisher"}
    assert "hidden" not in json.dumps(found)
    schemas = found["components"]["schemas"]
    assert schemas["Order"]["properties"]["item"] == {"title": "Item", "type": "string"}
    assert "Write the invoice." in json.dumps(found["channels"])
    assert "what is to be paid" in json.dumps(found["channels"])
    if version == "3.0.0":
        addresses = {channel["address"] for channel in found["channels"].values()}
        assert addresses == {"shop.orders", "shop.invoices"}


# --- telemetry ----------------------------------------------------------------------------------


def test_traces_follow_a_message() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from pymq.contrib.faststream.telemetry.opentelemetry import PymqTelemetryMiddleware

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def script() -> None:
        seen = Seen()
        broker = make(middlewares=[PymqTelemetryMiddleware(tracer_provider=provider)])

        @broker.subscriber("orders")
        @broker.publisher("invoices")
        async def bill(body: str) -> str:
            return body

        @broker.subscriber("invoices", batch=True)
        async def collect(bodies: list[str]) -> None:
            await seen.put(bodies)

        async with started(broker):
            await broker.publish("tea", "orders")
            await seen.next()

    play(script)
    spans = exporter.get_finished_spans()
    names = {span.name for span in spans}
    assert {"orders publish", "orders process", "invoices publish", "invoices process"} <= names
    by_name = {span.name: span for span in spans}
    process = by_name["orders process"]
    assert process.attributes is not None
    assert process.attributes["messaging.system"] == "pymq"
    assert process.attributes["messaging.pymq.offset"] == 0
    sent, publish = by_name["orders create"], by_name["orders publish"]
    assert publish.parent is not None
    assert sent.context is not None
    assert publish.parent.span_id == sent.context.span_id
    assert process.parent is not None
    assert process.parent.trace_id == sent.context.trace_id
    batch = by_name["invoices process"]
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 1


def test_messages_are_counted() -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client import CollectorRegistry

    from pymq.contrib.faststream.telemetry.prometheus import PymqPrometheusMiddleware

    registry = CollectorRegistry()

    async def script() -> None:
        seen = Seen()
        broker = make(middlewares=[PymqPrometheusMiddleware(registry=registry, app_name="shop")])

        @broker.subscriber("orders")
        async def bill(body: str) -> None:
            await seen.put(body)
            if body == "bad":
                raise ValueError(body)

        @broker.subscriber("many", batch=True)
        async def collect(bodies: list[str]) -> None:
            await seen.put(bodies)

        async with started(broker):
            await broker.publish("tea", "orders")
            await broker.publish("bad", "orders")
            await broker.publish_batch("a", "b", topic="many", partition=0)
            while seen.qsize() < 3:
                await asyncio.sleep(0.01)

    play(script)
    where = {"app_name": "shop", "broker": "pymq"}
    received = "faststream_received_messages_total"
    assert registry.get_sample_value(received, {**where, "handler": "orders"}) == 2
    assert registry.get_sample_value(received, {**where, "handler": "many"}) == 2
    processed = {**where, "handler": "orders", "status": "error"}
    assert registry.get_sample_value("faststream_received_processed_messages_total", processed) == 1
    published = {**where, "destination": "orders", "status": "success"}
    assert registry.get_sample_value("faststream_published_messages_total", published) == 2
