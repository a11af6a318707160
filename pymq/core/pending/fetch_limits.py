"""Limits on the bytes of fetch answers that a broker reads and holds.

A fetch costs its sender 26 bytes, but the broker holds all requested bytes in memory until the
sender has received the answer. So the broker reads only as much as there is room for in memory.
Room is counted for the node, for each account (the principal, or the connection if it has not
authenticated) and for each connection:

- An answer has at most ``answer_bytes``, or one batch if that is larger (as with Kafka's
  ``fetch.max.bytes``).
- An account holds at most as many bytes as it leaves free. The first client that stops reading then
  holds half of the node's bytes, the second a quarter, and there is still room for a new client
  (dynamic thresholds: Choudhury and Hahne, 1998). The same rule divides an account's share among
  its connections.
- At most ``turn_bytes`` are read in a millisecond, because other requests have to wait meanwhile.
  Half of these bytes are reserved for fetches that already wait.
- A read returns whole batches, so a smaller request counts as :data:`BATCH_BYTES` until the outbox
  knows the size of the answer.

Fetches without room wait. Accounts are served in rotation, and so are the connections of an
account; a connection's oldest fetch is first. A connection that cannot be served yet is skipped;
one turn of the loop skips at most :data:`LOOKS` connections. The :class:`FetchOutbox` counts the
bytes that clients have not received yet, so this module needs no counter of its own.

Waiting fetches take memory as well. The number of waiting fetches is limited for each connection
and for the node, with the same rule for accounts.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Protocol, Self, runtime_checkable

from pymq.core.message import Fetch
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER
from pymq.core.values import Factory, define
from pymq.errors import ConfigError

LEAST_BYTES = 64 << 10  # a smaller part of a request is not worth a read
# bytes that a read counts for at least, because its first batch is returned whole
BATCH_BYTES = 1 << 20
NODE_BYTES_MIN = 1 << 20  # with less there would be room for only a few connections
RETRY_MS = 5  # pause before waiting fetches are tried again
AGAIN_MS = 1_000  # pause before a refused client may send again
LOOKS = 32  # connections without room that one turn skips
# longest wait for room; then the answer is empty, and the client sends the fetch again
WAIT_MAX_MS = 30_000


@define
class FetchLimits:
    """The bytes of fetch answers that a broker reads and holds; see the module's docstring."""

    answer_bytes: int = 4 << 20  # limit of one answer, even if the fetch requests more
    # bytes that were sent and that the clients have not received yet
    node_bytes: int = 32 << 20
    turn_bytes: int = 8 << 20  # bytes read in one millisecond
    waiting: int = 4_096  # waiting fetches of one connection
    waiting_all: int = 32_768  # waiting fetches of all clients, some 300 bytes each

    @classmethod
    def of(cls, answer_bytes: int | None, node_bytes: int | None) -> Self:
        """Make limits from an operator's options; None is the default.

        Raises:
            ConfigError: the limits are too small to serve any client.
        """
        found = cls()
        if answer_bytes is not None:
            found.answer_bytes = at_least("fetch_max_bytes", answer_bytes, LEAST_BYTES)
        if node_bytes is not None:
            found.node_bytes = at_least("fetch_memory_bytes", node_bytes, NODE_BYTES_MIN)
        return found


def at_least(name: str, given: int, least: int) -> int:
    """Return *given* if it is at least *least*.

    Raises:
        ConfigError: *given* is less than *least*.
    """
    if given < least:
        raise ConfigError(f"{name}={given} must be at least {least}")
    return given


@define
class Loads:
    """Bytes of answers that clients have not received yet."""

    node: int = 0
    accounts: dict[str, int] = Factory(dict)
    connections: dict[str, int] = Factory(dict)

    def add(self, account: str, connection: str, size: int) -> None:
        """Count *size* more bytes as sent."""
        self.node += size
        self.accounts[account] = self.accounts.get(account, 0) + size
        self.connections[connection] = self.connections.get(connection, 0) + size


@runtime_checkable
class FetchOutbox(Protocol):
    """Counts, for each client, the bytes of sent answers that the client has not received yet."""

    def loads(self) -> Loads:
        """Return the counter of bytes that were sent but not received; the caller may add to it."""
        ...

    def owner(self, source: str) -> tuple[str, str]:
        """The account and the connection of the machine *source*."""
        ...

    def is_there(self, connection: str) -> bool:
        """Whether a connection is still open."""
        ...

    def wait_ms(self, account: str) -> int:
        """Return the milliseconds until *account*'s fetch quota allows an answer; 0 means now."""
        ...

    def write_wait_ms(self, account: str) -> int:
        """Return the milliseconds until *account*'s produce quota allows a write; 0 means now."""
        ...

    def wrote(self, account: str, size: int) -> None:
        """Count *size* bytes that the broker wrote on behalf of *account*."""
        ...


class Boundless:
    """The outbox of a broker whose clients are in its own process: it has no limits."""

    def loads(self) -> Loads:
        """Return empty counters, because clients in this process receive answers at once."""
        return Loads()

    def owner(self, source: str) -> tuple[str, str]:
        """Return *source* for both: each state machine is its own account and connection."""
        return source, source

    def is_there(self, connection: str) -> bool:
        """Return True: connections within this process never close."""
        return True

    def wait_ms(self, account: str) -> int:
        """Return 0, because this implementation has no quotas."""
        return 0

    def write_wait_ms(self, account: str) -> int:
        """Return 0, because this implementation has no quotas."""
        return 0

    def wrote(self, account: str, size: int) -> None:
        """Ignore the bytes: this implementation has no quotas."""


Waiting = tuple[str, Fetch, int]  # (client's machine, request, time when it began to wait)
Connections = OrderedDict[str, deque[Waiting]]


class Fetches:
    """Grants bytes to the fetches of one broker's clients, or keeps them waiting."""

    def __init__(self, limits: FetchLimits, outbox: FetchOutbox) -> None:
        self.limits = limits
        self._outbox = outbox
        self.loads: Loads | None = None  # bytes outstanding in the outbox, and granted since then
        self._at = -1  # the last millisecond in which the broker read ...
        self._left = 0  # ... and the bytes that the broker may still read in that millisecond
        self._line: OrderedDict[str, Connections] = (
            OrderedDict()
        )  # accounts with waiting fetches; the account that has waited longest is first
        self._held: dict[str, int] = {}  # number of waiting fetches, by account
        self.waiting = 0  # number of waiting fetches of all connections
        self._looks = 0  # connections skipped in this turn; since a connection was served ...
        self._passed = 0  # ... how many accounts were skipped, ...
        self._passed_of_first = 0  # ... and how many connections of the first account
        self.deadline = NEVER  # when :meth:`next` may return a fetch

    def admit(self, source: str, m: Fetch, now: int) -> int | None:
        """Return how many bytes may be read for *m* now; *m* requests at least one byte.

        0 means that the fetch waits, and that :meth:`next` returns it later. None means that too
        many fetches of the connection, the account or all clients already wait.
        """
        account, connection = self._outbox.owner(source)
        # Fetches of one account are served in order. Waiting fetches of other accounts do not delay
        # the new fetch. But a reader that sends its next fetch at once would then always overtake
        # waiting fetches of others, so half of the bytes are reserved for waiting fetches.
        self._look(now)
        reserved = self.limits.turn_bytes // 2 if self._line else 0
        is_first = account not in self._line and self._left > reserved
        if is_first and (most := self._grant(account, connection, m, now)):
            return most
        if not self._may_wait(account, connection):
            mark("fetches.too_many")
            return None
        mark("fetches.wait")
        connections = self._line.setdefault(account, OrderedDict())
        connections.setdefault(connection, deque()).append((source, m, now))
        self._held[account] = self._held.get(account, 0) + 1
        self.waiting += 1
        self.deadline = min(self.deadline, now + 1)
        return 0

    def _may_wait(self, account: str, connection: str) -> bool:
        """Whether one more fetch may wait."""
        connections = self._line.get(account)
        line = connections.get(connection) if connections is not None else None
        if line is not None and len(line) >= self.limits.waiting:
            return False
        return self._held.get(account, 0) < self.limits.waiting_all - self.waiting

    def _look(self, now: int) -> None:
        """Begin a new millisecond with its own allowance of reads."""
        if now > self._at:
            self._at, self._left = now, self.limits.turn_bytes

    def _grant(self, account: str, connection: str, m: Fetch, now: int) -> int:
        """Reserve room for *m*; returns the bytes to read, or 0 if it has to wait."""
        limits = self.limits
        self._look(now)
        if self._left <= 0 or self._outbox.wait_ms(account):
            return 0
        if self.loads is None:
            self.loads = self._outbox.loads()
        loads = self.loads
        asked = min(m.max_bytes, limits.answer_bytes)
        held, mine = loads.accounts.get(account, 0), loads.connections.get(connection, 0)
        of_account = (limits.node_bytes - loads.node - held) // 2
        of_connection = (limits.node_bytes // 2 - held - mine) // 2
        most = min(asked, of_account, of_connection)
        if most < min(asked, LEAST_BYTES):
            return 0
        brings = max(most, min(BATCH_BYTES, limits.answer_bytes))
        loads.add(account, connection, brings)
        self._left -= brings
        return most

    def next(self, now: int) -> tuple[str, Fetch, int] | None:
        """Return the next waiting fetch to serve: client, request and bytes to read.

        0 bytes mean that the fetch has timed out and gets an empty answer. None means that no other
        fetch can be served in this turn.
        """
        self._look(now)
        while self._line and self._looks < LOOKS and self._passed < len(self._line):
            account = next(iter(self._line))
            connection = next(iter(self._line[account]))
            if not self._outbox.is_there(connection):
                mark("fetches.gone")
                self._looks += 1
                self._forget(account, connection)
                continue
            source, m, since = self._line[account][connection][0]
            most = self._grant(account, connection, m, now)
            if most or now - since >= WAIT_MAX_MS:
                self._take(account, connection)
                return source, m, most
            if self._left <= 0:
                break  # The bytes of this millisecond are used up.
            self._pass(account, connection)
        self.deadline = self._next_look(now)
        self._looks = 0
        return None

    def _next_look(self, now: int) -> int:
        if not self._line:
            return NEVER
        if self._passed < len(self._line):
            return now + (1 if self._left <= 0 or not self._is_full else RETRY_MS)
        self._passed = 0
        return now + RETRY_MS

    @property
    def _is_full(self) -> bool:
        """Whether no account has room."""
        loads = self.loads
        return loads is not None and (self.limits.node_bytes - loads.node) // 2 < LEAST_BYTES

    def _pass(self, account: str, connection: str) -> None:
        """Skip a connection without room; try the account's next one, then the next account."""
        self._looks += 1
        connections = self._line[account]
        connections.move_to_end(connection)
        self._passed_of_first += 1
        if self._passed_of_first >= len(connections):
            self._line.move_to_end(account)
            self._passed += 1
            self._passed_of_first = 0

    def _take(self, account: str, connection: str) -> None:
        """Take out the oldest fetch of a connection, and move the connection to the end of the
        rotation.
        """
        connections = self._line[account]
        line = connections[connection]
        line.popleft()
        if not line:
            del connections[connection]
        else:
            connections.move_to_end(connection)
        self._less(account, 1)
        if connections:
            self._line.move_to_end(account)
        self._passed = self._passed_of_first = 0

    def _forget(self, account: str, connection: str) -> None:
        """Drop the fetches of a connection that was closed."""
        self._less(account, len(self._line[account].pop(connection)))

    def _less(self, account: str, count: int) -> None:
        """Subtract *count* waiting fetches of an account."""
        self.waiting -= count
        self._held[account] -= count
        if not self._line[account]:
            del self._line[account], self._held[account]
            self._passed_of_first = 0

    def sent(self) -> None:
        """Forget the granted bytes, because the outbox now counts the sent bytes."""
        self.loads = None
