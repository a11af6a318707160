"""The broker of FastStream that is a client of pymq."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

import anyio
from fast_depends import dependency_provider
from faststream import ContextRepo
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.di import FastDependsConfig
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from pymq.aio import AsyncClient
from pymq.client.option_types import TopicOptions
from pymq.contrib.connection import Connection, Queue
from pymq.contrib.faststream.commands import PymqPublishCommand, SendOptions, check_send_options
from pymq.contrib.faststream.config import PymqBrokerConfig, make_pymq_logger_state
from pymq.contrib.faststream.messages import PymqMessage, Raw
from pymq.contrib.faststream.producer import PymqProducer
from pymq.contrib.faststream.publishers import REQUEST_S
from pymq.contrib.faststream.registrator import PymqRegistrator
from pymq.core.batch.record import RecordMetadata
from pymq.errors import PymqError

if TYPE_CHECKING:
    from fast_depends import Provider
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.configs import UnderlyingDriverAnnotations
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
    from faststream.specification.schema.extra import Tag, TagDict

WEEK_MS = 7 * 86_400_000


class PymqBroker(PymqRegistrator, BrokerUsecase[Raw, AsyncClient, PymqBrokerConfig]):
    """A FastStream broker on pymq.

    Args:
        url: a folder, ``memory:``, or the URL of a cluster, as for :func:`pymq.open`. Instead of a
            URL, a client of :func:`pymq.aio.open`, which stays open. Brokers with the same URL in
            the same event loop share one client. Only one process can open a folder.
        partitions, replicas, retention_ms: for missing topics of subscribers and publishers, which
            the broker creates in ack mode ``raft``. *replicas* None means as many as there are
            brokers, three at most. *retention_ms* is how long messages stay in the log, handled or
            not, in milliseconds.
        curve_dir, principal: as for :func:`pymq.open`.
        graceful_timeout: how many seconds :meth:`stop` waits for running handlers.
        ack_policy: for subscribers without one; ``REJECT_ON_ERROR`` by default.
        dependencies, middlewares, routers, parser, decoder, codec, id_generator: as for
            FastStream's other brokers.
        specification_url, protocol_version, description, tags: of the server in AsyncAPI.
        logger, log_level, apply_types, provider, serializer, context: as for FastStream's other
            brokers.
        underlying_driver_annotations: as for FastStream's other brokers.
    """

    def __init__(
        self,
        url: Queue,
        *,
        partitions: int = 4,
        replicas: int | None = None,
        retention_ms: int = WEEK_MS,
        curve_dir: str | os.PathLike[str] | None = None,
        principal: str | None = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        id_generator: IdGenerator = gen_cor_id,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        routers: Iterable[PymqRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        specification_url: str | Iterable[str] | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        provider: Provider | None = None,
        serializer: SerializerProto | None = EMPTY,
        context: ContextRepo | None = None,
        underlying_driver_annotations: UnderlyingDriverAnnotations | None = None,
    ) -> None:
        topic_options: TopicOptions = {"retention_ms": retention_ms}
        super().__init__(
            routers=routers,
            config=PymqBrokerConfig(
                connection=Connection(url, curve_dir, principal, "'await broker.start()'"),
                producer=PymqProducer(
                    parser,
                    decoder,
                    partitions=partitions,
                    replicas=replicas,
                    topic_options=topic_options,
                ),
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                broker_middlewares=middlewares,
                broker_dependencies=dependencies,
                logger=make_pymq_logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
                underlying_driver_annotations=underlying_driver_annotations or {},
            ),
            specification=BrokerSpec(
                url=_addresses(url, specification_url),
                protocol="pymq",
                protocol_version=protocol_version,
                description=description,
                tags=tags,
                security=None,
            ),
        )

    @property
    def client(self) -> AsyncClient:
        """The client of pymq, between :meth:`start` and :meth:`stop`.

        Raises:
            Closed: the broker is not connected.
        """
        return self.config.connection.client  # type: ignore[no-any-return] # FastStream finds settings by name

    async def _connect(self) -> AsyncClient:
        settings = self.config.broker_config
        client = await settings.connection.open()
        producer = settings.producer
        assert isinstance(producer, PymqProducer)
        await producer.connect(client, settings.fd_config._serializer, settings.broker_codec)
        return client

    async def start(self) -> None:
        """Connect, create missing topics, start the subscribers; raises as :func:`pymq.open`."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers and disconnect; running handlers end first.

        Messages that are then still unacknowledged go to other members of their groups.
        """
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            self._connection = None
            settings = self.config.broker_config
            try:
                if isinstance(settings.producer, PymqProducer):
                    await settings.producer.disconnect()
            finally:
                await settings.connection.close()

    async def ping(self, timeout: float | None) -> bool:
        """Return whether a pymq broker answers within *timeout* seconds."""
        if self._connection is None:
            return False
        with anyio.move_on_after(timeout):
            try:
                return any(broker.alive for broker in (await self._connection.cluster()).brokers)
            except PymqError:
                return False
        return False

    # --- publishing -----------------------------------------------------------------------------

    async def publish(
        self,
        message: Any,
        topic: str,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[SendOptions],
    ) -> RecordMetadata:
        """Send a message, wait until it is durable, and return where it is in the log.

        Args:
            message: bytes, text, or anything that FastStream writes as JSON, such as pydantic's
                models.
            topic: the topic to send to; it is created if it does not exist.
            headers: text, bytes or numbers, by name.
            correlation_id: the same for messages that belong together; by default a new id.
            reply_to: the topic that the result of its handler goes to.
            options: ``key`` (messages of one key keep their order), ``partition``,
                ``timestamp_ms``, ``delay_s`` or ``deliver_at`` (a datetime with a time zone): no
                group gets the message earlier; ``expires_s``: no group gets it later; ``priority``
                from 0, the default, to 9, the most urgent.

        Before the broker is started, this method raises FastStream's ``IncorrectState``.

        Raises:
            ConfigError: an option is unknown, negative or too large.
            PymqError: the message could not be sent; see :meth:`pymq.Producer.send`.
        """
        cmd = self._command((message,), topic, headers, correlation_id, reply_to, options)
        sent: RecordMetadata = await self._basic_publish(cmd, producer=self._producer)
        return sent

    async def publish_batch(  # type: ignore[override] # FastStream's base names the topic "queue"
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[SendOptions],
    ) -> list[RecordMetadata]:
        """Send messages together, wait until all are durable, and return where they are.

        The arguments are those of :meth:`publish`, for each message. The errors are those of
        :meth:`publish`; some of the messages may have been sent before an error.
        """
        cmd = self._command(messages, topic, headers, correlation_id, reply_to, options)
        sent: list[RecordMetadata] = await self._basic_publish_batch(cmd, producer=self._producer)
        return sent

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
        return PymqPublishCommand(
            *(messages or (None,)),
            topic=topic,
            _publish_type=PublishType.PUBLISH,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            options=options,
        )

    async def request(  # type: ignore[override] # FastStream's base names the topic "queue"
        self,
        message: Any,
        topic: str,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        key: bytes | str | None = None,
        timeout: float = REQUEST_S,
    ) -> PymqMessage:
        """Send a request, and return its reply, whose ``await reply.decode()`` is the value.

        The reply comes from a subscriber whose group has the name of its topic (the default), or
        from a program that uses :meth:`pymq.Client.reply`. After *timeout* seconds no handler
        starts the request.

        Before the broker is started, this method raises FastStream's ``IncorrectState``.

        Raises:
            NoResponders: nobody answers requests of this topic now; raised at once.
            RequestFailed: the handler has raised, and the message was not returned for a retry.
            RequestTimeout: there was no reply in time; the request may still be carried out.
            PymqError: the request could not be sent.
        """
        cmd = PymqPublishCommand(
            message,
            topic=topic,
            _publish_type=PublishType.REQUEST,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            options={"key": key},
            timeout=timeout,
        )
        reply: PymqMessage = await self._basic_request(cmd, producer=self._producer)
        return reply


def _addresses(url: Queue, told: str | Iterable[str] | None) -> list[str]:
    """Return the addresses of the brokers, for AsyncAPI."""
    if told is not None:
        return [told] if isinstance(told, str) else list(told)
    return ["pymq"] if isinstance(url, AsyncClient) else [os.fspath(url)]
