"""The state of a block in a checkpoint: ``Checkpoint`` in docs/format.md.

Recovery restores the snapshot and reads only the headers of later batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pymq.core import cbor
from pymq.core.batch.offset_ranges import RUNS_MAX, Ranges
from pymq.core.batch.priority import PriorityRuns
from pymq.core.block.idempotence import ProducerTable
from pymq.core.block.leader_epochs import LeaderEpochs
from pymq.core.values import define
from pymq.errors import CorruptMetadata, InvalidRequest

if TYPE_CHECKING:
    from pymq.core.block.log import BlockLog


@define
class BlockSnapshot:
    """The state that a log derives from its batches, up to some offset."""

    max_timestamp: int
    producers: ProducerTable
    epochs: LeaderEpochs
    seal_end: int | None
    committed: int  # offset before which all was known to be committed
    unkeyed: Ranges
    priorities: PriorityRuns

    @staticmethod
    def encode(log: BlockLog) -> bytes:
        """Encode the state of the batches of *log* that are written."""
        end = log.stable_end
        return cbor.dumps(
            [
                log.max_timestamp,
                log.producers.snapshot(),
                [list(epoch) for epoch in log.epochs if epoch[1] < end],
                log.seal_end,
                min(log.committed, end),
                [list(span) for span in log.unkeyed.below(end)],
                *([log.priorities.between(0, end)] if log.priorities else ()),
            ]
        )

    @classmethod
    def decode(cls, snapshot: bytes, start: int) -> Self:
        """Decode the snapshot of a block that begins at *start*.

        Snapshots of older versions lack the last items.

        Raises:
            CorruptMetadata: the snapshot cannot be decoded.
        """
        try:
            max_timestamp, producers, *rest = cbor.loads(snapshot)
            max_timestamp = int(max_timestamp)
            epochs, seal_end, *known = rest or ([], None)
            committed = int(known[0]) if known else start
            entries = LeaderEpochs((int(epoch), int(start)) for epoch, start in epochs)
            spans = known[1] if len(known) > 1 else ()
            unkeyed = Ranges(RUNS_MAX, ((int(start), int(end)) for start, end in spans))
            priorities = PriorityRuns(known[2] if len(known) > 2 else ())
        except (InvalidRequest, TypeError, ValueError, OverflowError) as error:
            raise CorruptMetadata(f"not a snapshot of a partition: {error}") from None
        table = ProducerTable.restore(producers)
        return cls(max_timestamp, table, entries, seal_end, committed, unkeyed, priorities)
