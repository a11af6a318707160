"""Recovery of an open block after a start: finds the end of the log and the producer table.

1. The store finds where the block ends, and reads its last checkpoint and the headers after it.
2. If neither a checkpoint nor the metadata has a producer table, the store reads the previous
   blocks, newest first, until one has a checkpoint.
3. The headers are replayed, oldest block first.

If the disk cannot read a block, a later try may succeed. So the store retries with growing pauses;
until then the replica does not take part in replication. Damaged data is final.
"""

from __future__ import annotations

from collections.abc import Callable

from pymq.core.block.idempotence import ProducerTable
from pymq.core.block.log import BlockLog, LogHost
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.ready import Recover, Recovered, RecoverFailed
from pymq.core.types import NEVER, AckMode, BlockId
from pymq.errors import CorruptBlock, CorruptMetadata, PymqError, StoreError

READ_AGAIN_MAX_MS = 30_000  # longest pause between two tries to read a block


def as_told(error: Exception) -> PymqError:
    """Return a store's error as a :class:`PymqError`, for answers and reports."""
    return error if isinstance(error, PymqError) else StoreError(str(error))


def passes(error: Exception) -> bool:
    """Whether the store lacks a resource that can become free again, such as file descriptors."""
    return isinstance(error, StoreError) and error.details.get("passes") is True


def may_pass(failed: RecoverFailed) -> bool:
    """Whether the next try to read the block may succeed."""
    if failed.fatal or isinstance(failed.error, CorruptBlock | CorruptMetadata):
        return False
    return isinstance(failed.error, OSError)


class Recovery:
    """Recovers one log: collects the store's answers, and retries after a read failure."""

    __slots__ = (
        "_asked",
        "_first_pause_ms",
        "_found",
        "_host",
        "_is_known",
        "_is_stopped",
        "failures",
        "retry_at",
    )

    def __init__(
        self, host: LogHost, is_known: Callable[[BlockNode], bool], first_pause_ms: int
    ) -> None:
        self.failures = 0  # consecutive read failures that a retry may overcome
        self.retry_at = NEVER  # time of the next retry
        self._host = host
        self._is_known = is_known  # whether a sealed block's producer table is complete here
        self._first_pause_ms = first_pause_ms
        self._found: tuple[Recovered, ...] = ()  # newest block first
        self._asked: BlockId | None = None  # the last earlier block that the store was asked for
        self._is_stopped = False

    @property
    def is_retrying(self) -> bool:
        """Whether a read of the block has failed and will be retried."""
        return self.failures > 0 and not self._is_stopped

    @property
    def pause_ms(self) -> int:
        """The pause before the next try, which doubles with each failure."""
        return min(self._first_pause_ms << min(self.failures - 1, 16), READ_AGAIN_MAX_MS)

    def awaits(self, block: BlockId, log: BlockLog) -> bool:
        """Whether recovery waits for the store's answer about *block*.

        The store may also answer about other blocks, such as a sealed block that has been removed.
        """
        if self._is_stopped or not log.is_recovering:
            return False
        return block == (self._asked or log.name)

    def is_resting(self, log: BlockLog) -> bool:
        """Whether *log* is not recovered and no answer about its block is awaited.

        Either the next request has not been sent, or the store has answered and now reads earlier
        blocks.
        """
        if self.retry_at != NEVER:
            return True
        return log.is_recovering and not self.awaits(log.name, log)

    def ask(self, log: BlockLog) -> None:
        """Ask the store again for the block of *log*."""
        self._drop()
        self.retry_at = NEVER
        log.recover()

    def ask_at(self, now: int) -> None:
        """Schedule the next request to the store at *now*, not earlier."""
        self._drop()
        self.retry_at = now

    def failed(self, now: int) -> None:
        """Schedule another request after a pause, because the store could not read the block."""
        self.failures += 1
        self.retry_at = now + self.pause_ms

    def stop(self) -> None:
        """Stop: the replica has failed permanently, so ignore answers of the store."""
        self._is_stopped = True
        self.retry_at = NEVER

    def add(self, found: Recovered, log: BlockLog, state: PartitionState) -> Recovered | None:
        """Add a part of the recovered state.

        With the last part, restore *log* and return the open block's part.

        Raises:
            CorruptBlock: records that were durable in this process are missing.
            CorruptMetadata: a checkpoint cannot be read.
            StoreError: the block has records, but its saved Raft state is missing.
        """
        self._found = (*self._found, found)
        first = self._found[0]
        block = state.blocks[-1]
        is_voted = len(block.replicas) > 1 and block.acks is AckMode.RAFT
        if is_voted and first.state is None and first.end > first.start:
            mark("partition.votes_lost")
            # A replica saves its term and vote before it accepts records, so both have been lost.
            raise StoreError(f"{first.block} has records, and its saved vote is missing")
        if not self._restore(log, state):
            return None
        self._drop()
        return first

    def done(self) -> None:
        """Note that the log is recovered."""
        self.failures = 0
        self.retry_at = NEVER  # A failed write may have set a retry after the request to the store.

    def _drop(self) -> None:
        self._found, self._asked = (), None

    def _restore(self, log: BlockLog, state: PartitionState) -> bool:
        blocks, found = state.blocks, self._found
        before: ProducerTable | None = None
        if blocks[-1].past:
            before = ProducerTable.restore(blocks[-1].past)
        elif found[-1].snapshot is None and found[-1].block.number > blocks[0].number:
            # Without a snapshot, the producer table has to come from the previous block.
            index = [block.number for block in blocks].index(found[-1].block.number) - 1
            earlier = blocks[index]
            if self._is_known(earlier):
                mark("partition.recover_earlier")
                self._asked = state.block_id(earlier)
                self._host.out.ask.append(Recover(self._asked, earlier.start, False))
                return False
        for part in reversed(found[1:]):
            older = BlockLog(self._host, part.block, part.start, is_shared=False)
            older.restore(part, before or ProducerTable())
            before = older.producers
        return log.restore(found[0], before or ProducerTable())
