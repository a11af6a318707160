"""The requesting side of request and reply.

One of the waiting threads reads the replies for all waiting threads; when this thread has its own
reply, another thread takes over. So no extra thread is needed, and in a simulation the waiting
thread runs the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pymq.client.admin.groups import may_have_members
from pymq.client.options import check_seconds
from pymq.client.rpc.mailbox import REPLIES, Pending, ReplyMailbox, choose_partition
from pymq.core.batch.record import Record
from pymq.core.types import check_name
from pymq.errors import NoResponders, OffsetOutOfRange, RequestTimeout, UnknownTopic

if TYPE_CHECKING:
    from pymq.client.client import Client
    from pymq.client.consumer.consumer import Consumer
    from pymq.client.producer.producer import Producer

CHECK_S = 1.0  # how long a service counts as having responders after a check
PROMPT_S = 0.05  # wait for a reply before the requester checks that there are responders


class Requester:
    """Sends the requests of one client, and reads their replies."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._monotonic = client.driver.monotonic
        self._turn = threading.Condition()
        self._is_read = False  # whether a thread is reading replies
        self._mailbox: ReplyMailbox | None = None
        self._reader: Consumer | None = None
        self._producer: Producer | None = None
        self._checked: dict[str, float] = {}  # the time when each service last had a responder

    def ask(
        self,
        service: str,
        value: bytes,
        key: bytes | None,
        headers: Iterable[tuple[str, bytes]] | None,
        timeout: float,
    ) -> Record:
        """Send a request and wait for its reply; see :meth:`pymq.Client.request`."""
        id, pending, until = self.submit(service, value, key, headers, timeout)
        return self.wait(service, id, pending, until)

    def submit(
        self,
        service: str,
        value: bytes,
        key: bytes | None,
        headers: Iterable[tuple[str, bytes]] | None,
        timeout: float,
    ) -> tuple[bytes, Pending, float]:
        """Send a request; returns its id, its pending reply, and its deadline."""
        check_seconds("timeout", timeout)
        until = self._monotonic() + timeout
        self.check(service)
        with self._turn:
            mailbox = self._mailbox or self._open(service)
            pending = Pending()
            id = mailbox.add(pending)
        assert self._producer is not None
        try:
            self._producer.send(
                service,
                value,
                key=key,
                headers=mailbox.headers(id, headers),
                expires_s=timeout,
            )
        except BaseException:
            mailbox.drop(id)
            raise
        return id, pending, until

    def check(self, service: str, since: float = 0.0) -> None:
        """Check that a service has a responder, unless that was checked within a second.

        A check from before *since*, on the monotonic clock, does not count. While the group's
        coordinator has just taken over, it may not know the responders yet: then the service counts
        as having one.

        Raises:
            NoResponders: the service has no responder.
            InvalidName: no topic can have that name.
        """
        if self.is_checked(service, since):
            return
        check_name(service, "service")
        now = self._monotonic()
        self._checked.pop(service, None)
        try:
            self._client.questions.topic_metadata(service)
            is_there = may_have_members(self._client.questions, service)
        except UnknownTopic:
            is_there = False
        if not is_there:
            raise NoResponders(f"nobody answers requests of {service!r} now")
        self._checked[service] = now

    def is_checked(self, service: str, since: float = 0.0) -> bool:
        """Whether a service had a responder less than a second ago, and not before *since*."""
        checked = self._checked.get(service, float("-inf"))
        return since <= checked and self._monotonic() < checked + CHECK_S

    def now(self) -> float:
        """The monotonic clock of checks."""
        return self._monotonic()

    def _open(self, service: str) -> ReplyMailbox:
        """Choose a partition for replies, and open a reader at its end."""
        client = self._client
        token, partition, end = choose_partition(client, service)
        self._reader = client.consumer(REPLIES, mode="psb", partition=partition, offset=end)
        self._producer = client.producer(linger_ms=0)
        self._mailbox = ReplyMailbox(token, partition)
        return self._mailbox

    def wait(self, service: str, id: bytes, pending: Pending, until: float) -> Record:
        """Wait for the reply of a request.

        Raises:
            RequestFailed: the responder has failed.
            NoResponders: the last responder has left.
            RequestTimeout: there was no reply in time.
        """
        assert self._mailbox is not None
        since, pause = self._monotonic(), PROMPT_S
        try:
            while pending.reply is None:
                left = until - self._monotonic()
                if left <= 0:
                    raise RequestTimeout(
                        f"no reply of {service!r} in time; the service may still act"
                    )
                self.read(pending, min(left, pause))
                pause = CHECK_S
                if pending.reply is None:
                    self.check(service, since)
            return pending.result()
        finally:
            self._mailbox.drop(id)

    def read(self, pending: Pending, timeout: float) -> None:
        """Read replies, or wait for the thread that reads them."""
        with self._turn:
            if pending.reply is not None:
                return
            if self._is_read:
                self._turn.wait(timeout)
                return
            self._is_read = True
        try:
            replies = self._poll(timeout)
        finally:
            with self._turn:
                self._is_read = False
                self._turn.notify_all()
        assert self._mailbox is not None
        with self._turn:
            self._mailbox.deliver(replies)
            self._turn.notify_all()

    def _poll(self, timeout: float) -> list[Record]:
        assert self._reader is not None
        assert self._mailbox is not None
        try:
            return self._reader.poll(1_000, timeout)
        except OffsetOutOfRange:
            # Retention has removed replies before this client could read them.
            self._reader.seek(self._mailbox.partition, "end")
            return []
