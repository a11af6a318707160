"""A second reader of CBOR, straight from RFC 8949: what pymq writes is not only for cbor2."""

from __future__ import annotations

import struct
from typing import Any


def read(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The item at a position, and the position after it; as much of CBOR as the protocol has."""
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
