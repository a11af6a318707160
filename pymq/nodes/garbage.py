"""What lives long is not looked through for garbage again and again.

CPython's collector goes through all that has lived for a while each time that there is a quarter
more of it. A zkserver that knows 10,000 partitions of three replicas stands still for 0.2 s
meanwhile. Nearly all of a node's objects form no cycles and are freed without a collector.

So what has lived through one full collection is frozen (:func:`gc.freeze`): it is freed when
nobody refers to it, as before, but collections leave it out, and take as long as what is new since
the last one. What is frozen and later becomes part of a cycle that nobody refers to stays. So all
of it is looked through once more when there is twice as much as the last time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

OLDEST = 2  # generation
LEAST = 200_000  # objects, which take some 40 ms to go through
COUNT_S = 60.0  # between two counts of what is frozen, since each takes some 10 ms


class Freezer:
    """Freezes what has lived through a full collection; a callback of :mod:`gc`."""

    def __init__(self, clock: Callable[[], float], least: int = LEAST) -> None:
        self.thawed = 0  # how often all of it was looked through once more
        self._clock = clock
        self._count_at = clock()
        self._most = self._least = least
        self._is_thawed = False

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """A collection begins or is over."""
        if phase != "stop" or info["generation"] != OLDEST:
            return
        if self._is_thawed:  # So this collection went through all there is.
            gc.freeze()
            self._is_thawed = False
            self._most = max(self._least, 2 * gc.get_freeze_count())
            return
        gc.freeze()
        now = self._clock()
        if now >= self._count_at:
            self._count_at = now + COUNT_S
            if gc.get_freeze_count() > self._most:
                gc.unfreeze()
                self._is_thawed = True
                self.thawed += 1


def freeze_old() -> None:
    """Have this process freeze what lives long, until it ends."""
    gc.callbacks.append(Freezer(time.monotonic))
