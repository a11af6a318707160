"""RabbitMQ: streams with rstream, quorum queues with pika."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Any

from benchmarks.model import batches, random_values
from benchmarks.network.roles import HandLoop
from benchmarks.network.servers import HOST

STREAM = "records"
BATCH = 1000
WINDOW = 20_000  # records of a stream in flight
CONFIRMS = 5_000  # the limit of unconfirmed records for a quorum queue
USER = "guest"  # user name and password


def make_stream(port: int) -> None:
    """Create the stream."""

    async def make() -> None:
        from rstream import Producer

        async with Producer(HOST, port, username=USER, password=USER) as producer:
            await producer.create_stream(STREAM, exists_ok=True)

    asyncio.run(make())


def produce(port: int, count: int, size: int, sub_entry: int = 0) -> Generator[None, None, None]:
    """``send_batch`` of 1,000 with at most 20,000 unconfirmed, or sub-entries of *sub_entry*."""
    groups, loop = batches(random_values(count, size), BATCH), HandLoop()
    waiting = _Waiting()
    producer = loop.run(_producer(port))

    async def send() -> None:
        for group in groups:
            if sub_entry:
                await producer.send_sub_entry(STREAM, group, on_publish_confirm=waiting.confirmed)
                waiting.count += 1
                await waiting.below(WINDOW // BATCH)
            else:
                await producer.send_batch(STREAM, group, on_publish_confirm=waiting.confirmed)
                waiting.count += len(group)
                await waiting.below(WINDOW)
        await waiting.below(1)

    yield
    loop.run(send())


async def _producer(port: int) -> Any:
    from rstream import Producer

    producer = Producer(
        HOST, port, username=USER, password=USER, default_batch_publishing_delay=0.005
    )
    await producer.start()
    return producer


class _Waiting:
    """The number of unconfirmed records."""

    def __init__(self) -> None:
        self.count = 0
        self._moved = asyncio.Event()

    async def confirmed(self, _: Any) -> None:
        self.count -= 1
        self._moved.set()

    async def below(self, limit: int) -> None:
        while self.count >= limit:
            self._moved.clear()
            await self._moved.wait()


def consume(port: int, count: int) -> Generator[None, None, int]:
    """A subscription with raw bytes and a credit of 50."""
    loop = HandLoop()
    seen = total = 0
    done = asyncio.Event()

    async def got(message: bytes, _: Any) -> None:
        nonlocal seen, total
        seen += 1
        total += len(message)
        if seen >= count:
            done.set()

    consumer = loop.run(_consumer(port))
    yield
    loop.run(_receive(consumer, got, done))
    return total


async def _consumer(port: int) -> Any:
    from rstream import Consumer

    consumer = Consumer(HOST, port, username=USER, password=USER)
    await consumer.start()
    return consumer


async def _receive(consumer: Any, got: Any, done: asyncio.Event) -> None:
    from rstream import ConsumerOffsetSpecification, OffsetType

    await consumer.subscribe(
        STREAM,
        got,
        initial_credit=50,
        offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None),
    )
    running = asyncio.create_task(consumer.run())
    await done.wait()
    running.cancel()


def produce_paced(port: int, count: int, pause_s: float) -> Generator[None, None, list[int]]:
    """Send one message at a time; return the time of each confirmation."""
    loop = HandLoop()
    producer = loop.run(_producer(port))
    found: list[int] = []
    starts: list[int] = []
    done = asyncio.Event()

    async def confirmed(_: Any) -> None:
        found.append(time.monotonic_ns() - starts[len(found)])
        if len(found) >= count:
            done.set()

    async def send() -> None:
        due = time.monotonic()
        for _ in range(count):
            due += pause_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            starts.append(time.monotonic_ns())
            value = starts[-1].to_bytes(8, "big") + bytes(92)
            await producer.send_batch(STREAM, [value], on_publish_confirm=confirmed)
        await done.wait()

    yield
    loop.run(send())
    return found


def consume_paced(port: int, count: int) -> Generator[None, None, list[int]]:
    """Return the age of each record at its arrival."""
    loop = HandLoop()
    found: list[int] = []
    done = asyncio.Event()

    async def got(message: bytes, _: Any) -> None:
        found.append(time.monotonic_ns() - int.from_bytes(message[:8], "big"))
        if len(found) >= count:
            done.set()

    consumer = loop.run(_consumer(port))
    yield
    loop.run(_receive(consumer, got, done))
    return found


# --- quorum queues ------------------------------------------------------------------------------

QUEUE = "records"


def make_queue(port: int) -> None:
    """Declare the quorum queue."""
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port))
    connection.channel().queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    connection.close()


def produce_quorum(port: int, count: int, size: int) -> Generator[None, None, None]:
    """Publisher confirms with at most 5,000 in flight, by pika's SelectConnection."""
    values = random_values(count, size)
    publisher = _Publisher(port)
    publisher.open()
    yield
    publisher.publish(values)


class _Publisher:
    """Keeps the allowed number of records in flight; one confirm may cover many records."""

    def __init__(self, port: int) -> None:
        import pika

        parameters = pika.ConnectionParameters(HOST, port)
        self._connection = pika.SelectConnection(parameters, on_open_callback=self._opened)
        self._channel: Any = None
        self._values: list[bytes] = []
        self._sent = self._acked = 0
        self._due: list[float] | None = None
        self.starts: list[int] = []
        self.found: list[int] = []

    def open(self) -> None:
        self._connection.ioloop.start()

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirmed, callback=self._ready)

    def _ready(self, _: Any) -> None:
        self._connection.ioloop.stop()

    def publish(self, values: list[bytes]) -> None:
        self._values = values
        self._connection.ioloop.call_later(0, self._fill)
        self._connection.ioloop.start()

    def _fill(self) -> None:
        publish, values = self._channel.basic_publish, self._values
        while self._sent < len(values) and self._sent - self._acked < CONFIRMS:
            publish("", QUEUE, values[self._sent])
            self._sent += 1

    def _confirmed(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        if self.starts:
            now = time.monotonic_ns()
            self.found += [now - start for start in self.starts[self._acked : tag]]
        self._acked = max(self._acked, tag)
        if self._acked >= len(self._values):
            self._connection.ioloop.stop()
        elif not self.starts and self._sent - self._acked <= CONFIRMS // 2:
            self._fill()

    def publish_paced(self, count: int, pause_s: float) -> list[int]:
        self._values = [b""] * count
        due = time.monotonic()

        def send() -> None:
            nonlocal due
            self.starts.append(time.monotonic_ns())
            value = self.starts[-1].to_bytes(8, "big") + bytes(92)
            self._channel.basic_publish("", QUEUE, value)
            due += pause_s
            if len(self.starts) < count:
                self._connection.ioloop.call_later(max(0.0, due - time.monotonic()), send)

        self._connection.ioloop.call_later(0, send)
        self._connection.ioloop.start()
        return self.found


def produce_quorum_paced(port: int, count: int, pause_s: float) -> Generator[None, None, list[int]]:
    """Send one message at a time; return the time of each confirmation."""
    publisher = _Publisher(port)
    publisher.open()
    yield
    return publisher.publish_paced(count, pause_s)


def consume_quorum(port: int, count: int) -> Generator[None, None, int]:
    """Prefetch of 2,000; every 500 acknowledged at once."""
    import pika

    seen = total = 0

    def got(channel: Any, method: Any, _: Any, body: bytes) -> None:
        nonlocal seen, total
        seen += 1
        total += len(body)
        if seen % 500 == 0 or seen >= count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if seen >= count:
            connection.ioloop.stop()

    def opened(channel: Any) -> None:
        opened_channel.append(channel)
        channel.basic_qos(prefetch_count=2000, callback=lambda _: connection.ioloop.stop())

    opened_channel: list[Any] = []
    connection = pika.SelectConnection(
        pika.ConnectionParameters(HOST, port),
        on_open_callback=lambda found: found.channel(on_open_callback=opened),
    )
    connection.ioloop.start()
    yield
    opened_channel[0].basic_consume(QUEUE, got)
    connection.ioloop.start()
    return total
