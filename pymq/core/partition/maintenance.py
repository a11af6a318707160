"""Maintenance of a partition's blocks: roll by size or age, retention, compaction."""

from __future__ import annotations

from collections.abc import Sequence

from pymq.core.block.retention import first_kept
from pymq.core.block.sealing import SealState
from pymq.core.message import BlockSizes, RetireBlocks, RollWanted
from pymq.core.metadata.nodes import BlockNode
from pymq.core.observe.coverage import mark
from pymq.core.partition.context import DelayBounds, PartitionContext
from pymq.core.ready import Compact, Compacted
from pymq.core.types import NEVER, BlockId

RETENTION_CHECK_MS = 5_000
# minimal share of uncompacted bytes in the sealed blocks before they are compacted again
MIN_DIRTY = 0.5
ASK_RETRY_MS = 1_000  # pause before a request to the controller is sent again


class Maintenance:
    """Requests rolls and retention from the controller, repeatedly until they take effect."""

    __slots__ = (
        "_asked_at",
        "_compacted",
        "_host",
        "_partition",
        "opened_ms",
        "retention_at",
        "roll_at",
    )

    def __init__(self, partition: PartitionContext, now: int) -> None:
        self.opened_ms = 0  # when the open block was created; 0: unknown
        self._partition = partition
        self._host = partition.host
        self._asked_at = -ASK_RETRY_MS
        # plain attributes, not properties, because they are read after each write
        self.roll_at = NEVER
        self.retention_at = now
        self._compacted: tuple[BlockId, ...] = ()

    def open_next(self, opened_ms: int, now: int) -> None:
        """Note that another block is open now."""
        self.opened_ms = opened_ms
        self.roll_at = NEVER
        self._asked_at = -ASK_RETRY_MS
        self.retention_at = now  # Retention may now retire a block.

    def reconsider(self, now: int) -> None:
        """Handle new topic options."""
        self.retention_at, self.roll_at = now, NEVER

    def begin(self, now: int) -> None:
        """Begin maintenance, since the open block is recovered."""
        if self.roll_at == NEVER:
            self.want_roll(now)

    def lead(self, now: int) -> None:
        """Begin to lead: request a roll at once, if a roll is due."""
        self._asked_at = -ASK_RETRY_MS
        self.want_roll(now)

    def asked(self, now: int) -> None:
        """Note that the seal was reported to the controller.

        If the controller is replaced before it commits the roll, the roll is requested again.
        """
        self._asked_at = now
        self.roll_at = now + ASK_RETRY_MS

    def stop(self) -> None:
        """Stop: the partition has failed or left this broker."""
        self.roll_at = self.retention_at = NEVER

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        if now >= self.roll_at:
            self.want_roll(now)
        if now >= self.retention_at:
            self._retain(now)

    def want_roll(self, now: int) -> None:
        """Request a roll when the open block is large or old; repeat the request until the roll."""
        partition = self._partition
        opened = partition.opened
        config, log = partition.state.config, opened.log
        self.roll_at = NEVER
        if partition.problem is not None or log is None:
            return
        is_lost = opened.has_lost_lead
        if not partition.leads and not opened.sealing.is_fenced and not is_lost:
            return
        is_sealed = opened.sealing.state is SealState.SEALED or log.seal_end is not None
        if (
            not is_sealed
            and not is_lost
            and (log.stable_size == 0 or opened.sealing.request is not None)
        ):
            return
        wall = self._host.wall_ms(now)
        age = wall - (self.opened_ms or wall)
        is_full = log.size >= config.block_bytes
        if is_full or is_sealed or is_lost or age >= config.block_ms:
            if now >= self._asked_at + ASK_RETRY_MS:
                self._asked_at = now
                reason = "sealed" if is_sealed else "size" if is_full else "age"
                reason = "leader" if is_lost else reason
                state = partition.state
                number = state.blocks[-1].number
                self._host.tell_controller(RollWanted(*partition.name, number, state.epoch, reason))
            self.roll_at = self._asked_at + ASK_RETRY_MS
        else:
            self.roll_at = now + config.block_ms - age

    def _retain(self, now: int) -> None:
        """Request the removal of blocks past their retention, and compact new blocks."""
        partition, state = self._partition, self._partition.state
        config, blocks, log = state.config, state.blocks, partition.opened.log
        # A partition with a single block has nothing to retire or compact.
        self.retention_at = NEVER
        if len(blocks) == 1 or partition.problem is not None or log is None:
            return
        has_deleted = blocks[0].end is not None and blocks[0].end <= state.deleted_to
        has_limit = config.retention_bytes is not None or config.retention_ms is not None
        if has_limit or has_deleted:
            self.retention_at = now + RETENTION_CHECK_MS
            kept = first_kept(blocks, log.stable_size, config, self._host.wall_ms(now))
            if has_deleted:
                left = (b.number for b in blocks if b.end is None or b.end > state.deleted_to)
                kept = max(kept, min(left))
            if partition.delays is not None:
                kept = _keeping(partition.delays, blocks, kept)
            if kept > blocks[0].number and partition.leads:
                mark("partition.retired")
                retire = RetireBlocks(*partition.name, state.epoch, kept, state.topic_id)
                self._host.tell_controller(retire)
        if config.cleanup_policy == "compact":
            self._compact(now)

    def _compact(self, now: int) -> None:
        """Start compaction of the local sealed blocks, if enough of their bytes are uncompacted."""
        partition, state = self._partition, self._partition.state
        sealed = state.blocks[:-1]
        here = tuple(state.block_id(block) for block in sealed if partition.blocks.has(block))
        if any(
            partition.me in block.replicas and not partition.blocks.has(block) for block in sealed
        ):
            # On a follower the block that was just sealed may need a short repair first.
            mark("upkeep.compact_in_part")
            self.retention_at = now + RETENTION_CHECK_MS
        if not here or here == self._compacted:
            return
        self._compacted = here
        before = self._host.wall_ms(now) - state.config.tombstone_ms
        if here != tuple(state.block_id(block) for block in sealed[: len(here)]):
            # Keep all tombstones if blocks are missing here: these may hold records that the
            # tombstones delete.
            before = 0
        self._host.out.jobs.append(Compact(*partition.name, here, before, MIN_DIRTY))

    def compacted(self, m: Compacted) -> None:
        """Handle the end of a compaction; a failed one is retried after the next roll."""
        if m.error is None and m.sizes and self._partition.leads:
            sizes = tuple((block.number, size) for block, size in m.sizes)
            topic_id = self._partition.state.topic_id
            self._host.tell_controller(BlockSizes(*self._partition.name, sizes, topic_id))


def _keeping(delays: DelayBounds, blocks: Sequence[BlockNode], kept: int) -> int:
    """Return the number of the first block to keep: *kept*, or lower if records are pending."""
    delays.wanted_from = next(block.start for block in blocks if block.number == kept)
    return max(
        (b.number for b in blocks if b.number <= kept and b.start <= delays.pending_from),
        default=blocks[0].number,
    )
