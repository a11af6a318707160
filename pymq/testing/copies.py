"""Copies of sealed blocks that move: only when somebody asks, and there are never fewer."""

from __future__ import annotations

from pymq.coord import paths
from pymq.coord.tree import Plan
from pymq.core.coordination import Commit
from pymq.core.message import BrokerHeartbeat, Message
from pymq.core.metadata import BlockNode, BrokerNode, PartitionNode, decode_node
from pymq.core.types import BlockId
from pymq.testing.checkers import Checker, Watch
from pymq.testing.nodes import ZkserverHost
from pymq.testing.process import Process

SOONER = 4  # times as fast as ours a zkserver's clock may be


class Copies(Checker):
    """Data moves only if a broker is lost or decommissioned, or if an administrator wants it.

    A replica leaves a sealed block when another one has all of it, and not before: on the disks
    there is as much as there was, and in the tree.
    """

    rules = ("moves-are-asked-for", "moved-copies-are-whole", "never-fewer-copies")
    receives = (BrokerHeartbeat,)

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._heard_us: dict[tuple[str, str], int] = {}  # when a zkserver has heard of a broker

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if isinstance(message, BrokerHeartbeat) and isinstance(process, ZkserverHost):
            self._heard_us[process.name, message.name] = self.watch.cluster.world.now

    def on_commit(self, session: str, commit: Commit, plan: Plan) -> None:
        tree = self.watch.cluster.ensemble.tree
        for path, entry in plan.changes.items():
            if entry is None:
                continue
            match paths.parse(path):
                case paths.BlockPath(topic=topic, partition=partition, block=number):
                    before = tree.get(path)
                    known = decode_node(BlockNode, before.data) if before is not None else None
                    if known is None or known.end is None:
                        continue
                    node = decode_node(BlockNode, entry.data)
                    if node.move is not None and known.move is None:
                        self._check_reason(session, path, topic, partition, node.move.removing)
                    self._check_whole(path, (topic, partition, number), node, known)
                    if set(known.replicas) - set(node.replicas):
                        self._check_count(path, (topic, partition, number), node, known)
                case _:
                    pass

    def _check_reason(
        self, session: str, path: str, topic: str, partition: str, removing: str
    ) -> None:
        cluster = self.watch.cluster
        entry = cluster.ensemble.tree.get(paths.broker(removing))
        if entry is not None and decode_node(BrokerNode, entry.data).is_draining:
            return
        entry = cluster.ensemble.tree.get(paths.partition(topic, partition))
        wanted = decode_node(PartitionNode, entry.data).sealed_to if entry is not None else ()
        if wanted and removing not in wanted:
            return
        heard = [self._heard_us.get((name, removing), 0) for name in self._committers(session)]
        silent_ms = (cluster.world.now - max(heard, default=0)) // 1000
        if silent_ms * SOONER < cluster.knobs.replica_lost_ms or not cluster.knobs.replica_lost_ms:
            self.fail(
                "moves-are-asked-for",
                f"{path} moves off {removing}, which was heard of {silent_ms} ms ago",
            )

    def _committers(self, session: str) -> list[str]:
        """The zkserver that has a session."""
        ensemble = self.watch.cluster.ensemble
        found = {name: ensemble.session_of(name) for name in self.watch.cluster.zkservers}
        return [name for name, its in found.items() if its is not None and its.session == session]

    def _check_whole(
        self, path: str, place: tuple[str, str, int], node: BlockNode, known: BlockNode
    ) -> None:
        move = node.move or known.move
        if move is None or move.adding in known.in_sync or move.adding not in node.in_sync:
            return
        whole = self._whole(place, node)
        if whole is not None and move.adding not in whole:
            self.fail("moved-copies-are-whole", f"{path} counts with {move.adding}, and is not")

    def _whole(self, place: tuple[str, str, int], node: BlockNode) -> set[str] | None:
        """The brokers that have all of a sealed block on their disks; None if that is not known."""
        key = self.watch.indexes.get(place[:2])
        if key is None or node.end is None:
            return None
        block = BlockId(*key, place[2])
        seen = self.watch.history(block).blocks.get(block.number)
        chain = seen.chain_at(node.end) if seen is not None else None
        if chain is None:
            return None
        logs = self.watch.ledger.replicas(block)
        return {log.node for log in logs if log.chain_at(node.end) == chain}

    def _check_count(
        self, path: str, place: tuple[str, str, int], node: BlockNode, known: BlockNode
    ) -> None:
        if len(node.in_sync) < len(known.in_sync) or len(node.replicas) < known.wanted_copies:
            self.fail(
                "never-fewer-copies",
                f"{path}: {known.in_sync} of {known.replicas} become {node.in_sync} of "
                f"{node.replicas}",
            )
        whole = self._whole(place, node)
        if known.move is None or whole is None:
            return
        counted = [name for name in known.replicas if name != known.move.adding]
        there, left = ([n for n in names if n in whole] for names in (counted, node.replicas))
        if len(left) < len(there):
            self.fail("never-fewer-copies", f"{path} is whole on {there}, will be on {left} only")
