"""Kafka's batches as body format 2: pymq takes them in, reads them and returns them; and pymq's own
batches are encoded for Kafka.

aiokafka, an independent implementation, packs and unpacks the batches of these tests.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from pymq.core.batch.batch_sequence import split
from pymq.core.batch.batch_validation import check
from pymq.core.batch.header import COLUMNS_FORMAT, CONTROL, KAFKA_FORMAT
from pymq.core.batch.kafka import codecs, records
from pymq.core.batch.kafka.batch import KAFKA_HEADER_SIZE, crc32c_function, serve, wrap
from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch
from pymq.errors import CorruptBatch, InvalidRequest

pytest.importorskip("aiokafka", reason="aiokafka is not installed")
CRC = crc32c_function()
NOW = 1_700_000_000_000
CODECS = [codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD]
TOMBSTONE = ("pymq.tombstone", b"")

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]  # time, key, value, headers


def packed(rows: list[Row], codec: int = 0, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    """Return a batch as a Kafka producer sends it."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=1 << 20,
    )
    for offset, (time, key, value, headers) in enumerate(rows):
        builder.append(offset, time, key, value, headers)
    return bytes(builder.build())


def unpacked(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None, Any]]:
    """Return the records of batches, as aiokafka's consumer reads them."""
    from aiokafka.record import MemoryRecords

    found = []
    for batch in iter(MemoryRecords(data).next_batch, None):
        assert batch.validate_crc()
        found += [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]
    return found


ROWS: list[Row] = [
    (NOW, b"k", b"v", []),
    (NOW + 7, None, b"x" * 300, [("h", b"1"), ("\u00e9", b"")]),
    (NOW - 100_000, b"", b"", []),
    (NOW + 3, b"gone", None, []),
]


def sent(rows: list[Row], codec: int = 0) -> EncodedBatch:
    return wrap(memoryview(packed(rows, codec)), CRC, NOW).stamp(1000, 5, 0)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_is_kept_as_it_came_and_read_by_pymq(codec: int) -> None:
    data = packed(ROWS * 50, codec, (77, 3, 9))
    batch = wrap(memoryview(data), CRC, NOW).stamp(1000, 5, 0)
    assert bytes(batch.body) == data
    header = batch.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 9)
    assert (header.count, header.span, header.body_format) == (200, 200, KAFKA_FORMAT)
    assert (header.first_timestamp, header.max_timestamp) == (NOW, NOW + 7)
    (again,) = split(bytes(batch.head) + bytes(batch.body))
    check(again)
    assert again.values == [row[2] or b"" for row in ROWS] * 50
    assert again.keys == [row[1] for row in ROWS] * 50
    assert again.timestamps == [row[0] for row in ROWS] * 50
    assert again.headers == [(), (("h", b"1"), ("\u00e9", b"")), (), (TOMBSTONE,)] * 50
    assert list(again.offsets) == list(range(1000, 1200))
    assert [record.offset for record in RecordBatch(again, 1010, 1012).records()] == [1010, 1011]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_is_served_with_its_place(codec: int) -> None:
    parts = serve(sent(ROWS, codec), CRC)
    assert [len(part) for part in parts][:1] == [16]
    found = unpacked(b"".join(parts))
    assert [offset for offset, *_ in found] == [1000, 1001, 1002, 1003]
    assert [(time, key, value, headers) for _, time, key, value, headers in found] == ROWS


def test_pymqs_own_batch_is_served_as_kafkas() -> None:
    rng = random.Random(1)
    values = [rng.randbytes(rng.randrange(200)) for _ in range(300)]
    keys = [rng.choice([None, b"", b"key"]) for _ in values]
    times = [NOW + rng.randrange(-(10**9), 10**9) for _ in values]
    headers = [rng.choice([(), (("a", b"1"),), (("b", b""), TOMBSTONE)]) for _ in values]
    batch = EncodedBatch.encode(
        values, timestamp_ms=NOW, keys=keys, headers=headers, timestamps=times, codec=1
    ).stamp(500, 2, 0)
    found = unpacked(b"".join(serve(batch, CRC)))
    assert found == [
        (
            500 + at,
            times[at],
            keys[at],
            None if TOMBSTONE in headers[at] else values[at],
            [pair for pair in headers[at] if pair != TOMBSTONE],
        )
        for at in range(len(values))
    ]


def test_what_readers_never_see_takes_its_offsets() -> None:
    control = EncodedBatch.encode([b"x"], timestamp_ms=NOW, attributes=CONTROL).stamp(3, 1, 0)
    for batch, end in ((control, 4), (EncodedBatch.gap(3, 20, 1), 23)):
        (data,) = serve(batch, CRC)
        assert unpacked(bytes(data)) == []
        base, _, _, _, crc, _, last = struct.unpack_from(">qiibIhi", data)
        assert (base, base + last + 1, crc) == (3, end, CRC(memoryview(data)[21:]))


def test_compaction_keeps_records_of_a_kafka_batch() -> None:
    kept = sent(ROWS, codecs.GZIP).keep([1, 3])
    assert kept.header.body_format == COLUMNS_FORMAT
    (again,) = split(bytes(kept.head) + bytes(kept.body))
    assert again.verify().keys == [None, b"gone"]
    assert (list(again.offsets), again.timestamps) == ([1001, 1003], [NOW + 7, NOW + 3])
    assert [offset for offset, *_ in unpacked(b"".join(serve(again, CRC)))] == [1001, 1003]


def test_records_without_a_time_get_that_of_the_broker() -> None:
    data = bytearray(packed([(0, None, b"v", [])]))
    struct.pack_into(">qq", data, 27, -1, -1)
    struct.pack_into(">I", data, 17, CRC(bytes(data[21:])))
    assert wrap(bytes(data), CRC, NOW).timestamps == [NOW]


# --- what is refused ----------------------------------------------------------------------------


def changed(position: int, form: str, *found: int, fix: bool = True) -> bytes:
    data = bytearray(packed(ROWS))
    struct.pack_into(form, data, position, *found)
    if fix:
        struct.pack_into(">I", data, 17, CRC(bytes(data[21:])))
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "error", "what"),
    [
        (b"", CorruptBatch, "cut short"),
        (packed(ROWS)[:60], CorruptBatch, "cut short"),
        (packed(ROWS)[:-1], InvalidRequest, "one batch"),
        (packed(ROWS) * 2, InvalidRequest, "one batch"),
        (changed(70, ">B", 9, fix=False), CorruptBatch, "CRC"),
        (changed(16, ">b", 1), InvalidRequest, "format 1"),
        (changed(23, ">i", 9), InvalidRequest, "offset delta"),
        (changed(57, ">i", 0), InvalidRequest, "offset delta"),
        (changed(57, ">i", -1), InvalidRequest, "offset delta"),
        (changed(21, ">h", 5), InvalidRequest, "attributes"),
        (changed(21, ">h", 0x08), InvalidRequest, "attributes"),
        (changed(21, ">h", 0x10), InvalidRequest, "transaction"),
        (changed(21, ">h", 0x20), InvalidRequest, "attributes"),
        (changed(43, ">q", 5), InvalidRequest, "epoch"),
    ],
)
def test_what_is_no_sound_batch_is_refused(data: bytes, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        wrap(data, CRC, NOW)


def test_a_body_that_was_packed_wrongly_is_refused_or_can_be_read() -> None:
    """The CRC of such a body is right, because the producer itself packed the body wrongly."""
    refused = 0
    for at in range(KAFKA_HEADER_SIZE, len(packed(ROWS))):
        try:
            batch = wrap(changed(at, ">B", 0xFF), CRC, NOW)
        except InvalidRequest:
            refused += 1
            continue
        assert len(batch.records()) == len(ROWS)  # the change affects only a value, a key or a time
    assert refused > len(ROWS)


@pytest.mark.parametrize("seed", range(20))
def test_each_body_that_is_accepted_can_be_read(seed: int) -> None:
    """A body that no reader could decode would stop all readers of its partition."""
    rng = random.Random(seed)
    data = packed(ROWS * 5, rng.choice(CODECS))
    for _ in range(200):
        bad = bytearray(data)
        for _ in range(rng.choice((1, 2, 8))):
            bad[rng.randrange(KAFKA_HEADER_SIZE, len(bad))] = rng.randrange(256)
        struct.pack_into(">I", bad, 17, CRC(bytes(bad[21:])))
        try:
            batch = wrap(bytes(bad), CRC, NOW)
        except InvalidRequest:
            continue
        assert len(batch.records()) == len(ROWS) * 5


EDGES = [limit + step for limit in (1 << 6, 1 << 13, 1 << 20) for step in (-1, 0)]


@pytest.mark.parametrize("edge", EDGES)
def test_numbers_of_one_two_and_more_bytes_are_read(edge: int) -> None:
    """Each length and each number of a record has as many bytes as it needs."""
    times = [edge, -edge, -edge - 1, 0]
    keys, values = [b"k" * edge, b"k", None, b""], [b"v", b"v" * edge, b"", b"v"]
    offsets = [0, edge, edge + 1, 2 * edge]
    body = records.encode(offsets, times, keys, values, [()] * 4)
    found = records.decode(body, 4)
    assert found == (offsets, times, keys, values, [()] * 4)
    for end in range(max(0, len(body) - 20), len(body)):
        with pytest.raises(CorruptBatch):
            records.decode(body[:end], 4)


def test_a_time_of_more_than_64_bits_is_refused() -> None:
    body = records.encode([0], [1 << 66], [None], [b"v"], [()])
    data = bytearray(packed(ROWS)[:KAFKA_HEADER_SIZE] + body)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 23, 0)
    struct.pack_into(">i", data, 57, 1)
    struct.pack_into(">I", data, 17, CRC(bytes(data[21:])))
    with pytest.raises(InvalidRequest, match="cannot be decoded"):
        wrap(bytes(data), CRC, NOW)


def test_a_batch_of_another_way_in_needs_a_sound_crc() -> None:
    """A client of pymq's own protocol may send body format 2, too."""
    sound = sent(ROWS)
    check(EncodedBatch.parse(bytes(sound.head) + bytes(sound.body)))
    body = bytearray(sound.body)
    body[18] ^= 1  # a byte of Kafka's CRC
    bad = EncodedBatch.sealed(sound.header, bytes(body))
    with pytest.raises(CorruptBatch, match="CRC"):
        check(EncodedBatch.parse(bytes(bad.head) + bytes(bad.body)))


def test_a_body_that_unpacks_to_too_much_is_refused() -> None:
    import zlib

    bomb = zlib.compressobj(wbits=31)
    data = bomb.compress(bytes(1 << 20)) + bomb.flush()
    with pytest.raises(CorruptBatch, match="more than 1000 bytes"):
        codecs.unpack(codecs.GZIP, data, 1000)
    for codec in CODECS[2:]:
        body = packed([(NOW, None, bytes(5000), [])], codec)[KAFKA_HEADER_SIZE:]
        with pytest.raises(CorruptBatch, match="more"):
            codecs.unpack(codec, body, 1000)
        assert len(codecs.unpack(codec, body, 6000)) > 5000


@pytest.mark.parametrize("codec", CODECS[1:])
def test_packed_records_that_are_cut_short_are_refused(codec: int) -> None:
    body = packed(ROWS * 20, codec)[KAFKA_HEADER_SIZE:]
    for end in range(0, len(body) - 1, 3):
        with pytest.raises(CorruptBatch):
            records.decode(codecs.unpack(codec, body[:end]), len(ROWS) * 20)
