"""Messages between producers or readers and the broker that leads a partition."""

from __future__ import annotations

from typing import NamedTuple

from pymq.core.batch.record import EncodedBatch
from pymq.core.types import AckMode
from pymq.core.values import value
from pymq.errors import PymqError

BEGIN = -2  # instead of an offset: the current log start
END = -1  # instead of an offset: the high watermark


@value
class Produce:
    """Append one batch. With ``acks`` NONE there is no answer unless another broker leads."""

    id: int
    topic: str
    partition: str
    acks: AckMode
    batch: EncodedBatch
    sync: bool = False  # sync the batch before the answer, regardless of the topic's ``fsync``
    topic_id: str = ""  # id of the topic; "": any topic of that name
    grant: bytes = b""  # grant of the producer's id, if the cluster has keys


@value
class Produced:
    """The batch is in the log at *base_offset*, as durable as the request's ``acks`` require."""

    id: int
    base_offset: int = -1
    epoch: int = 0
    duplicate: bool = False  # the log already had the batch
    error: PymqError | None = None


@value
class GetSequence:
    """Get the next sequence of a producer in a partition."""

    id: int
    topic: str
    partition: str
    producer_id: int
    topic_id: str = ""  # id of the topic; "": any topic of that name


@value
class Sequence:
    """The sequence that the producer's next record must have; 0 for an unknown producer."""

    id: int
    next_sequence: int = 0
    error: PymqError | None = None


@value
class Fetch:
    """Fetch a partition from an offset (or BEGIN, END); waits at the high watermark."""

    id: int
    topic: str
    partition: str
    offset: int
    # 0: return no records; answer with the log's start and end when the end is beyond *offset*
    max_bytes: int
    max_wait_ms: int
    end: int | None = None  # return no record at or beyond this offset
    topic_id: str = ""  # id of the topic; "": any topic of that name
    # a follower may answer with records that it knows to be committed (KIP-392)
    any_replica: bool = False
    verify: bool = False  # also check bodies, because the last answer was damaged


@value
class Fetched:
    """Whole batches, beginning with the one that holds the offset.

    The client skips earlier records.
    """

    id: int
    topic: str
    partition: str
    offset: int  # offset of the request, with BEGIN and END resolved
    log_start: int
    high_watermark: int
    data: bytes = b""  # consecutive batches
    error: PymqError | None = None
    # Ranges whose records are known to have no key; sent only if *max_bytes* is 0.
    unkeyed: tuple[tuple[int, int], ...] = ()
    # Ranges with a priority above 0, from the requested offset on; sent only if *max_bytes* is 0.
    priorities: tuple[tuple[int, int, int], ...] = ()


@value
class FindOffset:
    """Find the first offset whose record is at or after a timestamp."""

    id: int
    topic: str
    partition: str
    timestamp_ms: int
    topic_id: str = ""  # id of the topic; "": any topic of that name
    any_replica: bool = False  # a follower may answer from records that it knows to be committed


@value
class OffsetFound:
    """The offset, or the high watermark if all records are older."""

    id: int
    offset: int = -1
    error: PymqError | None = None


@value
class FindEpoch:
    """Find where the records of a leader epoch end, as a client does after a leader change."""

    id: int
    topic: str
    partition: str
    epoch: int
    topic_id: str = ""  # id of the topic; "": any topic of that name


@value
class EpochFound:
    """The largest epoch up to the requested one that has records, and the offset where it ends.

    If all records have later epochs, the answer holds the requested epoch and the log start.
    """

    id: int
    epoch: int = -1
    end: int = -1
    error: PymqError | None = None


@value
class CancelDelayed:
    """Cancel a delayed record, given by its original offset; the leader answers."""

    id: int
    topic: str
    partition: str
    offset: int
    topic_id: str = ""  # id of the topic; "": any topic of that name


@value
class Cancelled:
    """The record will not be delivered; if *is_cancelled* is false, the record was already due."""

    id: int
    is_cancelled: bool = False
    error: PymqError | None = None


class Piece(NamedTuple):
    """One batch of a topic, identified by its place."""

    partition: str
    offset: int  # offset of the piece's first record
    records: int


@value
class Copy:
    """Append batches of another topic in this order, with *producer_id* as their producer.

    The broker must lead the partition and all partitions of the batches.
    """

    id: int
    topic: str
    partition: str
    acks: AckMode  # LEADER or RAFT
    producer_id: int
    producer_epoch: int
    base_sequence: int  # sequence of the first record
    origin: str  # the topic of the batches
    pieces: tuple[Piece, ...]
    topic_id: str = ""  # id of the topic; "": any topic of that name
    origin_id: str = ""
    grant: bytes = b""  # grant of the producer's id, if the cluster has keys


@value
class Copied:
    """All batches are in the log, as durable as ``acks`` require.

    If *error* is set, some of the batches may be in the log.
    """

    id: int
    records: int = 0
    size: int = 0  # bytes of the copied batches
    error: PymqError | None = None


RecordMessage = (
    Produce
    | Produced
    | GetSequence
    | Sequence
    | Fetch
    | Fetched
    | FindOffset
    | OffsetFound
    | FindEpoch
    | EpochFound
    | CancelDelayed
    | Cancelled
    | Copy
    | Copied
)
