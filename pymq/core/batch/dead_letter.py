"""The headers of dead letters: records that a group has given up, in a topic of their own."""

from __future__ import annotations

from pymq.core.batch.columns import Headers
from pymq.core.batch.record import Record
from pymq.core.batch.view import DELIVERIES_HEADER, ERROR_HEADER, RecordBatch
from pymq.core.counts import plural
from pymq.errors import PymqError

DEAD_LETTER = ".dlq"  # suffix of a topic's name
REASON_MAX = 1 << 10  # bytes of the error of unreadable records
OBITUARY_MAX = 4 << 10  # bytes that the headers below may take
# the headers that pymq adds to a dead letter
OBITUARY = frozenset(
    {
        *("pymq.topic", "pymq.partition", "pymq.offset", "pymq.end_offset", "pymq.timestamp"),
        *("pymq.group", "pymq.delivery_count", DELIVERIES_HEADER, ERROR_HEADER),
    }
)


def headers_of_damage(
    view: RecordBatch, fault: PymqError, group: str | None
) -> list[tuple[str, bytes]]:
    """Return the headers of the dead letter that replaces unreadable records."""
    return [
        ("pymq.topic", view.topic.encode()),
        ("pymq.partition", view.partition.encode()),
        ("pymq.offset", str(view.base_offset).encode()),
        ("pymq.end_offset", str(view.end_offset).encode()),
        ("pymq.group", (group or "").encode()),
        ("pymq.delivery_count", str(view.delivery_count).encode()),
        (ERROR_HEADER, fault.message.encode()[:REASON_MAX]),
    ]


def with_obituary(record: Record, group: str | None, error: bytes | None) -> Headers:
    """Return the headers of a dead letter: the record's own, and its place, its time and the error.

    The dead letter's own timestamp is the time when the group gave the record up. Headers of an
    earlier dead letter are dropped.
    """
    known = dict(record.headers)
    why = f"delivered {plural(record.delivery_count, 'time')}, and not acknowledged".encode()
    return (
        *(header for header in record.headers if header[0] not in OBITUARY),
        ("pymq.topic", record.topic.encode()),
        ("pymq.partition", record.partition.encode()),
        ("pymq.offset", str(record.offset).encode()),
        ("pymq.timestamp", str(record.timestamp_ms).encode()),
        ("pymq.group", (group or "").encode()),
        ("pymq.delivery_count", str(record.delivery_count).encode()),
        (DELIVERIES_HEADER, str(record.delivery_count).encode()),
        (ERROR_HEADER, error or known.get(ERROR_HEADER, why)),
    )
