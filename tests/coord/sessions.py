"""A coordinator session whose events a test can wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from kazoo.client import KazooClient

import pymq.coord
from pymq.coord.zookeeper.coordinator import ZookeeperCoordinator
from pymq.core.metadata.coordination import (
    Changed,
    Commit,
    Committed,
    CoordEvent,
    Entry,
    Load,
    Loaded,
    Op,
    Suspended,
)

WAIT_S = 20.0
SESSION_MS = 1_000  # for tests of expiry; in other tests a slow machine must not end a session

E = TypeVar("E")


class Session:
    """One session of a coordinator backend, and all its events so far."""

    def __init__(self, backend: ZookeeperCoordinator) -> None:
        self.backend = backend
        self.seen: list[CoordEvent] = []
        self._tag = 0

    def poll(self) -> list[CoordEvent]:
        """Collect the events that have arrived."""
        events = list(self.backend.poll())
        self.seen += events
        return events

    def until(self, enough: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
        """Poll until *enough*."""
        end = time.monotonic() + wait_s
        while not enough():
            assert time.monotonic() < end, f"no {what}; the last events are {self.seen[-10:]}"
            if not self.poll():
                time.sleep(0.002)

    def wait(self, kind: type[E], since: int = 0, wait_s: float = WAIT_S) -> E:
        """Wait for an event of *kind* after the first *since*."""
        found: list[E] = []

        def enough() -> bool:
            found.extend(e for e in self.seen[since:] if isinstance(e, kind))
            return bool(found)

        self.until(enough, kind.__name__, wait_s)
        return found[0]

    def until_changed(self, path: str, since: int) -> None:
        """Wait until a change of *path* is reported, after the first *since* events."""
        self.until(lambda: Changed(path) in self.seen[since:], f"change of {path}")

    def start(self, *ops: Op) -> int:
        self._tag += 1
        self.backend.submit(Commit(self._tag, ops))
        return self._tag

    def start_load(self, root: str) -> int:
        self._tag += 1
        self.backend.submit(Load(self._tag, root))
        return self._tag

    def answer(self, tag: int, wait_s: float = WAIT_S) -> CoordEvent:
        found: list[CoordEvent] = []

        def enough() -> bool:
            found.extend(e for e in self.seen if getattr(e, "tag", None) == tag)
            return bool(found)

        self.until(enough, f"answer to {tag}", wait_s)
        return found[0]

    def commit(self, *ops: Op) -> CoordEvent:
        return self.answer(self.start(*ops))

    def must(self, *ops: Op) -> tuple[int, ...]:
        answer = self.commit(*ops)
        assert isinstance(answer, Committed), f"{str(ops)[:300]}: {answer}"
        return answer.versions

    def load(self, root: str) -> tuple[Entry, ...]:
        answer = self.answer(self.start_load(root))
        assert isinstance(answer, Loaded), answer
        return answer.entries

    def paths(self, root: str) -> list[str]:
        return [entry.path for entry in self.load(root)]


@contextmanager
def session(
    hosts: str,
    root: str,
    options: str = "",
    *,
    session_ms: int = 10_000,
    timeout_s: float = WAIT_S,
) -> Iterator[Session]:
    """Open a session below *root*; it is closed afterwards."""
    url = f"zookeeper://{hosts}{root}?session_ms={session_ms}{options}"
    backend = pymq.coord.open(url, timeout_s=timeout_s)
    assert isinstance(backend, ZookeeperCoordinator)
    try:
        yield Session(backend)
    finally:
        backend.close()


@contextmanager
def kazoo(hosts: str, **options: object) -> Iterator[KazooClient]:
    """Open another client of the same ensemble."""
    client = KazooClient(hosts, timeout=10.0, **options)
    client.start(timeout=WAIT_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def expire(one: Session, hosts: str) -> None:
    """Have the ensemble end the session of *one*: another connection of the same session
    closes it.
    """
    client = one.backend._link._client
    with kazoo(hosts, client_id=(client._session_id, client._session_passwd)):
        pass


@contextmanager
def cut_off(one: Session, hosts: str) -> Iterator[None]:
    """Keep *one* without a connection during the ``with``."""
    client = one.backend._link._client
    since = len(one.seen)
    client.set_hosts("127.0.0.1:1")
    one.backend._link.drop()
    one.start_load("/")  # the load makes the client notice the loss at once
    one.wait(Suspended, since)
    yield
    client.set_hosts(hosts)
