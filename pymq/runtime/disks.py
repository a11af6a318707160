"""The stores of one loop, whose disks work side by side when there are several."""

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
        """The broker *name* keeps its blocks in *store*."""
        self._stores[name] = store

    def store(self, name: str) -> BlockStore:
        """The store of the broker *name*."""
        return self._stores[name]

    def write(self, work: Sequence[tuple[str, Sequence[Write]]]) -> list[Sequence[WriteFailed]]:
        """Let each of several brokers' stores write, all at once; returns what has failed of each.

        What a store raises is raised only when none of the others is at work any more.
        """
        (name, mine), *others = work
        if not others:
            return [self._stores[name].write(mine)]
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # only now: one disk needs none

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
        """End the threads, which have nothing to do by now."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
