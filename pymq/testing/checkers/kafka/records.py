"""Rules about the records that Kafka's clients read, and about the start of logs."""

from __future__ import annotations

from collections.abc import Mapping

from pymq.coord import paths
from pymq.coord.tree import CommitPlan
from pymq.core.batch.kafka.batch import KafkaHeader
from pymq.core.batch.kafka.records import KafkaRecords
from pymq.core.metadata.coordination import Commit
from pymq.core.metadata.nodes import PartitionNode, decode_node
from pymq.core.values import define
from pymq.testing.checkers.base import Checker, StoreWatch

Stored = tuple[str, str, int]  # topic, partition, offset


@define
class ReadPosition:
    """Where a client reads, and what the broker has told it of the partition."""

    topic: str
    partition: str
    offset: int
    high_watermark: int = -1
    is_compacted: bool = False


class KafkaRecordRules(Checker):
    """A consumer gets what pymq's readers get, and nothing else.

    The batches that it gets lie side by side, are stamped as in the log, and end before the high
    watermark; a record stays at its offset. The start of a log never moves back.
    """

    rules = (
        "no-gap-in-reads",
        "reads-are-committed",
        "no-dirty-read",
        "stamped-as-in-the-log",
        "immutable-offset",
        "log-start-rises",
        "doors-agree",
    )

    def __init__(self, watch: StoreWatch) -> None:
        super().__init__(watch)
        self.seen: dict[Stored, int] = {}  # the number in each record that was read
        self.deleted: dict[tuple[str, str], int] = {}  # log starts that were acknowledged

    def read(self, who: str, at: ReadPosition, header: KafkaHeader) -> None:
        """Check a batch that a client gets for the next offset *at*."""
        base, end = header.base_offset, header.base_offset + header.last + 1
        place = f"{at.topic}/{at.partition} at {base}"
        history = self.watch.history_of(at.topic, at.partition)
        has_lost = history is None or history.losses > 0
        if end <= at.offset or (base > at.offset and not at.is_compacted):
            self.fail("no-gap-in-reads", f"{who} gets {place}, and has asked for {at.offset}")
        if end > at.high_watermark:
            self.fail("reads-are-committed", f"{who} gets {place}, beyond {at.high_watermark}")
        if history is None or has_lost:
            return
        known = history.batch_at(base)
        if known is None:
            self.fail("no-dirty-read", f"{who} gets {place}, which is not visible")
        elif not at.is_compacted:
            stamp = (known.base_offset, known.end_offset, known.leader_epoch)
            found = (base, end, header.leader_epoch)
            if stamp != found:
                self.fail("stamped-as-in-the-log", f"{who} gets {place}: {found}, not {stamp}")

    def record(self, who: str, place: Stored, number: int) -> None:
        """Note a record that a client has got."""
        history = self.watch.history_of(*place[:2])
        known = self.seen.setdefault(place, number)
        if known != number and history is not None and not history.losses:
            self.fail("immutable-offset", f"{who} gets {number} in {place}, not {known}")
        self.seen[place] = number

    def compare(
        self,
        values: Mapping[Stored, int],
        starts: Mapping[tuple[str, str], int],
        last: Mapping[Stored, int],
        spans: Mapping[tuple[str, str], tuple[int, int]],
    ) -> None:
        """Compare what was read through both doors.

        Args:
            values: the numbers that pymq's reader has read.
            starts: the first offset that it could read in each partition.
            last: the numbers that the last consumer of Kafka's protocol has read.
            spans: the offsets that this consumer has passed, by partition.
        """
        for place, number in {**self.seen, **last}.items():
            if (
                place[:2] not in spans
                or not self._is_kept(place)
                or place[2] < starts.get(place[:2], 1 << 62)
            ):
                continue
            if values.get(place) != number:
                what = f"Kafka's clients read {number} in {place}, and others {values.get(place)}"
                self.fail("doors-agree", what)
        for place, number in values.items():
            start, end = spans.get(place[:2], (0, 0))
            if start <= place[2] < end and self._is_kept(place) and place not in last:
                what = f"{number} in {place} is missing for Kafka's clients"
                self.fail("doors-agree", what)

    def _is_kept(self, place: Stored) -> bool:
        history = self.watch.history_of(*place[:2])
        return history is not None and not history.losses

    def on_commit(self, session: str, commit: Commit, plan: CommitPlan) -> None:
        """The start of a log never moves back."""
        tree = self.watch.cluster.ensemble.tree
        for path, entry in plan.changes.items():
            match paths.parse(path):
                case paths.PartitionPath():
                    before = tree.get(path)
                    if entry is None or before is None:
                        continue
                    old = decode_node(PartitionNode, before.data).log_start
                    new = decode_node(PartitionNode, entry.data).log_start
                    if new < old:
                        self.fail("log-start-rises", f"{path}: {new} after {old}")
                case _:
                    pass


def decoded(records: KafkaRecords, base: int) -> list[tuple[int, bytes]]:
    """Return offsets and values of the records of a batch."""
    return [(base + at, value) for at, value in zip(records.offsets, records.values, strict=True)]
