"""Finds the fault behind a damaged batch: the network, a disk, or its producer.

What was damaged on its way is sound when it is asked for again. A broker that is asked to verify
reads what lies on its disk, and says which CRC that has. Disks that damage a batch do so each in
its own way: where two of them hold the same wrong bytes, the batch was wrong when it came.
"""

from __future__ import annotations

from collections import Counter

from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch
from pymq.core.values import Factory, define
from pymq.errors import CorruptBatch, CorruptBlock, PymqError


@define
class DamageCheck:
    """What was heard of one batch."""

    is_met: bool = False  # it came damaged, so brokers are to verify what they send
    found: dict[str, int] = Factory(dict)  # by broker, the CRC of what lies there

    def heard(self, broker: str, error: PymqError) -> None:
        """A broker has refused to send it."""
        crc = error.details.get("found_crc")
        if isinstance(error, CorruptBlock) and type(crc) is int:
            self.found[broker] = crc

    def judged(self, error: PymqError) -> PymqError:
        """The error for the application, now that no replica has it sound."""
        if not self.found:
            return error
        crc, copies = Counter(self.found.values()).most_common(1)[0]
        if copies < 2:
            return error
        brokers = sorted(broker for broker, found in self.found.items() if found == crc)
        return CorruptBatch(
            f"the same wrong bytes lie on {', '.join(brokers)}: the batch was damaged when it came",
            **error.details,
        )


def sound(batch: EncodedBatch, start: int = 0) -> RecordBatch:
    """What of a batch is at *start* and behind it.

    Raises:
        CorruptBatch: its CRC does not hold; ``details`` hold ``end``, the offset behind it.
    """
    try:
        if not batch.is_control:  # Nobody looks at the bodies of those.
            batch.verify()
        return RecordBatch(batch, start)
    except CorruptBatch as error:
        raise CorruptBatch(error.message, **{**error.details, "end": batch.end_offset}) from None
