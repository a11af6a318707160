"""Reports a broker's offline replicas to the zkserver.

A report names all offline replicas, and the broker sends it every second. So a lost or late report
does no harm. A broker that has never had an offline replica sends no reports.

After a failed sync, this process no longer trusts that file, or the disk with other files of the
partition. So the entry stays until the broker restarts, even if the partition is removed.
"""

from __future__ import annotations

from pymq.core.message import Message, OfflineReplica, OfflineReplicas
from pymq.core.partition.partition import Partition
from pymq.core.types import NEVER
from pymq.errors import CorruptBlock, CorruptMetadata

TELL_MS = 1_000  # pause between two reports
TELL_MANY_MS = 10_000  # interval of reports that name more than MANY partitions
MANY = 100
WHY_MAX = 300  # characters of a reason


class DiskTroubles:
    """The offline replicas of one broker."""

    def __init__(self, me: str, incarnation: int, *, repeats: bool) -> None:
        self.deadline = NEVER
        self._me = me
        self._incarnation = incarnation
        # False if the zkserver is in this process, so that no report is lost
        self._repeats = repeats
        self._version = 0
        self._replicas: dict[tuple[str, int], OfflineReplica] = {}  # by topic id and index
        self._final: dict[tuple[str, int], None] = {}

    def note(self, partition: Partition, now: int) -> None:
        """Note that *partition* may have gone offline or come back."""
        state = partition.state
        key, error = (state.topic_id, state.index), partition.offline
        if error is None:
            if key in self._final or self._replicas.pop(key, None) is None:
                return
        else:
            is_damaged = isinstance(error, CorruptBlock | CorruptMetadata)
            found = OfflineReplica(
                *partition.name, state.topic_id, is_damaged, str(error)[:WHY_MAX]
            )
            if (
                not is_damaged
                and partition.problem is error
                and not partition.opened.recovery.is_retrying
            ):
                self._final[key] = None
            if self._replicas.get(key) == found:
                return
            self._replicas[key] = found
        self.deadline = now  # one report names all replicas that fail in this turn

    def forget_topic(self, topic_id: str) -> None:
        """Drop the replicas of a deleted topic."""
        for key in [key for key in self._replicas if key[0] == topic_id]:
            self._replicas.pop(key)
            self._final.pop(key, None)

    def report(self, now: int) -> Message:
        """Return the report that is due."""
        self._version += 1
        pause = TELL_MS if len(self._replicas) <= MANY else TELL_MANY_MS
        self.deadline = now + pause if self._repeats else NEVER
        found = tuple(self._replicas.values())
        return OfflineReplicas(self._me, self._incarnation, self._version, found)
