"""CBOR is restricted to a single item of plain types."""

from __future__ import annotations

import tracemalloc
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymq.core import cbor
from pymq.errors import InvalidRequest

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.binary(max_size=4), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(plain)
@settings(deadline=None)
def test_what_goes_in_comes_out(item: Any) -> None:
    assert cbor.loads(cbor.dumps(item)) == item
    assert cbor.loads(memoryview(bytearray(cbor.dumps(item)))) == item


@given(plain, st.binary(min_size=1, max_size=4))
@settings(deadline=None)
def test_what_follows_the_item_is_an_error(item: Any, rest: bytes) -> None:
    with pytest.raises(InvalidRequest):
        cbor.loads(cbor.dumps(item) + rest)


@given(plain)
@settings(deadline=None)
def test_a_cut_item_is_an_error(item: Any) -> None:
    data = cbor.dumps(item)
    for size in range(len(data)):
        with pytest.raises(InvalidRequest):
            cbor.loads(data[:size])


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_random_bytes_are_an_item_or_an_error(data: bytes) -> None:
    try:
        item = cbor.loads(data)
    except InvalidRequest:
        return
    assert is_plain(item)


def is_plain(item: Any) -> bool:
    if isinstance(item, list):
        return all(map(is_plain, item))
    if isinstance(item, dict):
        return all(is_plain(key) and is_plain(value) for key, value in item.items())
    return item is None or isinstance(
        item, (bool, int, float, str, bytes, tuple, cbor2.CBORSimpleValue, type(cbor2.undefined))
    )


@pytest.mark.parametrize("tag", [0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260])
@pytest.mark.parametrize("inner", [b"\x00", b"\x40", b"\x60", b"\x80", b"\x82\x01\x02", b"\xa0"])
def test_tags_are_refused(tag: int, inner: bytes) -> None:
    head = bytes([0xC0 | tag]) if tag < 24 else b"\xd9" + tag.to_bytes(2, "big")
    for data in (head + inner, b"\x81" + head + inner, b"\xa1\x01" + head + inner):
        with pytest.raises(InvalidRequest):
            cbor.loads(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x9f\x01\xff",  # indefinite lengths
        b"\xbf\x01\x02\xff",
        b"\x5f\x41a\xff",
        b"\x7f\x61a\xff",
        b"\xa2\x01\x02\x01\x03",  # a repeated key
        b"\xa1\x80\x01",  # a key that is a list
        b"\x61\xff",  # a string that is not UTF-8
        b"\xff",
        b"\x1c",
        b"\x81" * 17 + b"\x80",
        b"\x81" * 100_000 + b"\x80",
        b"\xa1\x01" * 100_000 + b"\x80",
    ],
)
def test_what_is_not_plain_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        cbor.loads(data)


@pytest.mark.parametrize("head", [b"\x9b", b"\x5b", b"\x7b", b"\xbb"])
@pytest.mark.parametrize("size", [1 << 20, 1 << 32, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_a_declared_length_allocates_nothing(head: bytes, size: int) -> None:
    tracemalloc.start()
    with pytest.raises(InvalidRequest):
        cbor.loads(head + size.to_bytes(8, "big") + b"abc")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_depth_is_bounded() -> None:
    assert cbor.loads(b"\x81" * 3 + b"\x80", depth=4) == [[[[]]]]
    with pytest.raises(InvalidRequest):
        cbor.loads(b"\x81" * 5 + b"\x80", depth=4)
