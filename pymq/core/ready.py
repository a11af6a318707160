"""What a machine asks of the loop that drives it, as plain values.

A machine never does anything. It hands over a :class:`Ready`, and what the field is called says
when the work may be done: ``send`` may leave now; ``write`` must be durable, as far as each write
asks for it, before ``after`` leaves. The loop merges the work of all machines of one turn, so that
many producers share one write and one sync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymq.core.batch.header import Header
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.coordination import CoordRequest
from pymq.core.types import BlockId
from pymq.core.values import Factory, define, value

if TYPE_CHECKING:
    from pymq.core.message import Fetched, Message, RaftAppend, ReplicaFetched

Envelope = tuple[str, "Message"]  # (whom it is for, the message)


# --- writes: what a block store does ------------------------------------------------------------


@value
class CreateBlock:
    """Begin an empty block at offset *start*; nothing to do when it is there already."""

    block: BlockId
    start: int
    topic: str  # names, for people who look into the file
    partition: str


@value
class Append:
    """Write *batches*, already stamped, at the end of the block.

    Who appends stamps ``durable`` with what its *own* disk holds: all of the block before it was
    synced here when the batch was made. Recovery takes what lies before it and is bad for damage,
    and refuses it; what lies behind it and is bad for a write that was cut short, and cuts it off.
    So a follower stamps what its leader sends anew
    (:func:`pymq.core.batch.batch_sequence.restamp`): the leader's disk was ahead, and its word
    would turn a torn tail of the follower's into damage.
    """

    block: BlockId
    batches: list[EncodedBatch]
    sync: bool  # durable before ``after`` leaves


@value
class Sync:
    """Make durable what was appended without."""

    block: BlockId


@value
class Truncate:
    """Cut the block so that it ends at offset *end*, durably."""

    block: BlockId
    end: int


@value
class SealBlock:
    """The block takes no more appends: make it durable and keep its index beside it."""

    block: BlockId


@value
class RemoveBlock:
    """Delete the block; nothing to do when it is not there."""

    block: BlockId


@value
class Checkpoint:
    """Keep *snapshot*, the machine's state as of the block's end, to spare reading at recovery."""

    block: BlockId
    snapshot: bytes


@value
class SaveState:
    """Keep *state*, a few bytes that a replica must not forget (term, vote), durably.

    It takes the place of what was saved for the block before, and goes with the block. It is
    durable before anything else of the same turn is done, and stays even if that fails: a replica
    may find that it saved a later term than it ever told anybody. Of two in one turn the last
    counts. The block need not have been created.
    """

    block: BlockId
    state: bytes


Write = CreateBlock | Append | Sync | Truncate | SealBlock | RemoveBlock | Checkpoint | SaveState


@value
class WriteFailed:
    """A write of this turn failed; nothing of the turn's writes to *block* counts."""

    block: BlockId
    error: Exception
    fatal: bool  # after a failed sync nobody knows what is on disk: the replica must stop


# --- reads --------------------------------------------------------------------------------------


@value
class Recover:
    """Find out where a block ends; answered by :class:`Recovered` or :class:`RecoverFailed`."""

    block: BlockId
    start: int
    is_open: bool  # whether a torn tail may be cut


@value
class Recovered:
    """A block as it was found, after a torn tail was cut."""

    block: BlockId
    start: int
    end: int
    size: int  # bytes of all batches
    snapshot: bytes | None  # of the last checkpoint that still holds
    headers: list[Header]  # of the batches after it, or of all when there is none
    cut_bytes: int  # what was torn off the tail
    state: bytes | None = None  # what was saved last with SaveState


@value
class RecoverFailed:
    """The block is damaged or cannot be read; *error* says where and why."""

    block: BlockId
    error: Exception
    fatal: bool = False  # after a failed sync, as for a write, or for good: the replica must stop


@value
class Read:
    """Fill *answer* with batches of the block from *offset* on, then send it to *peer*."""

    peer: str
    answer: Fetched | ReplicaFetched | RaftAppend
    block: BlockId
    offset: int
    end: int  # read nothing at or beyond it
    max_bytes: int
    verify: bool = False  # check bodies, and return nothing of what is damaged


@value
class FindTime:
    """Find the first offset of *block*, before *end*, whose record is not older than a time."""

    block: BlockId
    end: int
    timestamp_ms: int
    token: int


@value
class TimeFound:
    """The answer to :class:`FindTime`; *offset* is None when all records are older."""

    token: int
    offset: int | None
    error: Exception | None = None


# --- long work ----------------------------------------------------------------------------------


@value
class Compact:
    """Rewrite sealed blocks so that of each key only the last record stays."""

    topic: str
    partition: str
    blocks: tuple[BlockId, ...]  # sealed, in order
    tombstones_before_ms: int  # deletions older than this are dropped themselves
    min_dirty: float = 0.0  # do nothing while less than this share of the bytes was never compacted


@value
class Compacted:
    """The answer to :class:`Compact`."""

    topic: str
    partition: str
    sizes: tuple[tuple[BlockId, int], ...]  # bytes of each block now; none if too little was new
    error: Exception | None = None


StoreEvent = Recovered | RecoverFailed | WriteFailed | TimeFound | Compacted


@define
class Ready:
    """What a machine wants done, in the order in which it must be done."""

    send: list[Envelope] = Factory(list)  # may leave now
    write: list[Write] = Factory(list)  # must be durable before ...
    after: list[Envelope] = Factory(list)  # ... these leave
    read: list[Read] = Factory(list)
    ask: list[Recover | FindTime] = Factory(list)  # answered by a StoreEvent
    meta: list[CoordRequest] = Factory(list)  # answered by a CoordEvent
    jobs: list[Compact] = Factory(list)  # take long; answered by a StoreEvent, some time

    def __bool__(self) -> bool:
        return bool(
            self.send or self.write or self.after or self.read or self.ask or self.meta or self.jobs
        )
