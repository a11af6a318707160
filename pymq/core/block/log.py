"""The log of one block on this broker: appended, written and durable batches.

Leaders and followers use the same log. A leader stamps the batches of producers with offset and
epoch; a follower's batches come stamped. Batches count only when :meth:`BlockLog.advance` says that
the store has written them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import Protocol

from pymq.core import cbor
from pymq.core.batch.batch_sequence import restamp
from pymq.core.batch.header import ControlKind, Header
from pymq.core.batch.offset_ranges import RUNS_MAX, Ranges, has_keys
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import UNKNOWN_TIME, ProducerTable
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
from pymq.errors import CorruptBatch, CorruptBlock, CorruptMetadata, InvalidRequest

# A checkpoint follows so many bytes or batches, which bounds what a recovery reads. Batches cost
# the time: 25 us each, 0.4 s for these.
CHECKPOINT_BYTES = 32 << 20
CHECKPOINT_BATCHES = 16_384
RECENT_BYTES = 4 << 20  # cached for followers that are nearly up to date

Epochs = tuple[tuple[int, int], ...]  # (epoch, where it begins), in order


class LogHost(Protocol):
    """The broker, as far as a log needs it."""

    @property
    def out(self) -> Ready:
        """The broker's :class:`Ready` of this turn."""
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
        "_in_flight",
        "_is_shared",
        "_joined",
        "_recent",
        "_recent_bytes",
        "_time",
        "_unwritten",
        "committed",
        "end",
        "epochs",
        "is_recovering",
        "max_timestamp",
        "name",
        "producers",
        "seal_end",
        "size",
        "stable_end",
        "stable_size",
        "start",
        "unkeyed",
    )

    def __init__(self, host: LogHost, name: BlockId, start: int, *, is_shared: bool) -> None:
        self.name = name
        self.start = self.end = self.stable_end = start
        self.committed = start  # how far it is known to be committed: outlives a restart
        self.size = self.stable_size = 0  # bytes
        self.max_timestamp = -1  # of its records, truncated ones included
        self.epochs: list[tuple[int, int]] = []  # (epoch, where it begins)
        self.seal_end: int | None = None  # the offset after the seal batch, if there is one
        self.producers = ProducerTable()
        self.is_recovering = False  # the store is finding out where the block ends
        self.unkeyed = Ranges(RUNS_MAX)  # records without a key, as far as that is known
        self._host = host
        self._is_shared = is_shared  # other brokers hold the block too
        self._unwritten: list[EncodedBatch] = []  # stamped, for the next write
        self._in_flight: int | None = None  # the end that the write under way will reach
        self._durable_end = start  # all before it is on the disk and synced ...
        self._durable_then = start  # ... before this, once the write under way is done,
        self._durable_soon = start  # ... and before this, once the requested syncs are done
        self._create: CreateBlock | None = None  # how the block was created here, if it was ...
        self._beginning: list[Write] = []  # ... and which writes of that must be repeated
        self._batches = 0  # written since the last checkpoint
        self._checkpointed = 0  # the block's size then
        self._checkpointed_committed = start  # ... and its high watermark
        self._recent: deque[EncodedBatch] | None = deque() if is_shared else None
        self._recent_bytes = 0
        # The last answer to a follower, by (offset, most bytes): the others need the same.
        self._joined: tuple[tuple[int, int], bytes] | None = None
        self._time = 0  # the wall clock, as last set

    # --- beginning ------------------------------------------------------------------------------

    def create(self, topic: str, partition: str, producers: ProducerTable) -> None:
        """Create an empty block with the producer table of the block before."""
        self.producers = producers
        out = self._host.out
        self._create = CreateBlock(self.name, self.start, topic, partition)
        out.write.append(self._create)
        if self.name.number > 0:
            # Without a checkpoint, recovery reads the blocks before. The first block has none, so
            # thousands of new partitions are created without a wait for the disk.
            out.write.append(Checkpoint(self.name, self._snapshot()))

    def write_first(self, create: CreateBlock) -> None:
        """Create a copy of a block of another broker."""
        self._host.out.write.append(create)

    def recover(self, *, is_open: bool = True) -> None:
        """Ask the store to recover the block; :meth:`restore` follows."""
        self.is_recovering = True
        self._host.out.ask.append(Recover(self.name, self.start, is_open))

    def restore(self, found: Recovered, before: ProducerTable | None) -> bool:
        """Take in what the store has found; *before* is the table of the block before, if known.

        Returns False if there is no snapshot and *before* is None: then only the block before has
        the producer table, and the caller tries again with it.

        Raises:
            CorruptBlock: records that were durable in this process are missing.
            CorruptMetadata: the snapshot cannot be understood.
        """
        if found.end < self._durable_end:
            mark("log.durable_is_gone")
            # This looks like a torn tail, but the records were acknowledged.
            raise CorruptBlock(
                f"{self.name} ends at {found.end} on the disk, and was durable up to "
                f"{self._durable_end}",
                offset=found.end,
            )
        if found.snapshot is not None:
            self._restore(found.snapshot)
        elif before is not None:
            self.producers, self.epochs, self.seal_end = before, [], None
            self.unkeyed = Ranges(RUNS_MAX)
            self.max_timestamp = -1
        else:
            return False
        for header in found.headers:
            self._note_keys(header)
            self._note(header.leader_epoch, header.base_offset)
            if not header.is_control:
                self.producers.replay(header)
                self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
            elif header.control_kind == ControlKind.SEAL:
                self.seal_end = header.end_offset
        self.end = self.stable_end = found.end
        self._checkpointed_committed = self.committed = min(self.committed, found.end)
        self.unkeyed.cut(found.end)
        self._durable_end = self._durable_then = self._durable_soon = found.end
        self.size = self.stable_size = found.size
        self._checkpointed = found.size if found.snapshot is not None and not found.headers else 0
        self._batches = len(found.headers)
        self._unwritten, self._in_flight = [], None
        # The recovered state replaces the snapshot that the create would write.
        self._beginning = []
        self._recent = deque() if self._is_shared else None
        self._recent_bytes, self._joined = 0, None
        self.is_recovering = False
        return True

    def _snapshot(self) -> bytes:
        epochs = [list(epoch) for epoch in self.epochs if epoch[1] < self.stable_end]
        unkeyed = [list(span) for span in self.unkeyed.below(self.stable_end)]
        committed = min(self.committed, self.stable_end)
        producers = self.producers.snapshot()
        return cbor.dumps(
            [self.max_timestamp, producers, epochs, self.seal_end, committed, unkeyed]
        )

    def _restore(self, snapshot: bytes) -> None:
        try:
            max_timestamp, producers, *rest = cbor.loads(snapshot)
            self.max_timestamp = int(max_timestamp)
            epochs, self.seal_end, *known = rest or ([], None)
            self.committed = max(self.committed, int(known[0]) if known else self.start)
            self.epochs = [(int(epoch), int(start)) for epoch, start in epochs]
            spans = known[1] if len(known) > 1 else ()
            self.unkeyed = Ranges(RUNS_MAX, ((int(start), int(end)) for start, end in spans))
        except (InvalidRequest, TypeError, ValueError, OverflowError) as error:
            raise CorruptMetadata(f"not a snapshot of a partition: {error}") from None
        self.producers = ProducerTable.restore(producers)

    # --- appending ------------------------------------------------------------------------------

    def append(self, batch: EncodedBatch, epoch: int) -> EncodedBatch:
        """Append a batch of a producer, as leader of *epoch*; returns it with its offsets."""
        stamped = batch.stamp(self.end, epoch, self._durable_end)
        self._add(stamped)
        return stamped

    def control(self, kind: ControlKind, payload: bytes, epoch: int) -> None:
        """Append a control batch, which consumers never see, as leader of *epoch*."""
        self.append(EncodedBatch.control(payload, timestamp_ms=self._time, kind=kind), epoch)

    def begin(self, epoch: int) -> None:
        """Append the control batch that opens *epoch*, as its leader."""
        self.control(ControlKind.BEGIN, b"", epoch)

    def seal(self, epoch: int) -> None:
        """Append the seal batch: no leader of this block appends a record after it."""
        self.control(ControlKind.SEAL, b"", epoch)

    def extend(self, data: bytes) -> None:
        """Append batches of the leader, as its follower.

        Raises:
            CorruptBatch: they are damaged or not contiguous; nothing is appended then.
        """
        batches = restamp(data, self._durable_end)
        if not batches:
            return
        first = batches[0].header
        if first.base_offset != self.end or first.leader_epoch < self.epoch_at(self.end):
            raise CorruptBatch(
                f"the batch at offset {first.base_offset} of epoch {first.leader_epoch} does not "
                f"follow on {self.end} of {self.epoch_at(self.end)} in {self.name}"
            )
        for batch in batches:
            self._add(batch)

    def _add(self, batch: EncodedBatch) -> None:
        header = batch.header
        self._note_keys(header)
        if not header.is_control:
            self.producers.propose(header)
            self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        elif header.control_kind == ControlKind.SEAL:
            self.seal_end = header.end_offset
        self._note(header.leader_epoch, header.base_offset)
        self._unwritten.append(batch)
        self.end = header.end_offset
        self.size += header.length
        if self._recent is not None:
            self._joined = None
            self._recent.append(batch)
            self._recent_bytes += header.length
            while self._recent_bytes > RECENT_BYTES and len(self._recent) > 1:
                self._recent_bytes -= self._recent.popleft().header.length

    def _note_keys(self, header: Header) -> None:
        if not has_keys(header):
            self.unkeyed.put(header.base_offset, header.end_offset)

    def _note(self, epoch: int, offset: int) -> None:
        if not self.epochs or self.epochs[-1][0] != epoch:
            self.epochs.append((epoch, offset))

    # --- epochs ---------------------------------------------------------------------------------

    def epoch_at(self, end: int) -> int:
        """The epoch of the batch that holds offset ``end - 1``; 0 at the start of the block."""
        index = bisect_left(self.epochs, end, key=lambda epoch: epoch[1])
        return self.epochs[index - 1][0] if index else 0

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch in the log that is not above *epoch*, and the offset where it ends."""
        index = bisect_right(self.epochs, epoch, key=lambda known: known[0])
        if not index:
            return 0, self.start
        end = self.epochs[index][1] if index < len(self.epochs) else self.end
        return self.epochs[index - 1][0], end

    def agreed(self, epochs: Epochs, end: int) -> int:
        """Return up to where this log equals one with *epochs* and *end*.

        Two logs with the same (offset, epoch) hold the same batches up to there (Raft, log
        matching).
        """
        for index, (epoch, start) in enumerate(epochs):
            theirs = epochs[index + 1][1] if index + 1 < len(epochs) else end
            mine = next(((s, i) for i, (e, s) in enumerate(self.epochs) if e == epoch), None)
            if mine is None or mine[0] != start:
                mark("log.agreed.other_epoch")
                return min(start, self.end)
            after = mine[1] + 1
            my_end = self.epochs[after][1] if after < len(self.epochs) else self.end
            if my_end != theirs:
                mark("log.agreed.other_end")
                return min(my_end, theirs)
        return min(end, self.end)

    # --- sending to others ----------------------------------------------------------------------

    def recent(self, offset: int, max_bytes: int) -> bytes | None:
        """Return whole batches from *offset* on if they are cached, at least one; else None."""
        if offset == self.end:
            return b""
        wanted = offset, max_bytes
        if self._joined is not None and self._joined[0] == wanted:
            return self._joined[1]
        recent = self._recent
        if not recent or offset < recent[0].header.base_offset:
            return None
        index = len(recent) - 1  # Most followers need only the last few.
        while index and recent[index].header.base_offset > offset:
            index -= 1
        if recent[index].header.base_offset != offset:
            return None
        parts: list[bytes | memoryview] = []
        size = 0
        for position in range(index, len(recent)):
            batch = recent[position]
            size += batch.header.length
            if parts and size > max_bytes:
                break
            parts += (batch.head, batch.body)  # type: ignore[arg-type] # Buffer: bytes-like
        self._joined = wanted, b"".join(parts)
        return self._joined[1]

    def release(self) -> None:
        """Drop the cached batches that are on the disk."""
        if self._recent and not self._unwritten and self._in_flight is None:
            mark("log.released")
            self._recent.clear()
            self._recent_bytes, self._joined = 0, None

    def read(
        self, peer: str, answer: ReplicaFetched | RaftAppend, offset: int, max_bytes: int
    ) -> None:
        """Let the store fill *answer* with stable batches from *offset* on, and send it."""
        self._host.out.read.append(
            Read(peer, answer, self.name, offset, self.stable_end, max_bytes)
        )

    # --- cutting --------------------------------------------------------------------------------

    def truncate(self, end: int) -> None:
        """Truncate the log to *end*. If written batches go, the log is recovered again.

        Appended batches that are not written yet may go, too.
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
            self.recover()  # Only the log itself has the producer table as of that point.

    def _cut(self, end: int) -> None:
        self.end, self._joined = end, None
        self.unkeyed.cut(end)
        self.stable_end = min(self.stable_end, end)
        # The batches that follow are another leader's, which reports anew what is committed.
        self.committed = min(self.committed, end)
        self.epochs = [epoch for epoch in self.epochs if epoch[1] < end]
        if self.seal_end is not None and self.seal_end > end:
            mark("log.seal_cut")
            self.seal_end = None
        while self._recent and self._recent[-1].header.end_offset > end:
            self._recent_bytes -= self._recent.pop().header.length

    # --- the disk -------------------------------------------------------------------------------

    @property
    def has_unwritten(self) -> bool:
        """Whether there is something to write."""
        return bool(self._unwritten)

    @property
    def is_writing(self) -> bool:
        """Whether a write is under way."""
        return self._in_flight is not None

    def flush(self, ready: Ready, *, sync: bool) -> None:
        """Add the unwritten batches to *ready*; :meth:`advance` or :meth:`fail` follows."""
        self._in_flight = self.end
        self._durable_then = self._durable_soon
        if self._beginning:
            ready.write += self._beginning
            self._beginning = []
        if self._unwritten:
            if sync:
                self._durable_then = self.end
            ready.write.append(Append(self.name, self._unwritten, sync))
            self._batches += len(self._unwritten)
            self._unwritten = []
            self.producers.write(self._time or UNKNOWN_TIME)

    def seal_block(self, ready: Ready, *, keep_open: bool = False) -> None:
        """Add a seal of the block file, with its index, to the same write as :meth:`flush`."""
        ready.write.append(Sync(self.name) if keep_open else SealBlock(self.name))
        self._durable_then = self.end

    def sync(self) -> None:
        """Request a sync of what was written without one."""
        self._host.out.write.append(Sync(self.name))
        self._durable_soon = self.stable_end

    def advance(self) -> bool:
        """Take in that the write is done; returns whether there was one."""
        if self._in_flight is None:
            return False
        self.stable_end, self._in_flight, self._joined = self._in_flight, None, None
        self.producers.settle()
        self._durable_end = max(self._durable_end, self._durable_then)
        self.stable_size = self.size - sum(batch.size for batch in self._unwritten)
        is_much = self.stable_size - self._checkpointed >= CHECKPOINT_BYTES
        if is_much or self._batches >= CHECKPOINT_BATCHES:
            self.checkpoint()
        return True

    def fail(self) -> None:
        """Take in that the write has failed: drop what is not on the disk."""
        self._in_flight = None
        self._durable_soon = self._durable_end  # The syncs may not have happened either.
        self._unwritten = []
        self.producers.discard()
        self.size = self.stable_size
        self._cut(self.stable_end)
        if self._create is not None and self.stable_size == 0:
            # The store may not have created the block either. If it has, creating it again is
            # harmless.
            mark("log.begins_again")
            self._beginning = [self._create]
            if self.name.number > 0:
                self._beginning.append(Checkpoint(self.name, self._snapshot()))

    def checkpoint(self) -> None:
        """Write a checkpoint, unless it is up to date."""
        if self.is_recovering or self._unwritten or self._in_flight is not None:
            return
        is_kept = self.committed == self._checkpointed_committed
        if self.stable_size != self._checkpointed or not is_kept:
            mark("log.checkpoint")
            self._checkpointed, self._checkpointed_committed = self.stable_size, self.committed
            self._batches = 0
            self._host.out.write.append(Checkpoint(self.name, self._snapshot()))
            self._durable_soon = self.stable_end

    def past(self, expire_ms: int) -> bytes:
        """Return the producer table for the next block, without expired producers."""
        self.producers.expire(self._time, expire_ms)
        return self.producers.hand_on(self._time)

    def at(self, wall_ms: int) -> None:
        """Set the wall clock, for the producer table and for control batches."""
        if wall_ms != self._time:
            self._time = wall_ms
            self.producers.tell(wall_ms)
