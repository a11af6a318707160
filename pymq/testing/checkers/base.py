"""The checkers' view of a cluster, and their base class.

A checker holds a family of named rules. At each event that may break a rule, it checks the rule in
about constant time, and reports a :class:`Violation` with the rule's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pymq.coord import paths
from pymq.coord.tree import CommitPlan
from pymq.core.batch.header import Header
from pymq.core.message import Message
from pymq.core.metadata.coordination import Commit
from pymq.core.metadata.nodes import BlockNode, TopicNode, decode_node
from pymq.core.types import AckMode, BlockId
from pymq.core.values import Factory, define
from pymq.testing.checkers.ledger import Ledger, ReplicaLog, WatchedStore
from pymq.testing.simulation import probe
from pymq.testing.simulation.nodes import BrokerHost
from pymq.testing.simulation.process import Process
from pymq.testing.simulation.world import Violation

if TYPE_CHECKING:
    from pymq.testing.cluster import Cluster

Partition = tuple[str, int]  # topic id and index


@define
class CheckedHistory:
    """All records of one partition that consumers may have read."""

    blocks: dict[int, ReplicaLog] = Factory(dict)  # visible records, by the block's number
    # by producer: epoch, next sequence, and the block of the last batch
    sequences: dict[int, tuple[int, int, int]] = Factory(dict)
    losses: int = 0  # how often visible records were lost, as weak settings allow

    def end(self) -> int:
        """The first offset that no consumer can have read."""
        return self.blocks[max(self.blocks)].end if self.blocks else 0

    def batch_at(self, offset: int) -> Header | None:
        """Return the batch that holds *offset*."""
        for number in sorted(self.blocks, reverse=True):
            log = self.blocks[number]
            if log.start <= offset:
                index = log.batch_at(offset)
                return log.headers[index] if index < len(log.headers) else None
        return None


class StoreWatch:
    """Reports the events of a cluster to the checkers, and keeps their shared state."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ledger = Ledger(self.fail)
        self.histories: dict[Partition, CheckedHistory] = {}
        self.names: dict[Partition, tuple[str, str]] = {}
        self.indexes: dict[tuple[str, str], Partition] = {}
        # topics that are deleted and created again under the same name
        self.mortal: set[str] = set()
        # blocks that were lost with their disks before any consumer read a record of them
        self.orphans: set[BlockId] = set()
        self.checkers: list[Checker] = []

    def add(self, checker: Checker) -> None:
        """Add a checker."""
        self.checkers.append(checker)
        kind = type(checker)
        if kind.on_append is not Checker.on_append:
            self.ledger.on_append.append(checker.on_append)
        if kind.on_loss is not Checker.on_loss:
            self.ledger.on_loss.append(checker.on_loss)
        if kind.on_truncate is not Checker.on_truncate:
            self.ledger.on_truncate.append(checker.on_truncate)
        if kind.on_submit is not Checker.on_submit:
            self.cluster.ensemble.on_submit.append(checker.on_submit)
        if kind.on_commit is not Checker.on_commit:
            self.cluster.ensemble.on_commit.append(checker.on_commit)

    def adopt(self, host: Process) -> None:
        """Begin to watch a process."""
        if isinstance(host, BrokerHost):
            host.wrapped = lambda store: WatchedStore(store, host.name, self.ledger)
            host.on_turn.append(self._turned)
        for checker in self.checkers:
            for kind in checker.sends:
                host.on_send.setdefault(kind, []).append(checker.on_send)
            for kind in checker.receives:
                host.on_receive.setdefault(kind, []).append(checker.on_receive)
            if type(checker).on_death is not Checker.on_death:
                host.on_death.append(checker.on_death)

    def _turned(self, host: Process) -> None:
        assert isinstance(host, BrokerHost)
        broker = host.broker
        if broker is None:
            return
        signs, sign_of = host.signs, probe.sign
        for partition in probe.partitions(broker):
            sign = sign_of(partition)
            if signs.get(partition) == sign:
                continue
            signs[partition] = sign
            last = host.looks.get(partition.name)
            found = probe.look(partition, last)
            if found is None or found == last:
                continue
            if last is None or last.block != found.block:
                self._meet(partition.name, found.block)
            host.looks[partition.name] = found
            for checker in self.checkers:
                checker.on_look(host, found, last)

    def _meet(self, name: tuple[str, str], block: BlockId) -> None:
        key = (block.topic_id, block.partition)
        self.names[key] = name
        if name[0] not in self.mortal:
            self.indexes[name] = key

    def history(self, block: BlockId) -> CheckedHistory:
        """Return the history of a block's partition."""
        key = (block.topic_id, block.partition)
        found = self.histories.get(key)
        if found is None:
            found = self.histories[key] = CheckedHistory()
        return found

    def history_of(self, topic: str, partition: str) -> CheckedHistory | None:
        """Return the history of a partition by its present names."""
        key = self.indexes.get((topic, partition))
        return self.histories.get(key) if key is not None else None

    def keepers(self, block: BlockId, node: BlockNode, seen: ReplicaLog) -> list[str]:
        """Return the in-sync replicas of a fetched block that have all of its visible records.

        With at least one such replica, no visible record may be lost, even if few were synced: that
        replica did not crash, or its unsynced records survived.
        """
        if node.acks is AckMode.RAFT or len(node.replicas) < 2 or not seen.ends:
            return []
        found = []
        for name in node.in_sync:
            log, host = self.ledger.log(name, block), self.cluster.brokers[name]
            is_there = log is not None and log.chain_at(seen.end) == seen.chains[-1]
            if is_there and log is not None and (host.is_up or log.synced_end >= seen.end):
                found.append(name)
        return [name for name in found if name not in self.ledger.damaged]

    def orphan(self, topic: str, partition: str, offset: int) -> BlockNode | None:
        """Return the block of *offset* if the block was sealed too late, so that no replica has all
        of it.
        """
        for block in self.orphans:
            node = self.node(block)
            if node is None or node.in_sync or node.end is None:
                continue
            is_there = self.indexes.get((topic, partition)) == (block.topic_id, block.partition)
            if is_there and node.start <= offset < node.end:
                logs = self.ledger.replicas(block)
                return node if all(log.chain_at(node.end) is None for log in logs) else None
        return None

    def node(self, block: BlockId) -> BlockNode | None:
        """Return the block's node in the coordinator's tree."""
        name = self.names.get((block.topic_id, block.partition))
        if name is None or self.indexes.get(name) != (block.topic_id, block.partition):
            return None
        entry = self.cluster.ensemble.tree.get(paths.block(*name, block.number))
        return decode_node(BlockNode, entry.data) if entry is not None else None

    def is_deleted(self, block: BlockId) -> bool:
        """Whether a block's topic was deleted; its brokers learn of the deletion one after the
        other.
        """
        name = self.names.get((block.topic_id, block.partition))
        if name is None:
            return False
        entry = self.cluster.ensemble.tree.get(paths.topic(name[0]))
        return entry is None or decode_node(TopicNode, entry.data).id != block.topic_id

    def fail(self, name: str, message: str) -> None:
        """Report a broken rule."""
        self.cluster.violate(Violation(name, message))


class Checker:
    """Checks rules; a subclass overrides the methods for the events that it needs."""

    rules: ClassVar[Sequence[str]] = ()
    sends: ClassVar[Sequence[type[Message]]] = ()  # types of messages for on_send
    receives: ClassVar[Sequence[type[Message]]] = ()  # types of messages for on_receive

    def __init__(self, watch: StoreWatch) -> None:
        self.watch = watch
        self.fail = watch.fail

    def on_look(self, host: BrokerHost, found: probe.Look, last: probe.Look | None) -> None:
        """A partition has changed since the broker's last turn in this incarnation."""

    def on_append(self, log: ReplicaLog, header: Header) -> None:
        """A replica has written a batch."""

    def on_truncate(self, log: ReplicaLog, end: int) -> None:
        """A replica is about to truncate its log."""

    def on_loss(self, log: ReplicaLog, end: int) -> None:
        """A replica has restarted without its records from *end* on."""

    def on_send(self, process: Process, peer: str, source: str, message: Message) -> None:
        """A process sends a message of :attr:`sends`."""

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        """A process receives a message of :attr:`receives` and handles it next."""

    def on_death(self, process: Process) -> None:
        """A process has died."""

    def on_submit(self, zkserver: str, commit: Commit) -> None:
        """A zkserver submits a commit, for the first time or again."""

    def on_commit(self, session: str, commit: Commit, plan: CommitPlan) -> None:
        """The backend is about to carry out a commit, perhaps long after it was planned."""
