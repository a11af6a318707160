"""Rules about the metadata in the coordinator backend's tree."""

from __future__ import annotations

from pymq.coord import paths
from pymq.coord.tree import CommitPlan
from pymq.core.message import Answer, CreatePartition, CreateTopic, LeaderAndIsr, Message
from pymq.core.metadata.coordination import Commit
from pymq.core.metadata.nodes import BlockNode, ControllerEpoch, PartitionNode, decode_node
from pymq.testing.checkers.base import Checker, StoreWatch
from pymq.testing.simulation.nodes import ZkserverHost
from pymq.testing.simulation.process import Process


class MetadataRules(Checker):
    """The tree is valid after each commit: blocks adjoin, epochs rise, each epoch has one
    zkserver.
    """

    rules = (
        "blocks-adjoin",
        "sealed-for-ever",
        "partition-epoch-rises",
        "one-controller-per-epoch",
        "only-the-controller-commits",
        "answered-is-committed",
    )
    sends = (LeaderAndIsr, Answer)
    receives = (CreateTopic, CreatePartition)

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        self._controllers: dict[int, str] = {}  # sessions, by controller epoch
        # zkservers that have sent requests to brokers, by controller epoch
        self._actors: dict[int, str] = {}
        self._asked: dict[tuple[str, int], str] = {}  # commits in progress, by request

    def on_receive(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(process, ZkserverHost):
            return
        if isinstance(message, CreateTopic):
            self._asked[source, message.id] = paths.topic(message.name)
        elif isinstance(message, CreatePartition):
            path = paths.partition(message.topic, message.partition)
            self._asked[source, message.id] = path

    def on_send(self, process: Process, peer: str, source: str, message: Message) -> None:
        if not isinstance(process, ZkserverHost):
            return
        if isinstance(message, LeaderAndIsr):
            epoch = message.controller_epoch
            if self._actors.setdefault(epoch, process.name) != process.name:
                who = f"{self._actors[epoch]} and {process.name}"
                self.fail(
                    "one-controller-per-epoch", f"{who} send brokers requests in epoch {epoch}"
                )
        elif isinstance(message, Answer) and message.error is None:
            path = self._asked.pop((peer, message.id), None)
            if path is not None and self.watch.cluster.ensemble.tree.get(path) is None:
                self.fail("answered-is-committed", f"{peer} is told that {path} was made")

    def on_commit(self, session: str, commit: Commit, plan: CommitPlan) -> None:
        tree = self.watch.cluster.ensemble.tree
        for path, entry in plan.changes.items():
            if entry is None:
                continue
            before = tree.get(path)
            match paths.parse(path):
                case paths.ControllerEpochPath():
                    self._check_controller(session, entry.data, before.data if before else None)
                case paths.PartitionPath() if before is not None:
                    old, new = (decode_node(PartitionNode, e.data) for e in (before, entry))
                    if new.epoch < old.epoch:
                        self.fail("partition-epoch-rises", f"{path}: {old.epoch} to {new.epoch}")
                case paths.BlockPath(topic=topic, partition=partition, block=number):
                    node = decode_node(BlockNode, entry.data)
                    known = decode_node(BlockNode, before.data) if before is not None else None
                    self._check_block(path, plan, (topic, partition, number), node, known)
                case _:
                    pass
        self._check_fence(session, plan)

    def _check_controller(self, session: str, data: bytes, before: bytes | None) -> None:
        epoch = decode_node(ControllerEpoch, data).epoch
        old = decode_node(ControllerEpoch, before).epoch if before else 0
        if epoch <= old or self._controllers.setdefault(epoch, session) != session:
            self.fail("one-controller-per-epoch", f"{session} begins epoch {epoch} after {old}")

    def _check_fence(self, session: str, plan: CommitPlan) -> None:
        owner = plan.changes.get(paths.controller())
        owner = owner or self.watch.cluster.ensemble.tree.get(paths.controller())
        topics = paths.topics() + "/"
        has_right = owner is not None and owner.owner == session
        if not has_right and any(path.startswith(topics) for path in plan.changes):
            who = owner.owner if owner is not None else "nobody"
            self.fail(
                "only-the-controller-commits", f"{session} changes topics, but {who} is active"
            )

    def _check_block(
        self,
        path: str,
        plan: CommitPlan,
        place: tuple[str, str, int],
        node: BlockNode,
        known: BlockNode | None,
    ) -> None:
        topic, partition, number = place
        if node.end is not None and node.end < node.start:
            self.fail("blocks-adjoin", f"{path} goes from {node.start} to {node.end}")
        before_it = (known.start, known.end) if known is not None else (0, None)
        if before_it[1] is not None and before_it != (node.start, node.end):
            self.fail("sealed-for-ever", f"{path} was sealed at {before_it[1]}, now {node.end}")
        if known is None and number > 0:
            before = paths.block(topic, partition, number - 1)
            old = self.watch.cluster.ensemble.tree.get(before)
            entry = plan.changes.get(before, old)
            if entry is None and old is not None:  # another block replaces the empty block
                previous = decode_node(BlockNode, old.data)
                if previous.start != node.start:
                    self.fail("blocks-adjoin", f"{path} replaces {before} of {previous.start}")
            elif entry is not None:
                previous = decode_node(BlockNode, entry.data)
                if previous.end != node.start:
                    self.fail(
                        "blocks-adjoin", f"{path} begins at {node.start}, after {previous.end}"
                    )
