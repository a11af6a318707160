"""Only sound batches are appended, so that every reader can decode each accepted batch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pymq.core.batch import columns, compression
from pymq.core.batch.batch_validation import check_crc, check_form, check_produced
from pymq.core.batch.header import COMPRESSION_MASK, HEADER_SIZE, Header
from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch
from pymq.errors import CorruptBatch, InvalidRequest, InvalidTimestamp

HOUR = 3_600_000


def sealed(batch: EncodedBatch, raw: bytes | None = None, **fields: Any) -> EncodedBatch:
    """Return *batch* with other fields or another body under valid CRCs, as a hostile client makes
    it.
    """
    body = batch.body if raw is None else raw
    lengths = {"length": HEADER_SIZE + len(body)}
    if raw is not None and not (fields.get("attributes", 0) & COMPRESSION_MASK):
        lengths["raw_length"] = len(raw)
    made = EncodedBatch.sealed(batch.header._replace(**{**lengths, **fields}), body)
    # Encode and parse the batch again, because a broker parses what it receives.
    return EncodedBatch.parse(bytes(made.head) + bytes(made.body))


def plain(values: Sequence[bytes] = (b"x",), **more: Any) -> EncodedBatch:
    return EncodedBatch.encode(values, timestamp_ms=1_000, **more)


Reader = Callable[[EncodedBatch], object]

READERS: dict[str, Reader] = {
    "batch.records": lambda batch: batch.records(),
    "view.records": lambda batch: RecordBatch(batch).records(),
    "view.to_arrow": lambda batch: RecordBatch(batch).to_arrow(),
    "view of a part": lambda batch: RecordBatch(batch).part(0, 1, 1).records(),
    "columns": lambda batch: (batch.values, batch.keys, batch.timestamps, batch.headers),
}


def readable(batch: EncodedBatch) -> set[str]:
    """Decode the batch with every reader."""
    found = set()
    for name, read in READERS.items():
        try:
            read(EncodedBatch(batch.head, batch.body, batch.header))
        except CorruptBatch:
            continue
        found.add(name)
    return found


def accepted(batch: EncodedBatch) -> bool:
    try:
        check_crc(batch)
        check_form(batch)
    except CorruptBatch:
        return False
    return True


def agree(batch: EncodedBatch) -> None:
    found = readable(batch)
    if accepted(batch):
        assert found == READERS.keys()
    else:
        assert not found & {"batch.records", "view.records", "view.to_arrow"}


texts = st.text(max_size=5)
binaries = st.binary(max_size=40)
rows = st.lists(
    st.tuples(
        binaries | st.just(b"same"),
        st.none() | binaries,
        st.integers(0, 1 << 50) | st.just(5),
        st.lists(st.tuples(texts, binaries), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=30,
)


@st.composite
def batches(draw: st.DrawFn) -> EncodedBatch:
    found = draw(rows)
    return EncodedBatch.encode(
        [row[0] for row in found],
        timestamp_ms=7,
        keys=[row[1] for row in found] if draw(st.booleans()) else None,
        timestamps=[row[2] for row in found] if draw(st.booleans()) else None,
        headers=[row[3] for row in found] if draw(st.booleans()) else None,
        codec=draw(st.sampled_from([compression.NONE, compression.LZ4, compression.ZSTD])),
    )


@settings(deadline=None, max_examples=200)
@given(batches())
def test_what_a_producer_encodes_is_accepted(batch: EncodedBatch) -> None:
    parsed = EncodedBatch.parse(bytes(batch.head) + bytes(batch.body))
    assert not parsed.is_sound
    assert accepted(parsed)
    check_produced(parsed, None)
    agree(parsed)


@settings(deadline=None, max_examples=100)
@given(batches(), st.data())
def test_accepted_is_what_every_reader_decodes(batch: EncodedBatch, data: st.DataObject) -> None:
    """Every reader decodes an accepted batch, with any change of header or body under
    valid CRCs.
    """
    header = batch.header
    codec = header.attributes & COMPRESSION_MASK
    raw = compression.decompress(codec, bytes(batch.body), header.raw_length) if codec else None
    body = bytearray(batch.body if raw is None else raw)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(body)))
        what = data.draw(st.sampled_from(["set", "insert", "delete"]))
        if what == "insert":
            body[at:at] = data.draw(st.binary(min_size=1, max_size=6))
        elif what == "delete":
            del body[at : at + data.draw(st.integers(1, 6))]
        elif at < len(body):
            interesting = st.sampled_from([0x40, 0x41, 0x60, 0x80, 0x81, 0x9A, 0xC0, 0xF6, 0x9F])
            body[at] = data.draw(interesting | st.integers(0, 255))
    count = max(1, header.count + data.draw(st.sampled_from([0, 0, 0, -1, 1])))
    present = header.columns ^ data.draw(st.sampled_from([0, 0, 0, 1, 2, 4, 8, 16]))
    first = data.draw(st.sampled_from([header.first_timestamp, -(1 << 63), (1 << 63) - 1]))
    if count > len(body):
        # the header does not show the size; the check refuses the batch before it reads the body
        return
    packed = compression.compress(codec, bytes(body)) if codec else bytes(body)
    agree(
        sealed(
            batch,
            packed,
            attributes=codec,
            raw_length=len(body),
            count=count,
            span=count,
            columns=present,
            first_timestamp=first,
        )
    )


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=60), st.integers(0, 31), st.integers(1, 40), st.integers(0, 7))
@example(b"\x01\0\0\0\xf6", columns.VALUES, 1, 0)
@example(b"\x04\0\0\0\x81\x81\x41a", columns.VALUES, 1, 0)
def test_random_bodies(body: bytes, present: int, count: int, codec: int) -> None:
    if count <= len(body):
        agree(
            sealed(
                plain(),
                body,
                attributes=codec,
                raw_length=len(body),
                count=count,
                span=count,
                columns=present,
            )
        )


def test_a_wrong_body_is_refused() -> None:
    batch = plain([b"value"])
    for at in range(len(batch.body)):
        body = bytearray(batch.body)
        body[at] ^= 1
        wrong = EncodedBatch(batch.head, bytes(body), batch.header)
        with pytest.raises(CorruptBatch, match="CRC"):
            check_crc(wrong)


def header_names(name: object) -> bytes:
    from cbor2 import dumps

    return columns.pack([columns.encode_bytes([b"v"]), dumps([[name, b"x"]])])


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        (None, {"count": 5, "span": 5}),
        (b"\x01\0\0\0\xf6", {"columns": columns.KEYS}),
        (b"\x01\0\0\0\xf6", {}),
        (None, {"body_format": 3}),
        (header_names(None), {"columns": columns.VALUES | columns.HEADERS}),
        (header_names(b"name"), {"columns": columns.VALUES | columns.HEADERS}),
        (columns.pack([b"\x81\xd8\x23\x65(a+)+"]), {}),
        (columns.pack([b"\x81" * 900 + b"\x40"]), {}),
        (b"x" * 20, {"attributes": 7, "raw_length": 1}),
    ],
    ids=[
        "count",
        "no values",
        "null value",
        "format",
        "null header name",
        "header name of bytes",
        "tag",
        "depth",
        "codec",
    ],
)
def test_a_body_that_lies_is_refused(raw: bytes | None, fields: dict[str, Any]) -> None:
    batch = sealed(plain(), raw, **fields)
    check_crc(batch)
    with pytest.raises(CorruptBatch):
        check_form(batch)


@pytest.mark.parametrize("codec", [compression.LZ4, compression.ZSTD])
def test_a_compressed_body_is_what_its_header_says(codec: int) -> None:
    raw = columns.pack([columns.encode_bytes([b"a" * 100] * 10)])
    packed = compression.compress(codec, raw)
    sound = {"attributes": codec, "count": 10, "span": 10}
    check_form(sealed(plain(), packed, raw_length=len(raw), **sound))
    for wrong, length in (
        (packed, len(raw) - 1),
        (packed, len(raw) + 1),
        (packed[:-1], len(raw)),
        (packed + b"x", len(raw)),
    ):
        with pytest.raises(CorruptBatch):
            check_form(sealed(plain(), wrong, raw_length=length, **sound))


@pytest.mark.slow
def test_the_check_allocates_no_more_than_a_few_times_the_body() -> None:
    """A million empty arrays (1 MB of bytes) do not become 64 MB of Python objects."""
    count = 1 << 20
    for column in (b"\x80" * count, b"\x42ab" * count):
        raw = columns.pack([columns.encode_bytes([b""] * count), columns._head(4, count) + column])
        batch = sealed(
            plain(), raw, count=count, span=count, columns=columns.VALUES | columns.HEADERS
        )
        tracemalloc.start()
        try:
            check_form(batch)
        except CorruptBatch:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 12 << 20


# --- what only a producer may not say -----------------------------------------------------------


def test_marks_of_the_log_are_not_a_producers() -> None:
    kept = EncodedBatch.parse(b"".join([*_parts(plain([b"a", b"b"]).stamp(0, 1, 0).keep([1]))]))
    with pytest.raises(InvalidRequest):
        check_produced(kept, None)
    with pytest.raises(InvalidRequest):
        check_produced(sealed(plain(), attributes=0b10000), None)


def _parts(batch: EncodedBatch) -> tuple[bytes, bytes]:
    return bytes(batch.head), bytes(batch.body)


def times(*given: int) -> EncodedBatch:
    return sealed(EncodedBatch.encode([b"v"] * len(given), timestamp_ms=0, timestamps=given))


def test_times_are_neither_before_1970_nor_too_far_ahead() -> None:
    check_produced(times(5, 1, HOUR), HOUR)
    check_produced(times((1 << 63) - 1), None)
    for wrong in (times(5, HOUR + 1), times(HOUR + 1, 5), times(-1, 5), times(5, -1)):
        with pytest.raises(InvalidTimestamp):
            check_produced(wrong, HOUR)
    with pytest.raises(InvalidTimestamp):
        check_produced(sealed(plain(), first_timestamp=-5, max_timestamp=-5), None)


def test_times_are_checked_where_their_deltas_could_reach_a_bound() -> None:
    """Near a bound the check reads all deltas of a batch.

    Elsewhere it checks only the sum at the end.
    """
    ends = (1 << 63) - 1
    for first, deltas in ((ends, (0, 1)), (ends - (1 << 33), (0, 1 + (1 << 33)))):
        made = times(*deltas)
        for reader in (check_form, lambda batch: batch.timestamps):
            with pytest.raises(CorruptBatch):
                reader(sealed(made, first_timestamp=first, max_timestamp=ends))
    down = EncodedBatch.encode([b"v"] * 2, timestamp_ms=0, timestamps=[1 << 31, 0])
    check_produced(sealed(down), None)
    with pytest.raises(InvalidTimestamp):
        check_produced(sealed(down, first_timestamp=(1 << 31) - 1), None)


def test_no_record_is_later_than_the_largest_time() -> None:
    for wrong in (sealed(plain(), max_timestamp=999), sealed(times(1, 5), max_timestamp=4)):
        with pytest.raises(InvalidRequest):
            check_produced(wrong, None)
    check_produced(sealed(times(1, 5), max_timestamp=6), None)


def test_a_header_has_no_other_fields() -> None:
    """A header has exactly the known fields: whoever adds a field must decide whether clients may
    set it.
    """
    assert len(Header._fields) == 21
