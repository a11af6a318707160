"""Rules about copies of sealed blocks: a copy moves only for a reason, and their number never
shrinks.
"""

from __future__ import annotations

from pymq.coord import paths
from pymq.coord.tree import CommitPlan
from pymq.core.message import BrokerHeartbeat, Message
from pymq.core.metadata.coordination import Commit, Op
from pymq.core.metadata.nodes import BlockNode, BrokerNode, PartitionNode, decode_node
from pymq.core.types import BlockId
from pymq.testing.checkers.base import Checker, StoreWatch
from pymq.testing.simulation.nodes import ZkserverHost
from pymq.testing.simulation.process import Process

SOONER = 4  # how much faster a zkserver's clock may be than the checker's


class CopyRules(Checker):
    """Data moves only if a broker is lost or decommissioned, or if an administrator requests it.

    A replica leaves a sealed block only after another replica has all of the block. So the number
    of copies does not shrink, on the disks and in the tree.
    """

    rules = ("moves-are-asked-for", "moved-copies-are-whole", "never-fewer-copies")
    receives = (BrokerHeartbeat,)

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        # when a broker's last heartbeat reached a zkserver
        self._heard_us: dict[tuple[str, str], int] = {}
        self._silences: dict[
            tuple[str, str], list[tuple[int, int]]
        ] = {}  # long silences that have ended
        # by commit in progress: the time at which the zkserver planned it
        self._planned_us: dict[tuple[Op, ...], int] = {}

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if isinstance(message, BrokerHeartbeat) and isinstance(process, ZkserverHost):
            key, now = (process.name, message.name), self.watch.cluster.world.now
            before = self._heard_us.get(key, 0)
            if self._is_long(now - before):
                self._silences.setdefault(key, []).append((before, now))
            self._heard_us[key] = now

    def on_submit(self, zkserver: str, commit: Commit) -> None:
        # Keep the first time: a zkserver submits a commit with an unknown outcome again without a
        # new plan.
        self._planned_us.setdefault(commit.ops, self.watch.cluster.world.now)

    def on_commit(self, session: str, commit: Commit, plan: CommitPlan) -> None:
        tree = self.watch.cluster.ensemble.tree
        # The coordinator backend may be slow: a lost broker may be back by now.
        planned_us = self._planned_us.pop(commit.ops, self.watch.cluster.world.now)
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
                        reason = self._why_not(
                            session, topic, partition, node.move.removing, planned_us
                        )
                        if reason is not None:
                            self.fail(
                                "moves-are-asked-for",
                                f"{path} moves off {node.move.removing}, {reason}",
                            )
                    self._check_whole(path, (topic, partition, number), node, known)
                    if set(known.replicas) - set(node.replicas):
                        self._check_count(path, (topic, partition, number), node, known)
                case _:
                    pass

    def _why_not(
        self, session: str, topic: str, partition: str, removing: str, planned_us: int
    ) -> str | None:
        """Return the reason why a block should not move off a broker; None if it may move."""
        cluster = self.watch.cluster
        entry = cluster.ensemble.tree.get(paths.broker(removing))
        if entry is not None and decode_node(BrokerNode, entry.data).is_draining:
            return None
        entry = cluster.ensemble.tree.get(paths.partition(topic, partition))
        wanted = decode_node(PartitionNode, entry.data).sealed_to if entry is not None else ()
        if wanted and removing not in wanted:
            return None
        committers = self._committers(session)
        silent_us = [self._silent_us((name, removing), planned_us) for name in committers]
        least_us = min(silent_us, default=planned_us)
        if self._is_long(least_us):
            return None
        return f"which had been silent for {least_us // 1000} ms when that was planned"

    def _is_long(self, silent_us: int) -> bool:
        """Whether a broker may count as lost after so long a silence."""
        lost_ms = self.watch.cluster.knobs.replica_lost_ms
        return bool(lost_ms) and silent_us // 1000 * SOONER >= lost_ms

    def _silent_us(self, key: tuple[str, str], at_us: int) -> int:
        """Return how long, at a given time, a zkserver had received nothing from a broker."""
        for begun, over in self._silences.get(key, ()):
            if begun < at_us < over:
                return at_us - begun
        return max(0, at_us - self._heard_us.get(key, 0))

    def _committers(self, session: str) -> list[str]:
        """Return the zkserver that has a session."""
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
            self.fail(
                "moved-copies-are-whole", f"{path} is not whole on {move.adding}, but counts as"
            )

    def _whole(self, place: tuple[str, str, int], node: BlockNode) -> set[str] | None:
        """Return the brokers with all of a sealed block on their disks; None if it is unknown."""
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
