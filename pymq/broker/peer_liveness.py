"""Which other brokers are alive, as one broker sees it.

Liveness is a property of a pair of brokers, not of the partitions that they share: one ping a pair,
however many partitions, and an idle partition costs nothing. Whoever follows a leader asks here
whether the leader's broker is alive, and is told when that changes. Silence counts as long as this
broker has listened (:mod:`~pymq.core.time.pausable_clock`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pymq.core.block.replicator import ReplicationConfig
from pymq.core.message import Message, Ping
from pymq.core.time.pausable_clock import PausableClock
from pymq.core.types import NEVER, BlockId, Rng
from pymq.core.values import Factory, define

OFTEN_MAX = 100  # blocks on which a broker cannot act are told with each ping, ...
SELDOM_MS = 1_000  # ... and more than that only so often


@define
class BrokerPeer:
    """Another broker with which this one shares open blocks."""

    until: int  # it seems gone when nothing is heard of it until then, by our attention
    is_alive: bool = False
    incarnation: int = -1
    told: tuple[BlockId, ...] = ()  # on which it cannot act
    failed: dict[BlockId, None] = Factory(dict)  # the same, to look them up


class PeerLiveness:
    """The brokers with which one broker shares open blocks."""

    def __init__(self, incarnation: int, config: ReplicationConfig, rng: Rng) -> None:
        self.deadline = NEVER
        # The open blocks on which this broker cannot act, by topic id and index.
        self.failed: dict[tuple[str, int], BlockId] = {}
        self._incarnation = incarnation
        self._config = config
        self._rng = rng
        self._attention = PausableClock(config.ping_ms)
        self._peers: dict[str, BrokerPeer] = {}
        self._shared: Counter[str] = Counter()  # how many open blocks are shared with each
        self._ping_at = NEVER
        self._tell_at = 0  # when those on which it cannot act are told again, if they are many

    def share(self, before: Iterable[str], after: Iterable[str], now: int) -> None:
        """An open block is shared with *after* now, no more with *before*."""
        self._shared.subtract(before)
        self._shared.update(after)
        for name in [name for name, count in self._shared.items() if count <= 0]:
            del self._shared[name]
            self._peers.pop(name, None)
        for name in self._shared:
            if name not in self._peers:
                self._peers[name] = BrokerPeer(self._attention.look(now) + self._patience())
                self._ping_at = now
        if not self._peers:
            self._ping_at = NEVER
        self._rearm()

    def _patience(self) -> int:
        low = self._config.election_ms
        return self._rng.randrange(low, 2 * low)

    def is_alive(self, name: str) -> bool:
        """Whether *name* has been heard of lately."""
        peer = self._peers.get(name)
        return peer is not None and peer.is_alive

    def heard(self, name: str, m: Ping, now: int) -> tuple[bool, Sequence[BlockId]]:
        """Take in a ping; returns which partitions are to be told, if any.

        All that are shared with *name* if it was gone or was started anew, or else those whose
        open blocks it cannot act on any more, or can again. The others must not be: who hears that
        his leader has changed, and has not missed it, looks for another one.
        """
        peer = self._peers.get(name)
        if peer is None:
            return False, ()
        is_other = not peer.is_alive or peer.incarnation != m.incarnation
        changed: Sequence[BlockId] = ()
        if peer.incarnation != m.incarnation or not (m.omits or m.failed == peer.told):
            before, peer.told, peer.failed = peer.failed, m.failed, dict.fromkeys(m.failed)
            changed = [block for block in peer.failed if block not in before]
            changed += [block for block in before if block not in peer.failed]
        peer.until = self._attention.look(now) + self._patience()
        peer.is_alive, peer.incarnation = True, m.incarnation
        self._rearm()
        return is_other, changed

    def has_failed(self, name: str, block: BlockId) -> bool:
        """Whether *name* says that it cannot act on an open block."""
        peer = self._peers.get(name)
        return peer is not None and block in peer.failed

    def tick(self, now: int) -> tuple[list[tuple[str, Message]], list[str]]:
        """Do what is due; returns the pings to send, and who seems gone since the last time."""
        pings: list[tuple[str, Message]] = []
        if now >= self._ping_at:
            ping = self._ping(now)
            pings = [(name, ping) for name in self._peers]
            self._ping_at = now + self._config.ping_ms if self._peers else NEVER
        gone, listened = [], self._attention.look(now)
        for name, peer in self._peers.items():
            if peer.until <= listened:
                peer.until = NEVER
                if peer.is_alive:
                    peer.is_alive = False
                    gone.append(name)
        self._rearm()
        return pings, gone

    def _ping(self, now: int) -> Ping:
        if len(self.failed) > OFTEN_MAX and now < self._tell_at:
            return Ping(self._incarnation, omits=True)
        self._tell_at = now + SELDOM_MS
        return Ping(self._incarnation, tuple(self.failed.values()))

    def _rearm(self) -> None:
        due = NEVER
        for peer in self._peers.values():
            if peer.until < due:
                due = peer.until
        self.deadline = min(self._ping_at, self._attention.when(due))
