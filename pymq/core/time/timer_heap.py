"""Deadlines of many keys; finds expired deadlines without a scan."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from pymq.core.types import NEVER

K = TypeVar("K", bound=Hashable)


class TimerHeap(Generic[K]):
    """Deadlines by key. The usual case, postponing a deadline, costs one write to a dictionary.

    An entry in the heap may be too early, never too late, and is checked when it expires.
    """

    __slots__ = ("_armed", "_armings", "_due", "_heap", "due")

    def __init__(self) -> None:
        self.due = NEVER  # the first deadline or an earlier time; any thread may read it
        self._due: dict[K, int] = {}
        self._armed: dict[K, int] = {}  # the earliest entry of each key in the heap
        self._heap: list[tuple[int, int, K]] = []
        self._armings = 0

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, due: int) -> None:
        """Set the deadline of *key* to *due*."""
        self._due[key] = due
        if due < self._armed.get(key, NEVER):
            self._arm(key, due)

    def add(self, key: K, due: int) -> None:
        """Set the deadline of *key* to *due*, unless it has one."""
        if key not in self._due:
            self._due[key] = due
            if due < self._armed.get(key, NEVER):
                self._arm(key, due)

    def _arm(self, key: K, due: int) -> None:
        self._armed[key] = due
        self._armings += 1
        heappush(self._heap, (due, self._armings, key))
        self.due = min(self.due, due)

    def sooner(self, key: K, due: int) -> None:
        """Set the deadline of *key* to *due*, unless it has an earlier one."""
        if due < self._due.get(key, NEVER):
            self.set(key, due)

    def drop(self, key: K) -> None:
        """Remove the deadline of *key*."""
        self._due.pop(key, None)

    def clear(self) -> None:
        """Remove all deadlines."""
        self._due.clear()
        self._armed.clear()
        self._heap.clear()
        self.due = NEVER

    def settle(self) -> None:
        """Make :attr:`due` exact, until the next change."""
        heap = self._heap
        while heap:
            armed, _, key = heap[0]
            due = self._due.get(key)
            if self._armed.get(key) == armed:
                if due == armed:
                    break
                del self._armed[key]
                if due is not None:
                    # The new deadline is later, so this loop does not find the entry again.
                    self.set(key, due)
            heappop(heap)
        self.due = heap[0][0] if heap else NEVER

    def over(self, now: int) -> list[K]:
        """Remove and return the keys whose deadline is at or before *now*."""
        found: list[K] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            armed, _, key = heappop(heap)
            if self._armed.get(key) != armed:
                continue  # An earlier entry of the key has replaced this entry.
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
