"""Which other brokers are alive, as one broker sees it.

Liveness is a property of a pair of brokers, not of the partitions that they share: one ping a pair,
however many partitions, and an idle partition costs nothing. Whoever follows a leader asks here
whether the leader's broker is alive, and is told when that changes. Silence counts as long as this
broker has listened (:mod:`~pymq.core.attention`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pymq.core.attention import Attention
from pymq.core.message import Message, Ping
from pymq.core.replicator import ReplicationConfig
from pymq.core.types import NEVER, BlockId, Rng
from pymq.core.values import define


@define
class Peer:
    """Another broker with which this one shares open blocks."""

    until: int  # it seems gone when nothing is heard of it until then, by our attention
    is_alive: bool = False
    incarnation: int = -1
    failed: tuple[BlockId, ...] = ()


class Peers:
    """The brokers with which one broker shares open blocks."""

    def __init__(self, incarnation: int, config: ReplicationConfig, rng: Rng) -> None:
        self.deadline = NEVER
        # The open blocks on which this broker cannot act, by topic id and index.
        self.failed: dict[tuple[str, int], BlockId] = {}
        self._incarnation = incarnation
        self._config = config
        self._rng = rng
        self._attention = Attention(config.ping_ms)
        self._peers: dict[str, Peer] = {}
        self._shared: Counter[str] = Counter()  # how many open blocks are shared with each
        self._ping_at = NEVER

    def share(self, before: Iterable[str], after: Iterable[str], now: int) -> None:
        """An open block is shared with *after* now, no more with *before*."""
        self._shared.subtract(before)
        self._shared.update(after)
        for name in [name for name, count in self._shared.items() if count <= 0]:
            del self._shared[name]
            self._peers.pop(name, None)
        for name in self._shared:
            if name not in self._peers:
                self._peers[name] = Peer(self._attention.look(now) + self._patience())
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

    def heard(self, name: str, m: Ping, now: int) -> bool:
        """Take in a ping; returns whether partitions are to be told.

        They are when *name* was gone, was started anew, or has blocks on which it cannot act.
        """
        peer = self._peers.get(name)
        if peer is None:
            return False
        known = peer.is_alive, peer.incarnation, peer.failed
        news = known != (True, m.incarnation, m.failed)
        peer.until = self._attention.look(now) + self._patience()
        peer.is_alive, peer.incarnation, peer.failed = True, m.incarnation, m.failed
        self._rearm()
        return news

    def has_failed(self, name: str, block: BlockId) -> bool:
        """Whether *name* says that it cannot act on an open block."""
        peer = self._peers.get(name)
        return peer is not None and block in peer.failed

    def tick(self, now: int) -> tuple[list[tuple[str, Message]], list[str]]:
        """Do what is due; returns the pings to send, and who seems gone since the last time."""
        pings: list[tuple[str, Message]] = []
        if now >= self._ping_at:
            ping = Ping(self._incarnation, tuple(self.failed.values()))
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

    def _rearm(self) -> None:
        due = NEVER
        for peer in self._peers.values():
            if peer.until < due:
                due = peer.until
        self.deadline = min(self._ping_at, self._attention.when(due))
