"""Commands to send a message: a body, headers, and pymq's options for a record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack, cast

from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

from pymq.client.rpc.mailbox import REQUEST_ID
from pymq.core.batch.columns import Headers
from pymq.core.metadata.topic_config import check_options

CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"  # the topic that a handler's result goes to


class SendOptions(TypedDict, total=False):
    """Arguments of :meth:`pymq.Producer.send` other than topic, value and headers."""

    key: bytes | str | None
    partition: str | int | None
    timestamp_ms: int | None
    delay_s: float | None
    deliver_at: datetime | None
    expires_s: float | None
    priority: int


def check_send_options(options: SendOptions) -> None:
    """Check the names of options.

    Raises:
        ConfigError: there is no such option.
    """
    check_options(options, tuple(SendOptions.__annotations__))


class PymqResponse(Response):
    """A handler's result with headers and options for the record.

    Args:
        body: the message.
        headers: its headers, in addition to those of the publisher.
        correlation_id: the id of the conversation; by default that of the handled message.
        options: ``key``, ``partition``, ``timestamp_ms``, ``delay_s``, ``deliver_at``,
            ``expires_s``, ``priority``, as for :meth:`~pymq.contrib.faststream.PymqBroker.publish`.

    Raises:
        ConfigError: an option is unknown.
    """

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        check_send_options(options)
        self.options = options

    def get_publish_key(self) -> bytes | str | None:
        """Return the key, for FastStream."""
        return self.options.get("key")

    def as_publish_command(self) -> PymqPublishCommand:
        """Return the command that sends the response; the publisher sets the topic."""
        return PymqPublishCommand(
            self.body,
            topic="",
            _publish_type=PublishType.PUBLISH,
            headers=self.headers,
            correlation_id=self.correlation_id,
            options=self.options,
        )


class PymqPublishCommand(BatchPublishCommand):
    """One message, or a batch of them, on its way through the middlewares to the producer.

    Args:
        message, messages: the bodies.
        topic: the topic to send to.
        headers, correlation_id, reply_to, options: as for
            :meth:`~pymq.contrib.faststream.PymqBroker.publish`.
        timeout: how many seconds a request waits.
    """

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        topic: str,
        _publish_type: PublishType,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        options: SendOptions | None = None,
        timeout: float = 0.0,
    ) -> None:
        super().__init__(
            message,
            *messages,
            destination=topic,
            reply_to=reply_to,
            correlation_id=correlation_id,
            headers=headers,
            _publish_type=_publish_type,
        )
        given = {name: found for name, found in (options or {}).items() if found is not None}
        self.options = cast("SendOptions", given)
        self.timeout = timeout
        self.request_id: bytes | None = None  # set if this command is the reply to a request

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> PymqPublishCommand:
        """Return FastStream's command as one of pymq's."""
        if isinstance(cmd, PymqPublishCommand):
            if batch and not cmd.extra_bodies:
                cmd.body, cmd.extra_bodies = cls._parse_bodies(cmd.body, batch=True)
            return cmd
        body, more = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *more,
            topic=cmd.destination,
            _publish_type=cmd.publish_type,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
        )

    def add_options(self, options: SendOptions) -> None:
        """Set those options that the command does not have yet."""
        self.options = options | self.options

    def wire_headers(self, content_type: str | None) -> Headers:
        """Return the headers of the record."""
        found: dict[str, Any] = {}
        if content_type:
            found[CONTENT_TYPE] = content_type
        if self.correlation_id:
            found[CORRELATION_ID] = self.correlation_id
        if self.reply_to:
            found[REPLY_TO] = self.reply_to
        found |= self.headers
        headers = tuple((n, as_bytes(value)) for n, value in found.items() if value is not None)
        return headers if self.request_id is None else (*headers, (REQUEST_ID, self.request_id))


def as_bytes(value: Any) -> bytes:
    """Return a header's value, or a key, as it is stored."""
    return value if isinstance(value, bytes) else str(value).encode()


def bodies_of(cmd: PymqPublishCommand) -> Sequence[Any]:
    """Return the bodies of a batch; an empty result of a handler is one empty message."""
    return cmd.batch_bodies or (b"",)
