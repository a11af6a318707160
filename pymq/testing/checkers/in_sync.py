"""Rules that compare the disks of replicas with their state in the tree: in sync or complete."""

from __future__ import annotations

from pymq.coord import paths
from pymq.coord.tree import CommitPlan
from pymq.core.message import Message, RecoverPartition
from pymq.core.metadata.coordination import Commit
from pymq.core.metadata.nodes import BlockNode, BrokerNode, decode_node
from pymq.core.types import AckMode, BlockId
from pymq.testing.checkers.base import Checker, Partition, StoreWatch
from pymq.testing.simulation import probe
from pymq.testing.simulation.nodes import BrokerHost
from pymq.testing.simulation.process import Process


class InSyncRules(Checker):
    """A replica that the tree counts as in sync has all records that it must have.

    In an open fetch block any in-sync replica may have to replace the leader, so each of them has
    all visible records. A replica that lost records in a crash fetches the records again. Its
    missing records are no violation, because the leader cannot know of the loss; but the replica
    must not join the in-sync set before it has them again.
    """

    rules = (
        "visible-on-all-in-sync",
        "in-sync-has-all",
        "sealed-copies-are-equal",
        "sealed-is-durable",
    )
    receives = (RecoverPartition,)

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        # open blocks with several replicas and fetch replication
        self._open: dict[BlockId, BlockNode] = {}
        # partitions that an administrator recovers while brokers are missing
        self._given_up: set[Partition] = set()

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if isinstance(message, RecoverPartition):
            key = self.watch.indexes.get((message.topic, message.partition))
            if key is not None:
                self._given_up.add(key)

    def on_look(self, host: BrokerHost, found: probe.Look, last: probe.Look | None) -> None:
        if not found.is_leader or found.high_watermark == found.start:
            return
        node = self._open.get(found.block)
        if node is None or (node.leader, node.epoch) != (host.name, found.epoch):
            return
        if last is None or last.high_watermark != found.high_watermark or last.block != found.block:
            synced = found.is_strict
            for name in self._lacking(found.block, node, found.high_watermark, synced=synced):
                self.fail(
                    "visible-on-all-in-sync",
                    f"{host.name} shows {found.block} up to {found.high_watermark}, and {name}, "
                    f"which is in sync, does not have that{' on its disk' if synced else ''}",
                )

    def _lacking(
        self, block: BlockId, node: BlockNode, end: int, *, synced: bool = False
    ) -> list[str]:
        """Return the in-sync replicas that lack records before *end* and have lost none.

        With *synced*, unsynced records count as lacking: a power cut could take them.
        """
        ledger = self.watch.ledger
        if ledger.has_lost(block):
            return []
        ends = {
            name: log.synced_end if synced else log.end
            for name in node.in_sync
            if (log := ledger.log(name, block))
        }
        return [name for name in node.in_sync if ends.get(name, node.start) < end]

    def on_commit(self, session: str, commit: Commit, plan: CommitPlan) -> None:
        for path, entry in plan.changes.items():
            match paths.parse(path):
                case paths.BlockPath(topic=topic, partition=partition, block=number):
                    key = self.watch.indexes.get((topic, partition))
                    if key is None:
                        continue
                    block = BlockId(*key, number)
                    if entry is None:
                        self._open.pop(block, None)
                    else:
                        before = self.watch.cluster.ensemble.tree.get(path)
                        known = decode_node(BlockNode, before.data) if before is not None else None
                        self._changed(block, decode_node(BlockNode, entry.data), known)
                case _:
                    pass

    def _changed(self, block: BlockId, node: BlockNode, known: BlockNode | None) -> None:
        if node.end is not None:
            self._open.pop(block, None)
            if known is not None and known.end is None:
                if self._is_orphan(block, node):
                    self.watch.orphans.add(block)
                self._check_durable(block, node, known)
            self._check_copies(block, node, known)
        elif node.acks is not AckMode.RAFT and len(node.replicas) > 1:
            self._open[block] = node
            seen = self.watch.history(block).blocks.get(block.number)
            if seen is None or known is None or set(node.in_sync) <= set(known.in_sync):
                return
            for name in node.in_sync:
                if name not in known.in_sync and self._joins_without(name, block, node, seen.end):
                    self.fail(
                        "in-sync-has-all",
                        f"{name} is in sync in {block}, and lacks some of what is visible up to "
                        f"{seen.end}",
                    )

    def _joins_without(self, name: str, block: BlockId, node: BlockNode, end: int) -> bool:
        """Whether a broker that joins the in-sync set is known to lack records before *end*.

        The replica may have lost these records in a crash after its leader's request. The zkserver
        knows of the crash once the broker has registered again.
        """
        ledger, cluster = self.watch.ledger, self.watch.cluster
        log, host = ledger.log(name, block), cluster.brokers[name]
        if (log.end if log is not None else node.start) >= end or name in ledger.damaged:
            return False
        entry = cluster.ensemble.tree.get(paths.broker(name))
        registered = decode_node(BrokerNode, entry.data).incarnation if entry is not None else 0
        return not ledger.has_lost(block) or (host.is_up and host.incarnation == registered)

    def _is_orphan(self, block: BlockId, node: BlockNode) -> bool:
        """Whether the disks of all holders of a block were replaced before its seal was committed.

        A disk may be replaced after its replica has reported its end and before the zkserver's
        commit. Modes that do not wait for a majority may then lose records that are not visible
        yet, and the block with them; Raft must not.
        """
        seen = self.watch.history(block).blocks.get(block.number)
        is_seen = seen is not None and seen.end > node.start
        if node.acks is AckMode.RAFT or not node.in_sync or node.is_unclean or is_seen:
            return False
        brokers = self.watch.cluster.brokers
        storages = dict(zip(node.replicas, node.storages, strict=True))
        return all(brokers[name].storage_id != storages[name] for name in node.in_sync)

    def _check_copies(self, block: BlockId, node: BlockNode, known: BlockNode | None) -> None:
        """Check that each holder of a sealed block has exactly its records, and that enough brokers
        hold the block.
        """
        assert node.end is not None
        ledger = self.watch.ledger
        was_sealed = known is not None and known.end is not None
        before = known.in_sync if known is not None and was_sealed else ()
        seen = self.watch.history(block).blocks.get(block.number)
        chain = seen.chain_at(node.end) if seen is not None else None
        if chain is None or (not was_sealed and ledger.has_lost(block)):
            return
        holding = [log for log in ledger.replicas(block) if log.chain_at(node.end) == chain]
        for name in node.in_sync:
            if name in before or any(log.node == name for log in holding):
                continue
            # otherwise the broker has a new disk
            if ledger.log(name, block) is not None or not was_sealed:
                self.fail(
                    "sealed-copies-are-equal",
                    f"{name} is said to hold all of {block} up to {node.end}, and does not",
                )

    def _check_durable(self, block: BlockId, node: BlockNode, known: BlockNode) -> None:
        """Check that a majority of disks has a Raft block up to its seal.

        A leader commits its whole log before it reports its end. While a majority still has the
        disks on which the block was created, the zkserver asks no other replica, unless an
        administrator requests it. Then the last records may have a single copy. Such records were
        neither acknowledged nor visible (``durable-before-acked``, ``durable-before-visible``).
        """
        if node.acks is not AckMode.RAFT or node.end is None:
            return
        seen = self.watch.history(block).blocks.get(block.number)
        chain = seen.chain_at(node.end) if seen is not None else None
        if chain is None:
            return
        needed = len(node.replicas) // 2 + 1
        is_given_up = (block.topic_id, block.partition) in self._given_up
        if is_given_up or _replicas_left(known, node) < needed:
            needed = 1
        synced = self.watch.ledger.holders(block, node.end, chain)
        if len(synced) < needed:
            self.fail(
                "sealed-is-durable",
                f"{block} is sealed at {node.end}, which is durable on {synced} only; {needed} "
                "are needed",
            )


def _replicas_left(known: BlockNode, node: BlockNode) -> int:
    """Return how many replicas still have the disk on which the tree says they were created."""
    if not known.storages:
        return len(node.replicas)
    both = zip(known.storages, node.storages, strict=True)
    return sum(made_on in ("", now) for made_on, now in both)
