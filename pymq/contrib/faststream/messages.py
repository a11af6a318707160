"""A record as a message of FastStream, and how it is acknowledged."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from faststream.exceptions import HandlerException
from faststream.message import AckStatus, StreamMessage, decode_message

from pymq.aio import AsyncConsumer
from pymq.client.rpc.mailbox import REPLIES, REQUEST_ID, header
from pymq.client.rpc.mailbox import REPLY_TO as REQUEST_REPLY_TO
from pymq.contrib.faststream.commands import CONTENT_TYPE, CORRELATION_ID, REPLY_TO
from pymq.core.batch.record import Record
from pymq.core.types import is_internal

OWN = "pymq."  # prefix of pymq's headers, which describe the delivery and not the message

Raw = Record | tuple[Record, ...]
Refuse = Callable[[Record, BaseException], Awaitable[None]]


class PymqMessage(StreamMessage[Raw]):
    """A message: a record, or several of a subscriber with ``batch=True``.

    ``raw_message`` is the :class:`pymq.Record`, or a tuple of records, with pymq's own headers;
    ``headers`` has the other headers. A header that is not text stays bytes.

    A message of a reader has nothing to acknowledge: the methods only record that they were called.
    """

    def __init__(
        self,
        *args: Any,
        consumer: AsyncConsumer | None = None,
        refuse: Refuse | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._consumer = consumer
        self._refuse = refuse

    @property
    def records(self) -> tuple[Record, ...]:
        """The records: one, or those of the batch."""
        raw = self.raw_message
        return (raw,) if isinstance(raw, Record) else raw

    @property
    def delivery_count(self) -> int:
        """How often the message was delivered: 1 at first; for a batch, the largest count."""
        return max(record.delivery_count for record in self.records)

    async def ack(self) -> None:
        """Acknowledge the message: the group does not deliver it again.

        Raises:
            Closed: the subscriber has stopped; the group delivers the message to another member.
        """
        if self.committed is not None:
            return
        if self._consumer is not None:
            self._consumer.ack(self.records)
            await self._tell_requester()
        self.committed = AckStatus.ACKED

    async def nack(self, delay: float | None = None) -> None:
        """Return the message to the group, which delivers it again.

        Without *delay* (seconds), the subscriber's ``retry`` sets the time. The exception that is
        being handled, if any, travels with the message, in the header ``pymq.error`` of the record.
        A message that was delivered ``max_deliver`` times becomes a dead letter.

        Raises:
            Closed: the subscriber has stopped; the group delivers the message to another member.
            ConfigError: *delay* is not a number of seconds.
        """
        if self.committed is not None:
            return
        if self._consumer is not None:
            self._consumer.nack(self.records, delay, error=_cause())
        self.committed = AckStatus.NACKED

    async def reject(self) -> None:
        """Give the message up: put it into the dead-letter topic, with the reason.

        The reason is the exception that is being handled, if any. A request does not become a dead
        letter: the reason goes to the requester.

        Raises:
            Closed: the subscriber has stopped; the group delivers the message to another member.
            PymqError: the dead letter could not be written; the group delivers the message again.
        """
        if self.committed is not None:
            return
        if self._consumer is not None:
            if self._refuse is None:
                await self._consumer.reject(self.records, error=_cause())
            else:  # The requester gets the reason, so the request needs no dead letter.
                self._consumer.ack(self.records)
                await self._tell_requester()
        self.committed = AckStatus.REJECTED

    async def _tell_requester(self) -> None:
        """Send the error to the requester if the handler has failed and will not run again."""
        error = sys.exception()
        if self._refuse is not None and isinstance(error, Exception):
            for record in self.records:
                await self._refuse(record, _cause() or error)


def _cause() -> BaseException | None:
    """Return the exception that is being handled; for ``raise RejectMessage from e``,
    return *e*.
    """
    error = sys.exception()
    if isinstance(error, HandlerException):
        return error.__cause__ or error.__context__
    return error


class MessageParser:
    """Makes messages of the records of one subscriber, or of replies."""

    def __init__(self, refuse: Refuse | None = None, *, answers: bool = False) -> None:
        self.consumer: AsyncConsumer | None = None  # None for readers, replies and test brokers
        self._refuse = refuse
        self.answers = answers  # whether the subscriber is the service that requests go to

    async def parse_message(self, record: Record) -> PymqMessage:
        """Make a message of a record."""
        headers = _headers(record)
        address = request_address(record) if self.answers else None
        return PymqMessage(
            raw_message=record,
            body=record.value,
            headers=headers,
            reply_to=_reply_to(headers) if address is None else f"{REPLIES}/{address[0]}",
            content_type=_text(headers.get(CONTENT_TYPE)),
            correlation_id=_text(headers.get(CORRELATION_ID)),
            message_id=f"{record.partition}-{record.offset}",
            consumer=self.consumer,
            refuse=None if address is None else self._refuse,
        )

    async def parse_batch(self, records: tuple[Record, ...]) -> PymqMessage:
        """Make one message of a batch; its headers are those of the first record."""
        headers = [_headers(record) for record in records]
        first, last = records[0], records[-1]
        return PymqMessage(
            raw_message=records,
            body=[record.value for record in records],
            headers=headers[0],
            batch_headers=headers,
            reply_to=_reply_to(headers[0]),
            content_type=_text(headers[0].get(CONTENT_TYPE)),
            correlation_id=_text(headers[0].get(CORRELATION_ID)),
            message_id=f"{first.partition}-{first.offset}..{last.partition}-{last.offset}",
            consumer=self.consumer,
        )

    async def decode_message(self, message: StreamMessage[Any]) -> Any:
        """Return the value of a message, by its content type."""
        return decode_message(message)

    async def decode_batch(self, message: StreamMessage[Sequence[Record]]) -> list[Any]:
        """Return the values of a batch."""
        return [decode_message(await self.parse_message(found)) for found in message.raw_message]


def request_address(record: Record) -> tuple[str, bytes] | None:
    """Return the partition of the reply and the request's id; None if the record is no request."""
    partition = header(record.headers, REQUEST_REPLY_TO)
    request_id = header(record.headers, REQUEST_ID)
    if partition is None or request_id is None:
        return None
    return partition.decode(errors="replace"), request_id


def _headers(record: Record) -> dict[str, Any]:
    return {name: _value(found) for name, found in record.headers if not name.startswith(OWN)}


def _value(found: bytes) -> str | bytes:
    try:
        return found.decode()
    except UnicodeDecodeError:
        return found


def _text(found: Any) -> str | None:
    return found if isinstance(found, str) and found else None


def _reply_to(headers: dict[str, Any]) -> str:
    """Return the topic for the result; a sender may not name an internal topic."""
    name = _text(headers.get(REPLY_TO))
    return "" if name is None or is_internal(name) else name
