"""Uses pymq's client: sends messages, requests and replies, and opens consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState
from faststream.response.publish_type import PublishType

from pymq.aio import AsyncClient, AsyncConsumer, AsyncDelivery, AsyncProducer
from pymq.client.rpc.mailbox import REPLIES
from pymq.client.rpc.responder import reply_to
from pymq.contrib.connection import ensure_topic
from pymq.contrib.faststream.commands import PymqPublishCommand, as_bytes, bodies_of
from pymq.contrib.faststream.messages import MessageParser
from pymq.core.batch.record import Record, RecordMetadata
from pymq.errors import BufferFull, ConfigError, UnknownTopic

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.types import CustomCallable

    from pymq.client.option_types import TopicOptions

T = TypeVar("T")


class PymqProducer(ProducerProto[PymqPublishCommand]):
    """Sends the messages that a broker, its publishers and its handlers publish.

    The producer creates missing topics that the application publishes to, but not a topic that only
    a message names as the place for its reply.
    """

    def __init__(
        self,
        parser: CustomCallable | None,
        decoder: CustomCallable | None,
        *,
        partitions: int,
        replicas: int | None,
        topic_options: TopicOptions,
    ) -> None:
        default = MessageParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self._partitions = partitions
        self._replicas = replicas
        self._topic_options = topic_options
        self._client: AsyncClient | None = None
        self._producer: AsyncProducer | None = None
        self._known: set[str] = set()  # topics that exist or were created

    def __bool__(self) -> bool:
        return self._producer is not None

    async def connect(
        self, client: AsyncClient, serializer: SerializerProto | None, codec: CodecProto | None
    ) -> None:
        """Open a producer of the client."""
        self._client = client
        self._producer = await client.producer()
        self.serializer = serializer
        self.codec = codec or DefaultCodec()

    async def disconnect(self) -> None:
        """Send the remaining messages, and close the producer."""
        producer, self._producer, self._client = self._producer, None, None
        self._known.clear()
        if producer is not None:
            await producer.close()

    async def ensure(self, topic: str) -> None:
        """Create a topic if it is missing."""
        if topic in self._known:
            return
        client = _opened(self._client)
        await ensure_topic(client, topic, self._partitions, self._replicas, self._topic_options)
        self._known.add(topic)

    async def consumer(self, topic: str, **options: Any) -> AsyncConsumer | None:
        """Open a consumer; None if messages do not come from consumers, as under a test broker."""
        return await _opened(self._client).consumer(topic, **options)

    # --- publishing -----------------------------------------------------------------------------

    async def publish(self, cmd: PymqPublishCommand) -> RecordMetadata:
        """Send a message, and wait until it is durable."""
        _opened(self._producer)
        content = await self.codec.encode(cmd.body, self.serializer)
        await self._prepare(cmd)
        try:
            return await self._send(cmd, *content)
        except UnknownTopic:
            # The topic was deleted; the next message creates it again.
            self._known.discard(cmd.destination)
            raise

    async def publish_batch(self, cmd: PymqPublishCommand) -> list[RecordMetadata]:
        """Send messages together, and wait until all are durable."""
        _opened(self._producer)
        contents = await self._encode_batch(cmd)
        await self._prepare(cmd)
        waiting: list[AsyncDelivery] = []
        for content in contents:
            try:
                waiting.append(self._send(cmd, *content))
            except BufferFull:
                for delivery in waiting:
                    await delivery
                waiting.append(self._send(cmd, *content))
        return [await delivery for delivery in waiting]

    async def _encode_batch(self, cmd: PymqPublishCommand) -> list[tuple[bytes, str | None]]:
        bodies = bodies_of(cmd)
        if isinstance(self.codec, BatchCodecProto):
            return await self.codec.encode_batch(bodies, self.serializer)
        return [await self.codec.encode(body, self.serializer) for body in bodies]

    async def _prepare(self, cmd: PymqPublishCommand) -> None:
        if cmd.publish_type is not PublishType.REPLY:
            await self.ensure(cmd.destination)

    def _send(
        self, cmd: PymqPublishCommand, value: bytes, content_type: str | None
    ) -> AsyncDelivery:
        options: dict[str, Any] = {**cmd.options, "key": key_of(cmd)}
        headers = cmd.wire_headers(content_type)
        return _opened(self._producer).send(cmd.destination, value, headers=headers, **options)

    # --- requests -------------------------------------------------------------------------------

    async def request(self, cmd: PymqPublishCommand) -> Record:
        """Send a request, and return its reply; raises as :meth:`pymq.Client.request`."""
        client = _opened(self._client)
        if unknown := set(cmd.options) - {"key"}:
            raise ConfigError(f"a request has no {', '.join(sorted(unknown))}; it may have a key")
        value, content_type = await self.codec.encode(cmd.body, self.serializer)
        headers = cmd.wire_headers(content_type)
        return await client.request(
            cmd.destination, value, timeout=cmd.timeout, key=key_of(cmd), headers=headers
        )

    async def refuse(self, record: Record, error: BaseException) -> None:
        """Answer a request with the error of its handler; does nothing for other messages."""
        found = reply_to(record, b"", error)
        if found is not None and self._client is not None:
            partition, value, headers = found
            producer = _opened(self._producer)
            await producer.send(REPLIES, value, partition=partition, headers=headers)


def _opened(found: T | None) -> T:
    if found is None:
        raise IncorrectState("the broker is not connected; 'await broker.start()' connects it")
    return found


def key_of(cmd: PymqPublishCommand) -> bytes | None:
    """Return the key of a command, in its stored form."""
    key = cmd.options.get("key")
    return None if key is None else as_bytes(key)
