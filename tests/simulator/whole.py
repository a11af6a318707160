"""Checks that a cluster is whole: all services work, and all stored data is sound."""

from __future__ import annotations

from collections.abc import Iterator

from pymq.client.client import Client
from pymq.coord.known_blocks import known_blocks
from pymq.core.types import AckMode, BlockId
from pymq.store.verification.verify import verify
from pymq.testing.checkers.base import StoreWatch
from pymq.testing.cluster import Cluster
from pymq.testing.simulation import probe
from pymq.testing.simulation.world import Violation

PROBE = b"is it whole?"  # key and value of the records that the check writes
BOUND_S = 30.0  # virtual time within which each condition must hold


def check_whole(cluster: Cluster, *, seconds: float = BOUND_S) -> None:
    """End all faults; then check that all services work again, and check every disk.

    A zkserver is active and knows all brokers. Each partition takes a record (:data:`PROBE`) and
    returns it. The replicas of each open block become equal, and the copies of each sealed block
    complete. ``pymq verify`` finds no damage on any disk, as it is and as a power failure now would
    leave it.

    Raises:
        Violation, NotReached, PymqError: a condition does not hold within *seconds* of virtual
            time.
    """
    cluster.calm()
    cluster.run_until(cluster.is_ready, seconds)
    _use(cluster.client(), seconds)
    if cluster.watch is not None:
        watch = cluster.watch
        cluster.run_until(lambda: not next(_behind(cluster, watch), None), seconds)
    cluster.run_until(lambda: not next(_incomplete(cluster), None), seconds)
    for name in cluster.brokers:
        _verify(cluster, name)


def _use(mq: Client, seconds: float) -> None:
    with mq.producer(linger_ms=0) as producer:
        for topic in mq.topics():
            names = [p.name for p in mq.describe_topic(topic).partitions if p.acks != AckMode.UNSET]
            sent = [producer.send(topic, PROBE, key=PROBE, partition=name) for name in names]
            ends = [delivery.result(timeout=seconds).offset + 1 for delivery in sent]
            with mq.consumer(topic, mode="psb", offset="begin") as consumer:
                while any(consumer.position(n) < e for n, e in zip(names, ends, strict=True)):
                    if not consumer.poll(timeout=seconds):
                        raise Violation("readers-reach-the-end", f"{topic}: {consumer.status()}")


def _behind(cluster: Cluster, watch: StoreWatch) -> Iterator[str]:
    """Replicas of open blocks that lack some visible records."""
    for key, history in watch.histories.items():
        number = max(history.blocks, default=None)
        if number is None:
            continue
        for log in watch.ledger.replicas(BlockId(*key, number)):
            if log.chain_at(history.end()) is None and cluster.brokers[log.node].hosts(key):
                yield f"{log.node} has {key} up to {log.end} of {history.end()}"


def _incomplete(cluster: Cluster) -> Iterator[BlockId]:
    """Sealed blocks with a copy that is not complete yet."""
    for host in cluster.brokers.values():
        if host.broker is not None:
            yield from probe.incomplete(host.broker)


def _verify(cluster: Cluster, name: str) -> None:
    known = known_blocks(cluster.ensemble.entries())
    # If nothing is unsynced, both states are the same.
    for keep in ("all", "none") if any(cluster.brokers[name].disk.unsynced()) else ("all",):
        disk = cluster.brokers[name].disk.fork()
        disk.crash(cluster.world.rng("verify", name), keep)
        report = verify(f"/{name}", files=disk, known=lambda: known)
        if not report.is_ok:
            raise Violation(
                "disks-are-sound", f"{name}, with {keep} of what is not synced: {report}"
            )
