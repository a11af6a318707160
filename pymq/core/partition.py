"""One broker's part in a partition: append, read, wait, roll.

A partition is a list of blocks, of which only the last is open. Everything that may be appended
goes through :meth:`Partition.produce`; everything that changes how the partition is kept arrives as
a :class:`~pymq.core.metadata.PartitionState` from the zkserver, through :meth:`Partition.adopt`.

What holds at all times:

* an offset that was shown to anybody (answered or below the high watermark) never holds another
  record;
* the partition believes its disk only in :meth:`advance`: nothing is answered or counted before;
* while a block is being sealed, produces are parked and driven again at the next epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Protocol

import attrs

from pymq.core import codec
from pymq.core.message import (
    BEGIN,
    END,
    BlockSizes,
    Fetch,
    Fetched,
    FindOffset,
    GetSequence,
    Message,
    OffsetFound,
    PartitionReport,
    Produce,
    Produced,
    RetireBlocks,
    RollWanted,
    Seal,
    Sealed,
    Sequence,
)
from pymq.core.metadata import PartitionState
from pymq.core.producers import ProducerTable
from pymq.core.ready import (
    Append,
    Checkpoint,
    Compact,
    Compacted,
    CreateBlock,
    FindTime,
    Read,
    Ready,
    Recover,
    Recovered,
    RecoverFailed,
    RemoveBlock,
    SealBlock,
    Sync,
    TimeFound,
    WriteFailed,
)
from pymq.core.record import HEADER_SIZE, RecordBatch
from pymq.core.replicator import Replicator, ReplicatorFactory
from pymq.core.retention import first_kept
from pymq.core.types import AckMode, BlockId, TopicPartition
from pymq.errors import (
    CorruptMetadata,
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    PartitionUnset,
    PymqError,
    RecordTooLarge,
    StoreError,
)

NEVER = 1 << 62
RETENTION_CHECK_MS = 5_000
ROLL_RETRY_MS = 1_000
CHECKPOINT_BYTES = 32 << 20  # a crash costs reading no more than this much of a block again
BATCH_SLACK = 16 << 20  # a batch may be this much larger than the largest record


class Host(Protocol):
    """What a partition needs of the broker around it."""

    me: str
    out: Ready

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        ...

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer."""
        ...

    def tell_controller(self, message: Message) -> None:
        """Send something to the active zkserver."""
        ...


class Partition:
    """A partition that this broker hosts."""

    __slots__ = (
        "_answers",
        "_checkpointed",
        "_compacted",
        "_durable_end",
        "_durable_soon",
        "_durable_then",
        "_host",
        "_in_flight",
        "_make_replicator",
        "_max_timestamp",
        "_must_sync",
        "_opened_ms",
        "_parked",
        "_producers",
        "_recovering",
        "_replicator",
        "_retention_at",
        "_roll_asked_at",
        "_roll_at",
        "_sealed",
        "_sealing",
        "_size",
        "_stable_end",
        "_stable_size",
        "_starts",
        "_sync_at",
        "_times",
        "_unwritten",
        "_waiting",
        "deadline",
        "end",
        "name",
        "problem",
        "state",
    )

    def __init__(
        self, state: PartitionState, host: Host, make_replicator: ReplicatorFactory, now: int
    ) -> None:
        self.name = TopicPartition(state.topic, state.partition)
        self.state = state
        self.end = 0  # the offset of the next record
        self.problem: PymqError | None = None  # why nothing can be read or written any more
        self.deadline = NEVER
        self._host = host
        self._make_replicator = make_replicator
        self._replicator: Replicator | None = None  # None until the open block is recovered
        self._producers = ProducerTable()
        self._recovering: list[Recovered] | None = None
        self._unwritten: list[RecordBatch] = []  # stamped, for the next write
        self._in_flight: int | None = None  # the end that the write under way will reach
        self._answers: deque[tuple[int, str, Produced]] = deque()  # (committed when, whom, what)
        self._parked: list[tuple[str, Produce]] = []
        self._waiting: list[tuple[int, str, Fetch]] = []  # (until, whom, what)
        self._times: dict[int, tuple[str, FindOffset, int]] = {}  # searches, by token
        self._sealing: Seal | None = None
        self._sealed: Sealed | None = None
        self._size = self._stable_size = 0  # bytes of the open block
        self._stable_end = 0
        self._durable_end = 0  # all before it is on the disk, even after a power cut ...
        self._durable_then = 0  # ... which it will be before this when the write under way is done,
        self._durable_soon = 0  # ... and this when the syncs that were asked for are done
        self._checkpointed = 0  # how large the block was at its last checkpoint
        self._max_timestamp = -1
        self._opened_ms = 0
        self._must_sync = False  # somebody asked for it, whatever the topic's ``fsync``
        self._sync_at = self._roll_at = NEVER
        self._roll_asked_at = -ROLL_RETRY_MS
        self._retention_at = now
        self._compacted: tuple[BlockId, ...] = ()
        self._starts: list[int] = []
        self._begin(state, now)

    # --- metadata -------------------------------------------------------------------------------

    def adopt(self, state: PartitionState, now: int) -> None:
        """Go over to *state*; the zkserver's word is final, and doing it twice changes nothing."""
        before, self.state = self.state, state
        for gone in before.blocks:
            if gone.number < state.blocks[0].number:
                self._host.out.write.append(RemoveBlock(before.block_id(gone)))
        self._starts = [block.start for block in state.blocks]
        if state.blocks[-1].number != before.blocks[-1].number:
            self._open_next(state, now)
        elif state.epoch != before.epoch and self._replicator is not None:
            self._replicator = self._make_replicator(state, self._host.me, self.end)
            self._sealing = self._sealed = None
            self._drive_parked(now)
        elif before.blocks[-1].leader is None and self._replicator is None:
            self._begin(state, now)
        if state.config != before.config:
            self._retention_at, self._roll_at = now, NEVER  # Both go by the new options.
            if self._replicator is not None:
                self._want_roll(now)
        self._rearm()

    def _begin(self, state: PartitionState, now: int) -> None:
        self._starts = [block.start for block in state.blocks]
        if state.leader is None:
            return
        block = state.blocks[-1]
        self._recovering = []
        self._host.out.ask.append(Recover(state.block_id(block), block.start, True))

    def _open_next(self, state: PartitionState, now: int) -> None:
        """The roll: the block before was sealed at its end, this one takes the next record."""
        block = state.blocks[-1]
        assert self._sealed is None or block.start == self.end, (block, self.end)
        self._sealing = self._sealed = None
        self._roll_at, self._roll_asked_at = NEVER, -ROLL_RETRY_MS
        self.end = self._stable_end = block.start
        self._durable_end = self._durable_then = self._durable_soon = block.start
        self._size = self._stable_size = 0
        self._max_timestamp = -1
        self._opened_ms = block.opened_ms
        name = state.block_id(block)
        self._host.out.write.append(CreateBlock(name, block.start, state.topic, state.partition))
        # What the block must know of the past: without it, recovery reads the blocks before it.
        self._host.out.write.append(Checkpoint(name, self._snapshot()))
        self._checkpointed = 0
        self._replicator = self._make_replicator(state, self._host.me, block.start)
        self._retention_at = now  # a newly sealed block may be one too many
        self._drive_parked(now)

    # --- recovery -------------------------------------------------------------------------------

    def recovered(self, found: Recovered, now: int) -> None:
        """The store has found a block's end."""
        if self._recovering is None:
            return
        self._recovering.append(found)
        if found.snapshot is None and found.block.number > self.state.blocks[0].number:
            # Without a snapshot the producers before this block are only in the block before.
            index = found.block.number - self.state.blocks[0].number - 1
            block = self.state.blocks[index]
            self._host.out.ask.append(Recover(self.state.block_id(block), block.start, False))
            return
        last = self._recovering[0]
        try:
            for part in reversed(self._recovering):
                self._max_timestamp = -1  # it is of the open block, which comes last
                if part.snapshot is not None:
                    self._restore(part.snapshot)
                for header in part.headers:
                    self._producers.replay(header)
                    self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        except CorruptMetadata as error:
            self.recover_failed(RecoverFailed(found.block, error), now)
            return
        self._recovering = None
        self.end = self._stable_end = last.end
        self._durable_end = self._durable_then = self._durable_soon = last.end
        self._size = self._stable_size = last.size
        self._checkpointed = last.size if last.snapshot is not None and not last.headers else 0
        block = self.state.blocks[-1]
        self._opened_ms = block.opened_ms
        name = self.state.block_id(block)
        if last.size == 0:
            self._host.out.write.append(
                CreateBlock(name, block.start, self.state.topic, self.state.partition)
            )
        self._replicator = self._make_replicator(self.state, self._host.me, self.end)
        self._drive_parked(now)
        self._wake(now)
        self._rearm()

    def _snapshot(self) -> bytes:
        return codec.dumps([self._max_timestamp, self._producers.snapshot()])

    def _restore(self, snapshot: bytes) -> None:
        try:
            max_timestamp, producers = codec.loads(snapshot)
            self._max_timestamp = int(max_timestamp)
        except (InvalidRequest, TypeError, ValueError) as error:
            raise CorruptMetadata(f"not a snapshot of a partition: {error}") from None
        self._producers = ProducerTable.restore(producers)

    def recover_failed(self, failed: RecoverFailed, now: int) -> None:
        """The block is damaged: nothing is served, nothing is changed, everybody is told why."""
        self._recovering = None
        self._fail(failed.error, now)

    def _fail(self, error: Exception, now: int) -> None:
        self.problem = error if isinstance(error, PymqError) else StoreError(str(error))
        self._sync_at = self._roll_at = self._retention_at = NEVER  # Nothing is due any more.
        self._drop_unstable(self.problem, now)
        parked, self._parked = self._parked, []
        for source, produce in parked:
            self._host.reply(source, Produced(produce.id, error=self.problem), now)
        self._wake(now)
        self._rearm()

    # --- producing ------------------------------------------------------------------------------

    def produce(self, source: str, m: Produce, now: int) -> None:
        """Append a batch, or say why not; answered when *m.acks* is fulfilled."""
        error = self._refusal(m)
        if error is not None:
            self._answer(source, Produced(m.id, error=error), m.acks, now)
            return
        if self._replicator is None or self._sealing is not None:
            self._parked.append((source, m))
            return
        verdict = self._producers.check(m.batch.header)
        if isinstance(verdict, PymqError):
            self._answer(source, Produced(m.id, error=verdict), m.acks, now)
            return
        epoch = self.state.epoch
        if verdict is not None:
            # The repeat may still be on its way to the disk: it is answered when that is done.
            self._await(
                verdict + m.batch.header.span, source, m, Produced(m.id, verdict, epoch, True)
            )
            self._answer_committed(now)
            return
        batch = m.batch.stamp(self.end, epoch, self._durable_end)
        header = batch.header
        self._producers.propose(header)
        self._unwritten.append(batch)
        self._must_sync = self._must_sync or m.sync
        self._await(header.end_offset, source, m, Produced(m.id, self.end, epoch))
        self.end = header.end_offset
        self._size += header.length
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)

    def _refusal(self, m: Produce) -> PymqError | None:
        if self.problem is not None:
            return self.problem
        state = self.state
        if state.acks is AckMode.UNSET:
            return PartitionUnset(
                f"{self.name} has no ack mode yet; call set_partition_state({state.topic!r}, "
                f"{state.partition!r}, acks=...) first"
            )
        if state.leader != self._host.me:
            return NotLeader(f"{self.name} is led by {state.leader}", leader=state.leader)
        header = m.batch.header
        if header.count == 0 or header.span != header.count or header.is_control:
            return InvalidRequest("a producer's batch holds records and nothing else")
        limit = state.config.max_record_bytes
        if header.length > limit + BATCH_SLACK or (
            header.count == 1 and header.raw_length > limit + HEADER_SIZE
        ):
            return RecordTooLarge(
                f"a batch of {header.length} bytes is too large for {state.topic!r}, whose "
                f"max_record_bytes is {limit}"
            )
        if self._replicator is not None and m.acks is AckMode.RAFT:
            needed = min(state.config.min_in_sync, len(state.blocks[-1].replicas))
            if len(self._replicator.in_sync) < needed:
                return NotEnoughReplicas(f"{self.name} has fewer than {needed} replicas in sync")
        return None

    def _await(self, end: int, source: str, m: Produce, answer: Produced) -> None:
        if m.acks is not AckMode.NONE:
            self._answers.append((end, source, answer))

    def _answer(self, source: str, answer: Produced, acks: AckMode, now: int) -> None:
        if acks is not AckMode.NONE:
            self._host.reply(source, answer, now)

    def _answer_committed(self, now: int) -> None:
        assert self._replicator is not None
        committed = self._replicator.high_watermark
        while self._answers and self._answers[0][0] <= committed:
            _, source, answer = self._answers.popleft()
            self._host.reply(source, answer, now)

    def _drive_parked(self, now: int) -> None:
        parked, self._parked = self._parked, []
        for source, produce in parked:
            self.produce(source, produce, now)

    def sequence(self, source: str, m: GetSequence, now: int) -> None:
        """Tell how far a producer has got."""
        error = self.problem
        self._host.reply(
            source, Sequence(m.id, self._producers.next_sequence(m.producer_id), error), now
        )

    # --- the disk -------------------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write or to seal, and no write is under way."""
        return self._in_flight is None and (bool(self._unwritten) or self._must_seal)

    @property
    def _must_seal(self) -> bool:
        return self._sealing is not None and self._sealed is None and self._replicator is not None

    def flush(self, ready: Ready, now: int) -> None:
        """Add the pending write to *ready*; :meth:`advance` or :meth:`write_failed` follows."""
        block = self.state.block_id(self.state.blocks[-1])
        self._in_flight = self.end
        self._durable_then = self._durable_soon
        if self._unwritten:
            policy = self.state.config.sync_policy(self.state.acks)
            is_synced, self._must_sync = self._must_sync or policy == "always", False
            if is_synced:
                self._durable_then = self.end
                self._sync_at = NEVER
            ready.write.append(Append(block, self._unwritten, is_synced))
            self._unwritten = []
            self._producers.write()
            if policy == "interval" and not is_synced and self._sync_at == NEVER:
                self._sync_at = now + self.state.config.fsync_interval_ms
                self.deadline = min(self.deadline, self._sync_at)
        else:
            ready.write.append(SealBlock(block))
            self._durable_then = self.end
            self._sync_at = NEVER

    def advance(self, now: int) -> None:
        """The write is done, and durable as far as its mode asks for that."""
        if self._in_flight is None or self._replicator is None:
            return
        end, self._in_flight = self._in_flight, None
        self._producers.settle()
        self._durable_end = max(self._durable_end, self._durable_then)
        if self._must_seal and end == self._stable_end and not self._unwritten:
            self._seal_done()
        self._stable_end, self._stable_size = (
            end,
            self._size - sum(batch.size for batch in self._unwritten),
        )
        self._replicator.stable(end, now)
        self._answer_committed(now)
        if self._stable_size - self._checkpointed >= CHECKPOINT_BYTES:
            self.checkpoint()
        if self._waiting:
            self._wake(now)
        if self._size >= self.state.config.block_bytes or self._roll_at == NEVER:
            self._want_roll(now)

    def write_failed(self, failed: WriteFailed, now: int) -> None:
        """Nothing of the write counts; after a failed sync the replica stops for good."""
        if self._replicator is None:
            return
        self._in_flight = None
        self._durable_soon = self._durable_end  # The syncs may be among what was not done.
        error = failed.error
        if not isinstance(error, PymqError):
            error = StoreError(str(error))
        if failed.fatal:
            self._fail(error, now)
        else:
            self._drop_unstable(error, now)
            if self._sealing is not None:
                self._give_up_seal(error, now)

    def _drop_unstable(self, error: PymqError, now: int) -> None:
        """Forget what is not on the disk, and tell those who wait for it."""
        self._unwritten = []
        self._producers.discard()
        self.end, self._size = self._stable_end, self._stable_size
        answers, self._answers = self._answers, deque()
        for _, source, answer in answers:
            self._host.reply(source, Produced(answer.id, error=error), now)

    # --- rolling --------------------------------------------------------------------------------

    def _want_roll(self, now: int) -> None:
        """Ask for the next block when this one is large or old enough; ask again if unheard."""
        block, config = self.state.blocks[-1], self.state.config
        if self._stable_size == 0 or self._sealing is not None or self.problem is not None:
            self._roll_at = NEVER
            return
        opened = self._opened_ms or self._host.wall_ms(now)
        age = self._host.wall_ms(now) - opened
        full = self._size >= config.block_bytes
        if full or age >= config.block_ms:
            if now >= self._roll_asked_at + ROLL_RETRY_MS:
                self._roll_asked_at = now
                reason = "size" if full else "age"
                self._host.tell_controller(
                    RollWanted(*self.name, block.number, self.state.epoch, reason)
                )
            self._roll_at = self._roll_asked_at + ROLL_RETRY_MS
        elif self._roll_at == NEVER:
            self._roll_at = now + config.block_ms - age
        self.deadline = min(self.deadline, self._roll_at)

    def seal(self, m: Seal, now: int) -> None:
        """Let the open block end where it is; records that come now wait for the next one."""
        block = self.state.blocks[-1]
        if m.block != block.number or m.epoch <= self.state.epoch:
            return  # From a roll that is over, or from a controller that has been replaced.
        if self.problem is not None:
            self._host.tell_controller(
                Sealed(*self.name, m.block, m.epoch, self._host.me, error=self.problem)
            )
        elif self._sealed is not None:
            self._sealing = m
            self._seal_done()  # The first answer was lost, or another controller took over.
        else:
            self._sealing = m

    def _give_up_seal(self, error: PymqError, now: int) -> None:
        """The block cannot be sealed now: it stays open, and whoever wanted the roll is told."""
        assert self._sealing is not None
        seal, self._sealing = self._sealing, None
        refused = Sealed(*self.name, seal.block, seal.epoch, self._host.me, error=error)
        self._host.tell_controller(refused)
        self._drive_parked(now)

    def _seal_done(self) -> None:
        assert self._sealing is not None
        self._sealed = Sealed(
            *self.name,
            self._sealing.block,
            self._sealing.epoch,
            self._host.me,
            self.end,
            self._size,
            self._max_timestamp,
        )
        self._host.tell_controller(self._sealed)

    # --- reading --------------------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        """The first offset that is kept."""
        return self.state.blocks[0].start

    @property
    def high_watermark(self) -> int:
        """The offset before which everything may be read."""
        return self._replicator.high_watermark if self._replicator else self._starts[-1]

    def fetch(self, source: str, m: Fetch, now: int) -> None:
        """Answer with batches, or wait until there are some."""
        if self._replicator is None and self.problem is None and self.state.leader is not None:
            self._wait(source, m, now)
            return
        start, high = self.log_start, self.high_watermark
        offset = {BEGIN: start, END: high}.get(m.offset, m.offset)
        if self.problem is not None:
            self._fetch_error(source, m, offset, self.problem, now)
        elif not start <= offset <= max(high, self.end):
            error = OffsetOutOfRange(
                f"{self.name} holds offsets {start} to {high}, not {m.offset}",
                log_start=start,
                high_watermark=high,
            )
            self._fetch_error(source, m, offset, error, now)
        elif not self._serve(source, m, offset, now):
            # "The end" is the one at the time of asking, however long the fetch waits.
            self._wait(source, attrs.evolve(m, offset=offset), now)

    def _fetch_error(self, source: str, m: Fetch, offset: int, error: PymqError, now: int) -> None:
        answer = Fetched(m.id, *self.name, offset, self.log_start, self.high_watermark, b"", error)
        self._host.reply(source, answer, now)

    def _serve(self, source: str, m: Fetch, offset: int, now: int) -> bool:
        """Answer a fetch if there is something for it."""
        high = self.high_watermark
        limit = high if m.end is None else min(high, m.end)
        answer = Fetched(m.id, *self.name, offset, self.log_start, high)
        if offset >= limit:
            if m.max_wait_ms > 0 and offset >= high:
                return False
            self._host.reply(source, answer, now)
        elif m.max_bytes == 0:
            self._host.reply(source, answer, now)
        else:
            index = bisect_right(self._starts, offset) - 1
            block = self.state.blocks[index]
            end = limit if block.end is None else min(limit, block.end)
            self._host.out.read.append(
                Read(source, answer, self.state.block_id(block), offset, end, m.max_bytes)
            )
        return True

    def _wait(self, source: str, m: Fetch, now: int) -> None:
        # A consumer's next fetch of the partition takes the place of the one before.
        self._waiting = [w for w in self._waiting if w[1] != source or w[2].id != m.id]
        self._waiting.append((now + m.max_wait_ms, source, m))
        if self._is_settled:
            self.deadline = min(self.deadline, now + m.max_wait_ms)

    def _wake(self, now: int) -> None:
        """Serve the fetches for which there is something now."""
        waiting, self._waiting = self._waiting, []
        for until, source, m in waiting:
            if self.problem is not None or (m.offset < 0 and self._replicator is not None):
                self.fetch(source, m, now)
            elif self._replicator is None or not self._serve(source, m, m.offset, now):
                self._waiting.append((until, source, m))

    def cancel(self, source: str, request: int) -> None:
        """The fetch is no longer waited for."""
        self._waiting = [w for w in self._waiting if w[1] != source or w[2].id != request]

    def find(self, source: str, m: FindOffset, now: int, token: int) -> None:
        """Look for an offset by time, block by block; the answer of the store comes to *found*."""
        blocks = self.state.blocks
        for index, block in enumerate(blocks):
            may_hold = block.end is None or block.max_timestamp >= m.timestamp_ms
            if may_hold and block.end != block.start and self.problem is None:
                self._times[token] = (source, m, index)
                end = self.high_watermark if block.end is None else block.end
                name = self.state.block_id(block)
                self._host.out.ask.append(FindTime(name, end, m.timestamp_ms, token))
                return
        self._host.reply(source, OffsetFound(m.id, self.high_watermark, self.problem), now)

    def found(self, m: TimeFound, now: int) -> None:
        """The store has searched one block."""
        source, request, _ = self._times.pop(m.token)
        error = m.error
        if error is not None and not isinstance(error, PymqError):
            error = StoreError(str(error))
        offset = self.high_watermark if m.offset is None else m.offset
        self._host.reply(source, OffsetFound(request.id, offset, error), now)

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Do what is due."""
        if now >= self._sync_at:
            self._sync_at = NEVER
            block = self.state.block_id(self.state.blocks[-1])
            self._host.out.write.append(Sync(block))
            self._durable_soon = self._stable_end
        if now >= self._roll_at and self._replicator is not None:
            self._want_roll(now)
        if now >= self._retention_at and self._replicator is not None:
            self._retain(now)
        if self._waiting and self._is_settled:
            self._end_waits(now)
        self._rearm()

    def _end_waits(self, now: int) -> None:
        over = [w for w in self._waiting if w[0] <= now]
        if over:
            self._waiting = [w for w in self._waiting if w[0] > now]
            for _, source, m in over:
                offset = m.offset if m.offset >= 0 else self.high_watermark
                answer = Fetched(m.id, *self.name, offset, self.log_start, self.high_watermark)
                self._host.reply(source, answer, now)

    @property
    def _is_settled(self) -> bool:
        """Whether it is known where the log ends, or that it never will be."""
        return self._replicator is not None or self.problem is not None

    def _rearm(self) -> None:
        if not self._is_settled:
            self.deadline = NEVER  # Whatever is due waits for the store to say where the log ends.
            return
        self.deadline = min(self._sync_at, self._roll_at, self._retention_at)
        for until, _, _ in self._waiting:
            self.deadline = min(self.deadline, until)

    def _retain(self, now: int) -> None:
        """Let go of sealed blocks beyond the retention, and compact those that are new."""
        config, blocks = self.state.config, self.state.blocks
        self._retention_at = NEVER  # A partition of one block that never rolls costs nothing.
        if len(blocks) == 1 or self.problem is not None:
            return
        if config.retention_bytes is not None or config.retention_ms is not None:
            self._retention_at = now + RETENTION_CHECK_MS
            kept = first_kept(blocks, self._stable_size, config, self._host.wall_ms(now))
            if kept > blocks[0].number:
                self._host.tell_controller(RetireBlocks(*self.name, self.state.epoch, kept))
        if config.cleanup_policy == "compact":
            sealed = tuple(self.state.block_id(block) for block in blocks[:-1])
            if sealed != self._compacted:
                self._compacted = sealed
                before = self._host.wall_ms(now) - config.tombstone_ms
                self._host.out.jobs.append(Compact(*self.name, sealed, before))

    def compacted(self, m: Compacted, now: int) -> None:
        """Compaction is over; a failed one is tried again after the next roll."""
        if m.error is None:
            sizes = tuple((block.number, size) for block, size in m.sizes)
            self._host.tell_controller(BlockSizes(*self.name, sizes))

    # --- leaving --------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Keep what a recovery would have to find out, unless it is kept already."""
        if self._replicator is None or self.problem is not None or self._unwritten:
            return
        if self._stable_size != self._checkpointed:
            self._checkpointed = self._stable_size
            block = self.state.block_id(self.state.blocks[-1])
            self._host.out.write.append(Checkpoint(block, self._snapshot()))
            self._durable_soon = self._stable_end

    def remove(self, error: PymqError, delete: bool, now: int) -> None:
        """Give the partition up: everybody who waits is told *error*."""
        self._fail(error, now)
        if delete:
            for block in self.state.blocks:
                self._host.out.write.append(RemoveBlock(self.state.block_id(block)))

    def report(self) -> PartitionReport:
        """What only the leader knows."""
        return PartitionReport(
            *self.name,
            self.log_start,
            self.end,
            self.high_watermark,
            self._size,
            self._replicator.in_sync if self._replicator else (),
            str(self.problem) if self.problem else None,
        )
