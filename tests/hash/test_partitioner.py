"""Keys to partitions: fixed forever, in range, and evenly spread for usual keys."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import InvalidRequest
from pymq.hash.partitioner import MAX_PARTITIONS, key_partition, key_partitions

GOLDEN_KEYS = [
    b"",
    b"a",
    b"user-1",
    b"user-2",
    b"order:000042",
    bytes(8),
    bytes(range(256)),
    "grün".encode(),
]
GOLDEN = {
    1: [0, 0, 0, 0, 0, 0, 0, 0],
    2: [0, 1, 0, 0, 0, 1, 1, 1],
    3: [0, 2, 1, 2, 2, 0, 0, 1],
    8: [0, 3, 0, 4, 2, 1, 3, 7],
    12: [0, 11, 4, 8, 2, 9, 3, 7],
    1000: [0, 195, 176, 516, 674, 145, 427, 719],
}


@pytest.mark.parametrize("partitions", GOLDEN)
def test_golden_values(partitions: int) -> None:
    """The values never change, or a key's records would be split over partitions."""
    assert [key_partition(key, partitions) for key in GOLDEN_KEYS] == GOLDEN[partitions]


@given(st.lists(st.binary(max_size=40)), st.integers(1, MAX_PARTITIONS))
def test_batch_and_twin_agree(keys: list[bytes], partitions: int) -> None:
    expected = [zlib.crc32(key) % 1_000_003 % partitions for key in keys]
    assert key_partitions(keys, partitions) == expected
    assert [key_partition(key, partitions) for key in keys] == expected
    assert all(0 <= index < partitions for index in expected)


@pytest.mark.parametrize("partitions", [0, -1, MAX_PARTITIONS + 1])
def test_bad_counts_are_refused(partitions: int) -> None:
    with pytest.raises(InvalidRequest, match=r"partitions must be 1 to 1000003, got"):
        key_partition(b"k", partitions)
    with pytest.raises(InvalidRequest):
        key_partitions([], partitions)


FAMILIES = {
    "decimal": [b"%d" % i for i in range(2_000)],
    "prefixed": [b"user-%d" % i for i in range(2_000)],
    "padded": [b"order:%06d" % i for i in range(2_000)],
    "tens": [b"%d" % (10 * i) for i in range(2_000)],
    "even": [b"dev-%04d" % (2 * i) for i in range(2_000)],
    "u32": [struct.pack(">I", i) for i in range(2_000)],
    "u64": [struct.pack(">Q", i) for i in range(2_000)],
    "u64 little": [struct.pack("<Q", i) for i in range(2_000)],
    "strided": [struct.pack(">Q", i << 16) for i in range(2_000)],
    "hex": [b"%032x" % i for i in range(2_000)],
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("partitions", [2, 3, 4, 7, 8, 12, 16, 32, 50])
def test_sequential_keys_spread_like_random_ones(family: str, partitions: int) -> None:
    counts = [0] * partitions
    for index in key_partitions(FAMILIES[family], partitions):
        counts[index] += 1
    mean = 2_000 / partitions
    chi_square = sum((count - mean) ** 2 / mean for count in counts)
    freedom = partitions - 1
    assert (chi_square - freedom) / (2 * freedom) ** 0.5 < 5  # normalized to standard deviations


def test_keys_that_differ_in_few_bits_leave_no_partition_empty() -> None:
    """No partition stays empty; a plain ``crc32 % 16`` leaves half empty for many such families."""
    plain_gaps = gaps = 0
    for family in range(400):
        # 128 keys of 8 bytes, spanned by 7 single bits at places that depend on the family.
        bits = sorted({zlib.crc32(b"%d.%d" % (family, i)) % 64 for i in range(8)})[:7]
        keys = [
            sum(1 << bit for i, bit in enumerate(bits) if number >> i & 1).to_bytes(8, "big")
            for number in range(1 << len(bits))
        ]
        plain_gaps += len({zlib.crc32(key) % 16 for key in keys}) <= 8
        gaps += len(set(key_partitions(keys, 16))) <= 8
    assert plain_gaps > 10
    assert gaps == 0
