"""Kafka's record batches behind pymq's header, and pymq's batches as Kafka's.

A Kafka batch is the body of a pymq batch, byte for byte as its producer sent it. Its own header,
big-endian, is the first 61 bytes of the body:

====  ====  ================  ==================================================================
  at  size  field             in pymq's header
====  ====  ================  ==================================================================
   0     8  base offset       base offset, which the leader stamps; put in when a client reads it
   8     4  length            bytes after this field
  12     4  leader epoch      leader epoch, put in when a client reads it
  16     1  magic             2
  17     4  CRC               CRC-32C of all that follows
  21     2  attributes        bits 0-2 codec, 3 time of the broker, 4 of a transaction, 5 control
  23     4  last delta        offsets after the base offset; one more is the span
  27     8  base timestamp    first timestamp; -1, none, becomes the broker's time
  35     8  max timestamp     max timestamp
  43     8  producer id       producer id
  51     2  producer epoch    epoch low
  53     4  base sequence     base sequence
  57     4  count             count
====  ====  ================  ==================================================================

Kafka's CRC does not cover base offset and leader epoch, so a broker that serves a batch writes only
16 new bytes. Brokers, replicas and stores read pymq's header only; the codec of a Kafka batch is a
detail of its body.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Generator
from typing import NamedTuple

from pymq.core.batch import columns
from pymq.core.batch.columns import Buffer
from pymq.core.batch.header import (
    BATCH_BYTES_MAX,
    COLUMNS_FORMAT,
    COUNT_MAX,
    HEADER_SIZE,
    KAFKA_FORMAT,
    MAGIC,
    NO_PRODUCER,
    VERSION,
    Header,
)
from pymq.core.batch.kafka import codecs, records
from pymq.core.batch.record import EncodedBatch
from pymq.errors import CorruptBatch, InvalidRequest, MissingExtra, RecordTooLarge

KAFKA_HEADER = struct.Struct(">qiibIhiqqqhii")
KAFKA_HEADER_SIZE = KAFKA_HEADER.size
STAMP = struct.Struct(">qii")  # base offset, length, leader epoch
STAMP_SIZE = STAMP.size
_FRONT = struct.Struct(">qiibI")
_SIGNED = struct.Struct(">hiqqqhii")
SIGNED_FROM = 21  # position of the part that the CRC covers
LENGTH_FROM = 12  # position of the first byte that the length counts
MAGIC_V2 = 2
_TIME_OF_BROKER, _TRANSACTIONAL, _CONTROL = 0b1000, 0b10000, 0b100000
RECORDS_MAX = 100_000  # of a batch that enters
RECORDS_PIECE = 5_000  # that are decoded at a time: 3 ms
BYTES_PER_RECORD = 256  # bytes that are unpacked in the time in which one record is decoded
_TIME_END = 1 << 63
OFFSET_END = 1 << 62  # after every offset


class KafkaLimits(NamedTuple):
    """The largest batch that enters: its records, and the bytes that it unpacks to."""

    records: int = RECORDS_MAX
    unpacked: int = BATCH_BYTES_MAX


class KafkaHeader(NamedTuple):
    """The header of a Kafka batch, field by field."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last: int  # offset delta of the last record
    first_ms: int
    max_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    size: int  # the number of records


def crc32c_function() -> Callable[[Buffer], int]:
    """Return the function that computes CRC-32C.

    Raises:
        MissingExtra: its package is not installed.
    """
    try:
        from crc32c import crc32c  # an extra: imported on first use
    except ImportError:
        raise MissingExtra.of("crc32c is not installed", "kafka") from None
    return crc32c


# --- in -----------------------------------------------------------------------------------------


def wrap(
    data: Buffer,
    crc32c: Callable[[Buffer], int],
    now_ms: int,
    limits: KafkaLimits = KafkaLimits(),  # noqa: B008 # a tuple of numbers
) -> EncodedBatch:
    """Do :func:`wrapping` at once.

    Raises:
        CorruptBatch, InvalidRequest, RecordTooLarge, MissingExtra: as there.
    """
    steps = wrapping(data, crc32c, now_ms, limits)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            batch: EncodedBatch = stop.value
            return batch


def wrapping(
    data: Buffer, crc32c: Callable[[Buffer], int], now_ms: int, limits: KafkaLimits
) -> Generator[int, None, EncodedBatch]:
    """Check a batch of a Kafka producer and put pymq's header before it; its bytes are not copied.

    Like Kafka's brokers (``LogValidator``), the function decodes the records once, because a batch
    that cannot be decoded would stop all readers of its partition. A small batch may hold very many
    records, and unpack to very many bytes. So this is a generator: after each piece of the work it
    yields the cost of that piece, in decoded records (0.6 us each).

    Raises:
        CorruptBatch: the batch is cut short, or its CRC is wrong.
        InvalidRequest: the batch is of an older format (``details`` hold its *magic*), *data* is
            not exactly one batch of records, the batch's counts contradict each other, or its
            records cannot be decoded.
        RecordTooLarge: the batch holds more records, or unpacks to more bytes, than *limits* allow.
        MissingExtra: the package of the batch's codec is not installed.
    """
    found, batch = _checked_header(data, crc32c, now_ms)
    if found.size > limits.records:
        raise RecordTooLarge(f"{found.size} records in a batch; at most {limits.records}")
    try:
        pieces: list[bytes] = []
        packed = memoryview(data)[KAFKA_HEADER_SIZE:]
        for piece in codecs.unpack_pieces(found.attributes, packed, limits.unpacked):
            pieces.append(piece)
            yield len(piece) // BYTES_PER_RECORD
        unpacked = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        at, batch.has_keys = 0, True
        shift = max(found.first_ms, 0)
        for part in records.decode_pieces(unpacked, found.size, RECORDS_PIECE):
            size = len(part.offsets)
            if part.offsets != list(range(at, at + size)):
                raise CorruptBatch("the records of the Kafka batch are not in order")
            if max(part.times) + shift >= _TIME_END or min(part.times) < -_TIME_END:
                raise CorruptBatch("a record's time has more than 64 bits")
            batch.has_keys = batch.has_keys and None not in part.keys
            at += size
            yield size
    except CorruptBatch as error:
        raise InvalidRequest(f"the records cannot be decoded: {error.message}") from None
    return batch


def _checked_header(
    data: Buffer, crc32c: Callable[[Buffer], int], now_ms: int
) -> tuple[KafkaHeader, EncodedBatch]:
    """Check what does not need the records; returns Kafka's header, and the batch behind pymq's."""
    size = len(data)
    if size < KAFKA_HEADER_SIZE:
        raise CorruptBatch("the batch is cut short")
    found = KafkaHeader._make(KAFKA_HEADER.unpack_from(data))
    if found.magic != MAGIC_V2:
        why = f"records of format {found.magic} are not accepted, only those of format {MAGIC_V2}"
        raise InvalidRequest(why, magic=found.magic)
    if found.length + LENGTH_FROM != size:
        raise InvalidRequest("a partition's records must be exactly one batch")
    if crc32c(memoryview(data)[SIGNED_FROM:]) != found.crc:
        raise CorruptBatch("the CRC of the batch does not match")
    if found.attributes & ~codecs.CODEC_MASK or found.attributes > codecs.ZSTD:
        what = "unknown attributes"
        if found.attributes & _TRANSACTIONAL:
            what = "records of a transaction"
        raise InvalidRequest(f"the batch has {what}, which are not supported")
    if not 1 <= found.size <= COUNT_MAX or found.last != found.size - 1:
        raise InvalidRequest(f"{found.size} records cannot end at the offset delta {found.last}")
    producer = found.producer_id, found.producer_epoch, found.base_sequence
    if found.producer_id < 0:
        producer = NO_PRODUCER, 0, -1
    elif found.producer_epoch < 0 or found.base_sequence < 0:
        raise InvalidRequest("a producer with an id must have an epoch and a sequence")
    first_ms = now_ms if found.first_ms < 0 else found.first_ms
    return found, _wrapped(data, producer, found.size, first_ms, max(first_ms, found.max_ms))


def _wrapped(
    data: Buffer,
    producer: tuple[int, int, int],
    count: int,
    first_ms: int,
    max_ms: int,
) -> EncodedBatch:
    producer_id, epoch, sequence = producer
    header = Header(
        MAGIC,
        0,
        0,
        0,
        0,
        0,
        HEADER_SIZE + len(data),
        VERSION,
        KAFKA_FORMAT,
        0,
        producer_id,
        sequence,
        epoch,
        count,
        count,
        0,
        0,
        first_ms,
        max_ms,
        len(data),
        0,
    )
    batch = EncodedBatch.sealed(header, data)
    batch.is_sound = True
    return batch


def check_kafka_crc(body: Buffer) -> None:
    """Check Kafka's own CRC in a body that did not come through :func:`wrap`.

    Raises:
        CorruptBatch: the CRC is wrong; Kafka's clients would refuse the batch.
        MissingExtra: crc32c is not installed.
    """
    if len(body) < KAFKA_HEADER_SIZE:
        raise CorruptBatch("the Kafka batch is cut short")
    found = KafkaHeader._make(KAFKA_HEADER.unpack_from(body))
    if crc32c_function()(memoryview(body)[SIGNED_FROM:]) != found.crc:
        raise CorruptBatch("the CRC of the Kafka batch does not match")


# --- reading ------------------------------------------------------------------------------------


def encoded_columns(header: Header, body: Buffer) -> dict[int, memoryview]:
    """Return the records of a Kafka batch as the columns of body format 1, by their bits.

    Raises:
        CorruptBatch: the records cannot be decoded, or do not fit the header.
        MissingExtra: the package of their codec is not installed.
    """
    if len(body) < KAFKA_HEADER_SIZE:
        raise CorruptBatch("the Kafka batch is cut short")
    kafka = KafkaHeader._make(KAFKA_HEADER.unpack_from(body))
    is_whole = kafka.length + LENGTH_FROM == len(body)
    if kafka.magic != MAGIC_V2 or not is_whole or kafka.last + 1 != header.span:
        raise CorruptBatch("the Kafka batch does not fit its header")
    count, codec = header.count, kafka.attributes & codecs.CODEC_MASK
    if kafka.size != count or kafka.attributes & (_CONTROL | _TIME_OF_BROKER):
        raise CorruptBatch("the Kafka batch does not hold what its header declares")
    found = records.decode(codecs.unpack(codec, memoryview(body)[KAFKA_HEADER_SIZE:]), count)
    if found.offsets != list(range(count)):
        raise CorruptBatch("the records of the Kafka batch are not in order")
    encoded = {columns.VALUES: columns.encode_bytes(found.values)}
    if found.keys.count(None) != count:
        encoded[columns.KEYS] = columns.encode_bytes(found.keys)
    if kafka.first_ms >= 0 and any(found.times):
        shift = kafka.first_ms - header.first_timestamp
        try:
            times = columns.encode_numbers([time + shift for time in found.times])
        except OverflowError:
            raise CorruptBatch("a record's time has more than 64 bits") from None
        encoded[columns.TIMESTAMPS] = times
    if any(found.headers):
        encoded[columns.HEADERS] = columns.encode_headers(found.headers)
    return {bit: memoryview(column) for bit, column in encoded.items()}


# --- out ----------------------------------------------------------------------------------------


def serve(
    batch: EncodedBatch,
    crc32c: Callable[[Buffer], int],
    start: int = 0,
    end: int = OFFSET_END,
) -> list[Buffer]:
    """Return a batch of the log in the format of Kafka's clients, as consecutive parts.

    A client that needs only the records from *start* to *end*, exclusive, may get the others, too.

    A Kafka batch gets a new stamp and is not copied. A batch of pymq's own format is encoded as a
    Kafka batch, which costs 1 to 3 us a record. A hidden batch
    (:attr:`~pymq.core.batch.header.Header.is_hidden`) also covers offsets, so it becomes a batch
    without records, like those that compaction leaves in Kafka.

    Raises:
        CorruptBatch: a batch of pymq's own format cannot be decoded.
        MissingExtra: the package of its codec is not installed.
    """
    header = batch.header
    if header.body_format == KAFKA_FORMAT:
        body = memoryview(batch.body)
        stamp = STAMP.pack(header.base_offset, len(body) - LENGTH_FROM, header.leader_epoch)
        return [stamp, body[STAMP_SIZE:]]
    if header.is_hidden or not header.count:
        return [_sealed(header, 0, 0, 0, b"", crc32c)]
    if header.body_format != COLUMNS_FORMAT:
        raise CorruptBatch(f"body format {header.body_format} cannot be read by this version")
    base, first, offsets = header.base_offset, header.first_timestamp, batch.offsets
    rows = slice(bisect_left(offsets, start), bisect_left(offsets, end))
    count = rows.stop - rows.start
    if not count:
        return [_sealed(header, 0, 0, 0, b"", crc32c)]
    data = records.encode(
        [offset - base for offset in offsets[rows]],
        [time - first for time in batch.timestamps[rows]],
        batch.keys[rows],
        batch.values[rows],
        batch.headers[rows],
    )
    return [_sealed(header, count, first, header.max_timestamp, data, crc32c)]


def _sealed(
    header: Header,
    count: int,
    first_ms: int,
    max_ms: int,
    data: bytes,
    crc32c: Callable[[Buffer], int],
) -> bytes:
    # Leave out the producer: its epochs and sequences would not fit, and consumers do not use them.
    signed = _SIGNED.pack(0, header.span - 1, first_ms, max_ms, -1, -1, -1, count) + data
    length = _FRONT.size - LENGTH_FROM + len(signed)
    front = (header.base_offset, length, header.leader_epoch, MAGIC_V2, crc32c(signed))
    return _FRONT.pack(*front) + signed
