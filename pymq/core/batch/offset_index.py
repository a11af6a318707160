"""The sparse index of a block: positions in its file by offset and by time.

Each entry of the index points to the first of some consecutive batches, called a group, which have
at least ``GAP`` bytes together. An entry takes 24 bytes, so an index takes less than 1 MB for a
block of 1 GB. Within a group a reader steps from header to header.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from zlib import crc32

from pymq.core.batch.header import Header
from pymq.errors import CorruptMetadata

GAP = 32 << 10  # bytes; if batches have 300 bytes, a reader steps through up to 100 headers

_HEAD = struct.Struct("<4sHHIQ")  # magic, version, zero, count, next position
_MAGIC = b"PMQI"
_VERSION = 1
_CRC = struct.Struct("<I")
_LITTLE = sys.byteorder == "little"


class Index:
    """Positions of batches by offset and by time; append-only."""

    __slots__ = ("_next", "offsets", "positions", "times")

    def __init__(self) -> None:
        self.offsets = array("q")  # offset of each group's first record
        self.positions = array("q")  # position in the file of each group's first byte
        # The latest time of any record up to the group's end. The time never falls from one entry
        # to the next, so a binary search works, and the first group that reaches a time holds the
        # first batch that does.
        self.times = array("q")
        self._next = 0  # the next batch at or beyond this position starts a group

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, header: Header, position: int) -> None:
        """Add the next batch, which begins at *position*."""
        times, time = self.times, header.max_timestamp
        if position >= self._next:
            self.offsets.append(header.base_offset)
            self.positions.append(position)
            times.append(max(time, times[-1]) if times else time)
            self._next = position + GAP
        elif time > times[-1]:
            times[-1] = time

    def find(self, offset: int) -> int | None:
        """Return the position of the group with *offset*; None if *offset* is before all groups."""
        at = bisect_right(self.offsets, offset) - 1
        return self.positions[at] if at >= 0 else None

    def find_time(self, timestamp_ms: int) -> int | None:
        """Return the position of the first group with a time of at least *timestamp_ms*."""
        at = bisect_left(self.times, timestamp_ms)
        return self.positions[at] if at < len(self.times) else None

    def position_after(self, offset: int) -> int | None:
        """Return the position of the first group at or after *offset*, or None."""
        at = bisect_left(self.offsets, offset)
        return self.positions[at] if at < len(self.positions) else None

    def boundary(self, position: int) -> int:
        """Return the last known start of a batch at or before *position*; -1 if there is none."""
        at = bisect_right(self.positions, position) - 1
        return self.positions[at] if at >= 0 else -1

    def cut(self, end: int) -> int | None:
        """Remove the group that holds the record before *end*, and all groups after it.

        Returns:
            The start of the group that held the record before *end*, or None if the index was
            empty. The caller adds the remaining batches of that group again.
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
            CorruptMetadata: the index is damaged; rebuild it from the block.
        """
        if len(data) < _HEAD.size + 4 or _CRC.unpack(data[-4:])[0] != crc32(data[:-4]):
            raise CorruptMetadata("the index is damaged")
        magic, version, zero, count, following = _HEAD.unpack_from(data)
        if (magic, version, zero) != (_MAGIC, _VERSION, 0):
            raise CorruptMetadata("the index has an unknown version")
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
    """Convert a column between this machine's byte order and little-endian."""
    if _LITTLE:
        return column
    swapped = array(column.typecode, column)
    swapped.byteswap()
    return swapped
