"""Strict CBOR: the only module that calls cbor2.

The input is untrusted. So the decoder refuses tags, indefinite lengths, repeated keys and bytes
after the item, and limits the nesting. (Tags can create regular expressions, cyclic lists, and
numbers that are huge when printed.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import repeat, starmap
from typing import Any, NoReturn

import cbor2

from pymq.core.counts import clause
from pymq.errors import InvalidRequest

DEPTH_MAX = 16

dumps = cbor2.dumps  # safe for plain types: it writes definite lengths and no tags


class _RefuseTags(Mapping[int, Any]):
    """Replaces the table of tag decoders and refuses each tag."""

    def __getitem__(self, tag: int) -> Any:
        return self._refuse

    def get(self, tag: int, default: Any = None) -> Any:
        return self._refuse

    def __contains__(self, tag: object) -> bool:
        return True

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 1

    @staticmethod
    def _refuse(decoder: Any, immutable: bool = False) -> NoReturn:
        raise cbor2.CBORDecodeError("tags are not allowed")


_NO_TAGS = _RefuseTags()


def loads(data: bytes | bytearray | memoryview, *, depth: int = DEPTH_MAX) -> Any:
    """Decode *data*, which must be exactly one item.

    Raises:
        InvalidRequest: *data* is not one plain CBOR item.
    """
    source = BytesIO(data)
    try:
        item = _decoder(source, depth).decode()
    except _FAULTS as error:
        raise InvalidRequest(f"not valid CBOR: {error}") from None
    if source.tell() != len(data):
        raise InvalidRequest(
            f"{clause(len(data) - source.tell(), 'byte', 'follows', 'follow')} the CBOR item"
        )
    return item


def items(
    data: bytes | bytearray | memoryview, count: int, most: int, *, depth: int = DEPTH_MAX
) -> Iterator[list[Any]]:
    """Decode *data*, which must be exactly *count* items, up to *most* at a time.

    Raises:
        InvalidRequest: *data* is not exactly *count* plain CBOR items.
    """
    source = BytesIO(data)
    decode = _decoder(source, depth).decode
    for start in range(0, count, most):
        try:
            piece = list(starmap(decode, repeat((), min(most, count - start))))
        except _FAULTS as error:
            raise InvalidRequest(f"not valid CBOR: {error}") from None
        yield piece
    if source.tell() != len(data):
        raise InvalidRequest(
            f"{clause(len(data) - source.tell(), 'byte', 'follows', 'follow')} the CBOR items"
        )


_FAULTS = (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError)


def _decoder(source: BytesIO, depth: int) -> cbor2.CBORDecoder:
    return cbor2.CBORDecoder(
        source,
        semantic_decoders=_NO_TAGS,
        max_depth=depth,
        allow_indefinite=False,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    )
