"""Rule ``service``: an error is not a valid answer while another replica can serve.

A client must not get the disk error of one replica while another replica can serve. So no
application may get a :class:`~pymq.errors.StoreError` for a partition with replicas on other disks.
The liveness rules find slow service and unserved partitions: in half of the runs, no operator
restarts brokers with a failed disk, and the time limit is the same.

No application may get an error because of the acts of a hostile client (rule ``harmless``).

Damage is different: if no replica has a sound copy of a sealed block, its readers must get an
error.
"""

from __future__ import annotations

from collections.abc import Callable

from pymq.coord import paths
from pymq.core.metadata.nodes import BlockNode, decode_node
from pymq.core.types import OFFSETS_TOPIC
from pymq.errors import (
    CorruptBatch,
    CorruptBlock,
    DuplicateSequence,
    InvalidRequest,
    InvalidTimestamp,
    PymqError,
    StoreError,
)
from pymq.testing.cluster import Cluster

# errors that only a hostile client may get
BLAME = (CorruptBatch, DuplicateSequence, InvalidRequest)


class Service:
    """Checks each error that an application gets."""

    def __init__(self, cluster: Cluster, fail: Callable[[str, str], None]) -> None:
        self._cluster = cluster
        self._fail = fail
        self.is_hostile = False  # whether the run has a hostile client

    def told(self, error: PymqError | None, topic: str, partition: str | None = None) -> None:
        """Check *error*, which an application got for a topic or for one of its partitions."""
        is_blamed = isinstance(error, BLAME) and not self._has_lost(topic, partition)
        if self.is_hostile and is_blamed and not self._is_behind(error):
            self._fail("harmless", f"{topic}/{partition or '*'}: {error} to a client that behaves")
        if not isinstance(error, StoreError) or isinstance(error, CorruptBlock):
            return
        if self._has_replicas(topic, partition):
            self._fail("service", f"{topic}/{partition or '*'} was refused for a disk: {error}")

    @property
    def has_been_skewed(self) -> bool:
        """Whether any broker's wall clock has ever been wrong."""
        return any(host.was_skewed for host in self._cluster.brokers.values())

    def _is_behind(self, error: PymqError | None) -> bool:
        """Whether *error* refuses a timestamp, and a broker's wall clock is or was wrong."""
        return isinstance(error, InvalidTimestamp) and self.has_been_skewed

    def _has_lost(self, topic: str, partition: str | None) -> bool:
        """Whether visible records are lost, as weak settings allow; offsets are then reused."""
        watch = self._cluster.watch
        found = watch.history_of(topic, partition) if watch is not None and partition else None
        return found is not None and found.losses > 0

    def _has_replicas(self, topic: str, partition: str | None) -> bool:
        """Whether each block has several replicas, and each sealed block several complete copies.

        Without a *partition*, the offsets of the topic's groups count too.
        """
        topics = (topic,) if partition is not None else (topic, OFFSETS_TOPIC)
        counts = []
        for entry in self._cluster.ensemble.entries():
            match paths.parse(entry.path):
                case paths.BlockPath(topic=found, partition=name):
                    if found in topics and partition in (None, name):
                        block = decode_node(BlockNode, entry.data)
                        holders = block.replicas if block.end is None else block.in_sync
                        counts.append(len(holders))
                case _:
                    pass
        return min(counts, default=0) > 1
