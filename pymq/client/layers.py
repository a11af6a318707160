"""The client's methods for dead letters, typed topics, and request and reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from pymq.client.admin.admin import Admin
from pymq.client.option_types import GroupOptions
from pymq.client.options import check_choice
from pymq.core.types import check_name
from pymq.errors import ConfigError

if TYPE_CHECKING:
    from pymq.client.client import Client
    from pymq.client.redrive.redrive import Redriven
    from pymq.client.rpc.mailbox import Request
    from pymq.client.rpc.requester import Requester
    from pymq.client.rpc.responder import Handler, Responder
    from pymq.client.typed.registry import SchemaRegistry
    from pymq.client.typed.topic import TypedTopic
    from pymq.core.batch.record import Record
    from pymq.serde.compatibility import Compatibility
    from pymq.serde.serializer import Serializer

T = TypeVar("T")
H = TypeVar("H", bound="Callable[[Request], Any]")


class Layers(Admin):
    """Dead letters, typed topics, and request and reply: a base class of :class:`Client`.

    The modules for these methods are imported at the first use, because most clients use few of
    them.
    """

    _schemas: SchemaRegistry | None = None
    _requester: Requester | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._responders: dict[Responder, None] = {}

    @property
    def _whole(self) -> Client:
        return cast("Client", self)

    # --- dead letters ---------------------------------------------------------------------------

    def redrive(
        self,
        topic: str,
        to: str | None = None,
        where: Callable[[Record], object] | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        limit: int | None = None,
    ) -> Redriven:
        """Send dead letters back to their topics, each exactly once, even if the caller crashes.

        A record keeps its key, value and headers, and gets a header ``pymq.redriven``, which counts
        how often the record was sent back. A letter goes to its former partition; letters keep
        their order. The letters stay in the dead-letter topic until retention removes them. A
        compacted topic, named *topic* with ``.redriven``, stores which letters were sent back.

        Args:
            topic: the dead-letter topic, as ``orders.dlq``.
            to: another topic to which all letters are sent; None: the topic in each letter's
                headers.
            where: a function that chooses letters, such as ``lambda letter: letter.key == b"7"``;
                None: all.
            dry_run: only count the letters.
            rate: most letters per second.
            limit: most letters to send; later letters are not looked at. Letters of an interrupted
                redrive are sent first and do not count. None: all.

        Raises:
            UnknownTopic: there is no such topic.
            ProducerFenced: another redrive of this topic has begun, and continues this one.
            RecordTooLarge: a letter exceeds the ``max_record_bytes`` of its topic. Another *where*
                can leave such a letter out, like other refused letters.
            ConfigError: an option is out of its range.
        """
        from pymq.client.redrive.redrive import redrive

        return redrive(self._whole, topic, to, where, rate, limit, dry_run=dry_run)

    def dead_letters(
        self, topic: str, where: Callable[[Record], object] | None = None
    ) -> Iterator[Record]:
        """Iterate over the letters of a dead-letter topic that were neither sent back nor purged.

        Raises:
            UnknownTopic: there is no such topic.
        """
        from pymq.client.redrive.redrive import Redrive

        return Redrive(self._whole, topic, None, where, None).letters()

    def purge_dead_letters(
        self, topic: str, where: Callable[[Record], object] | None = None
    ) -> int:
        """Mark letters of a dead-letter topic as done without sending them back.

        Returns the number of marked letters.

        Retention removes these letters from the disk later.

        Raises:
            UnknownTopic, ProducerFenced: see :meth:`redrive`.
        """
        from pymq.client.redrive.redrive import Redrive

        return Redrive(self._whole, topic, None, where, None).purge()

    # --- typed values ---------------------------------------------------------------------------

    def topic(
        self,
        name: str,
        kind: type[T],
        serializer: Serializer | None = None,
        *,
        compatibility: Compatibility | None = None,
    ) -> TypedTopic[T]:
        """Return a handle of a topic whose values are of type *kind*.

        Each record carries the fingerprint of its schema in the header ``pymq.schema``.

        Args:
            name: the topic; it must exist when the handle is used.
            kind: the type of the values, such as a dataclass.
            serializer: a serializer of :mod:`pymq.serde`; None: :class:`pymq.serde.Json`.
            compatibility: ``"backward"``, ``"forward"``, ``"full"`` or ``"none"``. The schema is
                registered before the first value is sent or read, if the schema is compatible with
                the earlier ones. None: no registry.

        Raises:
            ConfigError: *serializer* is not a serializer or has no encoding for *kind*, or
                *compatibility* is unknown.
            MissingExtra: the serializer's library is not installed.
        """
        from pymq.client.typed.topic import TypedTopic
        from pymq.client.typed.values import Values
        from pymq.serde import Json
        from pymq.serde.compatibility import COMPATIBILITIES

        if compatibility is not None:
            check_choice("compatibility", compatibility, COMPATIBILITIES)
        chosen = Json() if serializer is None else serializer
        if isinstance(chosen, type) or not hasattr(chosen, "codec"):
            raise ConfigError(f"serializer={chosen!r} must be an object, such as pymq.serde.Json()")
        codec = chosen.codec(kind)
        return TypedTopic(
            self._whole, Values(check_name(name, "topic"), codec, self.schemas), compatibility
        )

    @property
    def schemas(self) -> SchemaRegistry:
        """The registered schemas of typed topics."""
        if self._schemas is None:
            from pymq.client.typed.registry import SchemaRegistry

            self._schemas = SchemaRegistry(self._whole)
        return self._schemas

    # --- request and reply ----------------------------------------------------------------------

    def request(
        self,
        service: str,
        value: bytes,
        timeout: float = 2.0,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
    ) -> Record:
        """Send a request to a service and return the reply, a record with value and headers.

        A responder of the service (see :meth:`reply`) gets the request with its deadline; after
        *timeout* seconds no responder gets the request. If the responder dies before it has
        replied, another responder gets the request.

        Raises:
            NoResponders: the service has no responder; raised at once, not after *timeout*.
            RequestFailed: the responder has raised an error; the message has its text.
            RequestTimeout: there was no reply in time; the request may still be carried out.
            ConfigError: *timeout* is not a number of seconds above 0.
        """
        return self._requests().ask(service, value, key, headers, timeout)

    def _requests(self) -> Requester:
        if self._requester is None:
            from pymq.client.rpc.requester import Requester

            self._requester = Requester(self._whole)
        return self._requester

    @overload
    def reply(
        self,
        service: str,
        handler: None = None,
        workers: int = 1,
        **options: Unpack[GroupOptions],
    ) -> Callable[[H], H]: ...

    @overload
    def reply(
        self, service: str, handler: Handler, workers: int = 1, **options: Unpack[GroupOptions]
    ) -> Responder: ...

    def reply(
        self,
        service: str,
        handler: Handler | None = None,
        workers: int = 1,
        **options: Unpack[GroupOptions],
    ) -> Responder | Callable[[H], H]:
        """Answer requests of a service: ``@mq.reply("service")`` on a function, or with *handler*.

        The handler gets a :class:`pymq.Request` and returns the bytes of the reply, or None for an
        empty reply. An exception in the handler raises :exc:`RequestFailed` at the requesting
        client. *workers* threads answer that many requests at the same time. All responders of a
        service, in any process, are members of the group of that name; *options* are those of
        :meth:`consumer`. The topic *service* is created if it is missing.

        Closing the client, or the :class:`Responder` that is returned for a *handler*, ends the
        responder after its current request.
        """
        from pymq.client.rpc.responder import Responder

        check_name(service, "service")

        def start(function: Handler) -> Responder:
            found = Responder(self._whole, service, function, workers, options)
            self._responders[found] = None
            found.start()
            return found

        def decorate(function: H) -> H:
            start(function)
            return function

        return decorate if handler is None else start(handler)
