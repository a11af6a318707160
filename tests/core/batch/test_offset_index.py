"""The sparse index, compared with a list of all batches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymq.core.batch.header import Header
from pymq.core.batch.offset_index import GAP, Index
from pymq.core.batch.record import EncodedBatch
from pymq.errors import CorruptMetadata

HEADER = EncodedBatch.encode([b"x"], timestamp_ms=0).header

shapes = st.lists(
    st.tuples(
        st.integers(1, 5),  # offsets
        st.integers(88, 2 * GAP),  # bytes
        st.integers(0, 50),  # time
    ),
    max_size=60,
)
Shape = list[tuple[int, int, int]]


def laid_out(shape: Shape) -> list[tuple[Header, int]]:
    """Return headers and their positions."""
    found, offset, position = [], 10, 200
    for span, length, time in shape:
        header = HEADER._replace(base_offset=offset, span=span, length=length, max_timestamp=time)
        found.append((header, position))
        offset += span
        position += length
    return found


def built(batches: list[tuple[Header, int]]) -> Index:
    index = Index()
    for header, position in batches:
        index.add(header, position)
    return index


@given(shapes, st.integers(0, 320))
@settings(deadline=None)
def test_find_gives_a_batch_shortly_before(shape: Shape, offset: int) -> None:
    batches = laid_out(shape)
    found = built(batches).find(offset)
    before = [(header, position) for header, position in batches if header.base_offset <= offset]
    if not before:
        assert found is None
        return
    assert found in [position for _, position in batches]
    _, position = before[-1]
    assert found is not None
    assert found <= position
    assert position - found < GAP, "the walk must be short"


@given(shapes, st.integers(0, 51))
@settings(deadline=None)
def test_find_time_never_skips(shape: Shape, time: int) -> None:
    batches = laid_out(shape)
    found = built(batches).find_time(time)
    first = next((p for header, p in batches if header.max_timestamp >= time), None)
    assert (found is None) == (first is None)
    if found is not None and first is not None:
        assert found <= first < found + GAP


@given(shapes, st.integers(0, 320), st.integers(0, 1 << 22))
@settings(deadline=None)
def test_boundaries(shape: Shape, offset: int, position: int) -> None:
    batches = laid_out(shape)
    index = built(batches)
    positions = [at for _, at in batches]
    found = index.boundary(position)
    assert found == -1 or (found in positions and found <= position)
    after = index.position_after(offset)
    if after is not None:
        assert {at: header.base_offset for header, at in batches}[after] >= offset


@given(shapes, st.data())
@settings(deadline=None)
def test_cut_and_add_again_is_as_if_nothing_had_been_there(
    shape: Shape, data: st.DataObject
) -> None:
    batches = laid_out(shape)
    index = built(batches)
    keep = data.draw(st.integers(0, len(batches)))
    ends = [10, *(header.end_offset for header, _ in batches)]
    position = index.cut(ends[keep])
    for header, at in batches[:keep]:
        if position is not None and at >= position:
            index.add(header, at)
    if keep:
        assert index.to_bytes() == built(batches[:keep]).to_bytes()


@given(shapes)
@settings(deadline=None)
def test_bytes_and_back(shape: Shape) -> None:
    index = built(laid_out(shape))
    data = index.to_bytes()
    found = Index.from_bytes(data)
    assert found.to_bytes() == data
    assert len(found) == len(index)
    more = HEADER._replace(base_offset=10_000, max_timestamp=99)
    for one in (index, found):
        one.add(more, 1 << 30)
    assert found.to_bytes() == index.to_bytes()


def test_every_flipped_bit_is_seen() -> None:
    data = built(laid_out([(1, 40_000, 5)] * 10)).to_bytes()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMetadata):
            Index.from_bytes(bytes(flipped))


@given(st.binary(max_size=100))
@settings(deadline=None)
def test_random_bytes_are_no_index(data: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        Index.from_bytes(data)


def test_it_is_small() -> None:
    """The index takes less than 1 MB for a block of 1 GB of small batches."""
    index = Index()
    for at in range(0, 1 << 30, 8 << 10):
        index.add(HEADER._replace(base_offset=at), at)
    assert len(index.to_bytes()) < 1_000_000
