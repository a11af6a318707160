"""Rule ``service``: an error is no answer.

A client that is told what the disk of one replica says has not been served: another replica can.
So no application may see a :class:`~pymq.errors.StoreError` of a partition that has replicas beside
the one that failed. What is slow, or has nobody left, shows in the rules about liveness: brokers
whose disk has failed are not restarted in half of the runs, and the bound is the same.

Damage is another matter: where nobody has a sealed block sound, its readers are to hear of it.
"""

from __future__ import annotations

from collections.abc import Callable

from pymq.coord import paths
from pymq.core.metadata import BlockNode, decode_node
from pymq.errors import CorruptBlock, PymqError, StoreError
from pymq.testing.cluster import Cluster


class Service:
    """Looks at each error that an application is given."""

    def __init__(self, cluster: Cluster, fail: Callable[[str, str], None]) -> None:
        self._cluster = cluster
        self._fail = fail

    def told(self, error: PymqError | None, topic: str, partition: str | None = None) -> None:
        """An application was told *error* about a topic, or one of its partitions."""
        if not isinstance(error, StoreError) or isinstance(error, CorruptBlock):
            return
        if self._has_replicas(topic, partition):
            self._fail("service", f"{topic}/{partition or '*'} was refused for a disk: {error}")

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
