"""OpenTelemetry: spans for sending, receiving and processing records.

::

    import pymq
    from pymq import otel

    with otel.traced(pymq.open("data/")) as mq:
        with mq.producer() as producer:
            producer.send("orders", b"two teapots")  # a span, and its context in the headers
        with mq.consumer("orders", group="billing") as consumer:
            for record in consumer.poll():
                with otel.process(record):  # a span that belongs to the sender's trace
                    ...

This module needs the extra ``otel``, which is only OpenTelemetry's API: without an
SDK in the application, spans cost little and are not recorded. Names and attributes follow
OpenTelemetry's semantic conventions for messaging. The context travels in a record's headers, as
W3C's ``traceparent`` or as the application's propagator writes it.

A span takes some 20 us, more than sending a record, so ``send_many`` has one span for all its
records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import time_ns
from typing import Any, cast

from pymq.client.client import Client
from pymq.client.consumer.consumer import Consumer
from pymq.client.producer.delivery import Deliveries, Delivery, batch_of
from pymq.client.producer.producer import Producer
from pymq.client.typed.topic import TypedTopic
from pymq.core.batch.columns import Headers
from pymq.core.batch.record import Record
from pymq.errors import MissingExtra, PymqError

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter, Setter
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError as error:
    raise MissingExtra.of("OpenTelemetry is missing", "otel") from error

__all__ = ["extract", "inject", "process", "traced"]

SYSTEM = "pymq"
LINKS_MAX = 128  # links of a receiving span; the default limit of SDKs
# Methods of a client that send requests, and therefore have a span.
REQUESTS = frozenset(
    """alter_topic balance cancel cluster create_partition create_topic dead_letters decommission
    delete_group delete_topic describe_group describe_leases describe_topic groups offsets_at
    purge_dead_letters reassign recommission recover_partition redrive request reset_group
    set_partition_state topics unsubscribe""".split()
)


class _Carrier(Setter[list[tuple[str, bytes]]]):
    def set(self, carrier: list[tuple[str, bytes]], key: str, value: str) -> None:
        carrier[:] = [pair for pair in carrier if pair[0] != key]
        carrier.append((key, value.encode()))


class _Reader(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        # A header may hold any bytes; if it is not text, there is no context.
        return [found.decode("ascii", "replace") for name, found in carrier if name == key] or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


_CARRIER, _READER = _Carrier(), _Reader()


def inject(headers: Iterable[tuple[str, bytes]] | None = None) -> list[tuple[str, bytes]]:
    """Return *headers* with the current context, for producers without spans, such as asyncio's."""
    carrier = list(headers or ())
    propagate.inject(carrier, setter=_CARRIER)
    return carrier


def extract(record: Record) -> Context:
    """Return the context in which a record was sent; empty if its headers have none."""
    return propagate.extract(record.headers, Context(), getter=_READER)


@contextmanager
def process(record: Record, *, tracer_provider: TracerProvider | None = None) -> Iterator[Span]:
    """Open a span for processing *record* in the sender's trace, within a ``with`` block.

    If there is an outer span, the new span is linked to it, or is its child if the record has no
    trace.
    """
    tracer = _tracer(tracer_provider)
    around, sender = trace.get_current_span().get_span_context(), extract(record)
    is_sent = trace.get_current_span(sender).get_span_context().is_valid
    with tracer.start_as_current_span(
        f"process {record.topic}",
        context=sender if is_sent else None,
        kind=SpanKind.CONSUMER,
        attributes={
            **_about("process", record.topic, record.partition),
            "messaging.message.body.size": len(record.value),
            "pymq.offset": record.offset,
            "pymq.delivery_count": record.delivery_count,
        },
        links=[Link(around)] if is_sent and around.is_valid else [],
    ) as span:
        yield span


def traced(client: Client, *, tracer_provider: TracerProvider | None = None) -> TracedClient:
    """Return a wrapper of *client* that makes spans; use it in place of *client*."""
    return TracedClient(client, _tracer(tracer_provider), tracer_provider)


def _tracer(provider: TracerProvider | None) -> trace.Tracer:
    from pymq import __version__

    return trace.get_tracer("pymq", __version__, provider)


def _about(operation: str, topic: str | None = None, partition: object = None) -> dict[str, Any]:
    kind = {"send": "send", "poll": "receive", "process": "process"}.get(operation)
    found: dict[str, Any] = {"messaging.system": SYSTEM, "messaging.operation.name": operation}
    if kind is not None:
        found["messaging.operation.type"] = kind
    if topic is not None:
        found["messaging.destination.name"] = topic
    if partition is not None:
        found["messaging.destination.partition.id"] = str(partition)
    return found


def _failed(span: Span, error: BaseException) -> None:
    code = error.code if isinstance(error, PymqError) else type(error).__name__
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, str(error)))


class _Traced:
    """A wrapper of a handle that puts spans around some methods, and passes other calls on."""

    def __init__(self, inner: Any, tracer: trace.Tracer) -> None:
        self._inner = inner
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> Any:
        self._inner.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._inner.__exit__(*raised)


class TracedClient(_Traced):
    """A client whose requests, producers and consumers have spans."""

    def __init__(
        self, client: Client, tracer: trace.Tracer, provider: TracerProvider | None
    ) -> None:
        super().__init__(client, tracer)
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._request(name, found) if name in REQUESTS else found

    def _request(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any, **options: Any) -> Any:
            topic = args[0] if "topic" in name and args and isinstance(args[0], str) else None
            about = _about(name, topic)
            with self._tracer.start_as_current_span(
                name, kind=SpanKind.CLIENT, attributes=about, record_exception=False
            ) as span:
                try:
                    return call(*args, **options)
                except PymqError as error:
                    _failed(span, error)
                    raise

        return asked

    def producer(self, *args: Any, **options: Any) -> TracedProducer:
        """See :meth:`pymq.Client.producer`."""
        return TracedProducer(self._inner.producer(*args, **options), self._tracer)

    def topic(self, *args: Any, **options: Any) -> TypedTopic[Any]:
        """See :meth:`pymq.Client.topic`; its producer and its consumers have spans."""
        found: TypedTopic[Any] = self._inner.topic(*args, **options)
        found._client = cast(Client, self)
        return found

    def consumer(self, *args: Any, **options: Any) -> TracedConsumer:
        """See :meth:`pymq.Client.consumer`; ``on_record`` is called within a span."""
        on_record = options.get("on_record")
        if on_record is not None:

            def within(record: Record) -> object:
                with process(record, tracer_provider=self._provider):
                    return on_record(record)

            options["on_record"] = within
        return TracedConsumer(self._inner.consumer(*args, **options), self._tracer)


class TracedProducer(_Traced):
    """A producer with a span from ``send`` to the answer; the record carries its context."""

    _inner: Producer

    def send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        partition: str | int | None = None,
        timestamp_ms: int | None = None,
        **times: Any,
    ) -> Delivery:
        """See :meth:`pymq.Producer.send`."""
        about = _about("send", topic, partition)
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=about)
        pairs = list(headers or ())
        propagate.inject(pairs, trace.set_span_in_context(span), setter=_CARRIER)
        try:
            delivery = self._inner.send(
                topic,
                value,
                key=key,
                headers=pairs,
                partition=partition,
                timestamp_ms=timestamp_ms,
                **times,
            )
        except BaseException as error:
            _failed(span, error)
            span.end()
            raise
        span.set_attribute("messaging.message.body.size", len(value))
        delivery.add_done_callback(lambda done: _delivered(span, done))
        return delivery

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: str | int | None = None,
    ) -> Deliveries:
        """See :meth:`pymq.Producer.send_many`; one span covers the call, not the answers."""
        about = {
            **_about("send", topic, partition),
            "messaging.batch.message_count": len(values),
        }
        with self._tracer.start_as_current_span(
            f"send {topic}", kind=SpanKind.CLIENT, attributes=about, record_exception=False
        ) as span:
            try:
                return self._inner.send_many(topic, values, keys=keys, partition=partition)
            except PymqError as error:
                _failed(span, error)
                raise


def _delivered(span: Span, delivery: Delivery) -> None:
    batch = batch_of(delivery)
    assert batch is not None, "what is done was sealed"
    if batch.error is not None:
        _failed(span, batch.error)
    else:
        where = batch.metadata(delivery.index)
        span.set_attribute("messaging.destination.partition.id", where.partition)
        if where.offset >= 0:
            span.set_attribute("pymq.offset", where.offset)
    span.end()


class TracedConsumer(_Traced):
    """A consumer with a span for each poll that returns records, linked to their senders."""

    _inner: Consumer

    def poll(self, max_records: int = 500, timeout: float | None = 1.0) -> list[Record]:
        """See :meth:`pymq.Consumer.poll`."""
        began = time_ns()
        records = self._inner.poll(max_records, timeout)
        if records:
            about = {
                **_about("poll", self._inner.topic),
                "messaging.batch.message_count": len(records),
            }
            if self._inner.group is not None:
                about["messaging.consumer.group.name"] = self._inner.group
            self._tracer.start_span(
                f"poll {self._inner.topic}",
                kind=SpanKind.CLIENT,
                attributes=about,
                links=list(_senders(records)),
                start_time=began,
            ).end()
        return records

    def __iter__(self) -> Iterator[Record]:
        return iter(self._inner)


def _senders(records: Sequence[Record]) -> Iterator[Link]:
    for record in records[:LINKS_MAX]:
        context = trace.get_current_span(extract(record)).get_span_context()
        if context.is_valid:
            yield Link(context)
