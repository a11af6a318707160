"""Determines how far a healed cluster has caught up."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pymq.coord import paths
from pymq.core.metadata.nodes import BlockNode, decode_node
from pymq.core.types import AckMode, BlockId
from pymq.testing.checkers.base import StoreWatch
from pymq.testing.cluster import Cluster
from pymq.testing.faults.plan import Plan
from pymq.testing.simulation import probe
from pymq.testing.workload.applications import Application, Sent, WorkloadHistory
from pymq.testing.workload.consuming import ReadingApp
from pymq.testing.workload.queues.cancels import ASKED, CANCELLED
from pymq.testing.workload.queues.routes import CANARY


class Convergence:
    """Compares readers, groups and replicas with the ends of the partitions."""

    def __init__(
        self, cluster: Cluster, watch: StoreWatch, plan: Plan, apps: Mapping[str, Application]
    ) -> None:
        self._cluster = cluster
        self._watch = watch
        self._plan = plan
        self._apps = apps

    def is_read(self) -> bool:
        """Whether each reader has read to the end of each partition."""
        for app in self._apps.values():
            if len(app.readers) < len(app.config.get("readers", ())):
                return False
            if not all(self.is_at_end(reading) for reading in app.readers):
                return False
        return True

    def is_at_end(self, reading: ReadingApp) -> bool:
        """Whether a reader has read all records; it skips records that no disk has any more."""
        for name, cursor in reading.reader.cursors.items():
            orphan = self._watch.orphan(reading.topic, name, cursor.position)
            if orphan is not None and orphan.end is not None:
                reading.reader.seek(name, orphan.end)
            if cursor.position < self._end(reading.topic, name):
                return False
        return True

    def acknowledged(self) -> int:
        """Return the sum of the committed offsets of all groups."""
        brokers = [
            host.broker for host in self._cluster.brokers.values() if host.broker is not None
        ]
        return sum(
            leases.committed for broker in brokers for *_, leases in probe.all_leases(broker)
        )

    def is_processed(self) -> bool:
        """Whether each group has acknowledged each record that still exists."""
        wanted = {
            (str(group), str(topic))
            for app in self._plan.apps
            for topic, group in app.get("groups", ())
        }
        found = {
            (group, topic, partition): leases.committed
            for host in self._cluster.brokers.values()
            if host.broker is not None
            for _, group, topic, partition, leases in probe.all_leases(host.broker)
        }
        for group, topic in sorted(wanted):
            for name, partition in self.partitions():
                is_behind = name == topic and (
                    found.get((group, topic, partition), 0) < self._end(topic, partition)
                )
                if is_behind and not self._is_stuck(group, topic, partition):
                    return False
        return True

    def are_delivered(self, history: WorkloadHistory, is_kept: Callable[[Sent], bool]) -> bool:
        """Whether all groups got each delayed record that no fault may lose."""
        wall = next(iter(self._apps.values())).wall_ms() if self._apps else 0
        # A record that a crashed member had leased counts as delivered.
        joins = [
            (str(topic), str(group), app.get("max_deliver", 0))
            for app in self._plan.apps
            for topic, group in app.get("groups", ())
        ]
        limited = {(topic, group) for topic, group, most in joins if most}
        wanted = {(t, g) for t, g, _ in joins if (t, g) not in limited}
        came = {(number, group) for group, number, _ in history.copies}
        for sent in history.sent:
            if not sent.due_ms or not sent.is_acked or sent.expires_ms or not is_kept(sent):
                continue
            if sent.cancel in (ASKED, CANCELLED):
                continue
            groups = {group for topic, group in wanted if topic == sent.topic}
            if sent.topic in history.routes.topics:
                if CANARY not in groups:
                    continue  # The record may be for that group, which may have dropped it.
                if (sent.number, CANARY) in came:
                    continue  # It is for no other group.
                groups.remove(CANARY)
            if any((sent.number, group) not in came for group in groups):
                return False
            if sent.due_ms > wall:
                return False
        return True

    def is_converged(self, left: str | None) -> bool:
        """Whether all replicas have all records, except those of the unrepaired broker *left*."""
        for key, history in self._watch.histories.items():
            if self._watch.names[key][0] in self._watch.mortal:
                continue
            number = max(history.blocks, default=None)
            if number is None:
                continue
            for log in self._watch.ledger.replicas(BlockId(*key, number)):
                host = self._cluster.brokers[log.node]
                if log.node == left:
                    continue  # this broker's disk fails until the end of the run
                if log.chain_at(history.end()) is None and host.hosts(key):
                    return False
        return True

    def has_zkserver(self) -> bool:
        """Whether a zkserver is active."""
        hosts = self._cluster.zkservers.values()
        return any(host.controller is not None and host.controller.is_active for host in hosts)

    def partitions(self) -> list[tuple[str, str]]:
        """Return topic and name of each partition of the plan's topics."""
        topics = {str(topic["name"]) for topic in self._plan.topics}
        return [name for name in self._watch.indexes if name[0] in topics]

    def leaderless(self) -> list[tuple[str, str]]:
        """Return the partitions without Raft whose open block has an empty in-sync set."""
        found = []
        for entry in self._cluster.ensemble.entries():
            match paths.parse(entry.path):
                case paths.BlockPath(topic=topic, partition=partition):
                    block = decode_node(BlockNode, entry.data)
                    has_majority = block.acks is AckMode.RAFT and len(block.replicas) > 1
                    if block.end is None and block.replicas and not block.in_sync:
                        found += [] if has_majority else [(topic, partition)]
                case _:
                    pass
        return found

    def _is_stuck(self, group: str, topic: str, partition: str) -> bool:
        """Whether a member waits for records that no disk has any more."""
        return any(
            at == partition and self._watch.orphan(topic, partition, offset) is not None
            for app in self._apps.values()
            for working in app.workers
            if (working.worker.config.group, working.topic) == (group, topic)
            for at, offset in probe.fetching(working.worker)
        )

    def _end(self, topic: str, partition: str) -> int:
        history = self._watch.history_of(topic, partition)
        return history.end() if history is not None else 0
