"""Fetches that wait at the end of a partition for new records."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from pymq.core.message import Fetch
from pymq.core.types import NEVER

WAIT_MAX_MS = 60_000  # the longest wait, since a client may have died silently
# waiting fetches of one connection; a reader has one fetch at a time in a partition
WAITS_MAX = 1_024
WAITS_OF_BROKER = 65_536  # waiting fetches in all partitions, some 700 bytes each

Key = tuple[str, int]  # the client's address, and the id of its fetch


class WaitingRoom:
    """Counts the fetches that wait at the ends of a broker's partitions, by account.

    An account may have at most as many waiting fetches as it leaves free, by the same rule as in
    :mod:`pymq.core.pending.fetch_limits`.
    """

    __slots__ = ("_held", "count", "most")

    def __init__(self, most: int = WAITS_OF_BROKER) -> None:
        self.most = most
        self.count = 0
        self._held: dict[str, int] = {}

    def has_room(self, account: str) -> bool:
        """Whether one more fetch of *account* may wait."""
        return self._held.get(account, 0) < self.most - self.count

    def enter(self, account: str) -> None:
        """Count a new waiting fetch of *account*."""
        self.count += 1
        self._held[account] = self._held.get(account, 0) + 1

    def leave(self, account: str) -> None:
        """Count that a fetch of *account* no longer waits."""
        self.count -= 1
        left = self._held[account] = self._held[account] - 1
        if not left:
            del self._held[account]


class PendingFetches:
    """The waiting fetches of one partition, in the order of arrival.

    A connection has at most :data:`WAITS_MAX` of them.
    """

    __slots__ = ("_due", "_lines", "_room", "highest", "is_any_plain", "lowest", "waiting")

    def __init__(self, room: WaitingRoom) -> None:
        self._room = room
        # deadline, account and connection, request
        self.waiting: dict[Key, tuple[int, str, str, Fetch]] = {}
        self._lines: dict[str, OrderedDict[Key, None]] = {}  # by connection, oldest first
        # a heap of deadlines; some may belong to fetches that were answered
        self._due: list[tuple[int, Key]] = []
        # The lowest and highest awaited offset; after answers the range may be too wide.
        self.lowest, self.highest = NEVER, -1
        self.is_any_plain = False  # whether there may be a fetch that only the leader can answer

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def deadline(self) -> int:
        """The time when the first fetch times out."""
        while self._due:
            until, key = self._due[0]
            if (found := self.waiting.get(key)) is not None and found[0] == until:
                return until
            heappop(self._due)
        return NEVER

    def add(
        self, source: str, account: str, connection: str, m: Fetch, now: int
    ) -> tuple[str, Fetch] | None:
        """Add a fetch; a repeated fetch replaces the first one.

        Returns:
            The connection's oldest fetch, if it was taken out because the connection has too many
            fetches.
        """
        key = source, m.id
        self._remove(key)
        line = self._lines.setdefault(connection, OrderedDict())
        oldest = None
        if len(line) >= WAITS_MAX:
            first = next(iter(line))
            oldest = first[0], self._remove(first)
            line = self._lines.setdefault(connection, line)
        until = now + min(m.max_wait_ms, WAIT_MAX_MS)
        self._put(key, until, account, connection, m)
        if len(self._due) > 2 * len(self.waiting) + 64:
            self._due = [(until, key) for key, (until, *_) in self.waiting.items()]
            heapify(self._due)
        else:
            heappush(self._due, (until, key))
        return None if oldest is None or oldest[1] is None else (oldest[0], oldest[1])

    def serve(self, is_served: Callable[[str, Fetch], bool]) -> None:
        """Try each fetch again; the others continue to wait."""
        waiting, self.waiting, self._lines = self.waiting, {}, {}
        self.lowest, self.highest, self.is_any_plain = NEVER, -1, False
        for key, (until, account, connection, m) in waiting.items():
            self._room.leave(account)
            if not is_served(key[0], m):
                self._put(key, until, account, connection, m)

    def over(self, now: int) -> list[tuple[str, Fetch]]:
        """Take out the fetches that have timed out."""
        over = []
        while self.deadline <= now:
            _, key = heappop(self._due)
            m = self._remove(key)
            assert m is not None  # the first deadline belongs to a fetch that still waits
            over.append((key[0], m))
        return over

    def clear(self) -> None:
        """Remove all fetches."""
        for key in list(self.waiting):
            self._remove(key)

    def _put(self, key: Key, until: int, account: str, connection: str, m: Fetch) -> None:
        self._room.enter(account)
        self.waiting[key] = until, account, connection, m
        self._lines.setdefault(connection, OrderedDict())[key] = None
        self.lowest, self.highest = min(self.lowest, m.offset), max(self.highest, m.offset)
        self.is_any_plain |= not m.any_replica

    def _remove(self, key: Key) -> Fetch | None:
        found = self.waiting.pop(key, None)
        if found is None:
            return None
        _, account, connection, m = found
        self._room.leave(account)
        line = self._lines[connection]
        del line[key]
        if not line:
            del self._lines[connection]
        if not self.waiting:
            self.lowest, self.highest, self.is_any_plain = NEVER, -1, False
        return m
