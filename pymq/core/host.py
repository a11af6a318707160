"""What a partition needs of the broker around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pymq.core.message import Message
from pymq.core.ready import Ready
from pymq.core.replicator import ReplicaHost
from pymq.core.types import BlockId

if TYPE_CHECKING:
    from pymq.core.partition import Partition


class Host(ReplicaHost, Protocol):
    """What a partition needs of the broker around it."""

    storage_id: str
    incarnation: int
    out: Ready

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        ...

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer."""
        ...

    def has_failed(self, peer: str, block: BlockId) -> bool:
        """Whether another broker says that it cannot act on an open block."""
        ...

    def shares(self, partition: Partition, now: int) -> None:
        """The open block may be shared with other brokers than before."""
        ...

    def role_changed(self, partition: Partition, now: int) -> None:
        """The partition's replica here has begun or ceased to lead."""
        ...
