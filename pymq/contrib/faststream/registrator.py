"""Declares subscribers and publishers, on a broker or on a router."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.configs import (
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from pymq.client.backoff import Backoff
from pymq.client.consumer.options import CREDIT, consumer_options
from pymq.client.option_types import ConsumerMode, GroupOptions
from pymq.contrib.faststream.commands import SendOptions
from pymq.contrib.faststream.config import PymqBrokerConfig
from pymq.contrib.faststream.messages import Raw
from pymq.contrib.faststream.publishers import (
    TopicBatchPublisher,
    TopicPublisher,
    TopicPublisherSpecification,
)
from pymq.contrib.faststream.subscribers import (
    TopicSubscriber,
    TopicSubscriberConfig,
    TopicSubscriberSpecification,
)
from pymq.errors import ConfigError

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable

RETRY = Backoff(first_s=1, factor=2, max_s=60, jitter=0.1)
BATCH = 100  # most records in a batch
ACK_WAIT_S = 30.0


class PymqRegistrator(Registrator[Raw, PymqBrokerConfig]):
    """Declarations on a broker or on a router."""

    def subscriber(  # type: ignore[override] # FastStream's base takes a subscriber that is made
        self,
        topic: str,
        *,
        group: str | None = None,
        mode: ConsumerMode = "group",
        batch: bool = False,
        max_records: int = BATCH,
        max_workers: int = 1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        partition: str | int | None = None,
        offset: int | Literal["begin", "end"] | None = None,
        rack: str | None = None,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        persistent: bool = True,
        **options: Unpack[GroupOptions],
    ) -> TopicSubscriber:
        """Declare a subscriber; it decorates the function that handles its messages.

        Args:
            topic: the topic, after the prefix of the router. It is created if it is missing.
            group: its members share the messages. The default has the name of the topic, and also
                answers the topic's requests.
            mode: ``group``, or ``reader``: each reader gets all messages, and acknowledges none.
            batch: the handler gets a list of the available messages, up to *max_records*.
            max_records: the largest batch.
            max_workers: how many messages, or batches, are handled at the same time. With more than
                one, messages of one key may overtake each other.
            ack_policy: what happens after the handler; by default ``REJECT_ON_ERROR``: a message
                whose handler raises, or that does not fit its types, becomes a dead letter.
            no_reply: do not publish results to the place that a message or a request names.
            partition, offset, rack: for a reader, as for :meth:`pymq.Client.consumer`. A reader
                begins at the oldest record, unless *offset* is ``end``, or a number.
            dependencies, parser, decoder, codec, title, description, include_in_schema: as for
                FastStream's other brokers.
            persistent: False leaves it to the caller to keep the subscriber alive.
            options: for the group, as for :meth:`pymq.Client.consumer`: ``max_deliver``,
                ``ack_wait_s``, ``dead_letter``, ``expired``, ``prefetch`` and others. ``retry`` is
                how long a returned message waits (``NACK_ON_ERROR``, ``NackMessage``), by default 1
                s, 2 s, 4 s and so on up to 60 s.

        Raises:
            ConfigError: options are unknown, out of range, or contradict each other.
        """
        is_reader = mode in {"reader", "psb"}
        place = {"partition": partition, "offset": offset, "rack": rack}
        _check_subscriber(max_records, max_workers, ack_policy, is_reader, options)
        if not is_reader:
            wait = options.get("ack_wait_s", ACK_WAIT_S)
            options.setdefault("retry", RETRY)
            # A subscriber that handles as many messages as it may does not poll.
            options.setdefault("max_poll_interval_s", max(300.0, 2 * wait))
        consumer_options(
            *(topic, group, mode, partition, offset, "pull", None, CREDIT, rack, options)
        )
        outer: Any = self.config
        calls = CallsCollection[Raw]()
        subscriber = TopicSubscriber(
            TopicSubscriberConfig(
                _outer_config=outer,
                _ack_policy=ack_policy,
                no_reply=no_reply,
                topic=topic,
                group=group,
                is_reader=is_reader,
                batch=batch,
                max_records=max_records if batch else 1,
                max_workers=max_workers,
                place=place,
                options=options,
            ),
            TopicSubscriberSpecification(
                outer,
                SubscriberSpecificationConfig(
                    title_=title, description_=description, include_in_schema=include_in_schema
                ),
                calls,
                topic,
            ),
            calls,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    @overload  # type: ignore[override] # FastStream's base takes a publisher that is made
    def publisher(
        self,
        topic: str,
        *,
        batch: Literal[False] = False,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
        persistent: bool = True,
        **options: Unpack[SendOptions],
    ) -> TopicPublisher: ...

    @overload
    def publisher(
        self,
        topic: str,
        *,
        batch: Literal[True],
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
        persistent: bool = True,
        **options: Unpack[SendOptions],
    ) -> TopicBatchPublisher: ...

    def publisher(
        self,
        topic: str,
        *,
        batch: bool = False,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
        persistent: bool = True,
        **options: Unpack[SendOptions],
    ) -> TopicPublisher:
        """Declare a publisher: a decorator that publishes what a handler returns, or an object.

        Args:
            topic: the topic, after the prefix of the router. The start creates it if it is missing.
            batch: each item of a handler's result becomes a message.
            headers: of each message.
            reply_to: the topic for the results of the handlers of the messages.
            title, description, schema, include_in_schema: as for FastStream's other brokers.
            persistent: False leaves it to the caller to keep the publisher alive.
            options: of each message, as for :meth:`PymqBroker.publish`.

        Raises:
            ConfigError: an option is unknown.
        """
        outer: Any = self.config
        specification = TopicPublisherSpecification(
            outer,
            PublisherSpecificationConfig(
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
                schema_=schema,
            ),
            topic,
        )
        kind = TopicBatchPublisher if batch else TopicPublisher
        publisher = kind(
            PublisherUsecaseConfig(_outer_config=outer),
            specification,
            headers=headers,
            reply_to=reply_to,
            options=options,
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(
        self,
        router: Registrator[Any, Any],
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Add the subscribers and publishers of a router; *prefix* goes before their topics.

        Raises:
            SetupError: the router is for another kind of broker.
        """
        if not isinstance(router, PymqRegistrator):
            raise SetupError(f"{type(router).__name__} is no router for a PymqBroker")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )


def _check_subscriber(
    max_records: int,
    max_workers: int,
    ack_policy: AckPolicy,
    is_reader: bool,
    options: GroupOptions,
) -> None:
    for name, found in (("max_records", max_records), ("max_workers", max_workers)):
        if type(found) is not int or found < 1:
            raise ConfigError(f"{name}={found!r} must be an integer from 1 on")
    if "auto_ack" in options:
        raise ConfigError("auto_ack= is not for subscribers; ack_policy= says when to acknowledge")
    if is_reader and ack_policy not in {EMPTY, AckPolicy.MANUAL}:
        raise ConfigError("ack_policy= is for groups: a reader acknowledges nothing")


class PymqPublisher(ArgsContainer):
    """A publisher for a :class:`PymqRoute`; takes the arguments of :meth:`PymqBroker.publisher`."""

    def __init__(self, topic: str, **arguments: Any) -> None:
        super().__init__(topic, **arguments)


class PymqRoute(SubscriberRoute):
    """A handler for a :class:`PymqRouter`, without a decorator.

    Args:
        call: the function that handles the messages.
        topic: the topic.
        publishers: publishers of its results.
        arguments: those of :meth:`PymqBroker.subscriber`.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        topic: str,
        *,
        publishers: Iterable[PymqPublisher] = (),
        **arguments: Any,
    ) -> None:
        super().__init__(call, topic, publishers=publishers, **arguments)


class PymqRouter(PymqRegistrator, BrokerRouter[Raw, PymqBrokerConfig]):
    """Subscribers and publishers for a broker to include, as in a module of a larger application.

    Args:
        prefix: goes before the topics of all subscribers and publishers.
        handlers: routes, instead of decorators.
        dependencies, middlewares, routers, parser, decoder, codec, include_in_schema: as for
            FastStream's other routers.
        ack_policy: for subscribers without one.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[PymqRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        routers: Iterable[PymqRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=PymqBrokerConfig(
                prefix=prefix,
                broker_middlewares=middlewares,
                broker_dependencies=dependencies,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                include_in_schema=include_in_schema,
                ack_policy=ack_policy,
            ),
            routers=routers,
        )
