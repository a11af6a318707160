"""Subscribers: each passes the records of a pymq consumer to a handler.

1. A task of the event loop takes a record, or a batch, when one of ``max_workers`` places is free.
2. Another task passes that message to FastStream, which calls the handler.
3. FastStream acknowledges, returns or rejects the message, as its ack policy says.

When the subscriber stops, it waits for running handlers, up to the broker's ``graceful_timeout``.
Then the subscriber cancels them and leaves the group, which delivers their messages to other
members at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import IncorrectState
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from pymq.aio import AsyncConsumer
from pymq.client.option_types import GroupOptions
from pymq.contrib.faststream.messages import MessageParser, PymqMessage, Raw, request_address
from pymq.contrib.faststream.publishers import ReplyPublisher
from pymq.core.batch.record import Record
from pymq.core.delay.record_times import EXPIRES_AT, time_of
from pymq.errors import Closed, CommitFailed, OffsetOutOfRange, PymqError

if TYPE_CHECKING:
    from faststream.response import Response

WAKE_S = 0.5  # how often a polling subscriber checks whether to stop
PAUSE_S = 1.0  # pause after a failed poll


@dataclass(kw_only=True)
class TopicSubscriberConfig(SubscriberUsecaseConfig):
    """The arguments of a subscriber's declaration."""

    topic: str
    group: str | None
    is_reader: bool
    batch: bool
    max_records: int
    max_workers: int
    place: dict[str, Any] = field(default_factory=dict)  # partition, offset and rack
    options: GroupOptions = field(default_factory=GroupOptions)

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy: a reader acknowledges nothing; a group rejects a message whose handler
        raises.
        """
        if self.is_reader:
            return AckPolicy.MANUAL
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.REJECT_ON_ERROR


class TopicSubscriberSpecification(SubscriberSpecification[Any, Any]):
    """Documents a subscriber in AsyncAPI."""

    __slots__ = ("_topic",)

    def __init__(
        self, _outer_config: Any, specification_config: Any, calls: Any, topic: str
    ) -> None:
        super().__init__(_outer_config, specification_config, calls)
        self._topic = topic

    @property
    def topic(self) -> str:
        """The topic, with the prefix of the router."""
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def channel_labels(self) -> list[str]:
        """The only channel."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the channel. AsyncAPI has no binding for pymq."""
        message = Message(
            title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads())
        )
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class TopicSubscriber(TasksMixin, SubscriberUsecase[Raw]):
    """Consumes one topic; made by :meth:`~pymq.contrib.faststream.PymqBroker.subscriber`."""

    specification: TopicSubscriberSpecification

    def __init__(
        self,
        config: TopicSubscriberConfig,
        specification: TopicSubscriberSpecification,
        calls: Any,
    ) -> None:
        self._config = config
        self.batch = config.batch
        self.is_reader = config.is_reader
        self._topic_parser = MessageParser(self._refuse, answers=False)
        parser = self._topic_parser
        config.parser = parser.parse_batch if self.batch else parser.parse_message
        config.decoder = parser.decode_batch if self.batch else parser.decode_message
        super().__init__(config, specification, calls)
        self._consumer: AsyncConsumer | None = None
        self._working: set[asyncio.Task[None]] = set()

    @property
    def topic(self) -> str:
        """The topic, with the prefix of the router."""
        return self.specification.topic

    @property
    def group(self) -> str | None:
        """The group, by default one named as the topic; None for a reader."""
        return None if self.is_reader else self._config.group or self.topic

    @property
    def consumer(self) -> AsyncConsumer:
        """The consumer of pymq; raises FastStream's ``IncorrectState`` before the start."""
        if self._consumer is None:
            raise IncorrectState("the subscriber is not started; 'await broker.start()' starts it")
        return self._consumer

    # --- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Create the topic if it is missing, join the group, and begin to consume."""
        if self._consumer is not None:
            return
        await super().start()
        producer: Any = self._outer_config.producer
        await producer.ensure(self.topic)
        self._consumer = await producer.consumer(
            self.topic,
            group=self.group,
            mode="reader" if self.is_reader else "group",
            **self._config.place,
            **self._config.options,
        )
        if self._consumer is not None and self._config.place.get("offset") == "end":
            await _seek_to_end(self._consumer)
        parser = self._topic_parser
        parser.consumer = None if self.is_reader else self._consumer
        # Requests go only to the group with the name of their topic.
        parser.answers = self.group == self.topic and not self.batch
        self._post_start()
        if self.calls and self._consumer is not None:
            self.add_task(self._serve, (self._consumer,))

    async def stop(self) -> None:
        """Stop the running handlers, and leave the group with all unacknowledged messages."""
        # Do not wait for a handler that stops its own subscriber.
        own = asyncio.current_task()
        self.tasks[:] = [task for task in self.tasks if task is not own]
        polling = list(self.tasks)
        await super().stop()
        late = {task for task in self._working if task is not own}
        for task in late:
            task.cancel()
        if ending := {*polling, *late}:
            await asyncio.wait(ending)
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._close(consumer)

    async def _close(self, consumer: AsyncConsumer) -> None:
        try:
            await consumer.close()
        except CommitFailed as error:
            self._log(logging.WARNING, f"messages took too long, and are delivered again: {error}")

    # --- consuming ------------------------------------------------------------------------------

    async def _serve(self, consumer: AsyncConsumer) -> None:
        room = asyncio.Semaphore(self._config.max_workers)

        def done(task: asyncio.Task[None]) -> None:
            self._working.discard(task)
            room.release()

        async with aclosing(self._received(consumer)) as received:
            while True:
                # Wait for a free place before taking a message: an idle member could handle a
                # message that waits here.
                await room.acquire()
                message = await anext(received, None)
                if message is None:
                    return
                task = asyncio.create_task(self._hand_over(consumer, message))
                self._working.add(task)
                task.add_done_callback(done)

    async def _hand_over(self, consumer: AsyncConsumer, message: Raw) -> None:
        if self._topic_parser.answers and isinstance(message, Record) and _is_late(message):
            consumer.ack(message)  # The requester has given up.
        else:
            await self.consume(message)

    async def _received(self, consumer: AsyncConsumer) -> AsyncGenerator[Raw, None]:
        """Yield records, or batches, until the subscriber stops; skip unreadable records."""
        # Poll instead of iterating: an iteration leases some records ahead, even with
        # ``prefetch=1``, though an idle member could handle them.
        is_polled = self.batch or self._config.options.get("prefetch") == 1
        while self.running:
            try:
                if is_polled:
                    if records := await consumer.poll(self._config.max_records, WAKE_S):
                        yield tuple(records) if self.batch else records[0]
                else:
                    # The client leases about 20 ms of work (``prefetch``).
                    async for record in consumer:
                        yield record
                    self._end()
            except Closed:
                self._end()
            except PymqError as error:
                self._log(logging.ERROR, f"cannot read {self.topic}: {error}", exc_info=error)
                await self._go_past(consumer, error)

    def _end(self) -> None:
        if self.running:
            self.running = False
            self._log(logging.WARNING, f"the subscriber of {self.topic} ends: it was closed")

    async def _go_past(self, consumer: AsyncConsumer, error: PymqError) -> None:
        """Skip a record that cannot be read; after any other error wait a moment."""
        try:
            if self.is_reader and isinstance(error, OffsetOutOfRange):
                await consumer.seek(str(error.details.get("partition")), "begin")
            else:
                await consumer.skip(error)
        except PymqError:
            await asyncio.sleep(PAUSE_S)

    async def process_message(self, msg: Raw) -> Response:
        """Pass a message to its handler, as FastStream does. A request always gets an answer."""
        try:
            return await super().process_message(msg)
        except Exception as error:
            # With the other policies, the acknowledgement or the rejection of the message sends the
            # answer.
            if self.ack_policy is AckPolicy.ACK_FIRST and isinstance(msg, Record):
                await self._refuse(msg, error)
            raise

    async def _refuse(self, record: Record, error: BaseException) -> None:
        if self._topic_parser.answers:
            producer: Any = self._outer_config.producer
            await producer.refuse(record, error)

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Iterable[ReplyPublisher]:
        raw = message.raw_message
        is_request = self._topic_parser.answers and isinstance(raw, Record)
        address = request_address(raw) if is_request else None
        return (ReplyPublisher(self._outer_config.producer, message.reply_to, address),)

    # --- without a handler ----------------------------------------------------------------------

    async def get_one(self, *, timeout: float = 5.0) -> PymqMessage | None:
        """Return the next message of a subscriber without handlers; None after *timeout* seconds.

        The caller acknowledges the message. The errors are those of :meth:`pymq.Consumer.poll`.
        """
        self._check_no_handler()
        records = await self.consumer.poll(self._config.max_records, timeout)
        if not records:
            return None
        return await self._message(tuple(records) if self.batch else records[0])

    async def __aiter__(self) -> AsyncIterator[PymqMessage]:
        """Iterate over the messages of a subscriber without handlers, until it stops."""
        self._check_no_handler()
        async with aclosing(self._received(self.consumer)) as received:
            async for message in received:
                yield await self._message(message)

    def _check_no_handler(self) -> None:
        if self.calls:
            raise IncorrectState("the subscriber has a handler, which gets its messages")

    async def _message(self, raw: Raw) -> PymqMessage:
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        message = await process_msg(
            msg=raw,
            middlewares=(make(raw, context=context) for make in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        assert isinstance(message, PymqMessage)
        return message

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return the fields of each log line."""
        return {
            "topic": self.topic,
            "group": self.group or "",
            "message_id": getattr(message, "message_id", ""),
        }


async def _seek_to_end(consumer: AsyncConsumer) -> None:
    """Let a reader begin at the present end of the log, not at the end at its first fetch."""
    ends = await consumer.end_offsets()
    for partition in consumer.assignment():
        await consumer.seek(partition, ends[partition])


def _is_late(record: Record) -> bool:
    deadline = time_of(record.headers, EXPIRES_AT)
    return deadline is not None and time() * 1000 >= deadline
