"""The times at which each task was sent, started and ended, in shared memory of all processes.

A task that writes eight bytes is about as cheap as one that does nothing, and all processes of a
machine share the clock. Before a measurement the workers wait at a gate (a barrier), so that none
of them runs a task before all workers are ready and all tasks are sent.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.model import Measures

LOOK_S = 0.005  # pause between two reads of the file: no event announces writes of other processes
READY_S = 120.0
PATIENCE_S = 120.0  # longest time in which no task ends
WARM = 10  # the first tenth of all tasks is not measured
COLUMNS = 3  # sent, started, ended


class Board:
    """A file that every process maps, with the gate, a place for each worker, and a place for each
    task.
    """

    def __init__(self, file: Path, workers: int) -> None:
        with file.open("r+b") as opened:
            self._places = memoryview(mmap.mmap(opened.fileno(), 0)).cast("q")
        tasks = (len(self._places) - 1 - workers) // COLUMNS
        self._ready = self._places[1 : 1 + workers]
        first = 1 + workers
        self._sent, self._started, self._ended = (
            self._places[first + tasks * column : first + tasks * (column + 1)]
            for column in range(COLUMNS)
        )

    @classmethod
    def make(cls, file: Path, workers: int, tasks: int) -> Board:
        """Make the file."""
        file.write_bytes(bytes(8 * (1 + workers + COLUMNS * tasks)))
        return cls(file, workers)

    # --- the gate -------------------------------------------------------------------------------

    def pass_gate(self, *workers: int) -> None:
        """Note that *workers* are ready, and wait until the gate opens."""
        for worker in workers:
            self._ready[worker] = 1
        while not self._places[0]:
            time.sleep(LOOK_S)

    def wait_for_workers(self, check: Callable[[], object]) -> None:
        """Wait until all workers are at the gate; *check* raises an error if a worker has ended."""
        deadline = time.monotonic() + READY_S
        while not all(self._ready):
            check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{sum(self._ready)} of {len(self._ready)} workers are ready")
            time.sleep(LOOK_S)

    def open_gate(self) -> None:
        """Let the workers begin."""
        self._places[0] = 1

    # --- the tasks ------------------------------------------------------------------------------

    def sent(self, task: int) -> None:
        """Note that a task is sent now."""
        self._sent[task] = time.monotonic_ns()

    def started(self, task: int) -> None:
        """Note that a task starts now."""
        if self._started[task]:
            raise RuntimeError(f"task {task} ran twice")
        self._started[task] = time.monotonic_ns()

    def ended(self, task: int) -> None:
        """Note that a task has ended now."""
        self._ended[task] = time.monotonic_ns()

    def run(self, task: int, work_s: float) -> None:
        """Run a task in this thread: it sleeps, like a task that waits for a database."""
        self.started(task)
        if work_s:
            time.sleep(work_s)
        self.ended(task)

    # --- what was measured ----------------------------------------------------------------------

    def wait_for_tasks(self, tasks: range, check: Callable[[], object]) -> None:
        """Wait until *tasks* have ended; *check* raises an error if a worker has ended."""
        ended = self._ended[tasks.start : tasks.stop]
        last, deadline = 0, time.monotonic() + PATIENCE_S
        at = 0
        while True:
            while at < len(ended) and ended[at]:
                at += 1
            if at == len(ended):
                return
            check()
            if at > last:
                last, deadline = at, time.monotonic() + PATIENCE_S
            if time.monotonic() > deadline:
                done = sum(1 for end in ended if end)
                raise TimeoutError(f"{done} of {len(ended)} tasks have ended")
            time.sleep(LOOK_S)

    def rate(self, tasks: range) -> float:
        """Return how many tasks ended per second, after the first tenth of the tasks."""
        ends = sorted(self._ended[tasks.start : tasks.stop])
        warm = len(ends) // WARM
        return (len(ends) - 1 - warm) * 1e9 / (ends[-1] - ends[warm])

    def seconds(self, tasks: range) -> float:
        """Return the seconds from the send of the first to the end of the last task."""
        return (max(self._ended[tasks.start : tasks.stop]) - self._sent[tasks.start]) / 1e9

    def waits_ns(self, tasks: range) -> list[int]:
        """Return for each task the nanoseconds from its send to its start."""
        return [self._started[task] - self._sent[task] for task in tasks]


def checked(found: Measures) -> Measures:
    """Return *found*; raise an error for a negative time, because then the clock is not shared."""
    if any(value < 0 for value in found.values()):
        raise RuntimeError(f"a task started before it was sent: {found}")
    return found
