"""The options of ``send`` for a record's delivery: delay, time, time to live, priority."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from pymq.core.batch.priority import HIGHEST, PRIORITY
from pymq.core.delay.record_times import DELIVER_AT, EXPIRES_AT
from pymq.errors import ConfigError

HeaderPairs = Iterable[tuple[str, bytes]]
YEARS_MAX = 1_000
MS_MAX = YEARS_MAX * 366 * 86_400_000  # longest delay or time to live


def with_times(
    headers: HeaderPairs | None,
    wall_ms: Callable[[], int],
    delay_s: float | None,
    deliver_at: datetime | None,
    expires_s: float | None,
) -> HeaderPairs | None:
    """Return *headers* with a record's times, which are arguments of :meth:`pymq.Producer.send`.

    Raises:
        ConfigError: a time is negative or too far away, there are two times of delivery, or
            *deliver_at* has no time zone.
    """
    due = None
    if deliver_at is not None:
        if delay_s is not None:
            raise ConfigError("give delay_s or deliver_at, not both")
        if getattr(deliver_at, "tzinfo", None) is None:  # Users may pass any object.
            raise ConfigError(
                f"deliver_at must be a datetime with a time zone, not {deliver_at!r}; "
                "datetime.now(UTC) has one"
            )
        due = max(0, round(deliver_at.timestamp() * 1000))
    elif delay_s is not None and delay_s != 0:
        due = wall_ms() + _ms("delay_s", delay_s)
    pairs = list(headers or ())
    if expires_s is not None:
        life = _ms("expires_s", expires_s)
        pairs.append((EXPIRES_AT, str((wall_ms() if due is None else due) + life).encode()))
    if due is not None:
        pairs.append((DELIVER_AT, str(due).encode()))
    return pairs


def with_priority(headers: HeaderPairs | None, priority: int) -> HeaderPairs | None:
    """Return *headers* with a record's priority.

    Raises:
        ConfigError: *priority* is not 0 to 9.
    """
    if type(priority) is not int or not 0 <= priority <= HIGHEST:
        raise ConfigError(f"priority={priority!r} must be 0 to {HIGHEST}, the most urgent")
    return headers if priority == 0 else [(PRIORITY, b"%d" % priority), *(headers or ())]


def _ms(name: str, seconds: float) -> int:
    if type(seconds) not in (int, float) or not 0 <= seconds * 1000 <= MS_MAX:
        raise ConfigError(f"{name}={seconds!r} must be seconds, from 0 to {YEARS_MAX} years")
    return round(seconds * 1000)
