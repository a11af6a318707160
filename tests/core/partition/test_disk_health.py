"""A disk that failed a write is retried, with pauses that grow while it fails."""

from __future__ import annotations

from pymq.core.partition.disk_health import AILS_MAX_MS, AILS_MS, DiskHealth, DiskState
from pymq.core.types import NEVER
from pymq.errors import StoreError

ERROR = StoreError("full")


def test_a_write_after_a_failure_makes_it_sound() -> None:
    disk = DiskHealth()
    disk.failed(ERROR, 100)
    assert (disk.state, disk.problem, disk.until) == (DiskState.AILING, ERROR, 100 + AILS_MS)
    disk.wrote()
    assert (disk.state, disk.problem, disk.until) == (DiskState.SOUND, None, NEVER)
    disk.failed(ERROR, 200)
    assert disk.until == 200 + AILS_MS, "what failed before the last write does not count"


def test_each_failure_on_trial_doubles_the_pause() -> None:
    disk, pauses = DiskHealth(), []
    for _ in range(8):
        disk.failed(ERROR, 0)
        pauses.append(disk.until)
        disk.try_again()
        assert (disk.state, disk.problem) == (DiskState.ON_TRIAL, None)
    assert pauses[:3] == [AILS_MS, 2 * AILS_MS, 4 * AILS_MS]
    assert pauses[-1] == AILS_MAX_MS


def test_failures_in_the_pause_do_not_double_it() -> None:
    disk = DiskHealth()
    for now in range(5):
        disk.failed(ERROR, now)
    assert disk.until == 4 + AILS_MS
