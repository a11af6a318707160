"""Sends tasks: all at once, or at a steady rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from benchmarks.network.roles import HandLoop
from benchmarks.queues.board import Board

AT_ONCE = 200  # sends that a client of asyncio has in flight at a time


class Sender(Protocol):
    """A client that is connected; a task is its number."""

    def burst(self, tasks: Sequence[int]) -> None:
        """Send *tasks* as fast as possible; return when the server has all of them."""

    def paced(self, board: Board, tasks: Iterable[int], pause_s: float) -> None:
        """Send a task each *pause_s* seconds, and note the time; return when the server has all
        tasks.
        """


class Calls:
    """A client with functions that send, burst and flush."""

    def __init__(
        self,
        send: Callable[[int], object],
        burst: Callable[[Sequence[int]], object] | None = None,
        flush: Callable[[], object] = lambda: None,
    ) -> None:
        self._send = send
        self._burst = burst
        self._flush = flush

    def burst(self, tasks: Sequence[int]) -> None:
        """See :class:`Sender`."""
        if self._burst is not None:
            self._burst(tasks)
        else:
            for task in tasks:
                self._send(task)
        self._flush()

    def paced(self, board: Board, tasks: Iterable[int], pause_s: float) -> None:
        """See :class:`Sender`. If a task is late, send it at once."""
        due = time.monotonic()
        for task in tasks:
            due += pause_s
            time.sleep(max(0.0, due - time.monotonic()))
            board.sent(task)
            self._send(task)
        self._flush()


class Coroutines:
    """A client of asyncio, with its event loop."""

    def __init__(self, loop: HandLoop, send: Callable[[int], Awaitable[object]]) -> None:
        self._loop = loop
        self._send = send

    def burst(self, tasks: Sequence[int]) -> None:
        """See :class:`Sender`."""
        self._loop.run(self._all(tasks))

    async def _all(self, tasks: Sequence[int]) -> None:
        left = iter(tasks)

        async def some() -> None:
            for task in left:  # these coroutines share the iterator, so each task is sent once
                await self._send(task)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    def paced(self, board: Board, tasks: Iterable[int], pause_s: float) -> None:
        """See :class:`Sender`. If a task is late, send it at once."""
        self._loop.run(self._paced(board, tasks, pause_s))

    async def _paced(self, board: Board, tasks: Iterable[int], pause_s: float) -> None:
        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                due += pause_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                board.sent(task)
                group.create_task(self._one(task))

    async def _one(self, task: int) -> None:
        await self._send(task)
