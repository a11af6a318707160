"""A second CBOR reader, written from RFC 8949, to prove that pymq's bytes can be read without
cbor2.
"""

from __future__ import annotations

import struct
from typing import Any


def read(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Return the item at a position, and the position after it; covers the CBOR of the protocol."""
    major, short = data[at] >> 5, data[at] & 31
    at += 1
    if short < 24:
        number = short
    elif short < 28:
        size = 1 << short - 24
        number = int.from_bytes(data[at : at + size], "big")
        at += size
    else:
        raise ValueError(f"additional information {short} is not in the protocol")
    if major == 0:
        return number, at
    if major == 1:
        return -1 - number, at
    if major in (2, 3):
        found = data[at : at + number]
        assert len(found) == number, "the string is cut short"
        return (found if major == 2 else found.decode()), at + number
    if major == 4:
        items = []
        for _ in range(number):
            item, at = read(data, at)
            items.append(item)
        return items, at
    if major == 5:
        pairs = {}
        for _ in range(number):
            key, at = read(data, at)
            pairs[key], at = read(data, at)
        return pairs, at
    if major == 7 and short in (20, 21, 22):
        return {20: False, 21: True, 22: None}[short], at
    if major == 7 and short == 27:
        return struct.unpack(">d", data[at - 8 : at])[0], at
    raise ValueError(f"major type {major} with {short} is not in the protocol")


def write(item: Any) -> bytes:
    """Return the bytes of an item."""
    if item is None or isinstance(item, bool):
        return bytes([{None: 0xF6, True: 0xF5, False: 0xF4}[item]])
    if isinstance(item, int):
        return head(0, item) if item >= 0 else head(1, -1 - item)
    if isinstance(item, bytes):
        return head(2, len(item)) + item
    if isinstance(item, str):
        return head(3, len(item.encode())) + item.encode()
    if isinstance(item, list):
        return head(4, len(item)) + b"".join(write(part) for part in item)
    assert isinstance(item, dict)
    return head(5, len(item)) + b"".join(write(k) + write(v) for k, v in item.items())


def head(major: int, number: int) -> bytes:
    """Return the initial bytes of an item."""
    if number < 24:
        return bytes([major << 5 | number])
    for short, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes([major << 5 | short]) + number.to_bytes(size, "big")
    raise ValueError(f"{number} is too large")
