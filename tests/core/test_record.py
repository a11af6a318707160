"""The batch format byte by byte, and detection of any damage to it."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymq.core.batch import columns, compression
from pymq.core.batch.batch_sequence import restamp, split
from pymq.core.batch.columns import Headers
from pymq.core.batch.header import COMPACTED, CONTROL, HEADER, HEADER_SIZE, Header, parse_header
from pymq.core.batch.record import EncodedBatch
from pymq.errors import CorruptBatch, InvalidRequest

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "batch-v1.bin"

# The content of the golden file in readable form: three batches of one stream.
GOLDEN_BATCHES: list[dict[str, object]] = [
    {
        "base_offset": 1_000,
        "durable": 990,
        "leader_epoch": 7,
        "attributes": 0,
        "producer_id": 42,
        "epoch_low": 3,
        "epoch_high": 0,
        "base_sequence": 500,
        "count": 3,
        "span": 3,
        "columns": columns.VALUES | columns.KEYS | columns.TIMESTAMPS | columns.HEADERS,
        "first_timestamp": 1_700_000_000_000,
        "max_timestamp": 1_700_000_000_005,
        "values": [b"first", b"", b"the third value"],
        "keys": [b"k1", None, b"k3"],
        "timestamps": [1_700_000_000_000, 1_700_000_000_005, 1_700_000_000_001],
        "headers": [(), (("trace", b"\x00\x01"), ("é", b"")), ()],
        "offsets": [1_000, 1_001, 1_002],
    },
    {
        "base_offset": 1_003,
        "durable": 1_003,
        "leader_epoch": 7,
        "attributes": CONTROL,
        "producer_id": -1,
        "count": 1,
        "span": 1,
        "columns": columns.VALUES,
        "first_timestamp": 1_700_000_000_010,
        "max_timestamp": 1_700_000_000_010,
        "values": [b"control"],
        "keys": [None],
        "offsets": [1_003],
    },
    {
        "base_offset": 1_004,
        "durable": 1_004,
        "leader_epoch": 8,
        "attributes": COMPACTED,
        "producer_id": -1,
        "count": 2,
        "span": 4,
        "columns": columns.VALUES | columns.KEYS | columns.OFFSETS,
        "first_timestamp": 1_700_000_000_020,
        "max_timestamp": 1_700_000_000_020,
        "values": [b"value 1", b"value 3"],
        "keys": [b"key 1", b"key 3"],
        "offsets": [1_005, 1_007],
    },
]


def golden() -> list[EncodedBatch]:
    """Encode the contents of the golden file."""
    time = 1_700_000_000_000
    first = EncodedBatch.encode(
        [b"first", b"", b"the third value"],
        keys=[b"k1", None, b"k3"],
        headers=[(), (("trace", b"\x00\x01"), ("é", b"")), ()],
        timestamps=[time, time + 5, time + 1],
        timestamp_ms=time,
        producer_id=42,
        producer_epoch=3,
        base_sequence=500,
    )
    control = EncodedBatch.control(b"control", timestamp_ms=time + 10)
    numbers = range(4)
    whole = EncodedBatch.encode(
        [b"value %d" % number for number in numbers],
        keys=[b"key %d" % number for number in numbers],
        timestamp_ms=time + 20,
    )
    return [
        first.stamp(1_000, 7, 990),
        control.stamp(1_003, 7, 1_003),
        whole.stamp(1_004, 8, 1_004).keep([1, 3]),
    ]


def raw(batch: EncodedBatch) -> bytes:
    return bytes(batch.head) + bytes(batch.body)


# --- the format ---------------------------------------------------------------------------------


def test_the_format_on_disk_does_not_change() -> None:
    """Existing files must stay readable.

    If this test fails, the format needs a new version number.
    """
    assert b"".join(map(raw, golden())) == GOLDEN.read_bytes()


@pytest.mark.parametrize("epoch", [0, (1 << 32) - 1, 1 << 32, (1 << 64) - 1])
def test_a_producer_epoch_has_64_bits(epoch: int) -> None:
    """A new batch, a batch with a changed epoch, and a parsed batch all have a 64-bit epoch."""
    made = EncodedBatch.encode([b""], timestamp_ms=0, producer_id=1, producer_epoch=epoch)
    for batch in (made, golden()[0].numbered(epoch, 0)):
        assert batch.header.producer_epoch == epoch
        read = EncodedBatch.parse(raw(batch.stamp(5, 1, 0))).verify()
        assert read.header.producer_epoch == epoch


def test_the_golden_file_reads_as_expected() -> None:
    batches = list(split(GOLDEN.read_bytes()))
    assert len(batches) == len(GOLDEN_BATCHES)
    for batch, expected in zip(batches, GOLDEN_BATCHES, strict=True):
        batch.verify()
        for name, value in expected.items():
            found = getattr(batch.header, name) if name in Header._fields else None
            if name == "offsets":
                found = list(batch.offsets)
            elif found is None or name in ("values", "keys", "headers", "timestamps"):
                found = getattr(batch, name)
            assert found == value, name


def test_the_header_is_laid_out_as_its_table_says() -> None:
    """The header has the fields of its table, parsed with struct alone."""
    data = GOLDEN.read_bytes()
    assert HEADER_SIZE == 96
    assert data[:4] == b"PMQB"
    assert struct.unpack_from("<I", data, 4) == (7,)
    assert struct.unpack_from("<qq", data, 8) == (1_000, 990)
    (length,) = struct.unpack_from("<I", data, 32)
    assert struct.unpack_from("<I", data, 24) == (crc32(data[28:96], crc32(data[:24])),)
    assert struct.unpack_from("<I", data, 28) == (crc32(data[32:length]),)
    assert (data[36], data[37]) == (1, 1)
    assert struct.unpack_from("<HqqIII", data, 38) == (0, 42, 500, 3, 3, 3)
    assert struct.unpack_from("<HHqqII", data, 68) == (
        columns.VALUES | columns.KEYS | columns.TIMESTAMPS | columns.HEADERS,
        0,
        1_700_000_000_000,
        1_700_000_000_005,
        length - 96,
        0,
    )
    assert data[length : length + 4] == b"PMQB"


# --- round trips --------------------------------------------------------------------------------

names = st.text(max_size=5)
pairs = st.lists(st.tuples(names, st.binary(max_size=8)), max_size=3).map(tuple)
times = st.integers(-(1 << 40), 1 << 45)
rows = st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=12), times, pairs)
codecs = st.sampled_from([compression.NONE, compression.LZ4, compression.ZSTD])
Row = tuple[bytes, bytes | None, int, Headers]


def encode(records: Sequence[Row], codec: int) -> EncodedBatch:
    values, keys, stamps, headers = zip(*records, strict=True)
    return EncodedBatch.encode(
        values, keys=keys, timestamps=stamps, headers=headers, timestamp_ms=0, codec=codec
    )


@given(st.lists(rows, min_size=1, max_size=80), codecs, st.integers(0, 1 << 60))
@settings(deadline=None)
def test_what_goes_in_comes_out(records: list[Row], codec: int, offset: int) -> None:
    batch = encode(records, codec).stamp(offset, 9, offset)
    found = EncodedBatch.parse(bytearray(b"xx" + raw(batch) + b"yy"), 2).verify().at("t", "p")
    assert (found.base_offset, found.end_offset) == (offset, offset + len(records))
    assert found.header == batch.header
    assert found.header.max_timestamp == max(time for _, _, time, _ in records)
    for i, (record, row) in enumerate(zip(found.records(), records, strict=True)):
        assert record[:3] == ("t", "p", offset + i)
        assert (record.value, record.key, record.timestamp_ms, record.headers) == row


@given(st.binary(max_size=300), st.integers(0, 300), codecs)
@settings(deadline=None)
def test_values_of_one_length(value: bytes, count: int, codec: int) -> None:
    if count:
        batch = EncodedBatch.encode([value] * count, timestamp_ms=5, codec=codec)
        assert EncodedBatch.parse(raw(batch)).verify().values == [value] * count


@pytest.mark.parametrize("codec", [compression.LZ4, compression.ZSTD])
def test_what_compresses_is_kept_compressed(codec: int) -> None:
    values = [b"all the same " * 10] * 100
    batch = EncodedBatch.encode(values, timestamp_ms=1, codec=codec)
    assert batch.header.attributes == codec
    assert batch.size < 1_000
    assert EncodedBatch.parse(raw(batch)).verify().values == values
    noise = [random.Random(1).randbytes(1_000)]
    assert EncodedBatch.encode(noise, timestamp_ms=1, codec=codec).header.attributes == 0


@given(st.lists(rows, min_size=1, max_size=20), codecs, st.data())
@settings(deadline=None)
def test_keep_leaves_the_chosen_records(
    records: list[Row], codec: int, data: st.DataObject
) -> None:
    """Compaction keeps the chosen records, also when run twice, and the batch covers the same
    offsets.
    """
    batch = encode(records, codec).stamp(100, 3, 40)
    left = list(zip(range(100, 100 + len(records)), records, strict=True))
    for _ in range(2):
        chosen = sorted(data.draw(st.sets(st.integers(0, max(len(left) - 1, 0)))))
        chosen = [at for at in chosen if at < len(left)]
        left = [left[at] for at in chosen]
        batch = EncodedBatch.parse(raw(batch.keep(chosen))).verify()
        found = [(r.offset, (r.value, r.key, r.timestamp_ms, r.headers)) for r in batch.records()]
        assert found == left
        assert (batch.base_offset, batch.end_offset) == (100, 100 + len(records))
        assert batch.header.leader_epoch == 3
        assert batch.header.attributes & COMPACTED


def test_keep_is_not_quadratic() -> None:
    batch = EncodedBatch.encode(
        [b"x%d" % i for i in range(20_000)],
        keys=[b"k%d" % i for i in range(20_000)],
        timestamp_ms=0,
    )
    assert len(batch.keep(range(0, 20_000, 2))) == 10_000  # an earlier version took minutes


def test_a_gap_covers_offsets_and_holds_nothing() -> None:
    gap = EncodedBatch.parse(raw(EncodedBatch.gap(50, 1_000_000, 4))).verify()
    assert (gap.base_offset, gap.end_offset, len(gap)) == (50, 1_000_050, 0)
    assert (gap.header.leader_epoch, gap.records()) == (4, [])


@given(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 32) - 1), codecs)
@settings(deadline=None)
def test_stamping_touches_only_what_the_leader_owns(offset: int, epoch: int, codec: int) -> None:
    batch = EncodedBatch.encode([b"value"] * 50, timestamp_ms=1, codec=codec)
    stamped = batch.stamp(offset, epoch, offset // 2)
    assert stamped.body is batch.body
    assert bytes(stamped.head)[28:] == bytes(batch.head)[28:]
    assert stamped.header.batch_crc == batch.header.batch_crc
    assert (stamped.header.base_offset, stamped.header.leader_epoch) == (offset, epoch)
    assert stamped.header.durable == offset // 2
    if offset + 50 < 1 << 63:
        found = EncodedBatch.parse(raw(stamped)).verify()
        assert found.header == stamped.header
    assert batch.base_offset == 0


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [compression.NONE, compression.LZ4, compression.ZSTD])
def test_every_flipped_bit_is_seen(codec: int) -> None:
    records: list[Row] = [(b"v" * 9, b"k" * i, i, (("h", b"x"),)) for i in range(12)]
    data = raw(encode(records, codec).stamp(77, 5, 70))
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch):
            EncodedBatch.parse(flipped).verify()
        if bit < 8 * HEADER_SIZE:
            with pytest.raises(CorruptBatch):
                parse_header(flipped)


def test_every_cut_is_seen() -> None:
    data = raw(golden()[0])
    for size in range(len(data)):
        with pytest.raises(CorruptBatch):
            EncodedBatch.parse(data[:size])
        if size:
            with pytest.raises(CorruptBatch):
                list(split(data[:size]))


@given(st.binary(max_size=400))
@settings(deadline=None)
def test_random_bytes_are_no_batch(data: bytes) -> None:
    with pytest.raises(CorruptBatch):
        EncodedBatch.parse(data)
    with pytest.raises(CorruptBatch):
        EncodedBatch.parse(b"PMQB" + data)


def resealed(header: Header, body: bytes) -> bytes:
    """Return a batch with valid CRCs over any content, as a hostile client may send it."""
    return raw(EncodedBatch.sealed(header._replace(length=HEADER_SIZE + len(body)), body))


def look(data: bytes) -> None:
    """Read a batch as a consumer does; the read may only raise the errors for damaged batches."""
    try:
        batch = EncodedBatch.parse(data).verify()
        records = batch.records()
        assert len(records) == len(batch)
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        assert all(batch.base_offset <= offset < batch.end_offset for offset in offsets)
        for record in records:
            assert type(record.value) is bytes
            assert type(record.key) in (bytes, type(None))
            assert all(type(n) is str and type(v) is bytes for n, v in record.headers)
    except (CorruptBatch, InvalidRequest):
        pass


FIELDS = [
    name
    for name in Header._fields
    if name not in ("magic", "header_crc", "batch_crc", "length", "version")
]
LIMITS = dict(zip(Header._fields, HEADER.format.strip("<").replace("4s", "s"), strict=True))
BITS = {"B": 8, "H": 16, "I": 32}


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_no_field_is_trusted(data: st.DataObject) -> None:
    """A header with valid CRCs and any other fields raises CorruptBatch or no error."""
    base = golden()[data.draw(st.sampled_from([0, 2]))]
    header = base.header
    changed: dict[str, Any] = {}
    for name in data.draw(st.sets(st.sampled_from(FIELDS), max_size=3)):
        kind = LIMITS[name]
        low, high = (-(1 << 63), (1 << 63) - 1) if kind == "q" else (0, (1 << BITS[kind]) - 1)
        value = data.draw(st.integers(low, high) | st.integers(max(low, 0), min(high, 40)))
        changed[name] = value
    header = header._replace(**changed)
    look(resealed(header, bytes(base.body)))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_no_byte_of_a_body_is_trusted(data: st.DataObject) -> None:
    base = golden()[data.draw(st.sampled_from([0, 2]))]
    body = bytearray(base.body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)) | st.just(len(body)))
    look(resealed(base.header, bytes(body[:cut])))


@given(st.binary(max_size=200), st.integers(0, 31), st.integers(0, 1 << 24), st.integers(0, 4))
@settings(max_examples=200, deadline=None)
def test_no_body_is_trusted(body: bytes, present: int, count: int, codec: int) -> None:
    header = golden()[0].header._replace(
        columns=present, count=count, span=max(count, 1), attributes=codec, raw_length=len(body)
    )
    look(resealed(header, body))


@pytest.mark.parametrize("codec", [compression.LZ4, compression.ZSTD])
@pytest.mark.parametrize("declared", [10, 1_000_000, 60 << 20])
def test_a_bomb_does_not_go_off(codec: int, declared: int) -> None:
    """Decompression stops at the declared size."""
    bomb = compression.compress(codec, bytes(200 << 20))
    header = golden()[0].header._replace(attributes=codec, raw_length=declared)
    data = resealed(header, bomb)
    tracemalloc.start()
    with pytest.raises(CorruptBatch):
        EncodedBatch.parse(data).records()
    assert tracemalloc.get_traced_memory()[1] < 3 * declared + (4 << 20)
    tracemalloc.stop()


def test_a_huge_count_costs_nothing() -> None:
    """If the count in the header is larger than the body, the reader allocates nothing for it."""
    header = golden()[0].header._replace(count=1 << 24, span=1 << 24)
    data = resealed(header, bytes(golden()[0].body))
    tracemalloc.start()
    for name in ("values", "keys", "timestamps", "headers", "offsets"):
        with pytest.raises(CorruptBatch):
            getattr(EncodedBatch.parse(data), name)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


# --- what a follower does -----------------------------------------------------------------------


def run(*spans: int, start: int = 10, epoch: int = 3) -> list[EncodedBatch]:
    """Return consecutive batches of *spans* records.

    Each says that all records before it are durable.
    """
    batches = []
    for count in spans:
        values = [b"value %d" % number for number in range(count)]
        batches.append(EncodedBatch.encode(values, timestamp_ms=5).stamp(start, epoch, start))
        start += count
    return batches


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_follower_attests_its_own_disk(kind: type[bytes]) -> None:
    """A follower changes only *durable* and the header's CRC of a batch, and copies no body."""
    batches = [*run(1, 3, 2), *run(4, start=16, epoch=4)]
    data = kind(b"".join(map(raw, batches)))
    found = restamp(data, 7)
    assert [raw(one) for one in found] == [
        raw(one.stamp(one.base_offset, one.header.leader_epoch, 7)) for one in batches
    ]
    for one, before in zip(found, batches, strict=True):
        assert parse_header(one.head) == one.header
        assert one.header.durable == 7
        assert one.verify().values == before.values
        assert isinstance(one.body, memoryview)
    assert restamp(b"", 7) == []
    assert restamp(b"".join(map(raw, found)), 7)[0].head == found[0].head


def test_no_batch_attests_more_than_what_is_before_it() -> None:
    found = restamp(b"".join(map(raw, run(2, 2, start=0))), 3)
    assert [one.header.durable for one in found] == [0, 2]


def test_a_follower_sees_every_flipped_bit() -> None:
    data = b"".join(map(raw, run(2, 1)))
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch):
            restamp(flipped, 0)


def test_a_follower_takes_whole_batches_only() -> None:
    batches = run(2, 1)
    data = b"".join(map(raw, batches))
    for size in set(range(1, len(data))) - {batches[0].size}:
        with pytest.raises(CorruptBatch, match="cut short"):
            restamp(data[:size], 0)
    for more in (b"\0", bytes(HEADER_SIZE), b"x" * 200):
        with pytest.raises(CorruptBatch):
            restamp(data + more, 0)


def test_a_follower_takes_what_follows_only() -> None:
    first, second, third = run(2, 3, 1)
    older = run(1, start=15, epoch=2)[0]
    nothing = EncodedBatch.gap(12, 0, 3)
    for batches in (
        [first, third],  # two batches with a gap between them
        [first, first],
        [second, first],
        [first, second, older],
        [first, nothing, second],
        [nothing],
    ):
        with pytest.raises(CorruptBatch, match="does not follow"):
            restamp(b"".join(map(raw, batches)), 0)
    assert len(restamp(raw(second) + raw(third), 0)) == 2, "the first may begin anywhere"
