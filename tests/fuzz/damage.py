"""Damage to bytes: random damage, and damage by an attacker who knows the format."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

from tests.transport import cbor

# Lengths, counts and offsets that often reveal bugs.
NUMBERS = (
    *(0, 1, 2, 15, 16, 23, 24, 127, 128, 255, 256, 2_048, 2_049, 4_096, 65_535, 65_536),
    *(1 << 20, (1 << 24) + 1, 1 << 26, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53),
    *((1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
)
INTEGERS = (*NUMBERS, *(-number for number in NUMBERS[1:-2]), -(1 << 63), -(1 << 64))


class Raw(bytes):
    """Bytes that are inserted into CBOR unchanged."""


RAW = (
    Raw(b"\xc0\x60"),  # tags: a time, ...
    Raw(b"\xc2\x58\x20" + b"\xff" * 32),  # a large integer, ...
    # a decimal that takes endless space when printed, ...
    Raw(b"\xc4\x82\x1a\x3b\x9a\xca\x00\x01"),
    Raw(b"\xd8\x1c\x81\xd8\x1d\x00"),  # a list that contains itself, ...
    Raw(b"\xd8\x23\x68(a+)+$ab"),  # a regular expression, ...
    Raw(b"\xd9\x01\x02\x81\x00"),  # a set, ...
    Raw(b"\xd9\x01\x00\x81\x61a"),  # ... and references to earlier texts
    Raw(b"\x9f\x01\xff"),  # indefinite lengths
    Raw(b"\x5f\x41a\xff"),
    Raw(b"\xbf\x61a\x01\xff"),
    Raw(b"\xf9\x7e\x00"),  # a float that is not a number
    Raw(b"\xfb\x7f\xf0" + bytes(6)),  # infinite
    Raw(b"\xf7"),  # undefined
    Raw(b"\xf8\xff"),  # an unknown simple value
    Raw(b"\xff"),
    Raw(b"\x1c"),
    Raw(b"\x9b" + b"\x7f" + b"\xff" * 7),  # missing bytes
    Raw(b"\x5b" + b"\x7f" + b"\xff" * 7),
    Raw(b"\xbb" + b"\x7f" + b"\xff" * 7),
    Raw(b"\x7a\xff\xff\xff\xff"),
    Raw(b"\x1b" + bytes(7) + b"\x01"),  # an integer that is not in its shortest form
    Raw(b"\x61\xff"),  # a string that is not UTF-8
    Raw(b"\xa2\x61a\x01\x61a\x02"),  # a repeated key
    Raw(b"\xa1\x80\x01"),  # a key that is a list
)


def write(item: Any) -> bytes:
    """Return the CBOR of an item that may contain raw bytes."""
    if type(item) is Raw:
        return item
    if type(item) is list:
        return cbor.head(4, len(item)) + b"".join(map(write, item))
    if type(item) is dict:
        pairs = [write(key) + write(found) for key, found in item.items()]
        return cbor.head(5, len(item)) + b"".join(pairs)
    if type(item) is int and not -(1 << 64) <= item < 1 << 64:
        return Raw(b"\xf6")
    return cbor.write(item)


def scramble(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Damage bytes one to four times, without knowledge of the format."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        size = len(changed)
        at = rng.randrange(size + 1)
        match rng.randrange(9):
            case 0 if size:
                changed[at % size] ^= 1 << rng.randrange(8)
            case 1 if size:
                changed[at % size] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + rng.choice((1, 2, 4, 8, 96, 512))]
            case 4:
                changed[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 96)))
            case 5:
                piece = changed[at : at + rng.choice((1, 4, 16, 96, 512))]
                to = rng.randrange(size + 1)
                changed[to:to] = piece
            case 6:  # a wrong length
                kind = rng.choice("BHIQ")
                order = rng.choice("<>")
                number = rng.choice(NUMBERS) & ((1 << 8 * struct.calcsize(kind)) - 1)
                lie = struct.pack(order + kind, number)
                changed[at : at + len(lie)] = lie
            case 7 if others:  # the rest comes from another input
                other = rng.choice(others)
                changed[at:] = other[min(at, len(other)) if rng.random() < 0.5 else 0 :]
            case _:
                changed[at : at + rng.choice((4, 96, 512))] = bytes(rng.choice((4, 96, 512)))
    return bytes(changed)


def distort(rng: Random, item: Any, others: Sequence[Any]) -> Any:
    """Return another item that differs from the given one in one to three places."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        item = _distort(rng, item, others)
    return item


def _distort(rng: Random, item: Any, others: Sequence[Any]) -> Any:
    if type(item) is list and item and rng.random() < 0.85:
        items = list(item)
        at = rng.randrange(len(items))
        match rng.randrange(12):
            case 0:
                del items[at]
            case 1:
                items.insert(at, _strange(rng, items[at], others))
            case 2:
                # Creating the damage must not take much memory.
                many = len(items) > 40 or any(type(part) is list for part in items)
                items[at:] = items[at:] * rng.choice((2, 2 if many else 40))
            case 3:
                to = rng.randrange(len(items))
                items[at], items[to] = items[to], items[at]
            case _:
                items[at] = _distort(rng, items[at], others)
        return items
    if type(item) is dict and item and rng.random() < 0.85:
        pairs = dict(item)
        key = rng.choice(list(pairs))
        match rng.randrange(4):
            case 0:
                del pairs[key]
            case 1:
                pairs[rng.choice(("", "x" * 300, 5, None, b"a", -1, key))] = pairs[key]
            case _:
                pairs[key] = _distort(rng, pairs[key], others)
        return pairs
    return _strange(rng, item, others)


def _strange(rng: Random, item: Any, others: Sequence[Any]) -> Any:
    """Return a replacement for *item*."""
    match rng.randrange(10):
        case 0:
            return rng.choice(RAW)
        case 1 | 2 | 3:
            return rng.choice(INTEGERS)
        case 4:
            return rng.choice((None, True, False, "", b"", [], {}))
        case 5:
            return rng.choice(("x" * 300, "\0", "ä" * 200, "../..", b"x" * 3_000, "__consumer"))
        case 6:  # deep nesting
            around = rng.choice((b"\x81", b"\xa1\x61a"))
            return Raw(around * rng.choice((1, 3, 15, 17, 400)) + write(item))
        case 7 if type(item) is int:
            return item + rng.choice((-1, 1, 2, -256, 1 << 32))
        case 8 if type(item) in (bytes, str) and item:
            return item[: rng.randrange(len(item))]
        case 9 if others:
            return rng.choice(others)
        case _:
            return [item, item]
