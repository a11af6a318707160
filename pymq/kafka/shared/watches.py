"""Waits for partitions to grow, with one request per partition for all waiting clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pymq.core.message import Fetch, Fetched
from pymq.core.types import TopicPartition
from pymq.core.values import Factory, define

WATCH_MS = 20_000  # longest wait of a request; then all waiting clients fetch again
LOST_MS = 30_000  # a request without an answer after this time counts as lost


@define
class _Watch:
    """A request that waits at a partition's end, and the waiting conversations."""

    lost_at: int
    waiting: dict[int, None] = Factory(dict)


class Watches:
    """The partitions that clients wait for."""

    def __init__(self, send: Callable[[TopicPartition, int], int], wake: Callable[[int], None]):
        self._send = send  # sends a request about a partition and an offset; returns its id
        self._wake = wake  # wakes a conversation
        self._watches: dict[TopicPartition, _Watch] = {}
        self._requests: dict[int, TopicPartition] = {}

    def add(
        self, conversation: int, partitions: Sequence[tuple[TopicPartition, int]], now: int
    ) -> None:
        """Let a conversation wait until a partition ends beyond an offset."""
        for name, end in partitions:
            watch = self._watches.get(name)
            if watch is None or watch.lost_at <= now:
                waiting = watch.waiting if watch is not None else {}
                watch = self._watches[name] = _Watch(now + LOST_MS, waiting)
                self._requests = {r: n for r, n in self._requests.items() if n != name}
                self._requests[self._send(name, end)] = name
            watch.waiting[conversation] = None

    def remove(self, conversation: int, partitions: Sequence[tuple[TopicPartition, int]]) -> None:
        """Remove a conversation from all waits."""
        for name, _ in partitions:
            if (watch := self._watches.get(name)) is not None:
                watch.waiting.pop(conversation, None)

    def answered(self, message: Fetched) -> bool:
        """Handle an answer; return whether it belongs to a request of this object."""
        name = self._requests.pop(message.id, None)
        if name is None:
            return False
        watch = self._watches.pop(name)
        for conversation in list(watch.waiting):
            self._wake(conversation)
        return True


def watch_request(request: int, name: TopicPartition, end: int) -> Fetch:
    """Return a request whose answer comes once a partition ends beyond *end*."""
    return Fetch(request, name.topic, name.partition, end, 0, WATCH_MS)
