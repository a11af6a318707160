"""Idempotence: the producer table of a partition, by which duplicate batches are recognised.

A producer numbers its records in each partition, from 0 on. Its next batch must begin with the
number after the last record. A batch that begins earlier is a duplicate; the answer names the
offset of the first copy. If a batch begins later, an earlier batch was lost on the way. A higher
producer epoch fences lower ones and continues their numbers. So a restarted producer asks for the
next number, and thereby learns how many of its records were written.

Producers of Kafka's protocol, whose batches have body format 2, follow Kafka's rules. Their numbers
begin at 0 with each epoch and after 2^31 - 1, and a producer that is unknown here may begin with
any number.

The table is part of the log's state: replaying headers rebuilds it, and checkpoints hold a
snapshot.

When a block is sealed and the next one begins (a roll), the table is copied to the next block. The
roll leaves out unnamed producers that were silent for too long (Kafka's
``producer.id.expiration.ms``). If the table is still too large, the roll also leaves out the
producers that were silent longest. The replica that seals the block decides this by its own clock,
and all replicas of the next block begin with the same table. Wall clocks may be set, and the clocks
of two brokers differ. So the table measures silence by adding up the times between readings of the
clock, each of which counts as a minute at most.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from pymq.core import cbor
from pymq.core.batch.header import DELAYED, EPOCH_HALF, KAFKA_FORMAT, NO_PRODUCER, Header
from pymq.core.observe.coverage import mark
from pymq.errors import (
    CorruptMetadata,
    DuplicateSequence,
    OutOfOrderSequence,
    ProducerFenced,
    PymqError,
)

NAMED = 1 << 62  # this bit marks the id of a named producer
DELAYS = (1 << 63) - 1  # the producer id in the leader's notes about delayed records
KAFKA_SEQUENCES = 1 << 31  # count of a Kafka producer's numbers; 0 follows the last one
REMEMBERED = 5  # batches remembered for each producer, and the most it may have in flight
UNKNOWN_TIME = -1
# longest silence counted between two readings of the clock, since the clock may have been set
STEP_MS = 60 * 1000
UNDER_WAY_MS = 10 * 60 * 1000  # after so long a silence a producer has no request in flight
PAST_BYTES = 512 << 10  # largest table in a metadata node: a commit in ZooKeeper has at most 1 MiB
PLAIN_BYTES = 4 << 10  # a smaller table is not compressed
UNPACKED_BYTES = 16 << 20
ZLIB_LEVEL = 1
ZLIB_MAGIC = b"\x78"  # no CBOR array begins with it
UNKNOWN_CRC = -1  # CRC of a batch in a snapshot of an older version
# producers of a partition; if there are more, the producer that was silent longest is dropped
PRODUCERS_MAX = 10_000


class ProducerState(NamedTuple):
    """The state of one producer in one partition.

    A named tuple, because each batch creates a new state and named tuples are cheap to create.
    """

    epoch: int
    next_sequence: int
    # the last batches: (epoch, sequence, count, offset, CRC); CRC -1: unknown
    batches: tuple[tuple[int, int, int, int, int], ...]


def hashed_id(name: str) -> int:
    """Return the producer id of a name as older versions computed it, by a hash."""
    from hashlib import blake2b  # imported here: it loads OpenSSL, and few producers have names

    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def _batch(
    epoch: int, sequence: int, count: int, offset: int, crc: int = UNKNOWN_CRC
) -> tuple[int, int, int, int, int]:
    return int(epoch), int(sequence), int(count), int(offset), int(crc)


def _is_named(producer_id: int, producer: ProducerState) -> bool:
    """Whether id or epoch show that a producer has a name; a hashed id alone does not."""
    return bool(producer_id & NAMED) or bool(producer.epoch >> EPOCH_HALF)


def _keeping(each: tuple[int, ProducerState]) -> tuple[bool, bool]:
    """Sort key of producers: the last ones are kept longest."""
    return each[0] == DELAYS, _is_named(*each)


def _repeat(header: Header, known: ProducerState) -> int | PymqError | None:
    """Return the offset of the batch if the table remembers the batch, else None.

    The result is an error if the table remembers a different batch with the same epoch and
    sequence. A batch of another epoch is not a duplicate: the producer gave up the earlier batch.
    """
    wanted = (header.producer_epoch, header.base_sequence, header.count)
    for epoch, sequence, count, offset, crc in known.batches:
        if (epoch, sequence, count) == wanted:
            if crc not in (header.batch_crc, UNKNOWN_CRC):
                mark("producers.other_batch")
                return DuplicateSequence(
                    f"sequence {sequence} of producer {header.producer_id} belongs to another "
                    "batch: another producer uses the same id"
                )
            mark("producers.repeat")
            return offset
    return None


def _check_kafka(header: Header, known: ProducerState | None) -> int | PymqError | None:
    """Check a batch of a Kafka producer, as Kafka's ``ProducerAppendInfo`` does."""
    if known is None:
        return None
    epoch, sequence = header.producer_epoch, header.base_sequence
    if epoch > known.epoch:
        if sequence == 0:
            return None
        mark("producers.kafka.epoch_not_at_0")
        return OutOfOrderSequence(
            f"epoch {epoch} must begin at sequence 0, not at {sequence}", expected=0
        )
    if epoch < known.epoch:
        mark("producers.kafka.fenced")
        return ProducerFenced(f"producer epoch {epoch} was replaced by {known.epoch}")
    if sequence == known.next_sequence:
        return None
    if (repeat := _repeat(header, known)) is not None:
        return repeat
    behind = (known.next_sequence - sequence) % KAFKA_SEQUENCES
    if behind < KAFKA_SEQUENCES >> 1:
        mark("producers.kafka.old_repeat")
        return DuplicateSequence(
            f"sequence {sequence} was written before the last {REMEMBERED} batches"
        )
    mark("producers.kafka.gap")
    return OutOfOrderSequence(
        f"sequence {sequence} came, {known.next_sequence} was expected",
        expected=known.next_sequence,
    )


def _plainly(snapshot: bytes) -> bytes:
    """Uncompress a snapshot.

    Raises:
        ValueError: the snapshot is too large or damaged.
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
    """The producers of a partition, by id, in the order of their last writes."""

    __slots__ = ("_producers", "_proposed", "_seen", "_time", "_told", "_writing")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerState] = {}  # producers as in the durable log
        # the wall clock of each producer's last write, as far as known
        self._seen: dict[int, int] = {}
        self._time = UNKNOWN_TIME  # wall clock of the write in progress
        self._told = UNKNOWN_TIME  # the last reading of the wall clock
        # the producers' state after the write in progress ...
        self._writing: dict[int, ProducerState] = {}
        self._proposed: dict[int, ProducerState] = {}  # ... and after the next one

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: Header) -> int | PymqError | None:
        """Check a batch: None to append it, the offset of a duplicate, or the error to answer."""
        if header.producer_id == NO_PRODUCER:
            return None
        # The checks below call no functions, because they run for each batch.
        producer_id = header.producer_id
        known = (
            self._proposed.get(producer_id)
            or self._writing.get(producer_id)
            or self._producers.get(producer_id)
        )
        if header.body_format == KAFKA_FORMAT:
            return _check_kafka(header, known)
        if known is None:
            if header.base_sequence == 0:
                return None
            mark("producers.unknown")
            return OutOfOrderSequence(
                f"producer {header.producer_id} is unknown in this partition, "
                f"but its batch begins at sequence {header.base_sequence}",
                expected=0,
            )
        producer_epoch = header.epoch_high << EPOCH_HALF | header.epoch_low
        if header.base_sequence == known.next_sequence and producer_epoch >= known.epoch:
            return None
        if (repeat := _repeat(header, known)) is not None:
            return repeat
        if producer_epoch < known.epoch:
            mark("producers.fenced")
            return ProducerFenced(f"producer epoch {producer_epoch} was replaced by {known.epoch}")
        if producer_epoch > known.epoch:
            mark("producers.later_epoch")
            return OutOfOrderSequence(
                f"epoch {producer_epoch} must continue at sequence {known.next_sequence}, "
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
        """Add a batch of the next write to the proposed state."""
        if header.attributes & DELAYED and self._latest(DELAYS) is None:
            # The leader must know the offset of the first delayed record.
            self._proposed[DELAYS] = ProducerState(0, 0, (_batch(0, 0, 0, header.base_offset),))
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER:
            return
        known = (
            self._proposed.get(producer_id)
            or self._writing.get(producer_id)
            or self._producers.get(producer_id)
        )
        epoch = header.epoch_high << EPOCH_HALF | header.epoch_low
        sequence, count = header.base_sequence, header.count
        batch = (epoch, sequence, count, header.base_offset, header.batch_crc)
        batches = (*known.batches[-REMEMBERED + 1 :], batch) if known is not None else (batch,)
        following = sequence + count
        if header.body_format == KAFKA_FORMAT:
            following %= KAFKA_SEQUENCES
        self._proposed[producer_id] = ProducerState(epoch, following, batches)

    def write(self, now_ms: int = UNKNOWN_TIME) -> None:
        """Note that the proposed batches are being written; *now_ms* is the wall clock."""
        if now_ms not in (UNKNOWN_TIME, self._told):
            self.tell(now_ms)
        self._time = now_ms
        self._writing, self._proposed = self._proposed, self._writing

    def settle(self) -> None:
        """Note that the write is done."""
        producers, seen, time = self._producers, self._seen, self._time
        for producer_id, producer in self._writing.items():
            seen[producer_id] = time
            producers.pop(producer_id, None)  # so that the producer moves to the end
            producers[producer_id] = producer
        self._writing.clear()
        while len(producers) > PRODUCERS_MAX:
            first = next(iter(producers))
            if first == DELAYS:
                producers[first] = producers.pop(first)
                continue
            del producers[first], seen[first]

    def discard(self) -> None:
        """Drop the batches that were proposed or being written, because the write has failed."""
        self._writing.clear()
        self._proposed.clear()

    def replay(self, header: Header) -> None:
        """Add a batch that recovery has found in the log."""
        has_producer = header.producer_id != NO_PRODUCER or header.attributes & DELAYED
        if header.is_control or not has_producer:
            return
        self.propose(header)
        self.write()
        self.settle()

    def next_sequence(self, producer_id: int) -> int:
        """Return the sequence that the producer's next record must have."""
        producer = self._latest(producer_id)
        return producer.next_sequence if producer else 0

    def end(self, producer_id: int) -> int:
        """Return the offset after the producer's last record; -1 if the producer is unknown."""
        producer = self._latest(producer_id)
        if producer is None or not producer.batches:
            return -1
        _, _, count, offset, _ = producer.batches[-1]
        return offset + count

    def last_note(self) -> tuple[int, int] | None:
        """The offset and the number of records of the last note about delayed records.

        A note with a count of 0 is not a real note: its offset is that of the first batch with a
        delayed record. None if the partition has no note.
        """
        state = self._latest(DELAYS)
        if state is None or not state.batches:
            return None
        _, _, count, offset, _ = state.batches[-1]
        return offset, count

    def tell(self, now_ms: int) -> None:
        """Advance the wall clock to *now_ms*.

        If the clock was set, or *now_ms* comes from another broker's clock, all stored times move
        by the same amount, so that a jump of the clock does not make producers look inactive. A
        pause between two readings counts as a minute at most.
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
        """Drop unnamed producers that were silent for longer than *silent_ms*.

        If a producer's last write has an unknown or later time, its silence begins now.
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
        """Pack the durable table."""
        return cbor.dumps(self._plain(self._producers))

    def _plain(self, producers: dict[int, ProducerState]) -> list[list[object]]:
        seen = self._seen
        return [
            [id, p.epoch, p.next_sequence, [list(batch) for batch in p.batches], seen[id]]
            for id, p in producers.items()
        ]

    def hand_on(self, now_ms: int, bytes_max: int = PAST_BYTES) -> bytes:
        """Pack the durable table for the next block, in at most *bytes_max*.

        If the table is too large, producers without a request in flight keep only their last batch.
        If that is not enough, the producers that were silent longest are left out, unnamed ones
        first.
        """
        snapshot = self.snapshot()
        if len(snapshot) <= min(PLAIN_BYTES, bytes_max):
            return snapshot
        packed = zlib.compress(snapshot, ZLIB_LEVEL)
        if len(packed) <= bytes_max:
            return packed
        mark("producers.shortened")
        # The sort is stable, and the table is in the order of the last writes.
        ordered = dict(sorted(self._producers.items(), key=_keeping))
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
            CorruptMetadata: the bytes are not a snapshot.
        """
        table = cls()
        try:
            for producer_id, epoch, next_sequence, batches, *seen in cbor.loads(_plainly(snapshot)):
                (seen_ms,) = seen or (UNKNOWN_TIME,)  # Tables of older versions have no such field.
                last = tuple(_batch(*batch) for batch in batches)
                table._producers[int(producer_id)] = ProducerState(
                    int(epoch), int(next_sequence), last[-REMEMBERED:]
                )
                table._seen[int(producer_id)] = int(seen_ms)
            table._told = max(table._seen.values(), default=UNKNOWN_TIME)
        except (PymqError, TypeError, ValueError, OverflowError) as error:
            raise CorruptMetadata(f"not a snapshot of producers: {error}") from None
        return table
