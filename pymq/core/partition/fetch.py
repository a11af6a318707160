"""Answers fetches of one partition, at once or when records arrive; finds offsets by time."""

from __future__ import annotations

from bisect import bisect_right

import attrs

from pymq.core.batch.priority import Run
from pymq.core.block.leader_epochs import LeaderEpochs
from pymq.core.block.recovery import as_told
from pymq.core.message import (
    BEGIN,
    END,
    EpochFound,
    Fetch,
    Fetched,
    FindEpoch,
    FindOffset,
    OffsetFound,
)
from pymq.core.metadata.nodes import PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.partition.context import PartitionContext
from pymq.core.pending.fetch_limits import AGAIN_MS
from pymq.core.pending.growth import Growth
from pymq.core.pending.pending_fetches import PendingFetches
from pymq.core.ready import FindTime, Read, TimeFound
from pymq.errors import (
    CorruptBatch,
    NotLeader,
    OffsetOutOfRange,
    PymqError,
    QuotaExceeded,
    ReplicaNotAvailable,
)


class FetchHandler:
    """Answers the fetches of one partition on one broker."""

    __slots__ = ("_host", "_partition", "_starts", "_times", "_told", "log_start", "waits")

    def __init__(self, partition: PartitionContext) -> None:
        self._partition = partition
        self._host = partition.host
        self.waits = PendingFetches(partition.host.waiting)
        # searches by token, each with the sealed block that it has reached
        self._times: dict[int, tuple[str, FindOffset, int | None]] | None = None
        self._starts: list[int] = []  # first offsets of the blocks
        self.log_start = 0  # the first offset that is kept
        self._told = -1  # the end that was last reported to groups on this broker

    def adopt(self, state: PartitionState) -> None:
        """Adopt the blocks of *state*."""
        self._starts = [block.start for block in state.blocks]
        self.log_start = state.log_start

    @property
    def open_start(self) -> int:
        """The first offset of the open block."""
        return self._starts[-1]

    # --- fetching -------------------------------------------------------------------------------

    def fetch(self, source: str, m: Fetch, now: int) -> None:
        """Answer with batches, or wait until there are batches."""
        partition = self._partition
        if m.any_replica and not partition.leads:
            self._fetch_of_follower(source, m, now)
            return
        if not partition.is_settled and partition.state.leader is not None:
            mark("serving.unsettled")
            self._wait(source, m, now)
            return
        if self._is_early(m):
            mark("serving.end_not_known")
            self._wait(source, m, now)
            return
        start, high = self.log_start, partition.opened.offsets.high_watermark
        offset = {BEGIN: start, END: high}.get(m.offset, m.offset)
        if not self._is_answered(source, m, offset, now):
            # END means the end at the time of the request, even if the fetch waits.
            mark("serving.waits")
            self._wait(source, attrs.evolve(m, offset=offset), now)

    def _fetch_of_follower(self, source: str, m: Fetch, now: int) -> None:
        """Answer a reader that accepts any replica, with records that this replica knows to be
        committed.

        A follower may lag, so it never reports that an offset is beyond the end. Instead it answers
        without records, with its own high watermark, and the reader asks another replica.
        """
        opened = self._partition.opened
        start, high = self.log_start, opened.offsets.readable_end
        offset = {BEGIN: start, END: high}.get(m.offset, m.offset)
        if m.offset == BEGIN and m.max_bytes <= 0:
            # Only the metadata has the start of the log.
            self._host.reply(source, self._answer(m, offset, self._unable), now)
        elif (error := self._unreadable(m.offset, offset, any_replica=True)) is not None:
            self._host.reply(source, self._answer(m, offset, error), now)
        elif offset < start:
            mark("serving.follower.out_of_range")
            self._host.reply(source, self._answer(m, offset, self._out_of_range(m)), now)
        elif offset == high and m.max_wait_ms > 0 and opened.is_in_touch:
            mark("serving.follower.waits")
            self._wait(source, attrs.evolve(m, offset=offset), now)
        elif offset >= high:
            mark("serving.follower.not_yet")
            self._host.reply(source, self._answer(m, offset), now)
        else:
            mark("serving.follower.serves")
            self._serve(source, m, offset, now)

    @property
    def _unable(self) -> PymqError | None:
        """Return the error if this replica can answer no fetch."""
        partition = self._partition
        return None if partition.problem is None else partition.opened.refusal(partition.problem)

    def _out_of_range(self, m: Fetch) -> OffsetOutOfRange:
        start, high = self.log_start, self._partition.opened.offsets.high_watermark
        return OffsetOutOfRange(
            f"{self._partition.name} holds offsets {start} to {high}, not {m.offset}",
            log_start=start,
            high_watermark=high,
        )

    def _is_answered(self, source: str, m: Fetch, offset: int, now: int) -> bool:
        """Answer a fetch if it has data or an error; returns whether it was answered."""
        partition = self._partition
        start, high = self.log_start, partition.opened.offsets.high_watermark
        if m.offset == BEGIN and m.max_bytes <= 0 and partition.leads:
            # The metadata has the start of the log; the leader may not hold the block there.
            self._host.reply(source, self._answer(m, offset, self._unable), now)
            return True
        error = self._unreadable(m.offset, offset)
        if error is None and not start <= offset <= max(high, partition.opened.offsets.end):
            mark("serving.out_of_range")
            error = self._out_of_range(m)
        if error is not None:
            self._host.reply(source, self._answer(m, offset, error), now)
            return True
        return self._serve(source, m, offset, now)

    def _unreadable(
        self, asked: int, offset: int, *, any_replica: bool = False
    ) -> PymqError | None:
        """Return the error if this replica cannot serve a fetch of *offset*."""
        partition = self._partition
        if (problem := self._unable) is not None:
            return problem
        if asked == END or offset >= self.open_start:
            if any_replica and not partition.leads:
                return self._no_copy
            if partition.leads or partition.state.leader is None:
                return None
            mark("serving.not_leader")
            return NotLeader.of(partition.name, partition.opened.leader)
        if offset < self.log_start:
            return None  # The offset is out of range; the caller returns that error.
        block = partition.state.blocks[bisect_right(self._starts, offset) - 1]
        if partition.blocks.has(block):
            return None
        others = [name for name in block.in_sync if name != partition.me]
        if not others and (damage := partition.blocks.repairs.problem(block.number)) is not None:
            mark("serving.damaged")
            return damage  # No replica has a sound copy.
        mark("serving.not_here")
        return ReplicaNotAvailable(
            f"{partition.me} does not hold {partition.name} {block.name}",
            brokers=others,
        )

    @property
    def _no_copy(self) -> ReplicaNotAvailable | None:
        """Return the error if the open block cannot be read here."""
        partition, node = self._partition, self._partition.opened.node
        if partition.opened.is_running:
            return None
        mark("serving.follower.no_copy")
        return ReplicaNotAvailable(
            f"{partition.me} has no copy of {partition.name} {node.name} to read from",
            brokers=[] if partition.me in node.replicas else list(node.replicas),
        )

    def _answer(self, m: Fetch, offset: int, error: PymqError | None = None) -> Fetched:
        partition, opened = self._partition, self._partition.opened
        is_follower = m.any_replica and not partition.leads
        high = opened.offsets.readable_end if is_follower else opened.offsets.high_watermark
        unkeyed: tuple[tuple[int, int], ...] = ()
        runs: tuple[Run, ...] = ()
        if m.max_bytes <= 0 and error is None and opened.log is not None:
            unkeyed = opened.log.unkeyed.below(high)
            if opened.log.priorities:
                # A member that requests the end of the log knows no priorities yet.
                runs = opened.log.priorities.between(0 if m.offset < 0 else offset, high)
        name = partition.name
        return Fetched(m.id, *name, offset, self.log_start, high, b"", error, unkeyed, runs)

    def _serve(self, source: str, m: Fetch, offset: int, now: int) -> bool:
        """Answer a fetch if there are records for it; returns whether it was answered."""
        answer = self._answer(m, offset)
        high = answer.high_watermark
        limit = high if m.end is None else min(high, m.end)
        if offset >= limit and m.max_wait_ms > 0 and offset >= high:
            return False
        if offset >= limit or m.max_bytes <= 0:
            self._host.reply(source, answer, now)
            return True
        # END means the end at the time of the request, even if the fetch waits for memory.
        most = self._host.admit(source, attrs.evolve(m, offset=offset), now)
        if not most:
            return True
        state = self._partition.state
        block = state.blocks[bisect_right(self._starts, offset) - 1]
        end = limit if block.end is None else min(limit, block.end)
        self._host.out.read.append(
            Read(source, answer, state.block_id(block), offset, end, most, m.verify)
        )
        return True

    # --- waiting --------------------------------------------------------------------------------

    def _wait(self, source: str, m: Fetch, now: int) -> None:
        """Keep a fetch waiting.

        If the connection has too many waiting fetches, the oldest one is answered without records.

        The fetch is refused if too many fetches of its account, or of all clients, wait in all
        partitions.
        """
        account, connection = self._host.owner(source)
        if not self._host.waiting.has_room(account):
            mark("serving.no_room_to_wait")
            why = "too many fetches of this principal or of all clients wait at ends of partitions"
            error = QuotaExceeded(why, retry_ms=AGAIN_MS)
            self._host.reply(source, self._answer(m, m.offset, error), now)
            return
        oldest = self.waits.add(source, account, connection, m, now)
        if oldest is not None:
            mark("serving.too_many_wait")
            self._answer_empty(*oldest, now)

    def tell_groups(self, now: int) -> None:
        """Tell the groups on this broker the partition's end, if it has grown."""
        partition, opened = self._partition, self._partition.opened
        high = opened.offsets.high_watermark
        if high <= self._told or not partition.leads or opened.log is None:
            return
        runs: tuple[Run, ...] = ()
        if opened.log.priorities:
            runs = opened.log.priorities.between(max(self._told, 0), high)
        self._told = high
        unkeyed = opened.log.unkeyed.below(high)
        growth = Growth(partition.name, partition.state.topic_id, high, unkeyed, runs)
        self._host.grown(growth, now)

    def wake(self, now: int) -> None:
        """Answer the waiting fetches that have data or an error now.

        This method runs with each append, so it checks single fetches only if one may be answered.
        """
        if not self.waits.waiting or self._all_go_on_waiting:
            return

        def is_served(source: str, m: Fetch) -> bool:
            if m.any_replica and not self._partition.leads:
                if not self._is_news(m):
                    return False
                self._fetch_of_follower(source, attrs.evolve(m, max_wait_ms=0), now)
                return True
            if not self._partition.is_settled or self._is_early(m):
                return False
            if m.offset < 0:
                self.fetch(source, m, now)
                return True
            return self._is_answered(source, m, m.offset, now)

        self.waits.serve(is_served)

    @property
    def _all_go_on_waiting(self) -> bool:
        """Whether no waiting fetch can be answered, judged by the lowest and highest awaited
        offset.
        """
        partition, opened, waits = self._partition, self._partition.opened, self.waits
        if not partition.leads:
            read_to = opened.offsets.readable_end
            return not waits.is_any_plain and opened.is_in_touch and waits.lowest >= read_to
        high = opened.offsets.high_watermark
        return (
            partition.is_settled
            and partition.problem is None
            and waits.lowest >= max(high, self.open_start)
            and waits.highest <= max(high, opened.offsets.end)
        )

    def _is_news(self, m: Fetch) -> bool:
        """Whether a follower has more records for a waiting reader than before."""
        opened = self._partition.opened
        return opened.offsets.readable_end > m.offset or not opened.is_in_touch

    def tick(self, now: int) -> None:
        """Answer the fetches that have timed out."""
        for source, m in self.waits.over(now):
            self._answer_empty(source, m, now)

    def close(self) -> None:
        """Answer all waiting fetches, because the partition leaves this broker."""
        self.waits.clear()

    def _is_early(self, m: Fetch) -> bool:
        """Whether *m* needs the log's end, which this new leader does not know yet."""
        partition = self._partition
        return m.offset == END and partition.leads and not partition.opened.offsets.knows_end

    def _answer_empty(self, source: str, m: Fetch, now: int) -> None:
        if self._is_early(m) and not m.any_replica:
            why = f"{self._partition.name} has a new leader, which does not know the log's end yet"
            error = ReplicaNotAvailable(f"{why}; try again")
            self._host.reply(source, self._answer(m, -1, error), now)
            return
        offset = m.offset if m.offset >= 0 else self._partition.opened.offsets.high_watermark
        self._host.reply(source, self._answer(m, offset), now)

    # --- times ----------------------------------------------------------------------------------

    def find(self, source: str, m: FindOffset, now: int, token: int) -> bool:
        """Search an offset by time; returns whether the store has to search.

        In that case the caller passes the store's answer to :meth:`found`.
        """
        return self._search(source, m, now, token, -1)

    def _search(self, source: str, m: FindOffset, now: int, token: int, after: int) -> bool:
        """Search the blocks after number *after*, one at a time."""
        partition = self._partition
        state = partition.state
        for block in state.blocks if partition.problem is None else ():
            may_hold = block.end is None or block.max_timestamp >= m.timestamp_ms
            if block.number > after and may_hold and block.end != block.start:
                error = self._unreadable(block.start, block.start, any_replica=m.any_replica)
                if error is None and block.end is None and partition.opened.log is None:
                    error = self._no_copy  # If there is no leader, a client may ask any replica.
                if error is not None:
                    self._host.reply(source, OffsetFound(m.id, -1, error), now)
                    return False
                is_open = block.end is None
                self._times = self._times or {}
                self._times[token] = (source, m, None if is_open else block.number)
                end = partition.opened.offsets.high_watermark if block.end is None else block.end
                name = state.block_id(block)
                self._host.out.ask.append(FindTime(name, end, m.timestamp_ms, token))
                return True
        problem = partition.problem
        error = None if problem is None else partition.opened.refusal(problem)
        self._host.reply(
            source, OffsetFound(m.id, partition.opened.offsets.high_watermark, error), now
        )
        return False

    def found(self, m: TimeFound, now: int) -> bool:
        """Handle the result for one block; returns whether the store searches the next one."""
        assert self._times is not None
        source, request, number = self._times.pop(m.token)
        error = as_told(m.error) if m.error is not None else None
        if isinstance(error, CorruptBatch):
            # The batch was already damaged when the producer sent it, so the disk is not at fault.
            name = self._partition.name
            details = {**error.details, "topic": name.topic, "partition": name.partition}
            error = CorruptBatch(f"{name}: {error.message}", **details)
        if m.offset is None and error is None and number is not None:
            # The block's newest record may have been truncated or compacted.
            return self._search(source, request, now, m.token, number)
        offset = self._partition.opened.offsets.high_watermark if m.offset is None else m.offset
        # The block may hold deleted records before the log's start.
        offset = max(offset, self.log_start)
        self._host.reply(source, OffsetFound(request.id, offset, error), now)
        return False

    # --- epochs ---------------------------------------------------------------------------------

    def find_epoch(self, source: str, m: FindEpoch, now: int) -> None:
        """Answer where the records of a leader epoch end; only the leader knows that."""
        partition, opened = self._partition, self._partition.opened
        error = self._unable
        if error is None and (not partition.leads or opened.log is None):
            error = NotLeader.of(partition.name, opened.leader)
        if error is not None or opened.log is None:
            self._host.reply(source, EpochFound(m.id, error=error), now)
            return
        known = LeaderEpochs()
        for block in partition.state.blocks:
            epochs = block.epochs if block.end is not None else tuple(opened.log.epochs)
            for epoch, offset in epochs or ((block.epoch, block.start),):
                known.assign(epoch, offset)
        epoch, end = known.end_of(m.epoch, self.log_start, opened.offsets.end)
        answer = EpochFound(m.id, epoch or m.epoch, max(end, self.log_start))
        self._host.reply(source, answer, now)
