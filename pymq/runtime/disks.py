"""The stores of one loop; writes to several disks run in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pymq.core.ready import Write, WriteFailed
from pymq.store.base import BlockStore

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


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

    def write(self, work: Sequence[tuple[str, Sequence[Write]]]) -> list[Sequence[WriteFailed]]:
        """Write to the stores of several brokers in parallel; returns the failures of each store.

        If a store raises an error, this method raises it after all other stores have finished.
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
        """End the threads, which are idle now."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
