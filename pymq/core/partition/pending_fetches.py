"""Fetches that wait for something to read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from pymq.core.message import Fetch
from pymq.core.types import NEVER

WAIT_MAX_MS = 60_000  # whatever is asked for: nobody says that a client has died
WAITS_MAX = 1_024  # of one connection; a reader has one fetch at a time in a partition
WAITS_OF_BROKER = 65_536  # in all partitions, some 700 bytes each

Key = tuple[str, int]  # who has asked, and the id of the fetch


class WaitingRoom:
    """How many fetches wait at the ends of all partitions of a broker, and of which accounts.

    An account may have as many as it leaves free, as with the fetches that wait for room
    (:mod:`pymq.core.partition.fetch_limits`).
    """

    __slots__ = ("_held", "count", "most")

    def __init__(self, most: int = WAITS_OF_BROKER) -> None:
        self.most = most
        self.count = 0
        self._held: dict[str, int] = {}

    def has_room(self, account: str) -> bool:
        """Whether one more of *account* may wait."""
        return self._held.get(account, 0) < self.most - self.count

    def enter(self, account: str) -> None:
        """One more waits."""
        self.count += 1
        self._held[account] = self._held.get(account, 0) + 1

    def leave(self, account: str) -> None:
        """One waits no more."""
        self.count -= 1
        left = self._held[account] = self._held[account] - 1
        if not left:
            del self._held[account]


class PendingFetches:
    """The waiting fetches of one partition, in the order in which they came.

    A connection has at most :data:`WAITS_MAX` of them.
    """

    __slots__ = ("_due", "_lines", "_room", "_waiting", "highest", "is_any_plain", "lowest")

    def __init__(self, room: WaitingRoom) -> None:
        self._room = room
        # Until when, of which account and connection, and what.
        self._waiting: dict[Key, tuple[int, str, str, Fetch]] = {}
        self._lines: dict[str, OrderedDict[Key, None]] = {}  # by connection, oldest first
        self._due: list[tuple[int, Key]] = []  # a heap, with some that do not wait any more
        # Bounds of the offsets that are waited for, perhaps too wide after some were answered.
        self.lowest, self.highest = NEVER, -1
        self.is_any_plain = False  # whether one may be there that only the leader answers

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def deadline(self) -> int:
        """When the first has waited long enough."""
        while self._due:
            until, key = self._due[0]
            if (found := self._waiting.get(key)) is not None and found[0] == until:
                return until
            heappop(self._due)
        return NEVER

    def add(
        self, source: str, account: str, connection: str, m: Fetch, now: int
    ) -> tuple[str, Fetch] | None:
        """Let a fetch wait; one that was sent again waits once.

        Returns:
            The connection's oldest fetch, which waits no more, if the connection has too many.
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
        if len(self._due) > 2 * len(self._waiting) + 64:
            self._due = [(until, key) for key, (until, *_) in self._waiting.items()]
            heapify(self._due)
        else:
            heappush(self._due, (until, key))
        return None if oldest is None or oldest[1] is None else (oldest[0], oldest[1])

    def serve(self, is_served: Callable[[str, Fetch], bool]) -> None:
        """Let each be tried again; those that are not served go on waiting."""
        waiting, self._waiting, self._lines = self._waiting, {}, {}
        self.lowest, self.highest, self.is_any_plain = NEVER, -1, False
        for key, (until, account, connection, m) in waiting.items():
            self._room.leave(account)
            if not is_served(key[0], m):
                self._put(key, until, account, connection, m)

    def over(self, now: int) -> list[tuple[str, Fetch]]:
        """Take out those that have waited long enough."""
        over = []
        while self.deadline <= now:
            _, key = heappop(self._due)
            m = self._remove(key)
            assert m is not None  # The deadline is that of one that waits.
            over.append((key[0], m))
        return over

    def clear(self) -> None:
        """Nothing waits any more."""
        for key in list(self._waiting):
            self._remove(key)

    def _put(self, key: Key, until: int, account: str, connection: str, m: Fetch) -> None:
        self._room.enter(account)
        self._waiting[key] = until, account, connection, m
        self._lines.setdefault(connection, OrderedDict())[key] = None
        self.lowest, self.highest = min(self.lowest, m.offset), max(self.highest, m.offset)
        self.is_any_plain |= not m.any_replica

    def _remove(self, key: Key) -> Fetch | None:
        found = self._waiting.pop(key, None)
        if found is None:
            return None
        _, account, connection, m = found
        self._room.leave(account)
        line = self._lines[connection]
        del line[key]
        if not line:
            del self._lines[connection]
        if not self._waiting:
            self.lowest, self.highest, self.is_any_plain = NEVER, -1, False
        return m
