"""Validates batches before they enter a log, like Kafka's ``LogValidator``.

A header with a sound CRC (:func:`~pymq.core.batch.header.parse_header`) says nothing about the
body. Recovery, followers and consumers read the body later, and treat a body that does not fit its
header as damage. So the leader checks a body once, before the batch gets its offset:

======================  ========================================================================
:func:`check_crc`       the bytes are those that the producer sealed
:func:`check_form`      every reader can decode them: format, codec, columns, counts, lengths
:func:`check_produced`  a producer may send it: no attributes of the log, times within bounds
======================  ========================================================================

The check costs one CRC for each batch and, if all byte strings have the same length, a few
comparisons of whole columns. Byte strings of different lengths are decoded by cbor2, in pieces, and
dropped (docs/decisions/0117).
"""

from __future__ import annotations

from pymq.core.batch import columns
from pymq.core.batch.header import HEADER_SIZE, KAFKA_FORMAT, PRODUCED, ROUTED, Header
from pymq.core.batch.record import EncodedBatch, check_times
from pymq.errors import CorruptBatch, InvalidRequest, InvalidTimestamp

BATCH_SLACK = 16 << 20  # a batch may be this much larger than the largest record
KAFKA_RECORDS_MAX = 1_000_000  # in a Kafka batch; more would take over 0.6 s to decode
KAFKA_SLACK = 12  # Kafka's default for its largest batch is 1 MiB and these bytes
ROUTE_BYTES = 300  # bytes of the route header, which the producer adds to the sent record
# milliseconds; a record may be at most this much older than the first record of its batch (32-bit
# deltas)
_BACK = 1 << 31


def check(batch: EncodedBatch) -> None:
    """Check CRC and form, unless the batch is known to be sound.

    Raises:
        CorruptBatch: the body is damaged or cannot be decoded.
        MissingExtra: the package of its codec is not installed here.
    """
    check_crc(batch)
    check_form(batch)
    batch.is_sound = True


def check_crc(batch: EncodedBatch) -> None:
    """Check the CRC of the body.

    Raises:
        CorruptBatch: the CRC does not match.
    """
    batch.verify()


def check_form(batch: EncodedBatch) -> None:
    """Check that every reader can decode the batch; allocates at most its raw length at once.

    Raises:
        CorruptBatch: a reader would raise it.
        MissingExtra: the package of its codec is not installed here.
    """
    header = batch.header
    count = header.count
    if header.body_format == KAFKA_FORMAT:
        from pymq.core.batch.kafka.batch import check_kafka_crc  # lazy: few queues need it

        check_kafka_crc(batch.body)
    values = batch.column(columns.VALUES)
    if values is None:
        raise CorruptBatch("the batch has no values")
    columns.check_bytes(values, count, nulls=False)
    present = header.columns
    if present == columns.VALUES:
        return  # the usual case
    if (keys := batch.column(columns.KEYS)) is not None:
        columns.check_bytes(keys, count, nulls=True)
    if (times := batch.column(columns.TIMESTAMPS)) is not None:
        check_times(header.first_timestamp, columns.unpack_numbers(times, count))
    if (headers := batch.column(columns.HEADERS)) is not None:
        columns.check_headers(headers, count)
    if present & columns.OFFSETS:
        # Reading this property checks the column of offsets, which only compaction writes.
        _ = batch.offsets


def is_too_large(header: Header, limit: int) -> bool:
    """Whether a batch is too large for a topic with *limit* as ``max_record_bytes``.

    For a Kafka batch, the limit is compared with the size in which the producer sent the batch,
    like Kafka's ``max.message.bytes``.
    """
    if header.body_format == KAFKA_FORMAT:
        return header.raw_length > limit + KAFKA_SLACK or header.count > KAFKA_RECORDS_MAX
    # Also limit the unpacked size: a few bytes can unpack to very many.
    return max(header.length, header.raw_length) > limit + BATCH_SLACK or (
        header.count == 1
        and header.raw_length
        > limit + HEADER_SIZE + (ROUTE_BYTES if header.attributes & ROUTED else 0)
    )


def check_produced(batch: EncodedBatch, latest_ms: int | None) -> None:
    """Check a batch of sound form from a producer.

    Args:
        batch: the batch to append.
        latest_ms: the latest permitted time of a record; None: any.

    Raises:
        InvalidRequest: the batch has attributes that only the log sets, or a record later than its
            max timestamp.
        InvalidTimestamp: a record is from before 1970 or too far in the future.
    """
    header = batch.header
    if header.attributes & ~PRODUCED or header.columns & columns.OFFSETS:
        raise InvalidRequest("a producer's batch holds records and nothing else")
    first, last = header.first_timestamp, header.max_timestamp
    least = newest = first
    if header.columns & columns.TIMESTAMPS and (times := batch.column(columns.TIMESTAMPS)):
        deltas = columns.unpack_numbers(times, header.count)
        newest = first + max(deltas)
        if deltas.itemsize == 8 or first < _BACK:
            least = first + min(deltas)
    if newest > last:
        raise InvalidRequest("a record is later than the max timestamp of its batch")
    if least < 0:
        raise InvalidTimestamp(f"a record's time is {least}; it must not be before 1970 (0 ms)")
    if latest_ms is not None and last > latest_ms:
        raise InvalidTimestamp(
            f"a record's time is {last}, {last - latest_ms} ms later than the topic's "
            f"timestamp_after_max_ms allows"
        )
