"""The stores of one loop: reads, and writes to several disks in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from pymq.core.message import Fetched, Message
from pymq.core.ready import (
    Append,
    Checkpoint,
    Envelope,
    Read,
    Ready,
    SaveState,
    Sync,
    Write,
    WriteFailed,
)
from pymq.errors import PymqError
from pymq.store.base import BlockStore

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

READ_BYTES_MAX = 32 << 20  # bytes in one answer, however large the request
# Writes that leave the committed records of their block as they are.
HARMLESS = (Append, Sync, Checkpoint, SaveState)


class LoopDisks:
    """A store for each broker that the loop drives."""

    def __init__(self) -> None:
        self._stores: dict[str, BlockStore] = {}
        self._pool: ThreadPoolExecutor | None = None

    def add(self, name: str, store: BlockStore) -> None:
        """Add the store of the broker *name*."""
        self._stores[name] = store

    def store(self, name: str) -> BlockStore:
        """Return the store of the broker *name*."""
        return self._stores[name]

    def filled(self, name: str, read: Read) -> Message:
        """Return the answer of a read with its records.

        Raises:
            PymqError: they could not be read.
        """
        most = min(read.max_bytes, READ_BYTES_MAX)
        store = self._stores[name]
        data = store.read(read.block, read.offset, read.end, most, verify=read.verify)
        return attrs.evolve(read.answer, data=data)

    def read_first(self, name: str, ready: Ready, writes: Sequence[Write]) -> list[Envelope]:
        """Carry out the fetches of clients in *ready* before *writes*, and return their answers.

        A fetch reads committed records only, and the turn appends behind these. So its answer need
        not wait for the write, which may take long. The other reads stay in *ready*: those of
        followers and of parts of this broker, those of blocks that the turn changes in another way,
        and those that fail.
        """
        changed = {write.block for write in writes if not isinstance(write, HARMLESS)}
        answers: list[Envelope] = []
        later: list[Read] = []
        for read in ready.read:
            is_fetch = isinstance(read.answer, Fetched) and not read.peer.startswith("#")
            if is_fetch and read.block not in changed:
                try:
                    answers.append((read.peer, self.filled(name, read)))
                except PymqError:
                    pass  # The broker learns of the error after the write, as of any other.
                else:
                    continue
            later.append(read)
        ready.read = later
        return answers

    def write(self, work: Sequence[tuple[str, Sequence[Write]]]) -> list[Sequence[WriteFailed]]:
        """Write to the stores of several brokers in parallel; returns the failures of each.

        An error of one store is raised after all others have finished.
        """
        (name, mine), *others = work
        if not others:
            return [self._stores[name].write(mine)]
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # lazy: one disk needs no threads

            self._pool = ThreadPoolExecutor(len(self._stores) - 1, "pymq-disk")
        waited = [self._pool.submit(self._stores[other].write, writes) for other, writes in others]
        found: list[Sequence[WriteFailed]] = []
        try:
            found.append(self._stores[name].write(mine))
        finally:
            problems = [future.exception() for future in waited]
        for problem in problems:
            if problem is not None:
                raise problem
        return found + [future.result() for future in waited]

    def release(self) -> None:
        """End the threads, which are idle by now."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
