"""How far the replicas of open blocks reach: told by brokers, known to the active zkserver.

It is a hint, by which a reader is sent to the best replica while there is no leader. So it is told
at most once a second, only of what has changed, so many at a time, and is not confirmed; and the
zkserver keeps it in memory, where it costs no commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pymq.core.message import ReplicaEnds
from pymq.core.partition.partition import Partition
from pymq.core.types import NEVER, TopicPartition

TELL_MS = 1_000  # between two reports of a broker
TOLD_MAX = 1_000  # replicas in one report; the others are in the next one

Reach = tuple[int, int, int]  # number of the block, end of the log, high watermark


class EndReports:
    """What one broker is to tell of its replicas."""

    def __init__(self, me: str, incarnation: int) -> None:
        self.deadline = NEVER
        self._me = me
        self._incarnation = incarnation
        self._changed: dict[Partition, None] = {}
        self._told: dict[TopicPartition, Reach] = {}
        self._told_at = -TELL_MS
        self._epoch = -1  # of the controller that was told

    def changed(self, partition: Partition, now: int) -> None:
        """The log of *partition* may have grown, or what is known of it."""
        if partition.opened.is_shared:
            self._changed[partition] = None
            if self.deadline == NEVER:
                # A little later: then it is also known what of it is committed.
                self.deadline = max(self._told_at, now) + TELL_MS

    def renew(self, controller_epoch: int, partitions: Iterable[Partition], now: int) -> None:
        """A zkserver is active; a new one has been told nothing."""
        if controller_epoch != self._epoch:
            self._epoch = controller_epoch
            self._told.clear()
            for partition in partitions:
                self.changed(partition, now)

    def report(self, hosted: Collection[tuple[str, str]], now: int) -> ReplicaEnds | None:
        """What is to be told now, if anything, of the partitions that are *hosted* here."""
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
            reach = log.name.number, log.stable_end, partition.opened.readable_end
            if self._told.get(partition.name) != reach:
                self._told[partition.name] = reach
                found.append((*partition.name, *reach))
        if self._changed:
            self.deadline = now + TELL_MS
        return ReplicaEnds(self._me, self._incarnation, tuple(found)) if found else None
