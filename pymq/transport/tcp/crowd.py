"""Counts and limits the connections that peers have made, by address and by principal.

============================  ======================================================================
too many ...                  then
============================  ======================================================================
new ones (no greeting yet)    the oldest new one is closed: a proper client has sent its greeting by
                              then, and a client that connects again and again only replaces its own
in total                      the oldest new one is closed, or else the one just accepted
of an address, with TLS       the one just accepted is closed
of a principal, with TLS      the one just accepted is closed
============================  ======================================================================
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from pymq.descriptors import soft_limit
from pymq.transport.base import FILES, LEAST, NEW_MAX, TELL_S, Tuning
from pymq.transport.tcp.connection import Connection


class Crowd:
    """The connections to a node."""

    def __init__(
        self,
        tuning: Tuning,
        *,
        has_principals: bool,
        limit: Callable[[], int] = soft_limit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.turned_away = 0  # connections closed because there were too many, ...
        # ... which is reported at most every TELL_S
        self.on_crowded: Callable[[int], object] = lambda count: None
        self._told_at = float("-inf")
        self._per_address = tuning.per_address if has_principals else 0
        self._per_principal = tuning.per_principal if has_principals else 0
        self._limit = limit
        self._clock = clock
        self._new: dict[Connection, None] = {}  # no greeting yet, oldest first
        self._known: dict[Connection, str] = {}  # the principals of the others
        self._addresses: Counter[str] = Counter()
        self._principals: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._new) + len(self._known)

    @property
    def _room(self) -> int:
        """Return the most connections that leave enough descriptors for files."""
        return max(LEAST, self._limit() - FILES)

    def came(self, connection: Connection) -> list[Connection]:
        """Count a new connection; returns the connections to close."""
        address = connection.origin
        self._new[connection] = None
        self._addresses[address] += 1
        if 0 < self._per_address < self._addresses[address]:
            return self._turn_away([connection])
        gone: list[Connection] = []
        most = self._room
        while len(self._new) - len(gone) > min(NEW_MAX, most // 2) or len(self) - len(gone) > most:
            if len(gone) == len(self._new):
                break
            gone.append(list(self._new)[len(gone)])
        return self._turn_away(gone)

    def greeted(self, connection: Connection, principal: str) -> bool:
        """Count a connection for its principal; returns whether the principal may have it."""
        self._new.pop(connection, None)
        self._known[connection] = principal
        self._principals[principal] += 1
        if not self._per_principal:
            return True
        if self._principals[principal] <= min(self._per_principal, self._room // 2):
            return True
        self._turn_away([connection])
        return False

    def went(self, connection: Connection) -> None:
        """Stop counting a connection that was closed."""
        principal = self._known.pop(connection, None)
        if principal is not None:
            _less(self._principals, principal)
        elif connection in self._new:
            del self._new[connection]
        else:
            return
        _less(self._addresses, connection.origin)

    def overdue(self, before: float) -> list[Connection]:
        """Return the new connections that began before a time."""
        return [each for each in self._new if each.since < before]

    def _turn_away(self, gone: list[Connection]) -> list[Connection]:
        self.turned_away += len(gone)
        now = self._clock()
        if gone and now - self._told_at >= TELL_S:
            self._told_at = now
            self.on_crowded(self.turned_away)
        return gone


def _less(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
