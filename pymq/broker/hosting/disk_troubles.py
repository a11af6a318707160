"""The partitions that one broker cannot hold because of its disk, and telling the zkserver.

The report is a state and not an event: it names all of them, and it is sent again every second, so
a report that was lost or overtaken does no harm. A broker that never had one sends nothing.

A file that failed to sync is never trusted again by this process, nor is the disk with another file
of that partition: the entry stays when the partition is taken away, until the broker starts anew.
"""

from __future__ import annotations

from pymq.core.message import Message, OfflineReplica, OfflineReplicas
from pymq.core.partition.partition import Partition
from pymq.core.types import NEVER
from pymq.errors import CorruptBlock, CorruptMetadata

TELL_MS = 1_000  # how often the report is sent again; ...
TELL_MANY_MS = 10_000  # ... if it names more than
MANY = 100  # partitions
WHY_MAX = 300  # characters of a reason


class DiskTroubles:
    """What one broker reports of its own disk."""

    def __init__(self, me: str, incarnation: int, *, repeats: bool) -> None:
        self.deadline = NEVER
        self._me = me
        self._incarnation = incarnation
        self._repeats = repeats  # nothing is lost on the way to a zkserver in this process
        self._version = 0
        self._replicas: dict[tuple[str, int], OfflineReplica] = {}  # by topic id and index
        self._final: dict[tuple[str, int], None] = {}

    def note(self, partition: Partition, now: int) -> None:
        """Something about *partition* may have changed."""
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
            if not is_damaged and partition.problem is error and not partition.opened.is_unread:
                self._final[key] = None
            if self._replicas.get(key) == found:
                return
            self._replicas[key] = found
        self.deadline = now  # With all that fail in this turn.

    def forget_topic(self, topic_id: str) -> None:
        """The topic was deleted."""
        for key in [key for key in self._replicas if key[0] == topic_id]:
            self._replicas.pop(key)
            self._final.pop(key, None)

    def report(self, now: int) -> Message:
        """The report that is due."""
        self._version += 1
        pause = TELL_MS if len(self._replicas) <= MANY else TELL_MANY_MS
        self.deadline = now + pause if self._repeats else NEVER
        found = tuple(self._replicas.values())
        return OfflineReplicas(self._me, self._incarnation, self._version, found)
