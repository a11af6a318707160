"""What producers and readers say to the broker that leads a partition."""

from __future__ import annotations

from typing import NamedTuple

from pymq.core.batch.record import EncodedBatch
from pymq.core.types import AckMode
from pymq.core.values import value
from pymq.errors import PymqError

BEGIN = -2  # instead of an offset: where the log starts now
END = -1  # instead of an offset: the high watermark


@value
class Produce:
    """Append one batch. ``acks`` NONE is not answered, unless another broker leads."""

    id: int
    topic: str
    partition: str
    acks: AckMode
    batch: EncodedBatch
    sync: bool = False  # durable when it is answered, whatever the topic's ``fsync``
    topic_id: str = ""  # which topic of that name is meant; "": whichever there is
    grant: bytes = b""  # of the producer's id, where the cluster has keys


@value
class Produced:
    """The batch is in the log at *base_offset*, as safely as was asked for."""

    id: int
    base_offset: int = -1
    epoch: int = 0
    duplicate: bool = False  # it was there already
    error: PymqError | None = None


@value
class GetSequence:
    """Ask how far a producer has got in a partition."""

    id: int
    topic: str
    partition: str
    producer_id: int
    topic_id: str = ""  # which topic of that name is meant; "": whichever there is


@value
class Sequence:
    """The sequence that the producer's next record must have; 0 when nothing is known of it."""

    id: int
    next_sequence: int = 0
    error: PymqError | None = None


@value
class Fetch:
    """Read a partition from an offset (or BEGIN, END) on; waits at the high watermark."""

    id: int
    topic: str
    partition: str
    offset: int
    max_bytes: int  # 0: only tell where the log starts and ends, once it ends beyond *offset*
    max_wait_ms: int
    end: int | None = None  # read nothing at or beyond it
    topic_id: str = ""  # which topic of that name is meant; "": whichever there is
    any_replica: bool = False  # a follower may answer with what it knows to be committed (KIP-392)
    verify: bool = False  # check bodies, too: what was sent for it before was damaged


@value
class Fetched:
    """Whole batches from the one that holds the asked offset on; what is before is skipped."""

    id: int
    topic: str
    partition: str
    offset: int  # the asked one, resolved
    log_start: int
    high_watermark: int
    data: bytes = b""  # batches, one after the other
    error: PymqError | None = None
    # Ranges whose records have no key, as far as the leader knows; only if no data was asked for.
    unkeyed: tuple[tuple[int, int], ...] = ()


@value
class FindOffset:
    """Ask for the first offset whose record is not older than a time."""

    id: int
    topic: str
    partition: str
    timestamp_ms: int
    topic_id: str = ""  # which topic of that name is meant; "": whichever there is
    any_replica: bool = False  # a follower may answer by what it knows to be committed


@value
class OffsetFound:
    """The offset; the high watermark when all records are older."""

    id: int
    offset: int = -1
    error: PymqError | None = None


class Piece(NamedTuple):
    """One batch of a topic, named by where it is."""

    partition: str
    offset: int  # of its first record
    records: int


@value
class Copy:
    """Append batches that another topic holds, in this order, as *producer_id* would have.

    Only a broker that leads the partition and every one that the batches are in can do it.
    """

    id: int
    topic: str
    partition: str
    acks: AckMode  # LEADER or RAFT
    producer_id: int
    producer_epoch: int
    base_sequence: int  # of the first record; those of all the others follow
    origin: str  # the topic that holds them
    pieces: tuple[Piece, ...]
    topic_id: str = ""  # which topic of that name is meant; "": whichever there is
    origin_id: str = ""
    grant: bytes = b""  # of the producer's id, where the cluster has keys


@value
class Copied:
    """All of it is in the log, as safely as was asked for; an *error*: some of it may be."""

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
    | Copy
    | Copied
)
