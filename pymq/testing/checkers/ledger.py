"""The content of each replica's disk, recorded beside the stores, as chains of hashes.

A chain hash after a batch stands for all batches of the block up to it. So two logs are equal up to
an offset exactly if their chain hashes there are equal, and a comparison is one look-up even for
long logs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from struct import Struct
from zlib import crc32

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.header import COMPACTED, Header
from pymq.core.ready import (
    Append,
    Checkpoint,
    CreateBlock,
    Recovered,
    RecoverFailed,
    RemoveBlock,
    SaveState,
    SealBlock,
    Sync,
    Truncate,
    Write,
    WriteFailed,
)
from pymq.core.types import BlockId
from pymq.core.values import Factory, define
from pymq.errors import PymqError
from pymq.store.base import BlockStore
from pymq.store.wrapped import WrappedStore

_LINK = Struct("<IqI")


def chain(before: int, header: Header) -> int:
    """Return the chain hash after the batch of *header*."""
    return crc32(_LINK.pack(header.leader_epoch, header.base_offset, header.batch_crc), before)


@define
class ReplicaLog:
    """The copy of a block on one broker, as a log."""

    node: str
    block: BlockId
    start: int
    ends: list[int] = Factory(list)  # end of each batch
    chains: list[int] = Factory(list)  # chain hash after each batch
    headers: list[Header] = Factory(list)
    synced_end: int = 0  # records before this offset survive a crash
    maybe: list[Header] = Factory(list)  # batches of a write that has not returned, or has failed
    # the possible end of the log after a truncation that has not returned
    cutting: int | None = None

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.ends[-1] if self.ends else self.start

    @property
    def epoch(self) -> int:
        """The epoch of the last batch."""
        return self.headers[-1].leader_epoch if self.headers else 0

    def chain_at(self, end: int) -> int | None:
        """Return the chain hash up to offset *end*; None if no batch ends there."""
        if end == self.start:
            return 0
        index = bisect_left(self.ends, end)
        found = index < len(self.ends) and self.ends[index] == end
        return self.chains[index] if found else None

    def batch_at(self, offset: int) -> int:
        """Return the number of the batch that holds *offset*."""
        return bisect_right(self.ends, offset)

    def add(self, header: Header, known: int | None = None) -> None:
        """Append a batch; *known* is its chain hash, if the header does not determine it."""
        before = self.chains[-1] if self.chains else 0
        self.chains.append(chain(before, header) if known is None else known)
        self.ends.append(header.end_offset)
        self.headers.append(header)

    def cut(self, end: int) -> None:
        """Drop the batches that end after *end*."""
        index = bisect_right(self.ends, end)
        del self.ends[index:], self.chains[index:], self.headers[index:]
        self.synced_end = min(self.synced_end, max(end, self.start))


Fail = Callable[[str, str], None]  # (name of the rule, description)


class Ledger:
    """The logs of all replicas, by broker and block."""

    def __init__(self, fail: Fail) -> None:
        self.logs: dict[tuple[str, BlockId], ReplicaLog] = {}
        self.on_append: list[Callable[[ReplicaLog, Header], None]] = []
        # called with (log, its future end)
        self.on_truncate: list[Callable[[ReplicaLog, int], None]] = []
        # functions that are called with (log, its new end) after a crash
        self.on_loss: list[Callable[[ReplicaLog, int], None]] = []
        self.damaged: dict[str, None] = {}  # brokers with disks that have lost synced records
        self.states: dict[tuple[str, BlockId], bytes] = {}  # the saved state of each block
        # how often a replica of a partition has restarted with fewer records, synced or not
        self.losses: dict[tuple[str, int], int] = {}
        self._unsure: dict[tuple[str, BlockId], bytes] = {}  # states whose write has failed
        # first offsets of blocks whose creation has failed
        self._begun: dict[tuple[str, BlockId], int] = {}
        self._replaced: dict[BlockId, list[ReplicaLog]] = {}  # logs of replaced disks
        self._numbers: dict[tuple[str, str, int], list[int]] = {}  # epochs of blocks, in order
        self.fail = fail

    def log(self, node: str, block: BlockId) -> ReplicaLog | None:
        """Return the log of one replica."""
        return self.logs.get((node, block))

    def holding(self, node: str, topic_id: str, partition: int, offset: int) -> ReplicaLog | None:
        """Return a broker's log that holds *offset* of a partition."""
        numbers = self._numbers.get((node, topic_id, partition), ())
        for number in reversed(numbers):
            log = self.logs.get((node, BlockId(topic_id, partition, number)))
            if log is not None and log.start <= offset:
                return log if offset < log.end else None
        return None

    def replicas(self, block: BlockId) -> list[ReplicaLog]:
        """Return all logs of a block."""
        return [log for (_, other), log in self.logs.items() if other == block]

    def holders(self, block: BlockId, end: int, chain: int | None) -> list[str]:
        """Return the brokers that have synced a block up to *end*, with the chain hash *chain*.

        A broker counts even if its disk has been replaced since: its report was true, and may still
        be in flight. The copy on the new disk is another replica and does not count a second time.
        """
        logs = [*self.replicas(block), *self._replaced.get(block, ())]
        found = (log.node for log in logs if log.synced_end >= end and log.chain_at(end) == chain)
        return list(dict.fromkeys(found))

    def forget(self, node: str) -> None:
        """Note that a broker's disk was replaced."""
        self.damaged.pop(node, None)
        for key in [key for key in self.logs if key[0] == node]:
            self._lose(key[1])
            self._replaced.setdefault(key[1], []).append(self.logs.pop(key))
        for states in (self.states, self._unsure):
            for key in [key for key in states if key[0] == node]:
                del states[key]
        self._begun = {key: start for key, start in self._begun.items() if key[0] != node}

    def _lose(self, block: BlockId) -> None:
        key = (block.topic_id, block.partition)
        self.losses[key] = self.losses.get(key, 0) + 1

    def has_lost(self, block: BlockId) -> bool:
        """Whether any replica of a block's partition has ever restarted with fewer records."""
        return (block.topic_id, block.partition) in self.losses

    # --- events of stores -------------------------------------------------------------------------

    def begin(self, node: str, writes: Sequence[Write]) -> None:
        """Note that a write begins: until the write returns, any part of it may be on the disk."""
        fresh: dict[BlockId, None] = {}
        for write in writes:
            if isinstance(write, Append) and write.batches:
                log = self._of(node, write.block, write.batches[0].base_offset)
                if write.block not in fresh:
                    fresh[write.block] = None
                    log.maybe.clear()  # the store has undone an earlier failed write
                log.maybe += [batch.header for batch in write.batches]
            elif isinstance(write, Truncate) and (node, write.block) in self.logs:
                self.logs[node, write.block].cutting = write.end
            elif isinstance(write, SaveState):
                self._unsure[node, write.block] = write.state

    def _of(self, node: str, block: BlockId, start: int) -> ReplicaLog:
        found = self.logs.get((node, block))
        if found is None:
            found = self.logs[node, block] = ReplicaLog(node, block, start, synced_end=start)
            numbers = self._numbers.setdefault((node, block.topic_id, block.partition), [])
            if block.number not in numbers:
                insort(numbers, block.number)
        return found

    def done(self, node: str, writes: Sequence[Write], failed: Sequence[WriteFailed]) -> None:
        """Note that a write has returned.

        After a failed write the data may be on the disk or not.
        """
        bad = {failure.block for failure in failed}
        synced: dict[BlockId, None] = {}
        for write in writes:
            if write.block in bad:
                if isinstance(write, CreateBlock):
                    self._begun[node, write.block] = write.start
                continue
            match write:
                case CreateBlock():
                    self._of(node, write.block, write.start)
                case Append():
                    log = self.logs[node, write.block]
                    for batch in write.batches:
                        self._append(log, batch.header)
                    log.maybe.clear()
                    if write.sync:
                        synced[write.block] = None
                case Truncate(end=end):
                    log = self._of(node, write.block, end)
                    for callback in self.on_truncate:
                        callback(log, end)
                    log.cut(end)
                    log.cutting = None
                case RemoveBlock():
                    self.logs.pop((node, write.block), None)
                    self.states.pop((node, write.block), None)
                    self._unsure.pop((node, write.block), None)
                    self._begun.pop((node, write.block), None)
                    synced.pop(write.block, None)
                case Sync() | SealBlock() | Checkpoint():
                    synced[write.block] = None
                case SaveState(state=state):
                    self.states[node, write.block] = state
                    self._unsure.pop((node, write.block), None)
        for block in synced:
            start = self._begun.pop((node, block), None)
            # A block that can be synced exists, even if another write in the call that created it
            # has failed.
            log = self.logs[node, block] if start is None else self._of(node, block, start)
            log.synced_end = log.end

    def _append(self, log: ReplicaLog, header: Header) -> None:
        if header.base_offset != log.end:
            self.fail(
                "dense-offsets",
                f"{log.node} appends offset {header.base_offset} to {log.block}, "
                f"which ends at {log.end}",
            )
        if header.leader_epoch < log.epoch:
            self.fail(
                "epochs-rise",
                f"{log.node} appends epoch {header.leader_epoch} to {log.block} after {log.epoch}",
            )
        log.add(header, self._uncompacted(log.block, header))
        for callback in self.on_append:
            callback(log, header)

    def _uncompacted(self, block: BlockId, header: Header) -> int | None:
        """Return the chain hash of the batches that a copied compacted batch replaces."""
        if not header.attributes & COMPACTED:
            return None
        found = (log.chain_at(header.end_offset) for log in self.replicas(block))
        return next((known for known in found if known is not None), None)

    def recovered(self, node: str, found: Recovered) -> None:
        """Note the end of a block that a store has recovered."""
        log = self._of(node, found.block, found.start)
        if node not in self.damaged:
            self._check_state(node, found)
        cutting, log.cutting = log.cutting, None
        if cutting is not None and found.end <= cutting < log.end:
            # The broker died during a legitimate truncation that had already reached the disk.
            for callback in self.on_truncate:
                callback(log, cutting)
            log.cut(cutting)
        if found.end < log.synced_end and node not in self.damaged:
            self.fail(
                "synced-survives",
                f"{node} has {found.block} up to {found.end} after a restart, "
                f"and had synced it up to {log.synced_end}",
            )
        before = log.end
        if found.end > log.end:
            for header in log.maybe:
                if header.base_offset == log.end and header.end_offset <= found.end:
                    self._append(log, header)
        if found.end < before:
            for callback in self.on_loss:
                callback(log, found.end)
            self._lose(found.block)
            log.cut(found.end)
        if log.end != found.end:
            self.fail(
                "nothing-invented-on-disk",
                f"{node} has {found.block} up to {found.end}, where no batch ends",
            )
        log.maybe.clear()
        log.synced_end = log.end  # recovery has synced the records that the log still has

    def _check_state(self, node: str, found: Recovered) -> None:
        """Check that the disk still has the saved term and vote, or later ones."""
        key = (node, found.block)
        saved = self.states.get(key)
        if found.state not in (saved, self._unsure.get(key, saved)):
            self.fail(
                "promise-survives",
                f"{node} has the state {found.state!r} of {found.block} after a restart, "
                f"and had saved {saved!r}",
            )
        if found.state is not None:
            self.states[key] = found.state
        self._unsure.pop(key, None)


class WatchedStore(WrappedStore):
    """A store whose writes and recoveries are recorded in a ledger."""

    def __init__(self, store: BlockStore, node: str, ledger: Ledger) -> None:
        super().__init__(store)
        self._node = node
        self._ledger = ledger

    def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
        """Carry out *writes* and record them."""
        self._ledger.begin(self._node, writes)
        failed = self.store.write(writes)
        self._ledger.done(self._node, writes, failed)
        return failed

    def recover(self, block: BlockId, start: int, is_open: bool) -> Recovered | RecoverFailed:
        """Recover a block and record the result."""
        found = self.store.recover(block, start, is_open)
        if isinstance(found, Recovered):
            known = self._ledger.log(self._node, block)
            synced = known.synced_end if known is not None else start
            self._ledger.recovered(self._node, found)
            if found.end > synced and self._node not in self._ledger.damaged:
                self._check_whole(block, synced, found.end)
        return found

    def _check_whole(self, block: BlockId, start: int, end: int) -> None:
        """Check that the surviving part of an unfinished write is readable, that is, holds whole
        batches.
        """
        try:
            while start < end:
                for batch in split(self.store.read(block, start, end, 1 << 20)):
                    start = batch.verify().header.end_offset
        except PymqError as error:
            self._ledger.fail("recovered-is-whole", f"{self._node} has kept {block}: {error}")
