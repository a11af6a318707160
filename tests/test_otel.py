"""Spans for an application, with a real SDK that keeps them in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import pymq
import pymq.aio
from pymq import otel
from pymq.errors import DeliveryFailed, ProducerFenced, UnknownTopic


class Spans:
    """A provider, and the finished spans."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._kept = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


@pytest.fixture
def mq(spans: Spans) -> Iterator[otel.TracedClient]:
    with otel.traced(pymq.open("memory:"), tracer_provider=spans.provider) as client:
        yield client


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def test_a_record_carries_its_trace_from_who_sends_to_who_works_on_it(
    mq: otel.TracedClient, spans: Spans
) -> None:
    mq.create_topic("orders")
    with (
        spans.provider.get_tracer("app").start_as_current_span("checkout") as checkout,
        mq.producer() as producer,
    ):
        producer.send("orders", b"two teapots", headers=[("h", b"1")]).result()
    with mq.consumer("orders", group="billing") as consumer:
        (record,) = consumer.poll()
        with otel.process(record, tracer_provider=spans.provider) as work:
            assert trace.get_current_span() is work
    sent, found, worked = map(spans.one, ("send orders", "poll orders", "process orders"))
    assert sent.parent == checkout.get_span_context()
    assert sent.kind is SpanKind.PRODUCER
    assert attributes(sent) == {
        "messaging.system": "pymq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.message.body.size": 11,
        "pymq.offset": 0,
    }
    # The header has the W3C's format, so that any reader can use it.
    headers = dict(record.headers)
    assert headers["h"] == b"1"
    version, trace_id, span_id, flags = headers["traceparent"].decode().split("-")
    assert (version, int(flags, 16) & 1) == ("00", 1)  # the trace is sampled
    assert (int(trace_id, 16), int(span_id, 16)) == (sent.context.trace_id, sent.context.span_id)
    assert worked.kind is SpanKind.CONSUMER
    assert worked.parent is not None
    assert worked.parent.span_id == sent.context.span_id
    assert worked.context.trace_id == checkout.get_span_context().trace_id
    assert [link.context.span_id for link in found.links] == [sent.context.span_id]
    assert attributes(found)["messaging.batch.message_count"] == 1
    assert attributes(found)["messaging.consumer.group.name"] == "billing"


def test_requests_have_spans_and_say_what_went_wrong(mq: otel.TracedClient, spans: Spans) -> None:
    mq.create_topic("orders", partitions=2)
    with pytest.raises(UnknownTopic):
        mq.describe_topic("nothing")
    made, failed = spans.one("create_topic"), spans.one("describe_topic")
    assert attributes(made)["messaging.destination.name"] == "orders"
    assert made.status.status_code is StatusCode.UNSET
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "UNKNOWN_TOPIC"
    assert not mq.closed


def test_a_failure_is_told_and_still_raised(mq: otel.TracedClient, spans: Spans) -> None:
    """The span records the error, and the application gets the error, too."""
    mq.create_topic("orders")
    old = mq.producer(producer_id="p")
    with mq.producer(producer_id="p") as new:
        new.send("orders", b"x").result()
    old.send("orders", b"y")
    with pytest.raises(DeliveryFailed):
        old.flush()
    with pytest.raises(UnknownTopic):
        old.send("nothing", b"x")
    old.close()
    errors = [attributes(span).get("error.type") for span in spans.named("send orders")]
    assert errors == [None, ProducerFenced.code]
    assert attributes(spans.one("send nothing"))["error.type"] == "UNKNOWN_TOPIC"


def test_many_have_one_span(mq: otel.TracedClient, spans: Spans) -> None:
    mq.create_topic("orders")
    with mq.producer() as producer:
        producer.send_many("orders", [b"x"] * 1_000).wait()
        with pytest.raises(UnknownTopic):
            producer.send_many("nothing", [b"x"])
    assert attributes(spans.one("send orders"))["messaging.batch.message_count"] == 1_000
    with mq.consumer("orders", mode="psb") as consumer:
        assert len(list(consumer.until_end())) == 1_000
        consumer.seek("0", "begin")
        assert len(consumer.poll(max_records=400)) == 400
        consumer.seek("0", "end")
        assert consumer.poll(timeout=0) == []
    found = spans.one("poll orders")
    assert attributes(found)["messaging.batch.message_count"] == 400
    assert found.links == ()


def test_what_is_pushed_is_worked_on_within_a_span(mq: otel.TracedClient, spans: Spans) -> None:
    seen, done = [], threading.Event()

    def work(record: pymq.Record) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        done.set()

    mq.create_topic("orders")
    with mq.consumer("orders", delivery="push", on_record=work, auto_ack=True):
        with mq.producer() as producer:
            producer.send("orders", b"x").result()
        assert done.wait(30)
    assert seen == [spans.one("send orders").context.trace_id]


def test_a_record_without_a_trace_belongs_to_whoever_works_on_it(spans: Spans) -> None:
    with pymq.open("memory:") as mq:
        mq.create_topic("orders")
        with mq.producer() as producer:
            for evil in (b"", b"\xff\x00", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"):
                producer.send("orders", b"x", headers=[("traceparent", evil)])
        with (
            mq.consumer("orders", mode="psb") as consumer,
            spans.provider.get_tracer("app").start_as_current_span("batch") as batch,
        ):
            for record in consumer.until_end():
                with otel.process(record, tracer_provider=spans.provider) as span:
                    assert span.get_span_context().trace_id == batch.get_span_context().trace_id
    assert len(spans.named("process orders")) == 3


def test_asyncio_carries_it_by_hand(spans: Spans) -> None:
    async def main() -> pymq.Record:
        async with pymq.aio.open("memory:") as mq:
            await mq.create_topic("orders")
            async with mq.producer() as producer:
                with spans.provider.get_tracer("app").start_as_current_span("checkout"):
                    await producer.send("orders", b"x", headers=otel.inject([("h", b"1")]))
            async with mq.consumer("orders", mode="psb") as consumer:
                (record,) = await consumer.poll()
                return record

    record = asyncio.run(main())
    sender = trace.get_current_span(otel.extract(record)).get_span_context()
    assert sender.span_id == spans.one("checkout").context.span_id
    again = otel.inject(otel.inject(record.headers))
    # a second call does not add the header again
    assert [name for name, _ in again] == ["h", "traceparent"]


def test_so_many_links_has_a_poll() -> None:
    """A link costs some 20 us, so their number is limited even if an SDK would keep more."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(span_limits=SpanLimits(max_links=10_000))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with otel.traced(pymq.open("memory:"), tracer_provider=provider) as client:
        client.create_topic("orders")
        with client.producer() as producer:
            for _ in range(otel.LINKS_MAX + 20):
                producer.send("orders", b"x")
        with client.consumer("orders", mode="psb", offset="begin") as consumer:
            assert len(consumer.poll(max_records=1_000)) == otel.LINKS_MAX + 20
    provider.shutdown()
    (found,) = [span for span in kept.get_finished_spans() if span.name == "poll orders"]
    assert len(found.links) == otel.LINKS_MAX


def test_every_request_of_a_client_has_a_span() -> None:
    """The test finds methods that are renamed or added without a span."""
    methods = {name for name in dir(pymq.Client) if not name.startswith("_")}
    public = {name for name in methods if callable(getattr(pymq.Client, name))}
    assert public - otel.REQUESTS == {
        *("close", "consumer", "forget", "kafka", "metrics", "producer", "reply", "topic"),
    }
    assert public >= otel.REQUESTS


def test_typed_topics_are_traced(mq: otel.TracedClient) -> None:
    mq.create_topic("numbers")
    with mq.topic("numbers", int) as numbers:
        numbers.send(7, expires_s=60).result(60)
        with numbers.consumer(group="g") as consumer:
            (record,) = consumer.poll(timeout=60)
            consumer.ack(record)
    assert record.value == 7
    assert "traceparent" in dict(record.headers)
