"""Detects by pings which other brokers are alive.

Two brokers exchange one ping, not one for each partition that they share, so an idle partition
costs nothing. A follower asks here whether the leader's broker is alive, and the broker notifies
the follower of a change. Failure detection ignores pauses of this process
(:mod:`~pymq.core.time.pausable_clock`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pymq.core.block.replicator import ReplicationConfig
from pymq.core.message import Message, Ping
from pymq.core.time.pausable_clock import PausableClock
from pymq.core.types import NEVER, BlockId, Rng
from pymq.core.values import Factory, define

OFTEN_MAX = 100  # failed blocks that each ping may name
SELDOM_MS = 1_000  # pause between two pings that name more than OFTEN_MAX blocks


@define
class BrokerPeer:
    """Another broker with which this broker shares open blocks."""

    until: int  # time on the pausable clock when the peer counts as gone, unless it sends a ping
    is_alive: bool = False
    incarnation: int = -1
    told: tuple[BlockId, ...] = ()  # blocks that the peer has reported it cannot serve
    failed: dict[BlockId, None] = Factory(dict)  # the same blocks, for lookups


class PeerLiveness:
    """The brokers with which one broker shares open blocks."""

    def __init__(self, incarnation: int, config: ReplicationConfig, rng: Rng) -> None:
        self.deadline = NEVER
        # The open blocks that this broker cannot serve, since its replica has failed; by topic id
        # and index.
        self.failed: dict[tuple[str, int], BlockId] = {}
        self._incarnation = incarnation
        self._config = config
        self._rng = rng
        self._attention = PausableClock(config.ping_ms)
        self._peers: dict[str, BrokerPeer] = {}
        self._shared: Counter[str] = Counter()  # number of shared open blocks, by broker
        self._ping_at = NEVER
        self._tell_at = 0  # the time when a ping may name failed blocks again, if there are many

    def share(self, before: Iterable[str], after: Iterable[str], now: int) -> None:
        """Note that an open block's other replicas changed from *before* to *after*."""
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
        """Whether *name* has sent a ping within its timeout."""
        peer = self._peers.get(name)
        return peer is not None and peer.is_alive

    def heard(self, name: str, m: Ping, now: int) -> tuple[bool, Sequence[BlockId]]:
        """Handle a ping; returns which partitions the broker must notify.

        Returns:
            First, whether *name* was gone or has restarted: the broker then notifies all partitions
            shared with *name*. Otherwise, second, the blocks that *name* can no longer serve, or
            can serve again. The broker must not notify other partitions: a follower that is
            notified about its leader may look for another leader.
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
        """Whether *name* reports that it cannot serve an open block."""
        peer = self._peers.get(name)
        return peer is not None and block in peer.failed

    def tick(self, now: int) -> tuple[list[tuple[str, Message]], list[str]]:
        """Act on deadlines; returns the pings to send and the brokers that are newly gone."""
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
