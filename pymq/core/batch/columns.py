"""Body format 1 of a record batch: one column for each field, each a CBOR item of known length.

The header of the batch says which columns are present (a bit each). The body has the columns in the
order of their bits, each as ``u32 length`` (little-endian) and one CBOR item:

==========  =====================================================================================
values      array of byte strings, one for each record
keys        array of byte strings or null
timestamps  byte string of packed little-endian i32, or i64 when one of them needs it:
            milliseconds after the first timestamp; negative for records older than the first one
headers     array; per record null or an array of alternating name (text) and value (byte string)
offsets     packed like timestamps: rising offsets after the base offset; only after compaction
==========  =====================================================================================

An absent column costs nothing: no keys, no headers, one timestamp for all, dense offsets.

Measured with cbor2 6.2.1 and values of 100 bytes, in ns a value:

==============================  ======  ======
way                             encode  decode
==============================  ======  ======
a small map for each record     1,000   415
a column with cbor2             55      46
byte strings of one length      11      14
==============================  ======  ======

In most streams all byte strings have the same length. The array of such strings is ``head + prefix
+ prefix.join(values)``, and one struct format reads it back. The bytes are the same CBOR, so a
reader in any language needs no special case.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat
from operator import and_, countOf
from typing import Any, NamedTuple

from pymq.core import cbor
from pymq.errors import CorruptBatch, PymqError

VALUES = 1
KEYS = 2
TIMESTAMPS = 4
HEADERS = 8
OFFSETS = 16
ALL = VALUES | KEYS | TIMESTAMPS | HEADERS | OFFSETS

Buffer = bytes | bytearray | memoryview
Headers = tuple[tuple[str, bytes], ...]

_LENGTH = struct.Struct("<I")
_LITTLE = sys.byteorder == "little"
_COPIED = 256  # bytes; a column with items up to this length is copied before it is checked
_WHOLE = 1 << 16  # items that a check decodes at once
_RUN = 64  # values in one struct format: longer formats cost more to compile than they save


def pack(columns: Sequence[bytes]) -> bytes:
    """Join encoded columns, each after its length."""
    return b"".join([part for column in columns for part in (_LENGTH.pack(len(column)), column)])


def unpack(body: Buffer, present: int) -> dict[int, memoryview]:
    """Find the columns of *body* without decoding them.

    Raises:
        CorruptBatch: the lengths do not fill the body exactly.
    """
    view, found, position = memoryview(body), {}, 0
    for bit in (VALUES, KEYS, TIMESTAMPS, HEADERS, OFFSETS):
        if present & bit:
            end = position + 4
            if end > len(view):
                raise CorruptBatch("the body ends inside a column's length")
            (size,) = _LENGTH.unpack_from(view, position)
            position = end + size
            if position > len(view):
                raise CorruptBatch("a column reaches beyond the body")
            found[bit] = view[end:position]
    if position != len(view):
        raise CorruptBatch(f"{len(view) - position} bytes follow the last column")
    return found


# --- byte strings -------------------------------------------------------------------------------


@lru_cache(1024)
def _head(major: int, number: int) -> bytes:
    """Return the initial bytes of a CBOR item (RFC 8949, section 3)."""
    if number < 24:
        return bytes((major << 5 | number,))
    if number < 1 << 8:
        return struct.pack(">BB", major << 5 | 24, number)
    if number < 1 << 16:
        return struct.pack(">BH", major << 5 | 25, number)
    return struct.pack(">BI", major << 5 | 26, number)


ANY = -1  # a width that still has to be measured


def width_of(values: Sequence[bytes | None]) -> int | None:
    """Return the common length of *values* in bytes; None if lengths differ or one is null."""
    try:
        width = len(values[0])  # type: ignore[arg-type] # a null ends in the except
        same = countOf(map(len, values), width)  # type: ignore[arg-type] # a null, too
    except (TypeError, IndexError):
        return None
    return width if same == len(values) else None


def encode_bytes(values: Sequence[bytes | None]) -> bytes:
    """Encode an array of byte strings and nulls."""
    width = width_of(values)
    if width is None:
        return cbor.dumps(values)
    return _head(2, width).join([_head(4, len(values)), *values])  # type: ignore[list-item] # no nulls here


def pack_values(values: Sequence[bytes], width: int | None) -> bytes:
    """Do ``pack([encode_bytes(values)])`` in one copy; *width* is their length, or ``ANY``."""
    if width == ANY:
        width = width_of(values)
    if width is None:
        encoded = cbor.dumps(values)
        return _LENGTH.pack(len(encoded)) + encoded
    head, prefix = _head(4, len(values)), _head(2, width)
    length = len(head) + len(values) * (len(prefix) + width)
    return prefix.join([_LENGTH.pack(length) + head, *values])


def run_heads(count: int, size: int) -> tuple[bytes, bytes]:
    """Return the head of an array of *count* byte strings, and the head of a string of *size*
    bytes.
    """
    return _head(4, count), _head(2, size)


@lru_cache(256)
def _run(prefix: int, size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{prefix}x{size}s" * count)


def _byte_string(view: memoryview, position: int) -> tuple[int, int]:
    """Return the lengths of a byte string's head and content; (0, 0) if there is no byte string."""
    first = view[position] if position < len(view) else 0
    if 0x40 <= first < 0x58:
        return 1, first - 0x40
    width = {0x58: 1, 0x59: 2, 0x5A: 4}.get(first, 0)
    if width == 0 or position + 1 + width > len(view):
        return 0, 0
    return 1 + width, int.from_bytes(view[position + 1 : position + 1 + width], "big")


class RecordRun(NamedTuple):
    """An array of byte strings of one length; item *i* is at ``i * stride + prefix``."""

    data: memoryview
    prefix: int  # bytes of CBOR before each value
    size: int  # bytes of each value

    @property
    def stride(self) -> int:
        """Bytes from the start of a value to the start of the next."""
        return self.prefix + self.size


def find_run(column: Buffer, count: int) -> RecordRun | None:
    """Return the array as a run if its *count* byte strings have one length; else None."""
    view, head = memoryview(column), _head(4, count)
    start = len(head)
    prefix, size = _byte_string(view, start)
    stride = prefix + size
    if prefix == 0 or len(view) != start + count * stride or bytes(view[:start]) != head:
        return None
    if count == 1:
        return RecordRun(view[start:], prefix, size)  # There is no other head to compare.
    # The total length is right. Each value must also have the same head. Stepping through a view
    # costs 5 ns an item, so short values are copied first.
    data = bytes(view) if stride <= _COPIED else view
    for at in range(start, start + prefix):
        if bytes(data[at::stride]).count(view[at]) != count:
            return None
    return RecordRun(view[start:], prefix, size)


def _decode_equal(view: memoryview, count: int) -> list[bytes] | None:
    """Decode the array with struct if its byte strings have one length; else None."""
    run = find_run(view, count)
    if run is None:
        return None
    data, prefix, size = run
    middle = (count - count % _RUN) * run.stride
    values = list(chain.from_iterable(_run(prefix, size, _RUN).iter_unpack(data[:middle])))
    if count % _RUN:
        values.extend(_run(prefix, size, count % _RUN).unpack(data[middle:]))
    return values


def decode_bytes(column: Buffer, count: int) -> list[bytes]:
    """Decode an array of *count* byte strings.

    Raises:
        CorruptBatch: the column is anything else.
    """
    view = memoryview(column)
    if (equal := _decode_equal(view, count)) is not None:
        return equal
    values = _decode_array(view, count)
    if not {bytes}.issuperset(map(type, values)):
        raise CorruptBatch("a value is not a byte string")
    return values


def decode_optional_bytes(column: Buffer, count: int) -> list[bytes | None]:
    """Decode an array of *count* byte strings or nulls.

    Raises:
        CorruptBatch: the column is anything else.
    """
    view = memoryview(column)
    if (equal := _decode_equal(view, count)) is not None:
        return list(equal)
    values = _decode_array(view, count)
    if not {bytes, type(None)}.issuperset(map(type, values)):
        raise CorruptBatch("a key is neither a byte string nor null")
    return values


def _array_head(view: memoryview, count: int) -> int:
    """Return the length of the array's head in bytes.

    Raises:
        CorruptBatch: the column does not begin with the head of an array of *count* items.
    """
    first = view[0] if len(view) else 0
    if 0x80 <= first < 0x98:
        size, found = 1, first - 0x80
    else:
        width = {0x98: 1, 0x99: 2, 0x9A: 4, 0x9B: 8}.get(first, 0)
        size = 1 + width
        found = int.from_bytes(view[1:size], "big") if 0 < width < len(view) else -1
    if found != count:
        raise CorruptBatch(f"a column does not hold an array of {count} items")
    return size


def _decode_array(view: memoryview, count: int, depth: int = 1) -> list[Any]:
    # Check the declared count first, because the decoder allocates memory for that many items.
    _array_head(view, count)
    values = _load(view, depth)
    if type(values) is not list or len(values) != count:
        raise CorruptBatch(f"a column does not hold an array of {count} items")
    return values


def _load(view: memoryview, depth: int = 1) -> Any:
    try:
        return cbor.loads(view, depth=depth)
    except PymqError as error:
        raise CorruptBatch(f"a column cannot be decoded: {error.message}") from None


# --- checking without keeping -------------------------------------------------------------------


def _pieces(view: memoryview, count: int, depth: int) -> Iterator[list[Any]]:
    """Decode the items of an array in pieces, so that memory is bounded.

    Raises:
        CorruptBatch: the column is not exactly one array of *count* items.
    """
    if count <= _WHOLE:
        yield _decode_array(view, count, depth)
        return
    try:
        yield from cbor.items(view[_array_head(view, count) :], count, _WHOLE, depth=depth - 1)
    except PymqError as error:
        raise CorruptBatch(f"a column cannot be decoded: {error.message}") from None


def check_bytes(column: Buffer, count: int, *, nulls: bool) -> None:
    """Check a column for :func:`decode_bytes`, or with *nulls* for :func:`decode_optional_bytes`.

    Raises:
        CorruptBatch: that function would raise it.
    """
    view = memoryview(column)
    if count and find_run(view, count) is not None:
        return
    allowed = {bytes, type(None)} if nulls else {bytes}
    for piece in _pieces(view, count, 1):
        if not allowed.issuperset(map(type, piece)):
            raise CorruptBatch("a key or a value is not a byte string")


def check_headers(column: Buffer, count: int) -> None:
    """Check a column for :func:`decode_headers`.

    Raises:
        CorruptBatch: that function would raise it.
    """
    for piece in _pieces(memoryview(column), count, 2):
        if not {list, type(None)}.issuperset(map(type, piece)):
            raise CorruptBatch("a record's headers are not an array of pairs")
        rows = list(filter(None, piece))
        if any(map(and_, map(len, rows), repeat(1))):
            raise CorruptBatch("a record's headers are not an array of pairs")
        # Each row has an even length, so names are at the even indexes.
        items = list(chain.from_iterable(rows))
        names, values = items[::2], items[1::2]
        if not ({str}.issuperset(map(type, names)) and {bytes}.issuperset(map(type, values))):
            raise CorruptBatch("a header is not a text and a byte string")


# --- integers -----------------------------------------------------------------------------------


def encode_numbers(numbers: Sequence[int]) -> bytes:
    """Pack integers as i32, or as i64 if one does not fit."""
    try:
        packed = array("i", numbers)
    except OverflowError:
        packed = array("q", numbers)
    if not _LITTLE:
        packed.byteswap()
    return cbor.dumps(packed.tobytes())


def decode_numbers(column: Buffer, count: int) -> list[int]:
    """Unpack *count* integers.

    Raises:
        CorruptBatch: the column does not hold exactly that many.
    """
    return unpack_numbers(column, count).tolist()


def unpack_numbers(column: Buffer, count: int) -> array[int]:
    """Unpack *count* integers like :func:`decode_numbers`, into an array of machine integers."""
    data = _load(memoryview(column))
    if type(data) is not bytes or count == 0 or len(data) not in (4 * count, 8 * count):
        raise CorruptBatch(f"a column does not hold {count} packed integers")
    packed = array("i" if len(data) == 4 * count else "q", data)
    if not _LITTLE:
        packed.byteswap()
    return packed


# --- headers ------------------------------------------------------------------------------------


def encode_headers(headers: Sequence[Headers]) -> bytes:
    """Encode each record's headers; a record without any costs one byte."""
    return cbor.dumps([list(chain.from_iterable(pairs)) or None for pairs in headers])


def decode_headers(column: Buffer, count: int) -> list[Headers]:
    """Decode the headers of *count* records.

    Raises:
        CorruptBatch: the headers are not pairs of a text and a byte string.
    """
    return [_pairs(row) for row in _decode_array(memoryview(column), count, 2)]


class HeaderPairs(NamedTuple):
    """The headers of some records as flat lists."""

    counts: list[int]  # headers of each record
    names: list[str]
    values: list[bytes]


def split_headers(column: Buffer, count: int, first: int, last: int) -> HeaderPairs:
    """Decode the headers of the records ``range(first, last)`` of *count*, without tuples.

    Raises:
        CorruptBatch: they are not pairs of a text and a byte string.
    """
    found = _decode_array(memoryview(column), count, 2)[first:last]
    if not {list, type(None)}.issuperset(map(type, found)):
        raise CorruptBatch("a record's headers are not an array of pairs")
    rows = [row or () for row in found]
    lengths = list(map(len, rows))
    if any(map(and_, lengths, repeat(1))):
        raise CorruptBatch("a record's headers are not an array of pairs")
    # Each row has an even length, so names are at the even indexes.
    items = list(chain.from_iterable(rows))
    names, values = items[::2], items[1::2]
    if not {str}.issuperset(map(type, names)) or not {bytes}.issuperset(map(type, values)):
        raise CorruptBatch("a header is not a text and a byte string")
    return HeaderPairs([length // 2 for length in lengths], names, values)


def _pairs(row: Any) -> Headers:
    if row is None:
        return ()
    if type(row) is not list or len(row) % 2:
        raise CorruptBatch("a record's headers are not an array of pairs")
    names, values = row[::2], row[1::2]
    if not {str}.issuperset(map(type, names)) or not {bytes}.issuperset(map(type, values)):
        raise CorruptBatch("a header is not a text and a byte string")
    return tuple(zip(names, values, strict=True))
