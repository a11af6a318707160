"""When a returned record is delivered again, and the error text in its headers."""

from __future__ import annotations

from zlib import crc32

from pymq.client.fetching.offset_spans import Records, Span, spans
from pymq.core.batch.record import Record
from pymq.core.batch.view import RecordBatch
from pymq.core.message import ERROR_MAX
from pymq.core.values import value
from pymq.errors import ConfigError

SECONDS_MAX = 1e9


@value
class Backoff:
    """How long a group waits before it delivers a returned record again.

    The first redelivery comes *first_s* seconds after the record was returned. Each wait is
    *factor* times as long as the previous one, up to *max_s* seconds. *jitter* lengthens or
    shortens each wait by up to that share, so that records that failed together do not return
    together. (This is exponential backoff with jitter, like Celery's ``retry_backoff``.)

    Raises:
        ConfigError: a number is out of its range.
    """

    first_s: float = 1.0
    factor: float = 2.0
    max_s: float = 60.0
    jitter: float = 0.1

    def __attrs_post_init__(self) -> None:
        """Check the numbers."""
        _check("first_s", self.first_s, 0, SECONDS_MAX)
        _check("factor", self.factor, 1, 1e6)
        _check("max_s", self.max_s, self.first_s, SECONDS_MAX)
        _check("jitter", self.jitter, 0, 1)

    def delay_ms(self, delivery_count: int, salt: bytes = b"") -> int:
        """Return the milliseconds to wait after *delivery_count* deliveries.

        The jitter depends only on *salt* and the count, so that a run can be repeated.
        """
        wait, tries = self.first_s, delivery_count - 1
        while tries > 0 and wait < self.max_s and self.factor > 1:
            wait *= self.factor
            tries -= 1
        dice = crc32(salt + delivery_count.to_bytes(8, "big")) / (1 << 31) - 1  # -1 to 1
        return round(1000 * min(wait, self.max_s) * (1 + self.jitter * dice))


def delays(
    records: Records, backoff: Backoff | None, delay: float | None
) -> list[tuple[Span, int]]:
    """Return the ranges of *records*, each with the milliseconds until its next delivery.

    If *delay* is given, each range waits that many seconds. Otherwise *backoff* computes the wait
    from the number of deliveries; without a backoff the records are delivered at once.

    Raises:
        ConfigError: *delay* is not a number of seconds from 0 on.
    """
    if delay is not None:
        _check("delay", delay, 0, SECONDS_MAX)
    if delay is not None or backoff is None:
        return [(span, round(1000 * (delay or 0))) for span in spans(records)]
    if isinstance(records, (Record, RecordBatch)):
        records = [records]
    by_count = dict[int, list[Record | RecordBatch]]()
    for record in records:
        # spans() refuses items that are not records.
        by_count.setdefault(getattr(record, "delivery_count", 1), []).append(record)
    return [
        (span, backoff.delay_ms(count, f"{span[0]}/{span[1][0]}".encode()))
        for count, rows in by_count.items()
        for span in spans(rows)
    ]


def error_text(error: BaseException | str | None) -> str:
    """Return the text of an error for a returned record, at most ERROR_MAX bytes long.

    Raises:
        ConfigError: *error* is neither an exception nor a text.
    """
    if error is None:
        return ""
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    elif not isinstance(error, str):
        raise ConfigError(f"error={error!r} must be an exception or a text")
    return error.encode(errors="replace")[:ERROR_MAX].decode(errors="ignore")


def _check(name: str, found: object, low: float, high: float) -> None:
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not low <= found <= high:
        raise ConfigError(f"{name}={found!r} must be a number from {low:g} to {high:g}")
