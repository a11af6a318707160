"""Idempotence: what a partition remembers of its producers, so that a repeat is written once.

A producer numbers its records in each partition, from 0 on. Its next batch must begin where the
last one ended; one that begins earlier is a repeat and is answered with the offset it already has;
one that begins later means that a batch was lost on the way. A higher producer epoch fences the
lower one and goes on counting where it stopped (Kafka begins again at 0; here the count is also how
a restarted producer learns how far it got).

The table is part of the log's state: it can be rebuilt by replaying headers, and a snapshot of it
travels with checkpoints.
"""

from __future__ import annotations

from typing import NamedTuple

from pymq.core import codec
from pymq.core.header import NO_PRODUCER, Header
from pymq.core.marks import mark
from pymq.errors import (
    CorruptMetadata,
    DuplicateSequence,
    OutOfOrderSequence,
    ProducerFenced,
    PymqError,
)

NAMED = 1 << 62  # this bit of an id says that it belongs to a name, and not to one producer
REMEMBERED = 5  # batches a producer, as many as it may have in flight
UNKNOWN_CRC = -1  # of a batch that a snapshot of before tells of
PRODUCERS_MAX = 10_000  # a partition; beyond it the one that was silent longest is forgotten


class Producer(NamedTuple):
    """One producer's state in one partition; a named tuple, since each batch makes a new one."""

    epoch: int
    next_sequence: int
    # The last ones: (epoch, sequence, count, offset, CRC); -1 for a CRC that was not kept.
    batches: tuple[tuple[int, int, int, int, int], ...]


def hashed_id(name: str) -> int:
    """The id of a name that was opened before ids were given out."""
    from hashlib import blake2b  # only now: OpenSSL comes with it, and few producers have names

    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def _batch(
    epoch: int, sequence: int, count: int, offset: int, crc: int = UNKNOWN_CRC
) -> tuple[int, int, int, int, int]:
    return int(epoch), int(sequence), int(count), int(offset), int(crc)


class ProducerTable:
    """All producers of a partition, by id, the one that wrote last at the end."""

    __slots__ = ("_producers", "_proposed", "_writing")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}  # as the log has it, durably
        self._writing: dict[int, Producer] = {}  # as it will be after the write under way ...
        self._proposed: dict[int, Producer] = {}  # ... and after the one that follows it

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: Header) -> int | PymqError | None:
        """Judge a batch: None to write it, the offset of a repeat, or the error to answer."""
        if header.producer_id == NO_PRODUCER:
            return None
        known = self._latest(header.producer_id)
        if known is None:
            if header.base_sequence == 0:
                return None
            mark("producers.unknown")
            return OutOfOrderSequence(
                f"nothing is known of producer {header.producer_id}, "
                f"but its batch begins at {header.base_sequence}",
                expected=0,
            )
        producer_epoch = header.producer_epoch
        if header.base_sequence == known.next_sequence and producer_epoch >= known.epoch:
            return None
        # Under another epoch the same number is another batch: the producer gave up the first.
        wanted = (producer_epoch, header.base_sequence, header.count)
        for epoch, sequence, count, offset, crc in known.batches:
            if (epoch, sequence, count) == wanted:
                if crc not in (header.batch_crc, UNKNOWN_CRC):
                    mark("producers.other_batch")
                    return DuplicateSequence(
                        f"sequence {sequence} of producer {header.producer_id} is that of another "
                        "batch: somebody else writes under its numbers"
                    )
                mark("producers.repeat")
                return offset
        if producer_epoch < known.epoch:
            mark("producers.fenced")
            return ProducerFenced(f"producer epoch {producer_epoch} was replaced by {known.epoch}")
        if producer_epoch > known.epoch:
            mark("producers.later_epoch")
            return OutOfOrderSequence(
                f"epoch {producer_epoch} must go on at sequence {known.next_sequence}, "
                f"not at {header.base_sequence}",
                expected=known.next_sequence,
            )
        if header.base_sequence < known.next_sequence:
            mark("producers.old_repeat")
            return DuplicateSequence(
                f"sequence {header.base_sequence} was written before the last {REMEMBERED} batches"
            )
        mark("producers.gap")
        return OutOfOrderSequence(
            f"sequence {header.base_sequence} came, {known.next_sequence} was expected",
            expected=known.next_sequence,
        )

    def _latest(self, producer_id: int) -> Producer | None:
        return (
            self._proposed.get(producer_id)
            or self._writing.get(producer_id)
            or self._producers.get(producer_id)
        )

    def propose(self, header: Header) -> None:
        """Count a batch that is to be written."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER:
            return
        known = self._latest(producer_id)
        epoch, sequence, count = header.producer_epoch, header.base_sequence, header.count
        batch = (epoch, sequence, count, header.base_offset, header.batch_crc)
        batches = (*known.batches[-REMEMBERED + 1 :], batch) if known is not None else (batch,)
        self._proposed[producer_id] = Producer(epoch, sequence + count, batches)

    def write(self) -> None:
        """What was proposed is being written."""
        self._writing, self._proposed = self._proposed, self._writing

    def settle(self) -> None:
        """What was being written is durable."""
        producers = self._producers
        for producer_id, producer in self._writing.items():
            producers.pop(producer_id, None)  # so that it moves to the end
            producers[producer_id] = producer
        self._writing.clear()
        while len(producers) > PRODUCERS_MAX:
            del producers[next(iter(producers))]

    def discard(self) -> None:
        """Nothing of what was proposed or being written is in the log."""
        self._writing.clear()
        self._proposed.clear()

    def replay(self, header: Header) -> None:
        """Count a batch that is in the log, at recovery."""
        if header.producer_id == NO_PRODUCER or header.is_control:
            return
        self.propose(header)
        self.write()
        self.settle()

    def next_sequence(self, producer_id: int) -> int:
        """The sequence that the producer's next record must have."""
        producer = self._latest(producer_id)
        return producer.next_sequence if producer else 0

    def end(self, producer_id: int) -> int:
        """The offset after what the producer wrote last; -1 when nothing is known of it."""
        producer = self._latest(producer_id)
        if producer is None or not producer.batches:
            return -1
        _, _, count, offset, _ = producer.batches[-1]
        return offset + count

    def snapshot(self) -> bytes:
        """Pack what is durable."""
        return codec.dumps(
            [
                [producer_id, p.epoch, p.next_sequence, [list(batch) for batch in p.batches]]
                for producer_id, p in self._producers.items()
            ]
        )

    @classmethod
    def restore(cls, snapshot: bytes) -> ProducerTable:
        """Unpack a snapshot.

        Raises:
            CorruptMetadata: it is not one.
        """
        table = cls()
        try:
            for producer_id, epoch, next_sequence, batches in codec.loads(snapshot):
                last = tuple(_batch(*batch) for batch in batches)
                table._producers[int(producer_id)] = Producer(
                    int(epoch), int(next_sequence), last[-REMEMBERED:]
                )
        except (PymqError, TypeError, ValueError, OverflowError) as error:
            raise CorruptMetadata(f"not a snapshot of producers: {error}") from None
        return table
