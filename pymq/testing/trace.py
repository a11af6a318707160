"""Formats the events of a run as text."""

from __future__ import annotations

from typing import Any

from pymq.core.batch.record import EncodedBatch

WIDTH = 110


def line(event: tuple[int, tuple[Any, ...]]) -> str:
    """Return one event of :attr:`World.log` as a line."""
    time, rest = event
    stamp = f"{time // 1_000_000:6d}.{time % 1_000_000:06d}"
    if len(rest) == 3 and not isinstance(rest[0], int) and not isinstance(rest[2], (int, str)):
        source, peer, message = rest
        return f"{stamp}  {source} > {peer}  {short(message)}"
    return f"{stamp}  {'  '.join(short(part) for part in rest)}"


def short(item: object) -> str:
    """Return a value as text, without parts that are too long or contain an address."""
    if isinstance(item, str):
        return item
    if isinstance(item, (bytes, bytearray, memoryview)):
        return f"<{len(item)} bytes>"
    if isinstance(item, EncodedBatch):
        header = item.header
        return f"<{header.count} records at {header.base_offset}>"
    names = getattr(type(item), "__match_args__", None)
    if names is None or isinstance(item, (int, tuple)):
        text = repr(item) if not isinstance(item, tuple) else _tuple(item)
    else:
        fields = ((name, getattr(item, name)) for name in names)
        shown = [f"{name}={short(found)}" for name, found in fields if found not in (None, b"")]
        text = f"{type(item).__name__}({', '.join(shown)})"
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


def _tuple(item: tuple[Any, ...]) -> str:
    return f"({', '.join(short(part) for part in item)})"
