"""Which word of the zkservers about a partition was the last; what was said before is too late.

A network may deliver a LeaderAndIsr long after the StopReplica that followed it, and what it names
must then not come to life again: its files are gone, and with them what it had promised. Requests
have ids that rise, over all zkservers; so the last one wins, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Hashable

REMEMBERED_MAX = 100_000  # partitions and topics; the oldest are forgotten, minutes or years later


class RequestFence:
    """The id of the last request that was heeded, by what it was about."""

    def __init__(self) -> None:
        self._last: dict[Hashable, int] = {}

    def is_late(self, request: int, *about: Hashable) -> bool:
        """Whether something later was heeded about any of *about*."""
        return any(request < self._last.get(what, request) for what in about)

    def accept(self, request: int, what: Hashable) -> bool:
        """*request* holds from now on; returns whether it is the first about *what*."""
        last = self._last.pop(what, None)  # so that it becomes the youngest
        self._last[what] = request if last is None else max(last, request)
        if len(self._last) > REMEMBERED_MAX:
            del self._last[next(iter(self._last))]
        return last is None

    def forget(self) -> None:
        """Another zkserver is active: what the ones before it said is not heard at all any more."""
        self._last.clear()
