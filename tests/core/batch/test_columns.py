"""Columns can be encoded and decoded, are plain CBOR, and hostile input only raises an error."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymq.core.batch import columns
from pymq.core.batch.columns import Headers
from pymq.errors import CorruptBatch

values = st.lists(st.binary(max_size=20), max_size=200)
equal_values = st.tuples(st.binary(max_size=300), st.integers(0, 300)).map(lambda t: [t[0]] * t[1])
keys = st.lists(st.none() | st.binary(max_size=20), max_size=100)
numbers = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=100)
small_numbers = st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1, max_size=100)
pairs = st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=4)), max_size=3).map(tuple)
headers = st.lists(pairs, max_size=30)


@given(values | equal_values)
@settings(deadline=None)
def test_bytes(items: list[bytes]) -> None:
    column = columns.encode_bytes(items)
    assert cbor2.loads(column) == items, "any CBOR library must read it"
    assert columns.decode_bytes(column, len(items)) == items
    assert columns.decode_optional_bytes(memoryview(column), len(items)) == items


@pytest.mark.parametrize("size", [0, 1, 23, 24, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("count", [1, 23, 24, 63, 64, 65, 130])
def test_bytes_of_one_length_are_what_cbor_makes(size: int, count: int) -> None:
    items = [bytes([i % 256]) * size for i in range(count)]
    column = columns.encode_bytes(items)
    assert column == cbor2.dumps(items)
    assert columns.decode_bytes(column, count) == items


@given(keys)
@settings(deadline=None)
def test_optional_bytes(items: list[bytes | None]) -> None:
    column = columns.encode_bytes(items)
    assert cbor2.loads(column) == items
    assert columns.decode_optional_bytes(column, len(items)) == items
    if None in items:
        with pytest.raises(CorruptBatch):
            columns.decode_bytes(column, len(items))


@given(numbers | small_numbers)
@settings(deadline=None)
def test_numbers(items: list[int]) -> None:
    column = columns.encode_numbers(items)
    assert columns.decode_numbers(column, len(items)) == items


def test_small_numbers_take_four_bytes() -> None:
    assert len(columns.encode_numbers([1] * 100)) == 403
    assert len(columns.encode_numbers([1 << 40] * 100)) == 803


@given(headers)
@settings(deadline=None)
def test_headers(items: list[Headers]) -> None:
    column = columns.encode_headers(items)
    assert columns.decode_headers(column, len(items)) == items
    assert rows_of_split_headers(column, len(items)) == items
    part = columns.split_headers(column, len(items), len(items) // 2, len(items))
    assert part.counts == [len(pairs) for pairs in items[len(items) // 2 :]]


@given(st.lists(st.binary(max_size=10), min_size=5, max_size=5), st.integers(0, 31))
@settings(deadline=None)
def test_pack_and_unpack(items: list[bytes], present: int) -> None:
    chosen = {1 << i: item for i, item in enumerate(items) if present & 1 << i}
    body = columns.pack(list(chosen.values()))
    assert columns.unpack(body, present) == chosen
    for wrong in (body + b"x", body[:-1]):
        if body:
            with pytest.raises(CorruptBatch):
                columns.unpack(wrong, present)


@given(st.binary(max_size=60), st.integers(0, 31))
@settings(deadline=None)
def test_unpack_trusts_no_length(body: bytes, present: int) -> None:
    try:
        found = columns.unpack(body, present)
    except CorruptBatch:
        return
    assert sum(len(column) + 4 for column in found.values()) == len(body)


def rows_of_split_headers(column: bytes, count: int) -> list[Headers]:
    """Return what :func:`columns.split_headers` finds in the form of the other decoder."""
    pairs = columns.split_headers(column, count, 0, count)
    named = iter(zip(pairs.names, pairs.values, strict=True))
    rows = [tuple(next(named) for _ in range(length)) for length in pairs.counts]
    assert next(named, None) is None
    assert rows == columns.decode_headers(column, count)
    return rows


Decode = Callable[[bytes, int], object]
DECODERS: list[Decode] = [
    columns.decode_bytes,
    columns.decode_optional_bytes,
    columns.decode_numbers,
    columns.decode_headers,
    rows_of_split_headers,
]


@pytest.mark.parametrize("decode", DECODERS)
@given(st.binary(max_size=60), st.integers(0, 1 << 24))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_refused_or_right(decode: Decode, data: bytes, count: int) -> None:
    try:
        found = decode(data, count)
    except CorruptBatch:
        return
    assert isinstance(found, list)
    assert len(found) == count


@pytest.mark.parametrize("decode", DECODERS)
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_mutated_columns_are_refused_or_right(decode: Decode, data: st.DataObject) -> None:
    column = bytearray(
        data.draw(
            st.one_of(
                values.map(columns.encode_bytes),
                equal_values.map(columns.encode_bytes),
                small_numbers.map(columns.encode_numbers),
                headers.map(columns.encode_headers),
            )
        )
    )
    at = data.draw(st.integers(0, len(column) - 1))
    column[at] = data.draw(st.integers(0, 255))
    count = data.draw(st.integers(0, 300))
    try:
        found = decode(bytes(column), count)
    except CorruptBatch:
        return
    assert isinstance(found, list)
    assert len(found) == count


@pytest.mark.parametrize(
    "column",
    [
        b"\x9a\x00\xff\xff\xff",  # an array of 16 million, cut short
        b"\x9b\x00\x00\x00\xff\xff\xff\xff\xff",
        b"\x5a\xff\xff\xff\xff",  # a byte string of 4 GiB, cut short
        b"\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\x9a\x01\x00\x00\x00" + b"\x5a\xff\xff\xff\xff",
        b"\x81" * 500 + b"\x80",
        b"\xc1\x00",  # a tag
        b"\x9f\x40\xff",  # an array of indefinite length
        b"\xa0",
        b"\xf6",
        b"\xfb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    ],
)
@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("count", [0, 1, 1 << 24])
def test_a_declared_length_allocates_nothing(column: bytes, decode: Decode, count: int) -> None:
    tracemalloc.start()
    with pytest.raises(CorruptBatch):
        decode(column, count)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
