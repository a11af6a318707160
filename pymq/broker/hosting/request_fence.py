"""Rejects controller requests older than the last one accepted for a partition.

A network may deliver a LeaderAndIsr after a StopReplica that was sent later. In this case the
broker must not host the partition again, because its files are removed, including its votes and
acknowledged records. Request ids rise over all zkservers, so the highest id wins, in any order of
arrival.
"""

from __future__ import annotations

from collections.abc import Hashable

REMEMBERED_MAX = 100_000  # most remembered partitions and topics; the oldest entry is dropped first


class RequestFence:
    """The id of the last accepted request, by topic or partition."""

    def __init__(self) -> None:
        self._last: dict[Hashable, int] = {}

    def is_late(self, request: int, *about: Hashable) -> bool:
        """Whether a later request was accepted for any partition or topic in *about*."""
        return any(request < self._last.get(what, request) for what in about)

    def accept(self, request: int, what: Hashable) -> bool:
        """Accept *request*; returns whether this is the first request for *what*."""
        last = self._last.pop(what, None)  # so that the entry becomes the newest one
        self._last[what] = request if last is None else max(last, request)
        if len(self._last) > REMEMBERED_MAX:
            del self._last[next(iter(self._last))]
        return last is None

    def forget(self) -> None:
        """Drop all ids, because another zkserver is active, whose epoch fences earlier requests."""
        self._last.clear()
