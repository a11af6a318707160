"""Virtual time, a heap of events, independent streams of random numbers, and a digest.

Everything in a simulated world is an event from the heap, so one seed decides everything. Events at
the same microsecond happen in the order in which they were added.

Each purpose has its own stream of random numbers. So a run that leaves out a fault draws the same
random numbers for the rest, and a failing run can be shrunk.
"""

from __future__ import annotations

import gc
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any
from zlib import crc32

SECOND = 1_000_000  # microseconds
WALL_MS = 1_700_000_000_000  # wall-clock time at the beginning of a world
WINDOW = 1024  # events between two checkpoints of the digest

Action = Callable[[Any, Any], object]


class Violation(AssertionError):
    """A rule was broken; *name* is the name of the rule."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector within the ``with`` block; no world must outlive the block.

    A collection at a random moment could run finalizers in the middle of an event. Also, the
    collector treats a world that survives a collection as long-lived, and would keep it in memory
    during a dozen further worlds.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def mix(seed: int, *names: object) -> int:
    """Return a number of 64 bits that depends on each of the arguments, and on nothing else."""
    text = "\0".join(map(str, (seed, *names)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class World:
    """A simulation: its time, its events and its random numbers."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0  # microseconds since the beginning
        self.events = 0  # events that have happened
        self.windows: list[int] = []  # the digest after each WINDOW events
        # (time, (event, process, ...)); :mod:`pymq.testing.trace` formats them
        self.log: deque[tuple[int, tuple[Any, ...]]] = deque(maxlen=4000)
        self._heap: list[tuple[int, int, Action, Any, Any]] = []
        self._sequence = 0
        self._streams: dict[tuple[object, ...], Random] = {}
        self._digest = 0
        self._recent = array("Q")  # events that are not in the digest yet

    # --- random numbers ---------------------------------------------------------------------------

    def rng(self, *names: object) -> Random:
        """Return the stream of random numbers of one purpose, named by *names*."""
        found = self._streams.get(names)
        if found is None:
            found = self._streams[names] = Random(mix(self.seed, *names))
        return found

    # --- events ---------------------------------------------------------------------------------

    def at(self, time: int, action: Action, a: Any = None, b: Any = None) -> None:
        """Schedule ``action(a, b)`` at *time*, in microseconds, but not before now."""
        self._sequence = sequence = self._sequence + 1
        if time < self.now:
            time = self.now
        heappush(self._heap, (time, sequence, action, a, b))

    def after(self, delay: int, action: Action, a: Any = None, b: Any = None) -> None:
        """Schedule ``action(a, b)`` *delay* microseconds from now."""
        self.at(self.now + delay, action, a, b)

    def hasten(self, time: int, is_meant: Callable[[Action, Any, Any], bool]) -> None:
        """Move all matching events to *time* at the latest, in the same order."""
        heap = self._heap  # the running loop holds a reference to this list
        for index, (at, sequence, action, a, b) in enumerate(heap):
            if at > time and is_meant(action, a, b):
                heap[index] = (time, sequence, action, a, b)
        heapify(heap)

    def step(self) -> bool:
        """Run the next event; return whether there was one."""
        if not self._heap:
            return False
        self.now, _, action, a, b = heappop(self._heap)
        action(a, b)
        return True

    def run_until(self, is_done: Callable[[], bool], until: int) -> bool:
        """Run until *is_done* returns True, or until *until*; return whether *is_done* returned
        True.
        """
        heap = self._heap
        while not is_done():
            if not heap or heap[0][0] > until:
                self.now = max(self.now, until)
                return is_done()
            self.now, _, action, a, b = heappop(heap)
            action(a, b)
        return True

    def run(self, until: int) -> None:
        """Run until the time *until*."""
        heap, pop = self._heap, heappop
        while heap and heap[0][0] <= until:
            self.now, _, action, a, b = pop(heap)
            action(a, b)
        self.now = max(self.now, until)

    @property
    def next_at(self) -> int | None:
        """Return the time of the next event."""
        return self._heap[0][0] if self._heap else None

    # --- log and digest ---------------------------------------------------------------------------

    def note(self, code: int, *what: Any) -> None:
        """Add an event to the digest, by its time and *code*, and to the log in full."""
        self.events += 1
        now, recent = self.now, self._recent
        self.log.append((now, what))
        recent.append(now << 16 | code & 0xFFFF)
        if len(recent) == WINDOW:
            self._digest = crc32(recent.tobytes(), self._digest)
            self.windows.append(self._digest)
            del recent[:]

    @property
    def digest(self) -> str:
        """Return the digest of all events so far, in eight hex digits."""
        return f"{crc32(self._recent.tobytes(), self._digest):08x}"
