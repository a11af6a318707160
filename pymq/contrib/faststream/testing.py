"""Calls the handlers of a broker directly, for tests of an application."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, overload

import anyio
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.response import Response, ensure_response

from pymq.contrib.faststream.broker import PymqBroker
from pymq.contrib.faststream.commands import PymqPublishCommand
from pymq.contrib.faststream.producer import PymqProducer, key_of
from pymq.contrib.faststream.publishers import TopicBatchPublisher, TopicPublisher
from pymq.contrib.faststream.subscribers import TopicSubscriber
from pymq.core.batch.record import Record, RecordMetadata
from pymq.errors import NoResponders

PARTITION = "0"


class TestPymqBroker(TestBroker[PymqBroker, EnterType], broker=PymqBroker):
    """Brokers without a queue: ``async with TestPymqBroker(broker) as br``.

    ``publish`` calls the handlers before it returns, and raises their exceptions. Nothing is
    delayed, redelivered or acknowledged. With ``with_real=True`` the broker uses its own queue;
    ``PymqBroker("memory:")`` has a real queue that needs no files and no processes.

    Args:
        brokers: one, or several that publish to each other.
        with_real: use the real queues, and still record the calls of handlers.
        connect_only: do not start the subscribers.
    """

    @overload
    def __init__(
        self: TestPymqBroker[PymqBroker],
        broker: PymqBroker,
        /,
        *,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: TestPymqBroker[tuple[PymqBroker, ...]],
        *brokers: PymqBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    def __init__(
        self,
        *brokers: PymqBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)

    def create_publisher_fake_subscriber(
        self, broker: PymqBroker, publisher: TopicPublisher
    ) -> tuple[TopicSubscriber, bool]:
        """Return a subscriber of the publisher's topic, and whether the application has it."""
        for found in _subscribers(self.brokers):
            if found.topic == publisher.topic:
                return found, True
        batch = isinstance(publisher, TopicBatchPublisher)
        return broker.subscriber(publisher.topic, batch=batch, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: PymqBroker) -> Generator[None, None, None]:
        fake = DirectProducer(broker, self.brokers)
        with change_producer(broker.config.broker_config, fake):
            yield

    async def _fake_connect(self, broker: PymqBroker, *args: Any, **kwargs: Any) -> None:
        """Open nothing."""


class DirectProducer(PymqProducer):
    """Passes each message to the handlers of its topic."""

    def __init__(self, broker: PymqBroker, brokers: Sequence[PymqBroker]) -> None:
        super().__init__(
            broker._parser, broker._decoder, partitions=1, replicas=1, topic_options={}
        )
        settings = broker.config.broker_config
        self.codec = settings.broker_codec or self.codec
        self.serializer = settings.fd_config._serializer
        self._brokers = brokers
        self._offsets = count()

    def __bool__(self) -> bool:
        return True

    async def ensure(self, topic: str) -> None:
        """Do nothing: there are no topics."""

    async def consumer(self, topic: str, **options: Any) -> None:
        """Open nothing: this producer calls the handlers itself."""

    async def publish(self, cmd: PymqPublishCommand) -> RecordMetadata:
        """Pass a message to one subscriber of each group, and to all readers."""
        record = self._record(cmd, *await self.codec.encode(cmd.body, self.serializer))
        await self._hand_over([record])
        return _place(record)

    async def publish_batch(self, cmd: PymqPublishCommand) -> list[RecordMetadata]:
        """Pass messages to one subscriber of each group, and to all readers."""
        records = [self._record(cmd, *content) for content in await self._encode_batch(cmd)]
        await self._hand_over(records)
        return [_place(record) for record in records]

    async def request(self, cmd: PymqPublishCommand) -> Record:
        """Return the result of the handler."""
        record = self._record(cmd, *await self.codec.encode(cmd.body, self.serializer))
        for subscriber in _receivers(self._brokers, cmd.destination):
            if subscriber.group == cmd.destination:
                raw = (record,) if subscriber.batch else record
                with anyio.fail_after(cmd.timeout):
                    return await self._reply(await subscriber.process_message(raw))
        raise NoResponders(f"nobody answers requests of {cmd.destination!r} now")

    async def _reply(self, result: Response) -> Record:
        cmd = PymqPublishCommand.from_cmd(ensure_response(result).as_publish_command())
        return self._record(cmd, *await self.codec.encode(cmd.body, self.serializer))

    def _record(self, cmd: PymqPublishCommand, value: bytes, content_type: str | None) -> Record:
        stamp = cmd.options.get("timestamp_ms", time.time_ns() // 1_000_000)
        assert stamp is not None
        return Record(
            cmd.destination,
            str(cmd.options.get("partition", PARTITION)),
            next(self._offsets),
            stamp,
            key_of(cmd),
            value,
            cmd.wire_headers(content_type),
        )

    async def _hand_over(self, records: list[Record]) -> None:
        for subscriber in list(_receivers(self._brokers, records[0].topic)):
            if subscriber.batch:
                await subscriber.process_message(tuple(records))
            else:
                for record in records:
                    await subscriber.process_message(record)


def _subscribers(brokers: Sequence[PymqBroker]) -> Iterator[TopicSubscriber]:
    for broker in brokers:
        for subscriber in broker.subscribers:
            assert isinstance(subscriber, TopicSubscriber)
            yield subscriber


def _receivers(brokers: Sequence[PymqBroker], topic: str) -> Iterator[TopicSubscriber]:
    """Yield the readers of a topic, and one subscriber of each group."""
    groups = set()
    for subscriber in _subscribers(brokers):
        if subscriber.topic == topic and subscriber.group not in groups:
            if subscriber.group is not None:
                groups.add(subscriber.group)
            yield subscriber


def _place(record: Record) -> RecordMetadata:
    return RecordMetadata(record.topic, record.partition, record.offset, record.timestamp_ms)
