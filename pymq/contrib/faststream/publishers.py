"""Publishers: topics that the application declares for writing, and the places of replies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from faststream._internal.configs import PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from pymq.client.rpc.mailbox import REPLIES
from pymq.contrib.faststream.commands import PymqPublishCommand, SendOptions, check_send_options
from pymq.contrib.faststream.messages import PymqMessage
from pymq.core.batch.record import RecordMetadata

if TYPE_CHECKING:
    from faststream._internal.types import PublisherMiddleware

REQUEST_S = 2.0  # how long a request waits for its reply, as in pymq.Client.request


class TopicPublisherSpecification(PublisherSpecification[Any, Any]):
    """Documents a publisher in AsyncAPI."""

    __slots__ = ("_topic",)

    def __init__(self, _outer_config: Any, specification_config: Any, topic: str) -> None:
        super().__init__(_outer_config, specification_config)
        self._topic = topic

    @property
    def topic(self) -> str:
        """The topic, with the prefix of the router."""
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def name(self) -> str:
        """The key of the channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel. AsyncAPI has no binding for pymq."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class TopicPublisher(PublisherUsecase):
    """Publishes to one topic; made by :meth:`~pymq.contrib.faststream.PymqBroker.publisher`."""

    specification: TopicPublisherSpecification

    def __init__(
        self,
        config: PublisherUsecaseConfig,
        specification: TopicPublisherSpecification,
        *,
        headers: dict[str, Any] | None,
        reply_to: str,
        options: SendOptions,
    ) -> None:
        super().__init__(config, specification)
        check_send_options(options)
        self.headers = headers or {}
        self.reply_to = reply_to
        self.options = options

    @property
    def topic(self) -> str:
        """The topic, with the prefix of the router."""
        return self.specification.topic

    async def start(self) -> None:
        """Create the topic if it is missing."""
        await super().start()
        await self._outer_config.producer.ensure(self.topic)  # type: ignore[attr-defined] # FastStream knows its own producers' interface only

    async def publish(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[SendOptions],
    ) -> RecordMetadata:
        """Send a message to the publisher's topic, or to another.

        The message's headers and options add to those of the publisher. See
        :meth:`~pymq.contrib.faststream.PymqBroker.publish`.
        """
        cmd = self._command((message,), topic, headers, correlation_id, reply_to, options)
        sent: RecordMetadata = await self._basic_publish(
            cmd, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return sent

    async def request(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        key: bytes | str | None = None,
        timeout: float = REQUEST_S,
    ) -> PymqMessage:
        """Send a request, and return its reply.

        See :meth:`~pymq.contrib.faststream.PymqBroker.request`.
        """
        cmd = PymqPublishCommand(
            message,
            topic=topic or self.topic,
            _publish_type=PublishType.REQUEST,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            options={"key": self.options.get("key") if key is None else key},
            timeout=timeout,
        )
        reply: PymqMessage = await self._basic_request(cmd, producer=self._outer_config.producer)
        return reply

    def _command(
        self,
        messages: tuple[Any, ...],
        topic: str,
        headers: dict[str, Any] | None,
        correlation_id: str | None,
        reply_to: str,
        options: SendOptions,
    ) -> PymqPublishCommand:
        check_send_options(options)
        cmd = PymqPublishCommand(
            *(messages or (None,)),
            topic=topic or self.topic,
            _publish_type=PublishType.PUBLISH,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to or self.reply_to,
            options=options,
        )
        cmd.add_options(self.options)
        return cmd

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publish the result of a handler."""
        await self._basic_publish(
            self._completed(PymqPublishCommand.from_cmd(cmd)),
            producer=self._outer_config.producer,
            _extra_middlewares=_extra_middlewares,
        )

    def _completed(self, cmd: PymqPublishCommand) -> PymqPublishCommand:
        cmd.destination = self.topic
        cmd.add_headers(self.headers, override=False)
        cmd.reply_to = cmd.reply_to or self.reply_to
        cmd.add_options(self.options)
        return cmd


class TopicBatchPublisher(TopicPublisher):
    """Publishes each item of a sequence as a separate message."""

    async def publish(  # type: ignore[override] # as in FastStream: many messages instead of one
        self,
        *messages: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[SendOptions],
    ) -> list[RecordMetadata]:
        """Send messages together; see :meth:`~pymq.contrib.faststream.PymqBroker.publish_batch`."""
        cmd = self._command(messages, topic, headers, correlation_id, reply_to, options)
        sent: list[RecordMetadata] = await self._basic_publish_batch(
            cmd, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return sent

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publish the items of a handler's result."""
        await self._basic_publish_batch(
            self._completed(PymqPublishCommand.from_cmd(cmd, batch=True)),
            producer=self._outer_config.producer,
            _extra_middlewares=_extra_middlewares,
        )


class ReplyPublisher(FakePublisher):
    """Publishes the result of a handler to the place that the message names."""

    __slots__ = ("_address", "_topic")

    def __init__(self, producer: Any, topic: str, address: tuple[str, bytes] | None) -> None:
        super().__init__(producer=producer)
        self._topic = topic
        self._address = address  # for a request: the partition for the reply, and the request's id

    def patch_command(self, cmd: PublishCommand) -> PymqPublishCommand:
        """Set the destination of the result."""
        found = PymqPublishCommand.from_cmd(super().patch_command(cmd))
        found.destination = self._topic
        if self._address is not None:
            partition, found.request_id = self._address
            found.destination, found.options = REPLIES, {"partition": partition}
        return found
