"""The sparse index of a block: where in its file an offset or a time is to be found.

One entry stands for a group of batches, at least ``GAP`` bytes of them. It costs 24 bytes, less
than 1 MB for a block of 1 GB. What lies inside a group is found by walking its headers.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from zlib import crc32

from pymq.core.batch.header import Header
from pymq.errors import CorruptMetadata

GAP = 32 << 10  # bytes: a walk of 100 headers at 300 bytes a batch

_HEAD = struct.Struct("<4sHHIQ")  # magic, version, zero, count, next position
_MAGIC = b"PMQI"
_VERSION = 1
_CRC = struct.Struct("<I")
_LITTLE = sys.byteorder == "little"


class Index:
    """Positions of batches by offset, and by time; grows at its end only."""

    __slots__ = ("_next", "offsets", "positions", "times")

    def __init__(self) -> None:
        self.offsets = array("q")  # of the group's first record
        self.positions = array("q")  # of the group's first byte in the file
        # The latest time of any record up to the group's end. It never falls, so that one can
        # search it, and the first group to reach a time holds the first batch to reach it.
        self.times = array("q")
        self._next = 0  # a batch at or beyond this position begins a group

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, header: Header, position: int) -> None:
        """Take in the next batch, which begins at *position*."""
        times, time = self.times, header.max_timestamp
        if position >= self._next:
            self.offsets.append(header.base_offset)
            self.positions.append(position)
            times.append(max(time, times[-1]) if times else time)
            self._next = position + GAP
        elif time > times[-1]:
            times[-1] = time

    def find(self, offset: int) -> int | None:
        """Return the position of the group that holds *offset*; None when it is before all."""
        at = bisect_right(self.offsets, offset) - 1
        return self.positions[at] if at >= 0 else None

    def find_time(self, timestamp_ms: int) -> int | None:
        """Return the position of the first group with a batch that reaches *timestamp_ms*."""
        at = bisect_left(self.times, timestamp_ms)
        return self.positions[at] if at < len(self.times) else None

    def position_after(self, offset: int) -> int | None:
        """Return where the first group begins that has nothing before *offset*, if there is one."""
        at = bisect_left(self.offsets, offset)
        return self.positions[at] if at < len(self.positions) else None

    def boundary(self, position: int) -> int:
        """Return the last known beginning of a batch at or before *position*; -1 for none."""
        at = bisect_right(self.positions, position) - 1
        return self.positions[at] if at >= 0 else -1

    def cut(self, end: int) -> int | None:
        """Forget the group that holds the record before *end*, and all after it.

        Returns:
            Where that group begins; what is still there of it must be added again. None when the
            index was empty.
        """
        at = max(bisect_left(self.offsets, end) - 1, 0)
        if at >= len(self.offsets):
            return None
        position = self.positions[at]
        del self.offsets[at:], self.positions[at:], self.times[at:]
        self._next = position
        return position

    def to_bytes(self) -> bytes:
        """Encode the index, with a CRC."""
        data = _HEAD.pack(_MAGIC, _VERSION, 0, len(self), self._next) + b"".join(
            _little(column).tobytes() for column in (self.offsets, self.positions, self.times)
        )
        return data + _CRC.pack(crc32(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> Index:
        """Decode an index.

        Raises:
            CorruptMetadata: it is damaged; build it again from the block.
        """
        if len(data) < _HEAD.size + 4 or _CRC.unpack(data[-4:])[0] != crc32(data[:-4]):
            raise CorruptMetadata("the index is damaged")
        magic, version, zero, count, following = _HEAD.unpack_from(data)
        if (magic, version, zero) != (_MAGIC, _VERSION, 0):
            raise CorruptMetadata("the index is of a version that is not known")
        if len(data) != _HEAD.size + 24 * count + 4:
            raise CorruptMetadata("the index has the wrong length")
        index = cls()
        start = _HEAD.size
        for name in ("offsets", "positions", "times"):
            column = array("q")
            column.frombytes(data[start : start + 8 * count])
            setattr(index, name, _little(column))
            start += 8 * count
        index._next = following
        return index


def _little(column: array[int]) -> array[int]:
    """Turn a column from this machine's byte order into little-endian, or back."""
    if _LITTLE:
        return column
    swapped = array(column.typecode, column)
    swapped.byteswap()
    return swapped
