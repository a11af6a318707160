"""Whether a batch may enter a log: after Kafka's ``LogValidator``.

A header with a sound CRC (:func:`~pymq.core.batch.header.parse_header`) says nothing about the
body. What is appended is read again by recovery, by followers and by every consumer, and each of
them takes a body that does not fit its header for damage. So the leader looks at a body once,
before the batch gets its offset:

=====================  =========================================================================
:func:`check_crc`      the bytes are those that the producer has sealed
:func:`check_form`     every reader can decode them: format, codec, columns, counts, lengths
:func:`check_produced` a producer may say this: no marks of the log's own, times within bounds
=====================  =========================================================================

The cost is by batch: one CRC, and for byte strings of one length some comparisons of slices. Byte
strings of different lengths are decoded by cbor2, in pieces, and dropped (docs/decisions/0117).
"""

from __future__ import annotations

from pymq.core.batch import columns
from pymq.core.batch.header import COMPRESSION_MASK, HEADER_SIZE, Header
from pymq.core.batch.record import EncodedBatch, check_times
from pymq.errors import CorruptBatch, InvalidRequest, InvalidTimestamp

BATCH_SLACK = 16 << 20  # a batch may be this much larger than the largest record
_BACK = 1 << 31  # milliseconds that a delta of 32 bits may go back at most


def check(batch: EncodedBatch) -> None:
    """Check CRC and form, unless this process made the batch or has checked it before.

    Raises:
        CorruptBatch: the body is damaged, or no reader could decode it.
        MissingExtra: the package of its codec is not installed here.
    """
    if not batch.is_sound:
        check_crc(batch)
        check_form(batch)
        batch.is_sound = True


def check_crc(batch: EncodedBatch) -> None:
    """Check that the body is the one that was sealed.

    Raises:
        CorruptBatch: its CRC does not hold.
    """
    batch.verify()


def check_form(batch: EncodedBatch) -> None:
    """Check that every reader can decode the batch; at most its raw length is allocated at once.

    Raises:
        CorruptBatch: a reader would raise it.
        MissingExtra: the package of its codec is not installed here.
    """
    header = batch.header
    count = header.count
    values = batch.column(columns.VALUES)
    if values is None:
        raise CorruptBatch("the batch has no values")
    columns.check_bytes(values, count, nulls=False)
    present = header.columns
    if present == columns.VALUES:
        return  # as mostly
    if (keys := batch.column(columns.KEYS)) is not None:
        columns.check_bytes(keys, count, nulls=True)
    if (times := batch.column(columns.TIMESTAMPS)) is not None:
        check_times(header.first_timestamp, columns.unpack_numbers(times, count))
    if (headers := batch.column(columns.HEADERS)) is not None:
        columns.check_headers(headers, count)
    if present & columns.OFFSETS:
        _ = batch.offsets  # only compaction writes them, and only followers and readers get them


def is_too_large(header: Header, limit: int) -> bool:
    """Whether a batch is larger than a topic with that ``max_record_bytes`` takes."""
    # Unpacked it counts as well: a few bytes can be made to unpack to very many.
    return max(header.length, header.raw_length) > limit + BATCH_SLACK or (
        header.count == 1 and header.raw_length > limit + HEADER_SIZE
    )


def check_produced(batch: EncodedBatch, latest_ms: int | None) -> None:
    """Check what only matters of a batch that comes from a producer; its form is sound.

    Args:
        batch: that is to be appended.
        latest_ms: the latest time that a record may have, None where any will do.

    Raises:
        InvalidRequest: it has marks that only the log sets, or a record that is later than what
            it says is the largest time.
        InvalidTimestamp: a record is from before 1970, or from too far ahead.
    """
    header = batch.header
    if header.attributes & ~COMPRESSION_MASK or header.columns & columns.OFFSETS:
        raise InvalidRequest("a producer's batch holds records and nothing else")
    first, last = header.first_timestamp, header.max_timestamp
    least = newest = first
    if header.columns & columns.TIMESTAMPS and (times := batch.column(columns.TIMESTAMPS)):
        deltas = columns.unpack_numbers(times, header.count)
        newest = first + max(deltas)
        if deltas.itemsize == 8 or first < _BACK:
            least = first + min(deltas)
    if newest > last:
        raise InvalidRequest("a record is later than what its batch says is the largest time")
    if least < 0:
        raise InvalidTimestamp(f"a record's time is {least}; milliseconds since 1970 are from 0 on")
    if latest_ms is not None and last > latest_ms:
        raise InvalidTimestamp(
            f"a record's time is {last}, {last - latest_ms} ms later than the topic's "
            f"timestamp_after_max_ms allows"
        )
