"""Priorities of records: a group gets available records of the highest priority first.

A record's priority, 0 to 9, is its header ``pymq.priority``; without that header it is 0, the
lowest. All records of a batch have the same priority, and the batch's header repeats it, so brokers
need not decode records:

1. The producer closes one batch per priority.
2. Replicas of an open block collect runs: offsets of consecutive batches with the same priority
   above 0.
3. The leader sends these runs to group members that watch the partition.
4. Members forward the runs to their group coordinator, which sees no records itself.

Replicas keep at most ``RUNS_MAX`` runs of a block. If there are more, the runs with the lowest
offsets lose their priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pymq.core.batch.columns import Headers
from pymq.core.batch.header import PRIORITY_SHIFT

PRIORITY = "pymq.priority"
HIGHEST = 9
RUNS_MAX = 1024  # how many runs a log, a member and a message hold

Run = tuple[int, int, int]  # (first offset, offset after the last, priority)


def priority_of(headers: Headers) -> int:
    """Return the priority in a record's headers; 0 if there is no valid one."""
    for name, text in headers:
        if name == PRIORITY:
            return min(int(text), HIGHEST) if len(text) == 1 and text.isdigit() else 0
    return 0


def priority_bits(records: Iterable[Headers]) -> int:
    """Return a batch's attribute bits for the lowest priority in its records' headers."""
    return min(map(priority_of, records), default=0) << PRIORITY_SHIFT


class PriorityRuns:
    """Runs of records with a priority above 0, by their offsets, at most *most*."""

    __slots__ = ("_most", "_runs")

    def __init__(self, runs: Iterable[Sequence[int]] = (), most: int = RUNS_MAX) -> None:
        self._most = most
        self._runs: list[Run] = []
        for start, end, priority in runs:
            self.put(int(start), int(end), int(priority))

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def put(self, start: int, end: int, priority: int) -> None:
        """Append a run; offsets that are not after the last run are left out."""
        runs = self._runs
        if runs:
            low, high, before = runs[-1]
            start = max(start, high)
            if start == high and before == priority and start < end:
                runs[-1] = low, end, priority
                return
        if start >= end:
            return
        runs.append((start, end, priority))
        if len(runs) > self._most:
            del runs[: self._most // 4]

    def cut(self, end: int) -> None:
        """Remove all offsets from *end* on."""
        runs = self._runs
        while runs and runs[-1][1] > end:
            start, _, priority = runs.pop()
            if start < end:
                runs.append((start, end, priority))

    def forget(self, before: int) -> None:
        """Drop the runs that end at or before an offset."""
        count = 0
        while count < len(self._runs) and self._runs[count][1] <= before:
            count += 1
        del self._runs[:count]

    def between(self, start: int, end: int) -> tuple[Run, ...]:
        """Return the runs with offsets from *start* on, cut at *end*."""
        found: list[Run] = []
        for low, high, priority in reversed(self._runs):  # new runs are at the end
            if high <= start:
                break
            if low < end:
                found.append((max(low, start), min(high, end), priority))
        return tuple(reversed(found))
