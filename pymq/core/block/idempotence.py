"""Idempotence: what a partition remembers of its producers, so that a repeat is written once.

A producer numbers its records in each partition, from 0 on. Its next batch must begin where the
last one ended; one that begins earlier is a repeat and is answered with the offset it already has;
one that begins later means that a batch was lost on the way. A higher producer epoch fences the
lower one and goes on counting where it stopped (Kafka begins again at 0; here the count is also how
a restarted producer learns how far it got).

The table is part of the log's state: it can be rebuilt by replaying headers, and a snapshot of it
travels with checkpoints.

It ends with a block, and the next one begins with what is handed on: producers that were silent for
too long are left out, unless they have a name (Kafka's ``producer.id.expiration.ms``), and so are
those that were silent longest, of what would be too large to go with a roll. Whoever seals the
block decides that, by its own clock, and all replicas of the next one begin with the same table.
A wall clock may be set, and brokers' clocks differ. So silence is what passes between looks at the
clock, no step of which counts for more than a minute.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from pymq.core import cbor
from pymq.core.batch.header import EPOCH_HALF, NO_PRODUCER, Header
from pymq.core.observe.coverage import mark
from pymq.errors import (
    CorruptMetadata,
    DuplicateSequence,
    OutOfOrderSequence,
    ProducerFenced,
    PymqError,
)

NAMED = 1 << 62  # this bit of an id says that it belongs to a name, and not to one producer
REMEMBERED = 5  # batches a producer, as many as it may have in flight
UNKNOWN_TIME = -1
STEP_MS = 60 * 1000  # of silence at most, between two looks at a clock that may have been set
UNDER_WAY_MS = 10 * 60 * 1000  # silence after which a producer waits for no answer any more
PAST_BYTES = 512 << 10  # of a table, in a node of the tree: a commit of ZooKeeper may have 1 MiB
PLAIN_BYTES = 4 << 10  # a smaller table is not compressed
UNPACKED_BYTES = 16 << 20
ZLIB_LEVEL = 1
ZLIB_MAGIC = b"\x78"  # no array begins with it in CBOR
UNKNOWN_CRC = -1  # of a batch that a snapshot of before tells of
PRODUCERS_MAX = 10_000  # a partition; beyond it the one that was silent longest is forgotten


class ProducerState(NamedTuple):
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


def _is_named(producer_id: int, producer: ProducerState) -> bool:
    """Whether a producer has a name; of one whose id is a hash of it only a later epoch tells."""
    return bool(producer_id & NAMED) or bool(producer.epoch >> EPOCH_HALF)


def _plainly(snapshot: bytes) -> bytes:
    """A snapshot as it was before it was compressed.

    Raises:
        ValueError: it is too large, or damaged.
    """
    if snapshot[:1] != ZLIB_MAGIC:
        return snapshot
    unpacking = zlib.decompressobj()
    try:
        plain = unpacking.decompress(snapshot, UNPACKED_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpacking.eof:
        raise ValueError("it is cut short, or unpacks to too much")
    return plain


class ProducerTable:
    """All producers of a partition, by id, the one that wrote last at the end."""

    __slots__ = ("_producers", "_proposed", "_seen", "_time", "_told", "_writing")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerState] = {}  # as the log has it, durably
        self._seen: dict[int, int] = {}  # wall clock, when each wrote last, as far as is known here
        self._time = UNKNOWN_TIME  # of the write under way
        self._told = UNKNOWN_TIME  # what the wall clock said last
        self._writing: dict[int, ProducerState] = {}  # as it will be after the write under way ...
        self._proposed: dict[int, ProducerState] = {}  # ... and after the one that follows it

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

    def _latest(self, producer_id: int) -> ProducerState | None:
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
        self._proposed[producer_id] = ProducerState(epoch, sequence + count, batches)

    def write(self, now_ms: int = UNKNOWN_TIME) -> None:
        """What was proposed is being written; *now_ms* is the wall clock."""
        if now_ms != UNKNOWN_TIME:
            self.tell(now_ms)
        self._time = now_ms
        self._writing, self._proposed = self._proposed, self._writing

    def settle(self) -> None:
        """What was being written is durable."""
        producers, seen, time = self._producers, self._seen, self._time
        for producer_id, producer in self._writing.items():
            seen[producer_id] = time
            producers.pop(producer_id, None)  # so that it moves to the end
            producers[producer_id] = producer
        self._writing.clear()
        while len(producers) > PRODUCERS_MAX:
            first = next(iter(producers))
            del producers[first], seen[first]

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

    def tell(self, now_ms: int) -> None:
        """The wall clock says *now_ms*.

        If it was set, or is that of another broker, all times move with it: nobody was silent for
        as long as the clock has jumped. A pause without a look at it counts as a minute.
        """
        before, self._told = self._told, now_ms
        step = now_ms - before
        if before == UNKNOWN_TIME or 0 <= step <= STEP_MS:
            return
        mark("producers.clock_set")
        shift = step - min(max(step, 0), STEP_MS)
        for producer_id, seen_ms in self._seen.items():
            if seen_ms != UNKNOWN_TIME:
                self._seen[producer_id] = max(seen_ms + shift, 0)

    def expire(self, now_ms: int, silent_ms: int) -> None:
        """Forget those without a name that have written nothing for longer than *silent_ms*.

        Of one that was seen at an unknown time, or at a later one, the time begins now.
        """
        self.tell(now_ms)
        producers, seen = self._producers, self._seen
        for producer_id, seen_ms in list(seen.items()):
            if not 0 <= seen_ms <= now_ms:
                seen[producer_id] = now_ms
            elif now_ms - seen_ms > silent_ms and not _is_named(
                producer_id, producers[producer_id]
            ):
                mark("producers.expired")
                del producers[producer_id], seen[producer_id]

    def snapshot(self) -> bytes:
        """Pack what is durable."""
        return cbor.dumps(self._plain(self._producers))

    def _plain(self, producers: dict[int, ProducerState]) -> list[list[object]]:
        seen = self._seen
        return [
            [id, p.epoch, p.next_sequence, [list(batch) for batch in p.batches], seen[id]]
            for id, p in producers.items()
        ]

    def hand_on(self, now_ms: int, bytes_max: int = PAST_BYTES) -> bytes:
        """Pack what is durable for the next block, in no more than *bytes_max*.

        What does not fit is left out: of those that have nothing under way any more, all batches
        but the last; then those that were silent longest, the ones without a name before others.
        """
        snapshot = self.snapshot()
        if len(snapshot) <= min(PLAIN_BYTES, bytes_max):
            return snapshot
        packed = zlib.compress(snapshot, ZLIB_LEVEL)
        if len(packed) <= bytes_max:
            return packed
        mark("producers.shortened")
        # The sort is stable, and the table's order is that of who wrote last.
        ordered = dict(sorted(self._producers.items(), key=lambda each: _is_named(*each)))
        for producer_id, p in ordered.items():
            if now_ms - self._seen[producer_id] > UNDER_WAY_MS:
                ordered[producer_id] = p._replace(batches=p.batches[-1:])
        plain = self._plain(ordered)
        packed = zlib.compress(cbor.dumps(plain), ZLIB_LEVEL)
        while len(packed) > bytes_max:
            mark("producers.left_out")
            left = len(plain) * bytes_max * 9 // (len(packed) * 10)
            plain = plain[len(plain) - left :]
            packed = zlib.compress(cbor.dumps(plain), ZLIB_LEVEL)
        return packed

    @classmethod
    def restore(cls, snapshot: bytes) -> ProducerTable:
        """Unpack a snapshot.

        Raises:
            CorruptMetadata: it is not one.
        """
        table = cls()
        try:
            for producer_id, epoch, next_sequence, batches, *seen in cbor.loads(_plainly(snapshot)):
                (seen_ms,) = seen or (UNKNOWN_TIME,)  # A table of before tells none.
                last = tuple(_batch(*batch) for batch in batches)
                table._producers[int(producer_id)] = ProducerState(
                    int(epoch), int(next_sequence), last[-REMEMBERED:]
                )
                table._seen[int(producer_id)] = int(seen_ms)
            table._told = max(table._seen.values(), default=UNKNOWN_TIME)
        except (PymqError, TypeError, ValueError, OverflowError) as error:
            raise CorruptMetadata(f"not a snapshot of producers: {error}") from None
        return table
