"""Rule ``service``: an error is no answer.

A client that is told what the disk of one replica says has not been served: another replica can.
So no application may see a :class:`~pymq.errors.StoreError` of a partition that has replicas beside
the one that failed. What is slow, or has nobody left, shows in the rules about liveness: brokers
whose disk has failed are not restarted in half of the runs, and the bound is the same.

Nor may an application be blamed for what a hostile client beside it does (rule ``harmless``).

Damage is another matter: where nobody has a sealed block sound, its readers are to hear of it.
"""

from __future__ import annotations

from collections.abc import Callable

from pymq.coord import paths
from pymq.core.metadata.nodes import BlockNode, decode_node
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

BLAME = (CorruptBatch, DuplicateSequence, InvalidRequest)  # what only a hostile client deserves


class Service:
    """Looks at each error that an application is given."""

    def __init__(self, cluster: Cluster, fail: Callable[[str, str], None]) -> None:
        self._cluster = cluster
        self._fail = fail
        self.is_hostile = False  # a client of the run misbehaves

    def told(self, error: PymqError | None, topic: str, partition: str | None = None) -> None:
        """An application was told *error* about a topic, or one of its partitions."""
        is_blamed = isinstance(error, BLAME) and not self._has_lost(topic, partition)
        if self.is_hostile and is_blamed and not self._is_behind(error):
            self._fail("harmless", f"{topic}/{partition or '*'}: {error} to a client that behaves")
        if not isinstance(error, StoreError) or isinstance(error, CorruptBlock):
            return
        if self._has_replicas(topic, partition):
            self._fail("service", f"{topic}/{partition or '*'} was refused for a disk: {error}")

    def _is_behind(self, error: PymqError | None) -> bool:
        """Whether a time is refused, and the wall clock of a broker goes wrong."""
        hosts = self._cluster.brokers.values()
        return isinstance(error, InvalidTimestamp) and any(host.wall_skew_ms for host in hosts)

    def _has_lost(self, topic: str, partition: str | None) -> bool:
        """Whether something visible is lost, as weak settings allow, and its numbers are free."""
        watch = self._cluster.watch
        found = watch.history_of(topic, partition) if watch is not None and partition else None
        return found is not None and found.losses > 0

    def _has_replicas(self, topic: str, partition: str | None) -> bool:
        """Whether no block could be served by one broker alone."""
        counts = []
        for entry in self._cluster.ensemble.entries():
            match paths.parse(entry.path):
                case paths.BlockPath(topic=found, partition=name):
                    if found == topic and partition in (None, name):
                        counts.append(len(decode_node(BlockNode, entry.data).replicas))
                case _:
                    pass
        return min(counts, default=0) > 1
