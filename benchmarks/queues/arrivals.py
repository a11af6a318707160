"""The due times and start times of timed tasks, and the memory of the processes around them."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.model import Job, Measures

APART_S = 0.004  # seconds between the times of two tasks
PATIENCE_S = 60.0  # seconds to wait after the due time of the last task
OTHER = -1  # the number of tasks that are not timed
ENTRY = struct.Struct("<qd")  # a task's number, and when it ran, in seconds since 1970
LOOK_S = 0.01  # pause between two reads of the file: no event announces writes of other processes


def note(file: Path, number: int) -> None:
    """Note in *file* that a task runs now; tasks of the compared queues call this."""
    entry = ENTRY.pack(number, time.time())
    with file.open("ab", buffering=0) as out:
        out.write(entry)


class Arrivals:
    """The timed tasks; checks that each of them runs once."""

    def __init__(self) -> None:
        self.due: list[float] = []  # due times by task number, in seconds since 1970
        self._late_ms: dict[int, float] = {}

    def plan(self, job: Job) -> list[float]:
        """Return the due times of the tasks sent from now on, in whole milliseconds."""
        count = job.pick(tiny=50, default=2500, long=10_000)
        start = time.time() + job.pick(tiny=5, default=60, long=300)
        self.due = [round(start + number * APART_S, 3) for number in range(count)]
        return self.due

    def check(self) -> None:
        """Check that no timed task is due yet: all earlier work must be over before the first task
        is due.
        """
        late_s = time.time() - self.due[0]
        if late_s > 0:
            raise RuntimeError(f"the first task was due {late_s:.1f} s before all were ready")

    def ran(self, number: int, at: float) -> None:
        """Note that a task ran at a time, in seconds since 1970."""
        if number in self._late_ms:
            raise RuntimeError(f"task {number} ran twice")
        self._late_ms[number] = (at - self.due[number]) * 1000

    @property
    def is_awaited(self) -> bool:
        """Whether a task has not run yet, and became due at most `PATIENCE_S` ago."""
        return len(self._late_ms) < len(self.due) and time.time() < self.due[-1] + PATIENCE_S

    def read(self, file: Path) -> None:
        """Wait until all timed tasks are in the *file* of :func:`note`."""
        done = 0
        while self.is_awaited:
            time.sleep(LOOK_S)
            entries = list(ENTRY.iter_unpack(file.read_bytes()))
            for number, at in entries[done:]:
                if number != OTHER:
                    self.ran(number, at)
            done = len(entries)

    def measures(self) -> Measures:
        """Return how late the tasks ran; negative values mean too early."""
        if len(self._late_ms) < len(self.due):
            raise RuntimeError(f"{len(self._late_ms)} of {len(self.due)} timed tasks ran")
        late = sorted(self._late_ms.values())
        last = len(late) - 1
        return {
            "late min": late[0],
            "late p50": late[last * 50 // 100],
            "late p99": late[last * 99 // 100],
            "late max": late[-1],
        }


def children_bytes() -> int:
    """Return the memory of all child processes of this process, and of their children (Linux)."""
    children: dict[int, list[int]] = {}
    held: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            pages = int((entry / "statm").read_text(encoding="ascii").split()[1])
        except OSError:
            continue  # the process has ended
        pid, parent = int(entry.name), int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(pid)
        held[pid] = pages
    total, left = 0, [os.getpid()]
    while left:
        found = children.get(left.pop(), [])
        total += sum(held[pid] for pid in found)
        left += found
    return total * os.sysconf("SC_PAGE_SIZE")


def settled_bytes(is_still: Callable[[], int] = children_bytes) -> int:
    """Return the memory once it has not grown for a second; wait for a minute at most."""
    before, deadline = is_still(), time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(1.0)
        now = is_still()
        if now <= before:
            break
        before = now
    return before
