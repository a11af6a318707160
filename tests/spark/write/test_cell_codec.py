"""Encoding a column of byte strings gives the same bytes as encoding each string separately."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'pymq-log[spark]'")

import pyarrow as pa

from pymq.core.batch import columns
from pymq.core.batch.record import EncodedBatch
from pymq.hash.partitioner import key_partitions
from pymq.spark.write import cell_codec
from pymq.spark.write.rows import encode

EQUAL = st.integers(0, 20).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=30)
)
MIXED = st.lists(st.none() | st.binary(max_size=20), max_size=30)


def column(values: list[bytes | None], cut: int) -> pa.ChunkedArray:
    """Return an Arrow column, which may start inside its buffers, as a slice does, and may have
    several chunks.
    """
    padded = pa.array([b"before", *values], pa.binary()).slice(1)
    chunks = [padded.slice(0, cut), padded.slice(cut)] if cut < len(values) else [padded]
    return pa.chunked_array(chunks, pa.binary())


@given(EQUAL | MIXED, st.integers(0, 40))
def test_a_column_is_encoded_as_its_list_is(values: list[bytes | None], cut: int) -> None:
    assert cell_codec.encode(column(values, cut)) == columns.encode_bytes(values)


@given(EQUAL | MIXED, st.integers(0, 40), st.integers(1, 1_000_003))
def test_keys_go_where_they_always_went(keys: list[bytes | None], cut: int, count: int) -> None:
    found = cell_codec.partitions(column(keys, cut), count).tolist()
    assert found == key_partitions([key or b"" for key in keys], count)


def test_long_values_are_told_apart_by_their_length_alone() -> None:
    for size in (23, 24, 255, 256, 65_535, 65_536):  # where the head of a CBOR item grows
        values: list[bytes | None] = [bytes([number]) * size for number in range(3)]
        assert cell_codec.encode(column(values, 9)) == columns.encode_bytes(values)


@given(EQUAL.filter(bool), st.data())
def test_a_batch_is_the_one_that_the_plain_client_makes(
    values: list[bytes], data: st.DataObject
) -> None:
    def one_each(items: st.SearchStrategy[object]) -> list[object]:
        return data.draw(st.lists(items, min_size=len(values), max_size=len(values)))

    keys = one_each(st.none() | st.binary(max_size=3))
    times = data.draw(st.just(None) | st.just([7] * len(values))) or one_each(st.integers(0, 9))
    headers = one_each(st.lists(st.tuples(st.text(max_size=2), st.binary(max_size=2)), max_size=2))
    pairs = [[{"key": name, "value": item} for name, item in row] for row in headers]  # type: ignore[attr-defined] # drawn above
    table = pa.table(
        {
            "value": pa.array(values, pa.binary()),
            "key": pa.array(keys, pa.binary()),
            "timestamp": pa.array([time * 1000 for time in times], pa.timestamp("us", "UTC")),  # type: ignore[operator] # drawn above
            "headers": pa.array(
                pairs, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            ),
        }
    )
    made = encode(table, 5)
    plain = EncodedBatch.encode(
        values,
        timestamp_ms=5,
        keys=keys,  # type: ignore[arg-type] # drawn above
        timestamps=times,  # type: ignore[arg-type] # drawn above
        headers=[tuple(row) for row in headers],  # type: ignore[arg-type] # drawn above
    )
    assert bytes(made.head) + bytes(made.body) == bytes(plain.head) + bytes(plain.body)
    assert made.header == plain.header
