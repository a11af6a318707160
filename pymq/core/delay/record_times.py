"""Delay and expiry: the times from which on and until which groups may get a record.

Both times are headers of the record, in milliseconds since 1970. The header of a batch has a bit
for each kind of time, set if any record has that time. So other batches cost nothing:

====================  =================  ===========================================================
header of a record    bit of its batch   what a group does
====================  =================  ===========================================================
``pymq.deliver_at``   ``DELAYED``        skip the record; when it is due, the leader appends a copy
``pymq.expires_at``   ``EXPIRES``        skip the record from that time on
``pymq.delayed_id``   ``DELAYED_COPY``   get the copy; the id is the offset of the original
====================  =================  ===========================================================

Readers without a group see each record once, at the offset of the original: they skip copies.
Batches with both ``DELAYED`` and ``DELAYED_COPY`` are notes of the leader, which neither groups nor
readers see (:mod:`pymq.core.delay.delay_index`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pymq.core.batch.columns import Headers
from pymq.core.batch.header import DELAYED, EXPIRES, NOTE

if TYPE_CHECKING:
    from pymq.core.batch.view import RecordBatch

DELIVER_AT = "pymq.deliver_at"
EXPIRES_AT = "pymq.expires_at"
DELAYED_ID = "pymq.delayed_id"
# in a note: the offset of a cancelled delayed record
CANCELLED = "pymq.cancelled"
# in a note: all delayed records before this offset are delivered
PENDING_FROM = "pymq.pending_from"

TIMED = DELAYED | EXPIRES
DIGITS_MAX = 15  # digits of a time in milliseconds
OFFSET_DIGITS_MAX = 19


def time_of(headers: Headers, name: str, digits_max: int = DIGITS_MAX) -> int | None:
    """Return the number in a header; None if the header is missing or not a number."""
    for found, text in headers:
        if found == name:
            return int(text) if text.isdigit() and len(text) <= digits_max else None
    return None


def offset_of(headers: Headers, name: str) -> int | None:
    """Return the offset in a header; None if the header is missing."""
    return time_of(headers, name, OFFSET_DIGITS_MAX)


def times_of(records: Iterable[Headers]) -> int:
    """Return a batch's attribute bits for delay and expiry, from its records' headers."""
    names = {name for headers in records for name, _ in headers}
    return (DELAYED if DELIVER_AT in names else 0) | (EXPIRES if EXPIRES_AT in names else 0)


def due_now(view: RecordBatch, wall_ms: int) -> RecordBatch:
    """Return the view with the records that a group may get at *wall_ms*.

    Raises:
        CorruptBatch: the headers cannot be decoded.
    """
    attributes = view.batch.header.attributes
    if not attributes & TIMED or attributes & NOTE == NOTE:
        return view
    chosen = [
        index
        for index, headers in enumerate(view.headers)
        if time_of(headers, DELIVER_AT) is None and not has_expired(headers, wall_ms)
    ]
    return view if len(chosen) == len(view) else view.only(chosen)


def has_expired(headers: Headers, wall_ms: int) -> bool:
    """Whether the record has expired."""
    expires = time_of(headers, EXPIRES_AT)
    return expires is not None and expires <= wall_ms
