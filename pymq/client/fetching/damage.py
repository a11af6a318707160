"""Finds the cause of a damaged batch: the network, a disk, or its producer.

If the network damaged a batch, a second fetch returns a sound copy. A broker that gets a fetch with
*verify* reads the batch from its disk and returns the CRC of the bytes on the disk. Two disks do
not damage a batch in the same way: if two replicas hold the same wrong bytes, the producer sent
these bytes.
"""

from __future__ import annotations

from collections import Counter

from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch
from pymq.core.values import Factory, define
from pymq.errors import CorruptBatch, CorruptBlock, PymqError


@define
class DamageCheck:
    """The findings about one batch."""

    # whether the batch has arrived damaged, so that the next fetch sets *verify*
    is_met: bool = False
    found: dict[str, int] = Factory(dict)  # the CRC of the bytes on each broker's disk

    def heard(self, broker: str, error: PymqError) -> None:
        """Note that *broker* has refused to send the damaged batch."""
        crc = error.details.get("found_crc")
        if isinstance(error, CorruptBlock) and type(crc) is int:
            self.found[broker] = crc

    def judged(self, error: PymqError) -> PymqError:
        """Return the error for the application if no replica has a sound copy of the batch."""
        if not self.found:
            return error
        crc, copies = Counter(self.found.values()).most_common(1)[0]
        if copies < 2:
            return error
        brokers = sorted(broker for broker, found in self.found.items() if found == crc)
        return CorruptBatch(
            f"{', '.join(brokers)} have the same wrong bytes: the producer sent a damaged batch",
            **error.details,
        )


def sound(batch: EncodedBatch, start: int = 0) -> RecordBatch:
    """Return the view of a batch from *start* on.

    Raises:
        CorruptBatch: the batch's CRC does not match; ``details`` hold ``end``, the offset after the
            batch.
    """
    try:
        if not batch.header.is_control:  # Consumers never decode control batches.
            batch.verify()
        return RecordBatch(batch, start)
    except CorruptBatch as error:
        raise CorruptBatch(error.message, **{**error.details, "end": batch.end_offset}) from None
