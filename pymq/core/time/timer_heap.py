"""When what is due, of many things, found without a look at all of them."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from pymq.core.types import NEVER

K = TypeVar("K", bound=Hashable)


class TimerHeap(Generic[K]):
    """Deadlines by key. Putting one off is as cheap as a dictionary, so most cost no more.

    What is in the heap may be too early, never too late: it is looked at when it seems due.
    """

    __slots__ = ("_armed", "_armings", "_due", "_heap", "due")

    def __init__(self) -> None:
        self.due = NEVER  # of the first; any thread may read it, and it may be too early
        self._due: dict[K, int] = {}
        self._armed: dict[K, int] = {}  # the earliest of each in the heap
        self._heap: list[tuple[int, int, K]] = []
        self._armings = 0

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, due: int) -> None:
        """*key* is due at *due*, whatever was said of it before."""
        self._due[key] = due
        if due < self._armed.get(key, NEVER):
            self._armed[key] = due
            self._armings += 1
            heappush(self._heap, (due, self._armings, key))
            self.due = min(self.due, due)

    def sooner(self, key: K, due: int) -> None:
        """*key* is due at *due*, or before that if it was."""
        if due < self._due.get(key, NEVER):
            self.set(key, due)

    def drop(self, key: K) -> None:
        """*key* is not due any more."""
        self._due.pop(key, None)

    def clear(self) -> None:
        """Nothing is due any more."""
        self._due.clear()
        self._armed.clear()
        self._heap.clear()
        self.due = NEVER

    def settle(self) -> None:
        """Let :attr:`due` be exact, until something is changed."""
        heap = self._heap
        while heap:
            armed, _, key = heap[0]
            due = self._due.get(key)
            if self._armed.get(key) == armed:
                if due == armed:
                    break
                del self._armed[key]
                if due is not None:
                    self.set(key, due)  # Later, so that it does not come to be the first before.
            heappop(heap)
        self.due = heap[0][0] if heap else NEVER

    def over(self, now: int) -> list[K]:
        """Take out what is due."""
        found: list[K] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            armed, _, key = heappop(heap)
            if self._armed.get(key) != armed:
                continue  # An earlier one took its place.
            del self._armed[key]
            due = self._due.get(key)
            if due is None:
                continue
            if due <= now:
                del self._due[key]
                found.append(key)
            else:
                self.set(key, due)
        self.due = heap[0][0] if heap else NEVER
        return found
