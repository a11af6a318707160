"""What a partition asks of a replication discipline, whichever it is.

The partition owns the log: it stamps batches, hands them to the disk and knows its own end. The
replicator decides what of it is committed, and by whom the partition is led.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pymq.core.metadata import PartitionState


class Replicator(Protocol):
    """How the replicas of one open block agree."""

    high_watermark: int  # the first offset that is not committed

    @property
    def is_leader(self) -> bool:
        """Whether this replica may append."""
        ...

    @property
    def in_sync(self) -> tuple[str, ...]:
        """The replicas that have everything that is committed, as the leader knows them."""
        ...

    def stable(self, end: int, now: int) -> None:
        """The own log is durable, as far as its mode asks for that, up to *end*."""
        ...


ReplicatorFactory = Callable[[PartitionState, str, int], Replicator]
"""Makes the replicator of a partition's open block: (state, own name, start offset)."""
