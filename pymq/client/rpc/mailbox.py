"""Matches replies with requests.

A service is a topic that a group of the same name consumes, so each request goes to one responder.
Replies of all services go to the topic ``pymq.replies``, so that no client or request needs its own
topic.

1. A client chooses a partition of ``pymq.replies`` and reads it from its end.
2. A request has that partition in the header ``pymq.reply_to``, a unique id in ``pymq.request``,
   and its deadline in ``pymq.expires_at``. After the deadline no responder gets the request.
3. The responder sends its reply, with the same id, to that partition, and then acknowledges the
   request.
4. The client keeps the replies to its own requests and ignores other replies.

A request cannot redirect replies to another topic, because it names only the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pymq.core.batch.columns import Headers
from pymq.core.batch.record import Record
from pymq.core.batch.view import ERROR_HEADER
from pymq.core.delay.record_times import EXPIRES_AT, time_of
from pymq.core.types import AckMode
from pymq.errors import NotEnoughBrokers, RequestFailed, UnknownTopic

if TYPE_CHECKING:
    from pymq.client.client import Client

REPLIES = "pymq.replies"
REPLY_TO = "pymq.reply_to"
REQUEST_ID = "pymq.request"
# partitions of replies; clients that share a partition read each other's replies
REPLY_PARTITIONS = 16
REPLIES_KEPT_MS = 600_000
REPLICAS = 3  # replicas of a service's topic, if there are enough brokers


class Request(NamedTuple):
    """A request, as a responder gets it."""

    service: str
    value: bytes
    key: bytes | None
    headers: Headers
    deadline_ms: int | None
    """The time when the requesting client gives up, in milliseconds since 1970; None: never."""
    delivery_count: int
    """1 at first; more if an earlier responder died before its reply."""


def request_of(record: Record) -> Request:
    """Return the request in a record."""
    deadline = time_of(record.headers, EXPIRES_AT)
    return Request(
        record.topic, record.value, record.key, record.headers, deadline, record.delivery_count
    )


def header(headers: Headers, name: str) -> bytes | None:
    """Return the first header of a name."""
    return next((found for each, found in headers if each == name), None)


class Pending:
    """A request without a reply."""

    def __init__(self, on_reply: Callable[[Pending], object] | None = None) -> None:
        self.reply: Record | None = None
        self._on_reply = on_reply

    def take(self, reply: Record) -> None:
        """Store the reply."""
        self.reply = reply
        if self._on_reply is not None:
            self._on_reply(self)

    def result(self) -> Record:
        """Return the reply.

        Raises:
            RequestFailed: the responder has failed while handling the request.
        """
        assert self.reply is not None
        error = header(self.reply.headers, ERROR_HEADER)
        if error is not None:
            text = error.decode(errors="replace")
            raise RequestFailed(f"the responder has failed: {text}")
        return self.reply


class ReplyMailbox:
    """The requests of one client that wait for replies."""

    def __init__(self, token: bytes, partition: str) -> None:
        self.partition = partition
        self._token = token
        self._made = 0
        self._waiting: dict[bytes, Pending] = {}

    def add(self, pending: Pending) -> bytes:
        """Register a new request and return its id."""
        self._made += 1
        id = b"%b-%d" % (self._token, self._made)
        self._waiting[id] = pending
        return id

    def drop(self, id: bytes) -> None:
        """Stop waiting for the reply."""
        self._waiting.pop(id, None)

    def headers(self, id: bytes, more: Iterable[tuple[str, bytes]] | None) -> Headers:
        """Return the headers of a request."""
        return (*(more or ()), (REPLY_TO, self.partition.encode()), (REQUEST_ID, id))

    def deliver(self, replies: Iterable[Record]) -> None:
        """Pass replies to the requests that wait for them."""
        for reply in replies:
            id = header(reply.headers, REQUEST_ID)
            pending = self._waiting.pop(id, None) if id is not None else None
            if pending is not None:
                pending.take(reply)


def choose_partition(client: Client, service: str) -> tuple[bytes, str, int]:
    """Choose a partition for replies; returns the client's token, the partition and its end."""
    create_replies(client, service)
    token = client._random_bytes(12)
    names = [p.partition for p in client.questions.topic_metadata(REPLIES).partitions]
    partition = names[int.from_bytes(token) % len(names)]
    end = client.questions.all_bounds(REPLIES, [partition])[partition][1]
    return token.hex().encode(), partition, end


def create_replies(client: Client, service: str) -> None:
    """Create the topic of replies if it is missing, with the replicas of a service's topic."""
    try:
        client.questions.topic_metadata(REPLIES)
        return
    except UnknownTopic:
        pass
    replicas = len(client.describe_topic(service).partitions[0].replicas)
    make = partial(
        client.create_topic,
        REPLIES,
        REPLY_PARTITIONS,
        acks=AckMode.LEADER,
        exist_ok=True,
        retention_ms=REPLIES_KEPT_MS,
        block_ms=REPLIES_KEPT_MS,
    )
    try:
        make(replicas=max(1, replicas))
    except NotEnoughBrokers:
        make()


def create_service(client: Client, service: str) -> None:
    """Create the topic of a service if it is missing."""
    try:
        client.questions.topic_metadata(service)
        return
    except UnknownTopic:
        pass
    alive = sum(broker.alive for broker in client.cluster().brokers)
    client.create_topic(service, replicas=max(1, min(REPLICAS, alive)), exist_ok=True)
