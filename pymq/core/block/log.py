"""The log of one block on this broker: appended, written and durable batches.

Leaders and followers use the same class. A leader stamps the batches of producers with offset and
epoch; a follower receives stamped batches. Batches count only after the store has written them: see
:meth:`BlockLog.advance`.
"""

from __future__ import annotations

from typing import Protocol

from pymq.core.batch.batch_sequence import restamp
from pymq.core.batch.header import CONTROL, PRIORITY_MASK, ControlKind
from pymq.core.batch.offset_ranges import RUNS_MAX, Ranges, has_keys
from pymq.core.batch.priority import PriorityRuns
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.block_snapshot import BlockSnapshot
from pymq.core.block.idempotence import UNKNOWN_TIME, ProducerTable
from pymq.core.block.leader_epochs import LeaderEpochs
from pymq.core.block.recent_batches import RecentBatches
from pymq.core.message import RaftAppend, ReplicaFetched
from pymq.core.observe.coverage import mark
from pymq.core.ready import (
    Append,
    Checkpoint,
    CreateBlock,
    Read,
    Ready,
    Recover,
    Recovered,
    SealBlock,
    Sync,
    Truncate,
    Write,
)
from pymq.core.types import BlockId
from pymq.errors import CorruptBatch, CorruptBlock

# A checkpoint is written after this many bytes or batches, to limit the work of a recovery.
# Recovery takes 25 us for each batch, so at most 0.4 s for the batches after a checkpoint.
CHECKPOINT_BYTES = 32 << 20
CHECKPOINT_BATCHES = 16_384


class LogHost(Protocol):
    """The broker, as far as a log needs it."""

    @property
    def out(self) -> Ready:
        """The broker's :class:`Ready` for this turn."""
        ...

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        ...


class BlockLog:
    """The batches of one block, with its producer table and epochs."""

    __slots__ = (
        "_batches",
        "_beginning",
        "_checkpointed",
        "_checkpointed_committed",
        "_create",
        "_durable_end",
        "_durable_soon",
        "_durable_then",
        "_host",
        "_is_shared",
        "_recent",
        "_write_end",
        "_write_size",
        "committed",
        "end",
        "epochs",
        "is_recovering",
        "is_writing",
        "max_timestamp",
        "name",
        "priorities",
        "producers",
        "seal_end",
        "size",
        "stable_end",
        "stable_size",
        "start",
        "unkeyed",
        "unwritten",
        "wall_ms",
    )

    def __init__(self, host: LogHost, name: BlockId, start: int, *, is_shared: bool) -> None:
        self.name = name
        self.start = self.end = self.stable_end = start
        # offset before which all is known to be committed; a restart keeps it
        self.committed = start
        self.size = self.stable_size = 0  # bytes of all batches; bytes of the written batches
        self.max_timestamp = -1  # latest timestamp of any record, including truncated records
        self.epochs = LeaderEpochs()
        self.seal_end: int | None = None  # the offset after the seal batch, if there is one
        self.producers = ProducerTable()
        self.is_recovering = False  # whether the store is looking for the block's end
        self.is_writing = False  # whether a write is in progress
        self.unkeyed = Ranges(RUNS_MAX)  # the last ranges of records without a key
        self.priorities = PriorityRuns()  # runs of records with a priority
        self._host = host
        self._is_shared = is_shared  # other brokers hold the block too
        self.unwritten: list[EncodedBatch] = []  # stamped batches for the next write
        self._write_end = start  # the log's end after the write in progress ...
        self._write_size = 0  # ... and the size of that write
        self._durable_end = start  # everything before this offset is synced to disk
        self._durable_then = start  # value of _durable_end after the write in progress
        self._durable_soon = start  # value of _durable_end after the requested syncs
        # the write that created the block on this broker, if any ...
        self._create: CreateBlock | None = None
        self._beginning: list[Write] = []  # ... and the writes that a failed creation must repeat
        self._batches = 0  # batches written since the last checkpoint
        self._checkpointed = 0  # size of the block at the last checkpoint
        self._checkpointed_committed = start  # high watermark at the last checkpoint
        self._recent = RecentBatches() if is_shared else None
        self.wall_ms = 0  # the wall clock, as :meth:`at` last set it

    # --- creation and recovery --------------------------------------------------------------------

    def create(self, topic: str, partition: str, producers: ProducerTable) -> None:
        """Create an empty block, with the producer table of the previous block."""
        self.producers = producers
        out = self._host.out
        self._create = CreateBlock(self.name, self.start, topic, partition)
        out.write.append(self._create)
        if self.name.number > 0:
            # Without a checkpoint, recovery would have to read the previous blocks. The first block
            # has no previous block, so thousands of new partitions are created without waiting for
            # the disk.
            out.write.append(Checkpoint(self.name, BlockSnapshot.encode(self)))

    def recover(self, *, is_open: bool = True) -> None:
        """Ask the store to recover the block; :meth:`restore` follows."""
        self.is_recovering = True
        self._host.out.ask.append(Recover(self.name, self.start, is_open))

    def restore(self, found: Recovered, before: ProducerTable | None) -> bool:
        """Apply the recovered state; *before* is the producer table of the previous block, if
        known.

        Returns False if neither a snapshot nor *before* has the producer table. The caller then
        retries with the table of the previous block.

        Raises:
            CorruptBlock: records that were durable in this process are missing.
            CorruptMetadata: the snapshot cannot be decoded.
        """
        if found.end < self._durable_end:
            mark("log.durable_is_gone")
            # The end looks like a torn write, but these records were already durable.
            raise CorruptBlock(
                f"{self.name} ends at {found.end} on the disk, and was durable up to "
                f"{self._durable_end}",
                offset=found.end,
            )
        if found.snapshot is not None:
            kept = BlockSnapshot.decode(found.snapshot, self.start)
            self.producers, self.epochs, self.unkeyed = kept.producers, kept.epochs, kept.unkeyed
            self.priorities = kept.priorities
            self.seal_end, self.max_timestamp = kept.seal_end, kept.max_timestamp
            self.committed = max(self.committed, kept.committed)
        elif before is not None:
            self.producers, self.epochs, self.seal_end = before, LeaderEpochs(), None
            self.unkeyed, self.priorities = Ranges(RUNS_MAX), PriorityRuns()
            self.max_timestamp = -1
        else:
            return False
        for header in found.headers:
            if not has_keys(header):
                self.unkeyed.put(header.base_offset, header.end_offset)
            if header.attributes & PRIORITY_MASK:
                self.priorities.put(header.base_offset, header.end_offset, header.priority)
            self.epochs.assign(header.leader_epoch, header.base_offset)
            if not header.is_control:
                self.producers.replay(header)
                self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
            elif header.control_kind == ControlKind.SEAL:
                self.seal_end = header.end_offset
        self.end = self.stable_end = found.end
        self._checkpointed_committed = self.committed = min(self.committed, found.end)
        self.unkeyed.cut(found.end)
        self.priorities.cut(found.end)
        self._durable_end = self._durable_then = self._durable_soon = found.end
        self.size = self.stable_size = found.size
        self._checkpointed = found.size if found.snapshot is not None and not found.headers else 0
        self._batches = len(found.headers)
        self.unwritten, self.is_writing = [], False
        # The recovered state replaces the snapshot that the creation of the block would write.
        self._beginning = []
        self._recent = RecentBatches() if self._is_shared else None
        self.is_recovering = False
        return True

    # --- appending ------------------------------------------------------------------------------

    def append(self, batch: EncodedBatch, epoch: int) -> EncodedBatch:
        """Append a batch of a producer, as leader of *epoch*; return it with its offsets."""
        stamped = batch.stamp(self.end, epoch, self._durable_end)
        self._add(stamped)
        return stamped

    def begin(self, epoch: int) -> None:
        """Append the control batch that opens *epoch*, as its leader."""
        kind = ControlKind.BEGIN
        self.append(EncodedBatch.control(b"", timestamp_ms=self.wall_ms, kind=kind), epoch)

    def skip(self, until: int, epoch: int) -> None:
        """Append a batch without records that covers the offsets before *until*."""
        self.append(EncodedBatch.gap(self.end, until - self.end, epoch), epoch)

    def seal(self, epoch: int) -> None:
        """Append the seal batch, after which no leader of this block appends records."""
        kind = ControlKind.SEAL
        self.append(EncodedBatch.control(b"", timestamp_ms=self.wall_ms, kind=kind), epoch)

    def extend(self, data: bytes) -> None:
        """Append batches of the leader, as its follower.

        Raises:
            CorruptBatch: the batches are damaged or not contiguous; nothing is appended.
        """
        batches = restamp(data, self._durable_end)
        if not batches:
            return
        first = batches[0].header
        epoch = self.epochs.at(self.end)
        if first.base_offset != self.end or first.leader_epoch < epoch:
            raise CorruptBatch(
                f"the batch at offset {first.base_offset} of epoch {first.leader_epoch} does not "
                f"follow on {self.end} of {epoch} in {self.name}"
            )
        for batch in batches:
            self._add(batch)

    def _add(self, batch: EncodedBatch) -> None:
        header = batch.header
        end = header.base_offset + header.span
        if not has_keys(header):
            self.unkeyed.put(header.base_offset, end)
        if header.attributes & PRIORITY_MASK:
            self.priorities.put(header.base_offset, end, header.priority)
        if not header.attributes & CONTROL:
            self.producers.propose(header)
            self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        elif header.control_kind == ControlKind.SEAL:
            self.seal_end = end
        if not self.epochs or self.epochs[-1][0] != header.leader_epoch:
            self.epochs.assign(header.leader_epoch, header.base_offset)
        self.unwritten.append(batch)
        self.end = end
        self.size += header.length
        if self._recent is not None:
            self._recent.append(batch)

    # --- for replicators (:class:`pymq.core.block.replicator.ReplicatedLog`) --------------------

    def epoch_at(self, end: int) -> int:
        """The epoch of the batch that holds offset ``end - 1``; 0 at the start of the block."""
        return self.epochs.at(end)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch in the log that is not above *epoch*, and the offset where it ends."""
        return self.epochs.end_of(epoch, self.start, self.end)

    def recent(self, offset: int, max_bytes: int) -> bytes | None:
        """Return whole batches from *offset* on, at least one; None if they are not cached."""
        if offset == self.end:
            return b""
        return self._recent.read(offset, max_bytes) if self._recent is not None else None

    def release(self) -> None:
        """Drop the cached batches that are on the disk."""
        if self._recent is None or self.unwritten or self.is_writing:
            return
        if self._recent.clear():
            mark("log.released")

    def read(
        self, peer: str, answer: ReplicaFetched | RaftAppend, offset: int, max_bytes: int
    ) -> None:
        """Ask the store to read stable batches from *offset* on into *answer* and to send it."""
        self._host.out.read.append(
            Read(peer, answer, self.name, offset, self.stable_end, max_bytes)
        )

    # --- cutting --------------------------------------------------------------------------------

    def truncate(self, end: int) -> None:
        """Truncate the log to *end*. If this removes written batches, the log is recovered again.

        Appended batches that are not written yet may also be removed.
        """
        if end >= self.end:
            return
        is_stable = end < self.stable_end
        self.fail()
        if is_stable:
            mark("log.cut.stable")
            self._cut(end)
            self._durable_end = min(self._durable_end, end)
            self._host.out.write.append(Truncate(self.name, end))
            self.recover()  # Only the log itself contains the producer table as of that offset.

    def _cut(self, end: int) -> None:
        self.end = end
        self.unkeyed.cut(end)
        self.priorities.cut(end)
        self.stable_end = min(self.stable_end, end)
        # From now on batches come from another leader, which sends its own high watermark.
        self.committed = min(self.committed, end)
        self.epochs.cut(end)
        if self.seal_end is not None and self.seal_end > end:
            mark("log.seal_cut")
            self.seal_end = None
        if self._recent is not None:
            self._recent.cut(end)

    # --- the disk -------------------------------------------------------------------------------

    def flush(self, ready: Ready, *, sync: bool) -> None:
        """Add the unwritten batches to *ready*; :meth:`advance` or :meth:`fail` follows."""
        self.is_writing, self._write_end, self._write_size = True, self.end, self.size
        self._durable_then = self._durable_soon
        if self._beginning:
            ready.write += self._beginning
            self._beginning = []
        if self.unwritten:
            if sync:
                self._durable_then = self.end
            ready.write.append(Append(self.name, self.unwritten, sync))
            self._batches += len(self.unwritten)
            self.unwritten = []
            self.producers.write(self.wall_ms or UNKNOWN_TIME)

    def seal_block(self, ready: Ready, *, keep_open: bool = False) -> None:
        """Add a seal of the block file, with its index, to the write from :meth:`flush`."""
        ready.write.append(Sync(self.name) if keep_open else SealBlock(self.name))
        self._durable_then = self.end

    def sync(self) -> None:
        """Request a sync of the batches that were written without a sync."""
        self._host.out.write.append(Sync(self.name))
        self._durable_soon = self.stable_end

    def advance(self) -> bool:
        """Handle the end of a write; returns whether there was one."""
        if not self.is_writing:
            return False
        self.stable_end, self.stable_size = self._write_end, self._write_size
        self.is_writing = False
        if self._recent is not None:
            self._recent.joined = None  # Followers that are up to date have these batches already.
        self.producers.settle()
        self._durable_end = max(self._durable_end, self._durable_then)
        is_much = self.stable_size - self._checkpointed >= CHECKPOINT_BYTES
        if is_much or self._batches >= CHECKPOINT_BATCHES:
            self.checkpoint()
        return True

    def fail(self) -> None:
        """Drop the batches that are not on the disk, because the write has failed."""
        self.is_writing = False
        self._durable_soon = self._durable_end  # The syncs may have failed, too.
        self.unwritten = []
        self.producers.discard()
        self.size = self.stable_size
        self._cut(self.stable_end)
        if self._create is not None and self.stable_size == 0:
            # The store may not have created the block. If the block exists, creating it again is
            # harmless.
            mark("log.begins_again")
            self._beginning = [self._create]
            if self.name.number > 0:
                self._beginning.append(Checkpoint(self.name, BlockSnapshot.encode(self)))

    def checkpoint(self) -> None:
        """Write a checkpoint, unless it is up to date."""
        if self.is_recovering or self.unwritten or self.is_writing:
            return
        is_kept = self.committed == self._checkpointed_committed
        if self.stable_size != self._checkpointed or not is_kept:
            mark("log.checkpoint")
            self._checkpointed, self._checkpointed_committed = self.stable_size, self.committed
            self._batches = 0
            self._host.out.write.append(Checkpoint(self.name, BlockSnapshot.encode(self)))
            self._durable_soon = self.stable_end

    def past(self, expire_ms: int) -> bytes:
        """Return the producer table for the next block, without producers that have expired."""
        self.producers.expire(self.wall_ms, expire_ms)
        return self.producers.hand_on(self.wall_ms)

    def at(self, wall_ms: int) -> None:
        """Set the wall clock, for the producer table and for control batches."""
        if wall_ms != self.wall_ms:
            self.wall_ms = wall_ms
            self.producers.tell(wall_ms)
