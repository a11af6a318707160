"""Converts records to and from text, JSON and bytes, for ``consume`` and ``produce``."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from typing import Any

import pymq
from pymq.cli.escape import escaped, escaped_json
from pymq.cli.units import time_text
from pymq.errors import InvalidRequest


def printable(data: bytes) -> str:
    """Return bytes as one line of text that is harmless on a terminal."""
    return escaped(data.decode("utf-8", "backslashreplace"))


def shorten(text: str, width: int) -> str:
    """Cut a text to at most *width* characters."""
    return text if len(text) <= width else text[: width - 3] + "..."


def as_json(record: pymq.Record) -> dict[str, Any]:
    """Return a record as JSON; fields that are not UTF-8 become ``value_base64`` and the like."""
    found: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
    }
    if record.key is None:
        found["key"] = None
    else:
        found |= _bytes_as_json("key", record.key)
    found |= _bytes_as_json("value", record.value)
    found["headers"] = [
        {"name": name, **_bytes_as_json("value", item)} for name, item in record.headers
    ]
    found["delivery_count"] = record.delivery_count
    return found


def _bytes_as_json(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def from_json(line: bytes) -> dict[str, Any]:
    """Parse a record's JSON into arguments of ``send``; ignores other fields.

    Raises:
        InvalidRequest: the line is not a record as JSON.
    """
    try:
        found = json.loads(line)
        if type(found) is not dict:
            raise ValueError("it is not an object")
        sent: dict[str, Any] = {"value": _bytes_of(found, "value")}
        if sent["value"] is None:
            raise ValueError("it has no value")
        sent["key"] = _bytes_of(found, "key")
        pairs = found.get("headers") or ()
        named = [(str(pair["name"]), _bytes_of(pair, "value") or b"") for pair in pairs]
        sent["headers"] = named or None
        when = found.get("timestamp_ms")
        if when is not None and type(when) is not int:
            raise ValueError(f"timestamp_ms is {when!r}")
        sent["timestamp_ms"] = when
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"{line[:80]!r} is not a record as JSON: {error}") from None
    return sent


def _bytes_of(found: dict[str, Any], name: str) -> bytes | None:
    text, encoded = found.get(name), found.get(f"{name}_base64")
    if text is None:
        return None if encoded is None else base64.b64decode(encoded, validate=True)
    # Encode a value that is itself JSON in the way that jq prints it.
    return text.encode() if isinstance(text, str) else json.dumps(text).encode()


def _text_line(record: pymq.Record, with_headers: bool) -> bytes:
    place = f"{record.partition}/{record.offset}"
    key = "-" if record.key is None else printable(record.key)
    parts = [f"{place:<12}", time_text(record.timestamp_ms), key, printable(record.value)]
    if with_headers and record.headers:
        parts.append(
            " ".join(f"{escaped(name)}={printable(item)}" for name, item in record.headers)
        )
    if record.delivery_count > 1:
        parts.append(f"(delivery {record.delivery_count})")
    return "  ".join(parts).encode() + b"\n"


def _json_line(record: pymq.Record, with_headers: bool) -> bytes:
    return escaped_json(json.dumps(as_json(record), ensure_ascii=False)).encode() + b"\n"


def _value_line(record: pymq.Record, with_headers: bool) -> bytes:
    # A pipe or file gets the exact bytes of the value.
    return (printable(record.value).encode() if sys.stdout.isatty() else record.value) + b"\n"


# takes the record, and whether to show its headers
Format = Callable[[pymq.Record, bool], bytes]
FORMATS: dict[str, Format] = {
    "text": _text_line,
    "json": _json_line,
    "value": _value_line,
}
