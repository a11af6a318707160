"""Reports the log ends of a broker's open blocks to the active zkserver.

The zkserver uses these ends only as hints, to send readers to the best replica while there is no
leader. So a broker reports only changes, once a second, for at most :data:`TOLD_MAX` replicas at a
time, and expects no answer. The zkserver keeps the ends in memory, without a commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pymq.core.message import ReplicaEnds
from pymq.core.partition.partition import Partition
from pymq.core.types import NEVER, TopicPartition

TELL_MS = 1_000  # pause between two reports of a broker
TOLD_MAX = 1_000  # replicas in one report; the next report has the others

Reach = tuple[int, int, int]  # number of the block, end of the log, high watermark


class EndReports:
    """The end reports of one broker."""

    def __init__(self, me: str, incarnation: int) -> None:
        self.deadline = NEVER
        self._me = me
        self._incarnation = incarnation
        self._changed: dict[Partition, None] = {}
        self._told: dict[TopicPartition, Reach] = {}
        self._told_at = -TELL_MS
        self._epoch = -1  # epoch of the controller that got the last reports

    def changed(self, partition: Partition, now: int) -> None:
        """Note that the log end or high watermark of *partition* may have changed."""
        if partition.opened.is_shared:
            self._changed[partition] = None
            if self.deadline == NEVER:
                # Wait until the high watermark has reached the log end.
                self.deadline = max(self._told_at, now) + TELL_MS

    def renew(self, controller_epoch: int, partitions: Iterable[Partition], now: int) -> None:
        """Report all partitions again if another zkserver has become active."""
        if controller_epoch != self._epoch:
            self._epoch = controller_epoch
            self._told.clear()
            for partition in partitions:
                self.changed(partition, now)

    def report(self, hosted: Collection[tuple[str, str]], now: int) -> ReplicaEnds | None:
        """Return the report that is due, if anything has changed; *hosted* are the broker's
        partitions.
        """
        if len(self._told) > 2 * len(hosted):
            self._told = {name: reach for name, reach in self._told.items() if name in hosted}
        self._told_at, self.deadline = now, NEVER
        found: list[tuple[str, str, int, int, int]] = []
        while self._changed and len(found) < TOLD_MAX:
            partition = next(iter(self._changed))
            del self._changed[partition]
            log = partition.opened.log
            if log is None or not partition.opened.is_running:
                continue
            reach = log.name.number, log.stable_end, partition.opened.offsets.readable_end
            if self._told.get(partition.name) != reach:
                self._told[partition.name] = reach
                found.append((*partition.name, *reach))
        if self._changed:
            self.deadline = now + TELL_MS
        return ReplicaEnds(self._me, self._incarnation, tuple(found)) if found else None
