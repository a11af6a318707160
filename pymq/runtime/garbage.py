"""Freezes long-lived objects, so that the garbage collector does not scan them repeatedly.

CPython's collector scans all old objects whenever their number has grown by a quarter. In a
zkserver with 10,000 partitions of three replicas, each scan pauses the process for 0.2 s. Nearly
all of a node's objects are not in cycles, so reference counts free them.

Therefore this module freezes objects that survive one full collection (:func:`gc.freeze`).
Reference counts still free frozen objects, but collections skip them, so that a collection takes
time only for new objects. Frozen objects that later become part of an unreachable cycle would leak.
So when the number of frozen objects has doubled, this module unfreezes all of them for one scan.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

OLDEST = 2  # number of the oldest generation
LEAST = 200_000  # number of objects; a scan of them takes about 40 ms
COUNT_S = 60.0  # pause between two counts of the frozen objects; a count takes about 10 ms


class Freezer:
    """Freezes the survivors of a full collection; a callback of :mod:`gc`."""

    def __init__(self, clock: Callable[[], float], least: int = LEAST) -> None:
        self.thawed = 0  # number of scans of all objects
        self._clock = clock
        self._count_at = clock()
        self._most = self._least = least
        self._is_thawed = False

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Handle the start or the end of a collection."""
        if phase != "stop" or info["generation"] != OLDEST:
            return
        if self._is_thawed:  # this collection has scanned all objects
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
    """Start freezing long-lived objects, until the process ends."""
    gc.callbacks.append(Freezer(time.monotonic))
