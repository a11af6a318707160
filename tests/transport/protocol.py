"""Prints the tables of docs/protocol.md from the classes; ``python -m
tests.transport.protocol``.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs

from pymq import errors
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Location, Result
from pymq.core.metadata.descriptions import ClusterDescription, TopicDescription, TopicMetadata
from pymq.core.metadata.nodes import Loss
from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.types import AckMode
from pymq.errors import PymqError
from pymq.transport import wire

_WORDS: dict[Any, str] = {
    int: "int",
    str: "text",
    bool: "bool",
    bytes: "bytes",
    AckMode: "ack",
    EncodedBatch: "batch",
    PymqError: "error",
    TopicConfig: "config",
    dict[str, Any]: "options",
    Result: "result",
}


def rows() -> Iterator[str]:
    """Return the rows of the tables: messages, their parts, codes of errors."""
    parts: dict[str, Any] = {}
    for number, cls in wire.NUMBERS.items():
        payload = wire.PAYLOAD.get(cls, ())
        reserved = wire.RESERVED.get(cls, ())
        yield f"| {number} | {cls.__name__} | {_fields(cls, parts, payload, reserved)} |"
    for cls in (TopicMetadata, TopicDescription, ClusterDescription, Location, Loss):
        parts[cls.__name__] = cls
    for name in list(parts):
        _fields(parts[name], parts)
    done: set[str] = set()
    while missing := sorted(set(parts) - done):
        for name in missing:
            done.add(name)
            yield f"| {name} | {_fields(parts[name], parts)} |"
    yield from _codes()


def _codes() -> Iterator[str]:
    named = [getattr(errors, name) for name in errors.__all__]
    found: list[type[PymqError]] = [
        each for each in named if isinstance(each, type) and each is not PymqError
    ]
    for cls in sorted(found, key=lambda cls: cls.code):
        what = " ".join((cls.__doc__ or "").partition("\n\n")[0].split()).replace("``", "`")
        yield f"| `{cls.code}` | {'yes' if cls.retriable else 'no'} | {what} |"


def _fields(
    cls: Any,
    parts: dict[str, Any],
    payload: tuple[str, ...] = (),
    reserved: tuple[int, ...] = (),
) -> str:
    hints = get_type_hints(cls)
    names = [field.name for field in attrs.fields(cls)] if attrs.has(cls) else list(hints)
    found = [
        f"`{name}` {'payload' if name in payload else _word(hints[name], parts)}" for name in names
    ]
    for place in reserved:
        found.insert(place, "reserved int")
    return ", ".join(found)


def _word(hint: Any, parts: dict[str, Any]) -> str:
    if hint in _WORDS:
        return _WORDS[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = [arg for arg in args if arg is not types.NoneType]
        return _word(inner, parts) + "?"
    if origin is tuple:
        if args[-1] is Ellipsis:
            return f"list of {_word(args[0], parts)}"
        return f"({' '.join(_word(arg, parts) for arg in args)})"
    parts[hint.__name__] = hint
    return str(hint.__name__)


if __name__ == "__main__":
    print("\n".join(rows()))  # noqa: T201 # for whoever writes the document
