"""Converts values to CBOR items and back: an item is the list of a value's fields, in order.

A shape is made once for each class, from the types of its fields. When a shape unpacks a value, it
checks the type of each field. New fields are added only at the end, with a default: a receiver uses
the defaults for missing fields and ignores unknown fields.

Payload (such as record batches) bypasses CBOR: it is sent in separate frames, and the list has its
length in its place. Small payload stays in the list, because a frame costs more than a copy.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs

from pymq.core.batch.header import HEADER_SIZE, parse_header
from pymq.core.batch.record import EncodedBatch
from pymq.core.counts import plural
from pymq.core.message import Location
from pymq.core.metadata.descriptions import ClusterDescription, TopicDescription, TopicMetadata
from pymq.core.metadata.nodes import Loss, ProducerIds
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode
from pymq.errors import InvalidRequest, PymqError, error_from_code

INLINE_MAX = 2048  # payload up to this many bytes stays in the list
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
DETAIL = (bool, int, str, type(None))  # types that the details of an error may have

Buffer = bytes | bytearray | memoryview
Frames = list[Buffer]  # payload frames, in the order of their places in the list
Pack = Callable[[Any, Frames], Any]
Unpack = Callable[[Any, "Payload"], Any]


class Payload:
    """The payload frames of a packet, to be taken in order."""

    __slots__ = ("_frames",)

    def __init__(self, frames: Iterator[Buffer]) -> None:
        self._frames = frames

    def take(self, place: Any) -> Buffer:
        """Return the payload at *place*: the bytes in the list, or the next frame if *place* is a
        length.
        """
        if type(place) is bytes:
            return place
        frame = next(self._frames, None)
        if frame is None or type(place) is not int or len(frame) != place:
            found = "no frame" if frame is None else f"a frame of {plural(len(frame), 'byte')}"
            raise InvalidRequest(f"a payload frame of {place!r} bytes was announced, not {found}")
        return frame


class Shape:
    """Packs and unpacks the values of one class."""

    __slots__ = ("_defaults", "_get", "_least", "_packs", "_unpacks", "cls", "names")

    def __init__(self, cls: type, *, payload: tuple[str, ...] = ()) -> None:
        hints = get_type_hints(cls)
        fields = attrs.fields(cls)
        self.cls = cls
        self.names = tuple(field.name for field in fields)
        if len(fields) > 1:
            self._get: Callable[[Any], tuple[Any, ...]] = attrgetter(*self.names)
        else:
            self._get = lambda item: tuple([getattr(item, name) for name in self.names])
        kinds = [
            (_pack_bytes, _unpack_bytes) if name in payload else _kind(hints[name])
            for name in self.names
        ]
        self._packs = tuple((i, pack) for i, (pack, _) in enumerate(kinds) if pack is not None)
        self._unpacks = tuple(unpack for _, unpack in kinds)
        required = [field.default is attrs.NOTHING for field in fields]
        self._least = sum(required)
        assert all(required[: self._least]), cls

    def pack(self, item: Any, frames: Frames) -> list[Any]:
        """Return the fields of *item*; append its payload to *frames*."""
        row = list(self._get(item))
        for index, pack in self._packs:
            row[index] = pack(row[index], frames)
        return row

    def unpack(self, row: Any, payload: Payload) -> Any:
        """Make an item from its fields.

        Raises:
            InvalidRequest: the fields are not those of this class.
        """
        if type(row) is not list or len(row) < self._least:
            raise InvalidRequest(f"a {self.cls.__name__} has at least {self._least} fields")
        try:
            # ``zip`` drops fields that a later version has added at the end.
            return self.cls(
                *[unpack(part, payload) for unpack, part in zip(self._unpacks, row, strict=False)]
            )
        except InvalidRequest as error:
            raise InvalidRequest(f"{self.cls.__name__}: {error.message}") from None
        except PymqError as error:
            raise InvalidRequest(f"{self.cls.__name__}: {error}") from error


class ReservedShape(Shape):
    """A shape with places of removed fields; it sends 0 in these places and ignores received
    values.
    """

    __slots__ = ("_reserved",)

    def __init__(
        self, cls: type, *, payload: tuple[str, ...] = (), reserved: tuple[int, ...]
    ) -> None:
        super().__init__(cls, payload=payload)
        self._reserved = reserved  # reserved places, ascending

    def pack(self, item: Any, frames: Frames) -> list[Any]:
        """Return the fields of *item*, with 0 in each reserved place."""
        row = super().pack(item, frames)
        for place in self._reserved:
            row.insert(place, 0)
        return row

    def unpack(self, row: Any, payload: Payload) -> Any:
        """Make an item from its fields; ignore fields in reserved places.

        Raises:
            InvalidRequest: the fields are not those of this class.
        """
        if type(row) is list:
            for place in reversed(self._reserved):
                row = row[:place] + row[place + 1 :]
        return super().unpack(row, payload)


_shapes: dict[type, Shape] = {}


def shape_of(cls: type, *, payload: tuple[str, ...] = (), reserved: tuple[int, ...] = ()) -> Shape:
    """Return the shape of a class; *payload* names its payload fields."""
    found = _shapes.get(cls)
    if found is None:
        if reserved:
            found = ReservedShape(cls, payload=payload, reserved=reserved)
        else:
            found = Shape(cls, payload=payload)
        _shapes[cls] = found
    return found


def _kind(hint: Any) -> tuple[Pack | None, Unpack]:
    """Return the functions that pack (None: unchanged) and unpack values of a type *hint*."""
    if hint in _KINDS:
        return _KINDS[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _optional(hint, args)
    if origin is tuple:
        return _many(args[0]) if args[-1] is Ellipsis else _row(tuple, args)
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        hints = get_type_hints(hint)
        return _row(hint._make, tuple(hints.values()))  # type: ignore[attr-defined] # it has fields
    if attrs.has(hint):
        found = shape_of(hint)
        return found.pack, found.unpack
    raise TypeError(f"{hint!r} has no shape")


def _scalar(cls: type) -> Unpack:
    def unpack(part: Any, payload: Payload) -> Any:
        if type(part) is not cls:
            raise InvalidRequest(f"{part!r:.100} is not of type {cls.__name__}")
        return part

    return unpack


def _unpack_int(part: Any, payload: Payload) -> int:
    if type(part) is not int or not INT_MIN <= part <= INT_MAX:
        raise InvalidRequest(f"{part!r:.100} is not an integer of 64 bits")
    return part


def _optional(hint: Any, args: tuple[Any, ...]) -> tuple[Pack | None, Unpack]:
    (inner,) = [arg for arg in args if arg is not types.NoneType]
    pack_inner, unpack_inner = _kind(inner)
    pack: Pack | None = None
    if pack_inner is not None:
        known = pack_inner

        def pack(item: Any, frames: Frames) -> Any:
            return None if item is None else known(item, frames)

    def unpack(part: Any, payload: Payload) -> Any:
        return None if part is None else unpack_inner(part, payload)

    return pack, unpack


def _many(inner: Any) -> tuple[Pack | None, Unpack]:
    """Return functions for tuples of any length whose items have one type."""
    pack_one, unpack_one = _kind(inner)
    pack: Pack | None = None
    if pack_one is not None:
        known = pack_one

        def pack(items: Any, frames: Frames) -> Any:
            return [known(item, frames) for item in items]

    def unpack(parts: Any, payload: Payload) -> Any:
        if type(parts) is not list:
            raise InvalidRequest(f"{parts!r:.100} is not a list")
        return tuple([unpack_one(part, payload) for part in parts])

    return pack, unpack


def _row(make: Callable[[list[Any]], Any], args: tuple[Any, ...]) -> tuple[Pack | None, Unpack]:
    """Return functions for tuples with a type for each place."""
    kinds = [_kind(arg) for arg in args]
    unpacks = [unpack for _, unpack in kinds]
    pack: Pack | None = None
    if any(pack_one is not None for pack_one, _ in kinds):

        def pack(item: Any, frames: Frames) -> Any:
            return [
                part if one is None else one(part, frames)
                for (one, _), part in zip(kinds, item, strict=True)
            ]

    def unpack(parts: Any, payload: Payload) -> Any:
        if type(parts) is not list or len(parts) != len(unpacks):
            raise InvalidRequest(f"{parts!r:.100} is not a list of {len(unpacks)}")
        return make([one(part, payload) for one, part in zip(unpacks, parts, strict=True)])

    return pack, unpack


# --- values without fields ----------------------------------------------------------------------


def _unpack_acks(part: Any, payload: Payload) -> AckMode:
    return AckMode.of(_unpack_int(part, payload))


def _pack_bytes(data: Buffer, frames: Frames) -> bytes | int:
    size = len(data)
    if size <= INLINE_MAX:
        return bytes(data)
    frames.append(data)
    return size


def _unpack_bytes(place: Any, payload: Payload) -> Buffer:
    return payload.take(place)


def _pack_batch(batch: EncodedBatch, frames: Frames) -> list[Any]:
    return [bytes(batch.head), _pack_bytes(batch.body, frames)]


def _unpack_batch(part: Any, payload: Payload) -> EncodedBatch:
    """Return a batch with a checked header; its reader checks the body."""
    if type(part) is not list or len(part) != 2 or type(part[0]) is not bytes:
        raise InvalidRequest("a batch is a list of its header and its body")
    head, body = part[0], payload.take(part[1])
    header = parse_header(head)
    if len(head) != HEADER_SIZE or header.length != HEADER_SIZE + len(body):
        raise InvalidRequest(f"a batch of {header.length} bytes has a body of {len(body)}")
    return EncodedBatch(head, body, header)


def _pack_error(error: PymqError, frames: Frames) -> list[Any]:
    return [error.code, str(error), _details(error.details)]


def _details(given: Mapping[str, object]) -> dict[str, object]:
    """Return the details of an error that are allowed in a message."""
    return {
        name: list(found) if isinstance(found, tuple) else found
        for name, found in given.items()
        if isinstance(found, DETAIL)
        or (isinstance(found, (list, tuple)) and all(isinstance(part, DETAIL) for part in found))
    }


def _unpack_error(part: Any, payload: Payload) -> PymqError:
    if type(part) is not list or len(part) < 3:
        raise InvalidRequest("an error is a list of its code, its message and its details")
    code, text, details = part[:3]
    if type(code) is not str or type(text) is not str:
        raise InvalidRequest("an error's code and message are texts")
    return error_from_code(code, text, _details(_unpack_options(details, payload)))


def _unpack_options(part: Any, payload: Payload) -> dict[str, Any]:
    """Return a flat map of names; the user of the map checks the values."""
    if type(part) is not dict or not all(type(name) is str for name in part):
        raise InvalidRequest(f"{part!r:.100} is not a map of names")
    return part


def _pack_config(config: TopicConfig, frames: Frames) -> dict[str, Any]:
    return config.to_dict()


def _unpack_config(part: Any, payload: Payload) -> TopicConfig:
    known = attrs.fields_dict(TopicConfig)
    given = _unpack_options(part, payload)
    # Ignore the options of later versions.
    return TopicConfig.of({name: found for name, found in given.items() if name in known})


# The types of results of requests to a zkserver, each with its number.
_PLAIN, _NAMES, _LOCATIONS = 0, 4, 5
_RESULTS: dict[int, type] = {
    1: TopicMetadata,
    2: TopicDescription,
    3: ClusterDescription,
    6: Loss,
    7: ProducerIds,
}
_RESULT_NUMBERS = {cls: number for number, cls in _RESULTS.items()}


def _pack_result(result: Any, frames: Frames) -> list[Any]:
    number = _RESULT_NUMBERS.get(type(result))
    if number is not None:
        return [number, shape_of(type(result)).pack(result, frames)]
    if isinstance(result, tuple):
        if result and isinstance(result[0], Location):
            shape = shape_of(Location)
            return [_LOCATIONS, [shape.pack(part, frames) for part in result]]
        return [_NAMES, list(result)]
    return [_PLAIN, result]


def _unpack_result(part: Any, payload: Payload) -> Any:
    if type(part) is not list or len(part) != 2 or type(part[0]) is not int:
        raise InvalidRequest("a result is a list of its number and itself")
    number, found = part
    if number in _RESULTS:
        return shape_of(_RESULTS[number]).unpack(found, payload)
    if number == _LOCATIONS:
        return _many(Location)[1](found, payload)
    if number == _NAMES:
        return _many(str)[1](found, payload)
    if number != _PLAIN:
        raise InvalidRequest(f"result type {number!r:.100} is unknown")
    return found if type(found) in (bool, types.NoneType) else _unpack_int(found, payload)


def _kinds() -> dict[Any, tuple[Pack | None, Unpack]]:
    from pymq.core.message import Result

    return {
        int: (None, _unpack_int),
        str: (None, _scalar(str)),
        bool: (None, _scalar(bool)),
        bytes: (None, _scalar(bytes)),
        AckMode: (lambda mode, frames: int(mode), _unpack_acks),
        EncodedBatch: (_pack_batch, _unpack_batch),
        PymqError: (_pack_error, _unpack_error),
        TopicConfig: (_pack_config, _unpack_config),
        dict[str, Any]: (None, _unpack_options),
        Result: (_pack_result, _unpack_result),
    }


_KINDS = _kinds()
