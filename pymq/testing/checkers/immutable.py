"""Rules about visible records: they never change."""

from __future__ import annotations

from pymq.coord import paths
from pymq.coord.tree import CommitPlan
from pymq.core.batch.header import COMPACTED, DELAYED_COPY, KAFKA_FORMAT, Header
from pymq.core.metadata.coordination import Commit
from pymq.core.metadata.nodes import BlockNode, TopicNode, decode_node
from pymq.core.types import OFFSETS_TOPIC, BlockId
from pymq.testing.checkers.base import CheckedHistory, Checker, StoreWatch
from pymq.testing.checkers.ledger import ReplicaLog
from pymq.testing.simulation import probe
from pymq.testing.simulation.nodes import BrokerHost


class Immutable(Checker):
    """A visible record never moves. A producer has sent it, and the log has it once and in order.

    This checker runs after :class:`OneLeader`, which forgets records that may be lost.
    """

    rules = (
        "immutable-offset",
        "written-once",
        "send-order",
        "no-invention",
        "no-truncation",
        "seal-keeps-what-is-visible",
    )

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        # number of records of each batch that clients have sent, by CRC
        self.sent: dict[int, int] = {}

    def on_look(self, host: BrokerHost, found: probe.Look, last: probe.Look | None) -> None:
        if last is not None and (last.block, last.high_watermark) == (
            found.block,
            found.high_watermark,
        ):
            return
        log = self.watch.ledger.log(host.name, found.block)
        if log is None:
            return  # the block never got a batch
        self._show(host.name, log, found.block, found.start, found.high_watermark)

    def _show(self, who: str, log: ReplicaLog, block: BlockId, start: int, high: int) -> None:
        """Note that the records of *log* before *high* are visible now."""
        history = self.watch.history(block)
        seen = history.blocks.get(block.number)
        if seen is None:
            seen = history.blocks[block.number] = ReplicaLog("", block, start)
        common = min(seen.end, high)
        if log.chain_at(common) != seen.chain_at(common):
            self.fail(
                "immutable-offset",
                f"{who} shows another log of {block} up to {common} than was seen",
            )
        if high > seen.end:
            first = log.batch_at(seen.end)
            for index in range(first, len(log.headers)):
                header = log.headers[index]
                if header.end_offset > high:
                    break
                seen.add(header, log.chains[index])
                self._check_batch(block, history, header)

    def on_commit(self, session: str, commit: Commit, plan: CommitPlan) -> None:
        """Check a seal: the records of a sealed block are visible."""
        tree = self.watch.cluster.ensemble.tree
        for path, entry in plan.changes.items():
            match paths.parse(path):
                case paths.BlockPath(topic=topic, partition=partition, block=number):
                    before = tree.get(path)
                    node = decode_node(BlockNode, entry.data) if entry is not None else None
                    if node is not None and before is not None and node.end is not None:
                        self._sealed(topic, partition, number, node, before.data)
                case _:
                    pass

    def _sealed(
        self, topic: str, partition: str, number: int, node: BlockNode, before: bytes
    ) -> None:
        key = self.watch.indexes.get((topic, partition))
        if key is None or decode_node(BlockNode, before).end is not None or node.end is None:
            return
        block, end = BlockId(*key, number), node.end
        history = self.watch.history(block)
        seen = history.blocks.get(number)
        entry = self.watch.cluster.ensemble.tree.get(paths.topic(topic))
        config = decode_node(TopicNode, entry.data).config if entry is not None else None
        if seen is not None and seen.end > end:
            is_strict = config is None or config.sync_policy(node.acks) == "always"
            keepers = self.watch.keepers(block, decode_node(BlockNode, before), seen)
            is_told = node.is_unclean or (self.watch.ledger.has_lost(block) and not keepers)
            if is_strict or not is_told:
                self.fail(
                    "seal-keeps-what-is-visible",
                    f"{block} is sealed at {end}, and was visible up to {seen.end}"
                    + (f": {keepers} have all of that" if keepers else ""),
                )
            # No acknowledgement has promised that these records survive a power failure.
            seen.cut(end)
            history.losses += 1
            history.sequences.clear()
        for broker in node.in_sync:
            log = self.watch.ledger.log(broker, block)
            if log is not None and log.chain_at(end) is not None:
                self._show(broker, log, block, node.start, end)
                return

    def _check_batch(self, block: BlockId, history: CheckedHistory, header: Header) -> None:
        names = self.watch.names[block.topic_id, block.partition]
        if header.is_control or header.attributes & COMPACTED or names[0] == OFFSETS_TOPIC:
            return
        place = f"{names[0]}/{names[1]} at {header.base_offset}"
        if header.attributes & DELAYED_COPY:
            return  # control batches: the leader itself writes them
        if header.batch_crc not in self.sent:
            self.fail("no-invention", f"no client has sent the record in {place}")
        if header.producer_id < 0:
            return
        producer, sequence = header.producer_id, header.base_sequence
        known = history.sequences.get(producer)
        # A later epoch of a producer continues the sequences of the previous one; with Kafka's
        # producers it begins at 0.
        is_on = known is None or (sequence == known[1] and header.producer_epoch >= known[0])
        if known is not None and header.body_format == KAFKA_FORMAT:
            is_later = header.producer_epoch > known[0]
            is_on = sequence == (0 if is_later else known[1]) and header.producer_epoch >= known[0]
        if known is not None and not is_on and not self._is_new(block, header, known):
            is_repeat = sequence < known[1] and header.producer_epoch >= known[0]
            self.fail(
                "written-once" if is_repeat else "send-order",
                f"producer {producer} at epoch {header.producer_epoch} has sequence {sequence} "
                f"in {place}, after {known[1]} of epoch {known[0]}",
            )
        following = sequence + header.count
        history.sequences[producer] = (header.producer_epoch, following, block.number)

    def _is_new(self, block: BlockId, header: Header, known: tuple[int, int, int]) -> bool:
        """Whether a producer may start again, because its state and all of its records were
        lost.
        """
        if header.base_sequence or header.producer_epoch <= known[0] or block.number <= known[2]:
            return False
        return self.watch.node(block._replace(number=known[2])) is None

    def on_truncate(self, log: ReplicaLog, end: int) -> None:
        history = self.watch.histories.get((log.block.topic_id, log.block.partition))
        seen = history.blocks.get(log.block.number) if history is not None else None
        if seen is None:
            return
        for at, chain in zip(reversed(log.ends), reversed(log.chains), strict=True):
            if at <= end:
                break
            if seen.chain_at(at) == chain:
                self.fail(
                    "no-truncation",
                    f"{log.node} cuts {log.block} at {end}, and holds what is visible up to {at}",
                )
