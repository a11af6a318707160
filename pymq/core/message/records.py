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
    """Append one batch. With ``acks`` NONE there is no answer, unless another broker leads."""

    id: int
    topic: str
    partition: str
    acks: AckMode
    batch: EncodedBatch
    sync: bool = False  # synced before the answer, whatever the topic's ``fsync``
    topic_id: str = ""  # of the topic that is meant; "": any topic of that name
    grant: bytes = b""  # of the producer's id, if the cluster has keys


@value
class Produced:
    """The batch is in the log at *base_offset*, as durable as the request's ``acks`` require."""

    id: int
    base_offset: int = -1
    epoch: int = 0
    duplicate: bool = False  # the log had the batch before
    error: PymqError | None = None


@value
class GetSequence:
    """Get the next sequence of a producer in a partition."""

    id: int
    topic: str
    partition: str
    producer_id: int
    topic_id: str = ""  # of the topic that is meant; "": any topic of that name


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
    max_bytes: int  # 0: only return the log's start and end, once it ends beyond *offset*
    max_wait_ms: int
    end: int | None = None  # read nothing at or beyond it
    topic_id: str = ""  # of the topic that is meant; "": any topic of that name
    any_replica: bool = False  # a follower may answer with records it knows as committed (KIP-392)
    verify: bool = False  # check bodies too: the last answer was damaged


@value
class Fetched:
    """Whole batches from the one that holds the offset; the client skips earlier records."""

    id: int
    topic: str
    partition: str
    offset: int  # of the request, with BEGIN and END resolved
    log_start: int
    high_watermark: int
    data: bytes = b""  # consecutive batches
    error: PymqError | None = None
    # Ranges whose records have no key, as far as the leader knows; only with *max_bytes* 0.
    unkeyed: tuple[tuple[int, int], ...] = ()
    # Likewise the ranges from the requested offset on whose records have a priority above 0.
    priorities: tuple[tuple[int, int, int], ...] = ()


@value
class FindOffset:
    """Find the first offset whose record is at or after a timestamp."""

    id: int
    topic: str
    partition: str
    timestamp_ms: int
    topic_id: str = ""  # of the topic that is meant; "": any topic of that name
    any_replica: bool = False  # a follower may answer from records it knows as committed


@value
class OffsetFound:
    """The offset, or the high watermark if all records are older."""

    id: int
    offset: int = -1
    error: PymqError | None = None


@value
class CancelDelayed:
    """Cancel a delayed record, by the offset at which it was sent; the leader does it."""

    id: int
    topic: str
    partition: str
    offset: int
    topic_id: str = ""  # of the topic that is meant; "": any topic of that name


@value
class Cancelled:
    """The record will not be delivered; or it is due already, and *is_cancelled* is false."""

    id: int
    is_cancelled: bool = False
    error: PymqError | None = None


class Piece(NamedTuple):
    """One batch of a topic, by its place."""

    partition: str
    offset: int  # of its first record
    records: int


@value
class Copy:
    """Append batches of another topic, in this order, in the name of *producer_id*.

    The broker must lead the partition and all partitions of the batches.
    """

    id: int
    topic: str
    partition: str
    acks: AckMode  # LEADER or RAFT
    producer_id: int
    producer_epoch: int
    base_sequence: int  # of the first record; the others follow
    origin: str  # the topic of the batches
    pieces: tuple[Piece, ...]
    topic_id: str = ""  # of the topic that is meant; "": any topic of that name
    origin_id: str = ""
    grant: bytes = b""  # of the producer's id, if the cluster has keys


@value
class Copied:
    """All batches are in the log, as durable as ``acks`` require. After an *error* some may be."""

    id: int
    records: int = 0
    size: int = 0  # bytes of their batches
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
    | CancelDelayed
    | Cancelled
    | Copy
    | Copied
)
