"""A replica set of one, under any ack mode: what its own disk has is committed."""

from __future__ import annotations

from pymq.core.metadata import PartitionState


class Solo:
    """The replicator of a block with a single replica."""

    __slots__ = ("_me", "high_watermark")

    def __init__(self, state: PartitionState, me: str, start: int) -> None:
        self._me = me if state.leader == me else None
        self.high_watermark = start

    @property
    def is_leader(self) -> bool:
        """Whether this replica may append."""
        return self._me is not None

    @property
    def in_sync(self) -> tuple[str, ...]:
        """The only replica."""
        return (self._me,) if self._me is not None else ()

    def stable(self, end: int, now: int) -> None:
        """The own log has reached *end*; there is nobody else to wait for."""
        self.high_watermark = max(self.high_watermark, end)
