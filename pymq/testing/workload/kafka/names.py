"""Partitions by Kafka's numbers, and by pymq's names."""

from __future__ import annotations

from pymq.testing.cluster import Cluster


def partition_name(cluster: Cluster, topic: str, index: int) -> str:
    """Return pymq's name of a partition."""
    assert cluster.watch is not None
    for (found, name), (_, number) in cluster.watch.indexes.items():
        if found == topic and number == index:
            return name
    return str(index)  # as for all partitions that a topic begins with


def indexes(cluster: Cluster, topic: str) -> list[int]:
    """Return the numbers of a topic's partitions."""
    assert cluster.watch is not None
    return sorted(
        number for (name, _), (_, number) in cluster.watch.indexes.items() if name == topic
    )
