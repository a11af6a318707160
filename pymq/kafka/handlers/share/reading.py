"""Reads the leased records of a partition, as whole batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.columns import Buffer
from pymq.core.batch.header import EXPIRES, ROUTED
from pymq.core.batch.kafka.batch import serve
from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch
from pymq.core.delay.record_times import TIMED, due_now
from pymq.core.message import Fetch, Fetched, Lease, Range
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.core.metadata.route import for_group
from pymq.core.values import Factory, define
from pymq.errors import PymqError
from pymq.kafka.codes import Code, code_of
from pymq.kafka.shared.conversation import GateContext, Steps, ask, ask_holders, holders
from pymq.kafka.shared.share_sessions import SessionMember
from pymq.kafka.wire.messages import (
    ShareFetchResponseAcquiredRecords,
    ShareFetchResponsePartitionData,
)

READS_MAX = 16  # of a partition in one request: leases may be far apart
DELIVERIES_MAX = (1 << 15) - 1  # the field has 16 bits
_FOR_SOME = TIMED | ROUTED
_CODES = frozenset(
    (
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_ID,
        Code.REPLICA_NOT_AVAILABLE,
        Code.KAFKA_STORAGE_ERROR,
        Code.CORRUPT_MESSAGE,
    )
)

Counted = tuple[int, int, int]  # start, end, number of deliveries


@define
class LeasedPart:
    """A partition of an answer: the leases, and the batches that were read for them."""

    part: ShareFetchResponsePartitionData
    topic: TopicMetadata
    partition: PartitionLeader
    member: SessionMember
    leases: list[Lease] = Factory(list)  # in the order of their offsets
    batches: list[EncodedBatch] = Factory(list)
    reached: int = 0  # leased records before this offset were read
    size: int = 0
    problem: PymqError | None = None
    holes: list[Range] = Factory(list)  # leased offsets without a record for the group
    broken: list[Range] = Factory(list)  # leased records that cannot be read

    @property
    def name(self) -> str:
        """The partition's name."""
        return self.partition.partition

    @property
    def next_offset(self) -> int | None:
        """The first leased offset that was not read."""
        for lease in self.leases:
            if lease.end > self.reached:
                return max(lease.start, self.reached)
        return None

    def take(self, batches: Sequence[EncodedBatch]) -> None:
        """Add batches that hold leased records, up to the first that holds none."""
        for batch in batches:
            at = self.next_offset
            if at is None or (batch.base_offset > at and not self._is_leased(batch)):
                break
            self.reached = batch.end_offset
            if self._is_leased(batch):
                self.batches.append(batch)
                self.size += batch.size

    def _is_leased(self, batch: EncodedBatch) -> bool:
        return any(
            lease.start < batch.end_offset and batch.base_offset < lease.end
            for lease in self.leases
        )

    def unread(self) -> list[Range]:
        """The leased ranges that were not read."""
        return [
            (max(lease.start, self.reached), lease.end)
            for lease in self.leases
            if lease.end > self.reached
        ]


def read(
    context: GateContext, topic: TopicMetadata, partition: str, offset: int, max_bytes: int
) -> Steps:
    """Return the batches from the one that holds *offset* on, or the error."""
    make = partial(
        Fetch,
        topic=topic.topic,
        partition=partition,
        offset=offset,
        max_bytes=max_bytes,
        max_wait_ms=0,
        topic_id=topic.topic_id,
    )
    found = yield from ask(context.me, make)
    if holders(found):
        found = yield from ask_holders(found, partial(make, any_replica=True))
    if not isinstance(found, Fetched) or found.error is not None:
        error: PymqError = found.error
        return error
    batches: list[EncodedBatch] = []
    try:
        batches.extend(batch for batch in split(found.data) if batch.end_offset > offset)
    except PymqError as problem:
        if not batches:
            return problem
    return batches


def read_leased(context: GateContext, part: LeasedPart, max_bytes: int) -> Steps:
    """Read the leased records of a partition, up to *max_bytes*, but at least one batch."""
    for _ in range(READS_MAX):
        at = part.next_offset
        if at is None or (part.batches and part.size >= max_bytes):
            return
        found = yield from read(context, part.topic, part.name, at, max(max_bytes - part.size, 1))
        if isinstance(found, PymqError):
            part.problem = found
            return
        before = part.reached
        part.take(found)
        if part.reached == before:
            return


def wanted(
    context: GateContext, view: RecordBatch, topic: TopicMetadata, group: str
) -> RecordBatch:
    """Return the records of a view that are for the group now: neither expired, nor for another.

    Raises:
        CorruptBatch: the headers cannot be decoded.
    """
    attributes = view.batch.header.attributes
    is_named = _is_named(topic, group)
    if not (attributes & _FOR_SOME or is_named):
        return view
    wall_ms = context.wall_ms() if attributes & EXPIRES else 0
    return for_group(due_now(view, wall_ms), group, is_named=is_named)


def _is_named(topic: TopicMetadata, group: str) -> bool:
    """Whether the topic's option ``route`` names the group."""
    return (topic.config.route or "").startswith(f"{group}:")


def fill(context: GateContext, leased: LeasedPart, group: str) -> None:
    """Put the batches and the leased ranges into the answer for a partition.

    Sets the holes: leased ranges without a record for the group, such as what compaction has
    removed, internal batches, expired records and those of other groups. If the first batch cannot
    be read, its leased records are broken, and the client gets the error.
    """
    part, parts = leased.part, list[Buffer]()
    acquired: list[Counted] = []
    for batch in leased.batches:
        try:
            found = list(_acquired(context, batch, leased, group))
            served: list[Buffer] = []
            if found:
                served = serve(batch, context.crc32c, found[0][0], found[-1][1])
        except PymqError as problem:
            leased.problem, leased.reached = problem, batch.base_offset
            if not acquired:
                leased.reached = batch.end_offset
                leased.broken = _parts(leased.leases, batch.base_offset, batch.end_offset)
            break
        parts += served
        acquired += found
    taken = sorted([*((start, end) for start, end, _ in acquired), *leased.broken])
    for start, end in _parts(leased.leases, 0, leased.reached):
        at = start
        for first, last in taken:
            if first >= end or last <= at:
                continue
            if first > at:
                leased.holes.append((at, first))
            at = last
        if at < end:
            leased.holes.append((at, end))
    part.records = parts
    part.acquired_records = [
        ShareFetchResponseAcquiredRecords(start, end - 1, min(count, DELIVERIES_MAX))
        for start, end, count in _joined(acquired)
    ]
    if leased.problem is not None and not acquired:
        part.error_code = int(partition_code(leased.problem))


def partition_code(error: PymqError | None) -> Code:
    """Return the code of a partition for an error; Java's client fails on any other code."""
    code = code_of(error)
    if code in (Code.OFFSET_OUT_OF_RANGE, Code.REQUEST_TIMED_OUT):
        return Code.NONE  # The next request finds the new start of the log, or the broker.
    return code if code in _CODES else Code.UNKNOWN_SERVER_ERROR


def _parts(leases: Sequence[Lease], start: int, end: int) -> list[Range]:
    """Return the leased parts of a range."""
    return [
        (max(lease.start, start), min(lease.end, end))
        for lease in leases
        if lease.start < end and start < lease.end
    ]


def _acquired(
    context: GateContext, batch: EncodedBatch, leased: LeasedPart, group: str
) -> Iterator[Counted]:
    """Return the ranges of a batch that the client gets, with their numbers of deliveries."""
    header = batch.header
    if header.is_hidden or not header.count:
        return
    is_for_all = not header.attributes & _FOR_SOME and not _is_named(leased.topic, group)
    for lease in leased.leases:
        low, high = max(lease.start, batch.base_offset), min(lease.end, batch.end_offset)
        if low >= high:
            continue
        if is_for_all:
            yield low, high, lease.delivery_count
            continue
        for offset in wanted(context, RecordBatch(batch, low, high), leased.topic, group).offsets:
            yield offset, offset + 1, lease.delivery_count


def _joined(found: Sequence[Counted]) -> list[Counted]:
    """Join adjoining ranges with the same number of deliveries."""
    joined: list[Counted] = []
    for start, end, count in found:
        if joined and joined[-1][1:] == (start, count):
            joined[-1] = joined[-1][0], end, count
        else:
            joined.append((start, end, count))
    return joined
