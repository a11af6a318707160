"""Loads parts of the tree, one after the other, and keeps them watched.

A load begins with a ``sync``, so it contains each earlier commit, even one that was sent to another
server. If a load fails because the connection is lost or the server is overloaded, it is queued
again.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from pymq.coord.event_queue import News
from pymq.coord.zookeeper.dialect import LOST, REFUSED, Dialect, NoNodeError
from pymq.coord.zookeeper.pending_requests import PendingRequests
from pymq.coord.zookeeper.tree_reading import GetNode, ListNode, TreeReading
from pymq.core.metadata.coordination import Changed, CoordRequest, Failed, Load, Loaded

__all__ = ["TreeLoader"]

READS_OUT = 128  # most reads of a load in flight


class TreeLoader:
    """The load in progress, and the watched roots of earlier loads."""

    def __init__(
        self,
        dialect: Dialect,
        requests: PendingRequests,
        news: News,
        queue: deque[CoordRequest],
    ) -> None:
        self._dialect = dialect
        self._requests = requests
        self._news = news
        self._queue = queue
        self._load: tuple[Load, TreeReading] | None = None
        self._roots: dict[str, None] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a load is in progress."""
        return self._load is not None

    def begin(self, load: Load) -> None:
        """Begin a load; no other load may be in progress."""
        reading = TreeReading(load.root)
        self._load = load, reading
        on_reply = partial(self._readied, reading)
        if load.root not in self._roots:
            self._roots[load.root] = None
            self._requests.send(self._dialect.watch(load.root), on_reply)
        self._requests.send(self._dialect.sync(load.root), on_reply)
        self._read(reading)

    def suspend(self) -> None:
        """Handle a lost connection: queue the load again."""
        if self._load is not None:
            self._queue.appendleft(self._load[0])
            self._load = None

    # --- watches --------------------------------------------------------------------------------

    def changed(self, path: str) -> bool:
        """Handle a change of a node; return whether it is at or below a watched root."""
        if self._load is not None:
            self._load[1].changed(path)
        return any(path == r or path.startswith(r.rstrip("/") + "/") for r in self._roots)

    def watch_again(self) -> None:
        """Set all watches again and report their roots as changed.

        Watches end with the connection, so changes may have been missed.
        """
        for root in self._roots:
            self._requests.send(self._dialect.watch(root), partial(self._watched_again, root))

    def _watched_again(self, root: str, _: Any, error: Exception | None) -> None:
        if isinstance(error, LOST):
            return  # the next connection sets the watch again
        if error is not None:
            self._roots.pop(root, None)  # the next load of this root will fail with the reason
        self._news.tell(Changed(root))

    def forget(self) -> None:
        """Handle the end of the session, which also ends all watches."""
        self._roots.clear()

    # --- reading --------------------------------------------------------------------------------

    def _readied(self, reading: TreeReading, _: Any, error: Exception | None) -> None:
        if error is not None:
            self._failed(reading, error)

    def _read(self, reading: TreeReading) -> None:
        for question in reading.ask(READS_OUT):
            request = self._dialect.read(question)
            if isinstance(question, GetNode):
                self._requests.send(request, partial(self._got, reading, question))
            else:
                self._requests.send(request, partial(self._listed, reading, question))

    def _got(
        self, reading: TreeReading, asked: GetNode, result: Any, error: Exception | None
    ) -> None:
        if not self._is_read(reading, error):
            return
        if error is not None:
            reading.got(asked.path, None, False)
        else:
            reading.got(asked.path, *self._dialect.entry(asked.path, result))
        self._go_on(reading)

    def _listed(
        self, reading: TreeReading, asked: ListNode, result: Any, error: Exception | None
    ) -> None:
        if not self._is_read(reading, error):
            return
        names = None if error is not None else self._dialect.names(asked.path, result)
        reading.listed(asked.path, names)
        self._go_on(reading)

    def _is_read(self, reading: TreeReading, error: Exception | None) -> bool:
        """Whether the read has succeeded; a missing node is a valid answer."""
        if error is not None and not isinstance(error, NoNodeError):
            # kazoo answers lost reads before it reports the lost connection; _failed ignores them.
            self._failed(reading, error)
            return False
        return self._load is not None and self._load[1] is reading

    def _go_on(self, reading: TreeReading) -> None:
        self._read(reading)
        if reading.is_done and self._load is not None:
            load, self._load = self._load[0], None
            self._news.tell(Loaded(load.tag, reading.entries()))

    def _failed(self, reading: TreeReading, error: Exception) -> None:
        if self._load is None or self._load[1] is not reading or isinstance(error, LOST):
            return
        load, self._load = self._load[0], None
        if isinstance(error, REFUSED):
            self._news.tell(Failed(load.tag, self._dialect.error(error, load.root)))
        else:
            self._queue.appendleft(load)  # retry: the server may have been overloaded
