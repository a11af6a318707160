"""Which fetches of clients are read now, and which wait: by the bytes that are on their way.

A fetch costs its sender 26 bytes and the broker whatever it asks for, until the sender has taken
the answer. So nothing is read before there is room for it. Room is counted by node, by account (the
principal, or the connection where nobody has proved who he is) and by connection:

- An answer is never larger than ``answer_bytes``, whatever was asked for, or than one batch (as
  with fetch.max.bytes of Kafka).
- What an account holds is never more than what it leaves free. So the first one that takes nothing
  holds a half of the node's bytes, the next a quarter, and a newcomer finds room all the same
  (dynamic thresholds: Choudhury and Hahne, 1998). So it is with the connections of an account, in
  that half.
- In a millisecond no more than ``turn_bytes`` are read: others wait for that time, too. Half of it
  is for fetches that wait already.
- Each read brings a whole batch, so one that asks for less is counted as :data:`BATCH_BYTES` until
  the outbox knows what it has brought.

What does not fit waits, and is served when it does: accounts take turns, in an account its
connections, and of a connection the oldest fetch is first. One that cannot be served yet lets the
next one pass, and a turn looks at :data:`LOOKS` such connections at most, however many wait.
Nothing is given back by hand: how much is on its way is asked of the :class:`FetchOutbox` each
time, so no bookkeeping of ours can leak.

What waits takes memory, too: its number is bounded by connection, and by node with the same rule
for accounts: one may have as many waiting as are left for others.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Protocol, Self, runtime_checkable

from pymq.core.message import Fetch
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER
from pymq.core.values import Factory, define
from pymq.errors import ConfigError

LEAST_BYTES = 64 << 10  # a smaller part of what was asked for is not worth a read
BATCH_BYTES = 1 << 20  # that a read is taken to bring at least: its first batch is never cut
NODE_BYTES_MIN = 1 << 20  # less is room for a few connections only
RETRY_MS = 5  # after which it is looked again whether there is room
AGAIN_MS = 1_000  # after which who has too many fetches waiting may send more
LOOKS = 32  # at connections that cannot be served yet, in one turn
WAIT_MAX_MS = 30_000  # for room; then a fetch is answered with nothing, and its client asks again


@define
class FetchLimits:
    """How many bytes of answers to fetches a broker reads and holds; see the module."""

    answer_bytes: int = 4 << 20  # of one answer, whatever was asked for
    node_bytes: int = 32 << 20  # on their way to all clients
    turn_bytes: int = 8 << 20  # read in one millisecond
    waiting: int = 4_096  # fetches of one connection that wait for room
    waiting_all: int = 32_768  # of all, some 300 bytes each; an account has what it leaves free

    @classmethod
    def of(cls, answer_bytes: int | None, node_bytes: int | None) -> Self:
        """The limits that somebody has chosen; None is the usual one.

        Raises:
            ConfigError: they are too small to serve anybody.
        """
        found = cls()
        if answer_bytes is not None:
            found.answer_bytes = at_least("fetch_max_bytes", answer_bytes, LEAST_BYTES)
        if node_bytes is not None:
            found.node_bytes = at_least("fetch_memory_bytes", node_bytes, NODE_BYTES_MIN)
        return found


def at_least(name: str, given: int, least: int) -> int:
    """Return *given*, if it is not less than *least*.

    Raises:
        ConfigError: it is.
    """
    if given < least:
        raise ConfigError(f"{name}={given} must be at least {least}")
    return given


@define
class Loads:
    """Bytes of answers that clients have not taken yet."""

    node: int = 0
    accounts: dict[str, int] = Factory(dict)
    connections: dict[str, int] = Factory(dict)

    def add(self, account: str, connection: str, size: int) -> None:
        """*size* more are on their way."""
        self.node += size
        self.accounts[account] = self.accounts.get(account, 0) + size
        self.connections[connection] = self.connections.get(connection, 0) + size


@runtime_checkable
class FetchOutbox(Protocol):
    """What knows how much was sent to whom and has not left yet."""

    def loads(self) -> Loads:
        """How much that is now; the caller may add to it."""
        ...

    def owner(self, source: str) -> tuple[str, str]:
        """The account and the connection of the machine *source*."""
        ...

    def is_there(self, connection: str) -> bool:
        """Whether what is sent to a connection may arrive."""
        ...

    def wait_ms(self, account: str) -> int:
        """How long until the quota of *account* lets it be sent something; 0 when it does."""
        ...

    def write_wait_ms(self, account: str) -> int:
        """How long until the quota of *account* lets more be written for it; 0 when it does."""
        ...

    def wrote(self, account: str, size: int) -> None:
        """Count *size* bytes that were written for *account*, and that it has not sent."""
        ...


class Boundless:
    """The outbox of a broker whose clients are in its own process: what they are sent is theirs."""

    def loads(self) -> Loads:
        """Nothing is on its way."""
        return Loads()

    def owner(self, source: str) -> tuple[str, str]:
        """Each machine for itself."""
        return source, source

    def is_there(self, connection: str) -> bool:
        """They are in this process."""
        return True

    def wait_ms(self, account: str) -> int:
        """There are no quotas."""
        return 0

    def write_wait_ms(self, account: str) -> int:
        """There are no quotas."""
        return 0

    def wrote(self, account: str, size: int) -> None:
        """There are no quotas."""


Waiting = tuple[str, Fetch, int]  # (who has asked, what, since when)
Connections = OrderedDict[str, deque[Waiting]]


class Fetches:
    """The fetches of one broker's clients, as far as they are to be read."""

    def __init__(self, limits: FetchLimits, outbox: FetchOutbox) -> None:
        self.limits = limits
        self._outbox = outbox
        self._loads: Loads | None = None  # with what was granted since it was asked for
        self._at = -1  # the last millisecond in which something was read ...
        self._left = 0  # ... and what may be read in that
        self._line: OrderedDict[str, Connections] = (
            OrderedDict()
        )  # by account; longest unserved first
        self._held: dict[str, int] = {}  # fetches that wait, by account
        self.waiting = 0  # fetches, of all connections
        self._looks = 0  # in vain, in this turn; and since the last one that could be served ...
        self._passed = 0  # ... how many accounts have let others pass, ...
        self._passed_of_first = 0  # ... and how many connections of the first account
        self.deadline = NEVER  # when :meth:`next` may have one

    def admit(self, source: str, m: Fetch, now: int) -> int | None:
        """How many bytes may be read for *m*, which asks for at least one, now.

        0 when it waits: it is handed out by :meth:`next`. None when too many of its connection, of
        its account or of all wait already.
        """
        account, connection = self._outbox.owner(source)
        # An account's fetches are served in their order; those of others are not in its way. But
        # readers that ask again as soon as they are answered come before the line is looked at.
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
        """Whether one more may wait."""
        connections = self._line.get(account)
        line = connections.get(connection) if connections is not None else None
        if line is not None and len(line) >= self.limits.waiting:
            return False
        return self._held.get(account, 0) < self.limits.waiting_all - self.waiting

    def _look(self, now: int) -> None:
        """Each millisecond has room for as many reads."""
        if now > self._at:
            self._at, self._left = now, self.limits.turn_bytes

    def _grant(self, account: str, connection: str, m: Fetch, now: int) -> int:
        """Take what may be read for *m* from the room there is; 0 if it has to wait."""
        limits = self.limits
        self._look(now)
        if self._left <= 0 or self._outbox.wait_ms(account):
            return 0
        if self._loads is None:
            self._loads = self._outbox.loads()
        loads = self._loads
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
        """The next one that waits and is to be served: who asked, what, and how many bytes of it.

        No bytes: it has waited for too long, and is answered with nothing. None ends the turn.
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
                break  # Nothing is read in this millisecond, so nobody else is looked at.
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
        """Whether there is no room for anybody."""
        loads = self._loads
        return loads is not None and (self.limits.node_bytes - loads.node) // 2 < LEAST_BYTES

    def _pass(self, account: str, connection: str) -> None:
        """One cannot be served yet: the account's next connection is looked at, then the next."""
        self._looks += 1
        connections = self._line[account]
        connections.move_to_end(connection)
        self._passed_of_first += 1
        if self._passed_of_first >= len(connections):
            self._line.move_to_end(account)
            self._passed += 1
            self._passed_of_first = 0

    def _take(self, account: str, connection: str) -> None:
        """The oldest of a connection is served: others are first from here on."""
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
        """A connection is gone, and so is who would be answered."""
        self._less(account, len(self._line[account].pop(connection)))

    def _less(self, account: str, count: int) -> None:
        """So many of an account wait no more."""
        self.waiting -= count
        self._held[account] -= count
        if not self._line[account]:
            del self._line[account], self._held[account]
            self._passed_of_first = 0

    def sent(self) -> None:
        """All that was granted was read and sent: the outbox knows of it from now on."""
        self._loads = None
