"""The work that a machine hands to the loop, as plain values.

A machine (a class that only decides, such as a broker) does no I/O. It returns a :class:`Ready`,
whose fields tell the loop the order of the work: messages in ``send`` may leave now; writes in
``write`` must be done, and durable if they request a sync, before messages in ``after`` leave. In
each turn the loop merges the work of all machines, so that many producers share one write and one
sync.
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

Envelope = tuple[str, "Message"]  # (destination, message)


# --- writes of a block store --------------------------------------------------------------------


@value
class CreateBlock:
    """Create an empty block at offset *start*; does nothing if the block exists."""

    block: BlockId
    start: int
    topic: str  # names, for people who inspect the file
    partition: str


@value
class Append:
    """Write *batches*, already stamped, at the end of the block.

    Each broker stamps ``durable`` with the state of its *own* disk: the offset before which the
    whole block was synced when the batch was stamped. Recovery treats bad bytes before ``durable``
    as damage, and raises an error. Bad bytes at or after ``durable`` are a torn write, and recovery
    truncates them. A follower therefore replaces the leader's stamp with its own
    (:func:`pymq.core.batch.batch_sequence.restamp`). The leader's disk may be further ahead; with
    the leader's value, a torn write of the follower would count as damage.
    """

    block: BlockId
    batches: list[EncodedBatch]
    sync: bool  # whether the write must be durable before ``after`` leaves


@value
class Sync:
    """Sync earlier appends that did not request a sync."""

    block: BlockId


@value
class Truncate:
    """Truncate the block to end at offset *end*, durably."""

    block: BlockId
    end: int


@value
class SealBlock:
    """Seal the block: sync the block and store its index beside it. No append follows."""

    block: BlockId


@value
class RemoveBlock:
    """Delete the block; does nothing if the block does not exist."""

    block: BlockId


@value
class Checkpoint:
    """Store *snapshot*, the machine's state at the block's end, so that recovery reads less."""

    block: BlockId
    snapshot: bytes


@value
class SaveState:
    """Store *state*, a few bytes that a replica must not lose (term, vote), durably.

    The state replaces the block's earlier state and is removed with the block. The store makes the
    state durable before any other write of the same turn, and keeps it even if those writes fail.
    So after a crash a replica may find a later term than it ever sent. If there are two states in
    one turn, the last one counts. The block need not exist yet.
    """

    block: BlockId
    state: bytes


Write = CreateBlock | Append | Sync | Truncate | SealBlock | RemoveBlock | Checkpoint | SaveState


@value
class WriteFailed:
    """A write of this turn failed; none of the turn's writes to *block* was done."""

    block: BlockId
    error: Exception
    fatal: bool  # after a failed sync the disk's content is unknown, so the replica must stop


# --- reads --------------------------------------------------------------------------------------


@value
class Recover:
    """Find the end of a block; the answer is :class:`Recovered` or :class:`RecoverFailed`."""

    block: BlockId
    start: int
    is_open: bool  # whether a torn tail may be truncated


@value
class Recovered:
    """A block as the store found it, after truncating a torn write at its end."""

    block: BlockId
    start: int
    end: int
    size: int  # bytes of all batches
    snapshot: bytes | None  # snapshot of the last valid checkpoint
    # headers of the batches after the snapshot, or of all batches if there is no snapshot
    headers: list[Header]
    cut_bytes: int  # bytes truncated from the tail
    state: bytes | None = None  # data of the last SaveState


@value
class RecoverFailed:
    """The block is damaged or cannot be read; *error* has the place and the reason."""

    block: BlockId
    error: Exception
    # the failure is permanent, as after a failed sync, so the replica must stop
    fatal: bool = False


@value
class Read:
    """Fill *answer* with batches of the block, starting at *offset*, and send it to *peer*."""

    peer: str
    answer: Fetched | ReplicaFetched | RaftAppend
    block: BlockId
    offset: int
    end: int  # read no record at or beyond this offset
    max_bytes: int
    verify: bool = False  # check the bodies, and return no damaged batch


@value
class FindTime:
    """Find the first offset of *block*, before *end*, whose record is at or after a timestamp."""

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
    """Rewrite sealed blocks so that only the last record of each key remains."""

    topic: str
    partition: str
    blocks: tuple[BlockId, ...]  # sealed blocks, in order
    tombstones_before_ms: int  # tombstones older than this are removed
    min_dirty: float = 0.0  # do nothing if the uncompacted share of the bytes is smaller


@value
class Compacted:
    """The answer to :class:`Compact`."""

    topic: str
    partition: str
    # new sizes in bytes; empty if the uncompacted share was too small
    sizes: tuple[tuple[BlockId, int], ...]
    error: Exception | None = None


StoreEvent = Recovered | RecoverFailed | WriteFailed | TimeFound | Compacted


@define
class Ready:
    """The work of a machine, in the order in which it must be done."""

    send: list[Envelope] = Factory(list)  # messages that may leave now
    write: list[Write] = Factory(list)  # writes that must be done before ...
    after: list[Envelope] = Factory(list)  # ... these messages leave
    read: list[Read] = Factory(list)
    ask: list[Recover | FindTime] = Factory(list)  # reads, each answered by a StoreEvent
    # requests to the coordinator backend, each answered by a CoordEvent
    meta: list[CoordRequest] = Factory(list)
    jobs: list[Compact] = Factory(list)  # long work, each answered by a StoreEvent later

    def __bool__(self) -> bool:
        return bool(
            self.send or self.write or self.after or self.read or self.ask or self.meta or self.jobs
        )
