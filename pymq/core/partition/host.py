"""The interface of the broker to the parts of a partition and its replicators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pymq.core.block.replicator import ReplicaHost, ReplicationConfig
from pymq.core.message import Fetch, Message
from pymq.core.pending.growth import Growth
from pymq.core.pending.pending_fetches import WaitingRoom
from pymq.core.pending.pending_produces import DelayedAppended
from pymq.core.ready import Ready
from pymq.core.repair.repair_scheduler import RepairScheduler
from pymq.core.repair.repair_throttle import RepairThrottle
from pymq.core.types import BlockId, Rng, TopicPartition


class Home(ReplicaHost, Protocol):
    """The broker, as far as the parts of a partition need it."""

    storage_id: str
    incarnation: int
    out: Ready
    slots: RepairScheduler
    lending: RepairThrottle
    waiting: WaitingRoom
    # the wall clock minus the monotonic clock, for code that runs with each batch
    wall_offset_ms: int

    @property
    def awaited(self) -> Mapping[str, object]:
        """The topics for whose records groups wait on this broker."""
        ...

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        ...

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer."""
        ...

    def delayed(self, name: TopicPartition, news: DelayedAppended, now: int) -> None:
        """Note that a batch with delayed records is committed."""
        ...

    def grown(self, growth: Growth, now: int) -> None:
        """Note that a partition that this broker leads has grown; its topic is in ``awaited``."""
        ...

    def admit(self, source: str, m: Fetch, now: int) -> int:
        """Return how many bytes may be read for a fetch now; 0 if the fetch must wait or was
        refused.
        """
        ...

    def owner(self, source: str) -> tuple[str, str]:
        """The account and the connection of the client machine *source*."""
        ...

    def has_failed(self, peer: str, block: BlockId) -> bool:
        """Whether another broker reports that it cannot serve an open block."""
        ...


class PartitionHost:
    """The broker, as the replicators of one partition see it.

    For :meth:`is_alive`, a broker that is alive but cannot serve this partition counts as dead.
    """

    __slots__ = ("_host", "open_block")

    def __init__(self, host: Home) -> None:
        self._host = host
        self.open_block: BlockId | None = None  # set if this broker hosts the open block

    @property
    def me(self) -> str:
        """The broker's name."""
        return self._host.me

    @property
    def rng(self) -> Rng:
        """The broker's random number generator."""
        return self._host.rng

    @property
    def incarnation(self) -> int:
        """The broker's incarnation."""
        return self._host.incarnation

    @property
    def replication(self) -> ReplicationConfig:
        """The replication timeouts and sizes."""
        return self._host.replication

    @property
    def out(self) -> Ready:
        """The broker's :class:`Ready` of this turn."""
        return self._host.out

    @property
    def slots(self) -> RepairScheduler:
        """The scheduler of repairs, shared by all partitions of the broker."""
        return self._host.slots

    @property
    def lending(self) -> RepairThrottle:
        """The throttle of sealed blocks sent to other brokers, shared by all partitions."""
        return self._host.lending

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        return self._host.wall_ms(now)

    def send(self, peer: str, message: Message) -> None:
        """Send a message to another broker."""
        self._host.send(peer, message)

    def tell_controller(self, message: Message) -> None:
        """Send a message to the active zkserver."""
        self._host.tell_controller(message)

    def is_alive(self, peer: str) -> bool:
        """Whether another broker is alive and can serve the open block."""
        if not self._host.is_alive(peer):
            return False
        return self.open_block is None or not self._host.has_failed(peer, self.open_block)
