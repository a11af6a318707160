"""Whether the disk of one replica accepts writes.

| state | meaning | next |
|---|---|---|
| SOUND | the last write succeeded | AILING after a failed write |
| AILING | the replica does not lead | SOUND after a write; ON_TRIAL after a pause |
| ON_TRIAL | the replica may lead, so that a write is tried | SOUND or AILING after that write |

A failed sync is handled differently: the replica stops until its broker starts again.
"""

from __future__ import annotations

from enum import Enum

from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER
from pymq.errors import PymqError

AILS_MS = 2_000  # the first pause ...
AILS_MAX_MS = 64_000  # ... doubles each time a write on trial fails, up to this


class DiskState(Enum):
    """Whether a disk accepts writes; see the table in the module's docstring."""

    SOUND = "the last write succeeded"
    AILING = "a write failed"
    ON_TRIAL = "a write failed, and the next one shows whether the disk is sound"


class DiskHealth:
    """The health of the disk under one replica."""

    __slots__ = ("_failures", "problem", "state", "until")

    def __init__(self) -> None:
        self.state = DiskState.SOUND
        self.problem: PymqError | None = None  # the error of the last write, while AILING
        self.until = NEVER  # the time when the state AILING ends
        self._failures = 0  # failures in a row, not counting those while AILING

    def failed(self, error: PymqError, now: int) -> None:
        """Note that a write has failed."""
        if self.state is not DiskState.AILING:
            self._failures += 1
        self.state = DiskState.AILING
        self.problem = error
        self.until = now + min(AILS_MS << min(self._failures - 1, 16), AILS_MAX_MS)

    def wrote(self) -> None:
        """Note that a write has succeeded."""
        self._failures = 0
        self._end(DiskState.SOUND)

    def try_again(self) -> None:
        """End the pause: the next write shows whether the disk is sound."""
        self._end(DiskState.ON_TRIAL)

    def _end(self, state: DiskState) -> None:
        mark("partition.writes_again")
        self.state = state
        self.problem, self.until = None, NEVER
