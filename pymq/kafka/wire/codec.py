"""Makes readers and writers of Kafka's messages, one for each message and version.

The first use of a reader or writer generates its Python source from the schema, as attrs generates
an ``__init__``. Neighbouring fields of fixed size are one ``struct`` format, and fields that the
version lacks cost nothing. The package does not contain the source for all versions, because that
would be 1 MB. A client uses about 20 versions, and a process generates the source of each version
once, in a few milliseconds.

A reader checks every length against the remaining bytes before it allocates memory, so a message
never takes more memory than a small multiple of its own size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from pymq.core.batch.columns import Buffer
from pymq.kafka.wire import messages
from pymq.kafka.wire.schema import FIXED, Field, MessageSchema, class_name, default, schemas

Read = Callable[[Buffer, int], tuple[Any, int]]
"""Reads a message at a position; returns the message and the position after it."""
Write = Callable[[Any, Callable[[Buffer], None]], None]
"""Writes a message as parts; calls the second argument with each part."""

MALFORMED = (ValueError, IndexError, struct.error)
"""The exceptions of a reader for bytes that are not such a message."""

_IN = "    "
_COMPACT_NULL, _NULL16, _NULL32 = r"b'\0'", r"b'\xff\xff'", r"b'\xff\xff\xff\xff'"


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 31 bits; return its value and the position after it."""
    found = shift = 0
    while True:
        byte = data[position]
        position += 1
        found |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 28:
            raise ValueError("a varint is too long")
    if found >= 1 << 31:
        raise ValueError("a varint is out of its range")
    return found, position


_ONE_BYTE = [bytes((number,)) for number in range(128)]


def varint(number: int) -> bytes:
    """Return an unsigned varint."""
    if number < 128:
        return _ONE_BYTE[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def check_left(count: int, size: int, data: Buffer, position: int) -> None:
    """Check that *count* items of at least *size* bytes may follow; -1 stands for null."""
    if count < -1 or count * size > len(data) - position:
        raise ValueError("a length is greater than the message")


def _not_null() -> Any:
    raise ValueError("a field is null that may not be")


def skip_tags(data: Buffer, position: int) -> int:
    """Skip tagged fields; return the position after them."""
    count, position = read_varint(data, position)
    for _ in range(count):
        _, position = read_varint(data, position)
        size, position = read_varint(data, position)
        check_left(size, 1, data, position)
        position += size
    return position


@cache
def reader(name: str, version: int) -> Read:
    """Return the function that reads one version of a message."""
    made: Read = _make(name, version)["read"]
    return made


@cache
def writer(name: str, version: int) -> Write:
    """Return the function that writes one version of a message."""
    made: Write = _make(name, version)["write"]
    return made


@cache
def _make(name: str, version: int) -> dict[str, Any]:
    source = _Source(schemas()[name], version)
    scope: dict[str, Any] = {
        **vars(messages),
        "struct": struct,
        "read_varint": read_varint,
        "varint": varint,
        "check_left": check_left,
        "not_null": _not_null,
    }
    exec(compile(source.text(), f"<{name} v{version}>", "exec"), scope)
    return scope


class _Source:
    """The source of the reader and the writer of one version of a message."""

    def __init__(self, message: MessageSchema, version: int) -> None:
        self._message = message
        self._version = version
        self._is_flexible = message.is_flexible(version)
        self._formats: dict[str, str] = {}
        self._lines: list[str] = []

    def text(self) -> str:
        """Return the whole source; the functions for the message are ``read`` and ``write``."""
        message = self._message
        for name, fields in message.structs.items():
            present = [field for field in fields if field.is_in(self._version)]
            self._read_struct(name, fields, present)
            self._write_struct(name, present)
        formats = [
            f"{name}_{way} = struct.Struct({text!r}).{method}"
            for name, text in self._formats.items()
            for way, method in (("in", "unpack_from"), ("out", "pack"))
        ]
        ends = [f"read = read_{message.name}", f"write = write_{message.name}"]
        return "\n".join([*formats, *self._lines, *ends])

    def _format(self, letters: str) -> str:
        name = "f_" + letters.replace("?", "z")
        self._formats[name] = ">" + letters
        return name

    def _add(self, indent: str, *lines: str) -> None:
        self._lines += [indent + line for line in lines]

    # --- reading --------------------------------------------------------------------------------

    def _read_struct(self, name: str, fields: tuple[Field, ...], present: list[Field]) -> None:
        self._add("", f"def read_{name}(b, p):")
        tagged = [field for field in present if field.is_tagged(self._version)]
        for field in fields:
            if field not in present or field in tagged:
                self._add(_IN, f"v_{field.name} = {default(self._message.name, field)}")
        for item in _runs([field for field in present if field not in tagged]):
            if isinstance(item, Field):
                self._read_field(_IN, item)
                continue
            letters = "".join(FIXED[field.type] for field in item)
            names = ", ".join(f"v_{field.name}" for field in item)
            self._add(_IN, f"{names}, = {self._format(letters)}_in(b, p)")
            self._add(_IN, f"p += {struct.calcsize('>' + letters)}")
        if self._is_flexible:
            self._read_tags(tagged)
        arguments = ", ".join(f"v_{field.name}" for field in fields)
        self._add(_IN, f"return {class_name(self._message.name, name)}({arguments}), p")

    def _read_tags(self, tagged: list[Field]) -> None:
        self._add(_IN, "n, p = read_varint(b, p)", "for _ in range(n):")
        inner = _IN * 2
        self._add(inner, "tag, p = read_varint(b, p)", "size, p = read_varint(b, p)")
        self._add(inner, "check_left(size, 1, b, p)", "end = p + size")
        for field in tagged:
            self._add(inner, f"if tag == {field.tag}:")
            self._read_field(inner + _IN, field)
        self._add(inner, "p = end")

    def _length(self, indent: str, fixed: str) -> None:
        """Read a length into ``n``; -1 stands for null."""
        if self._is_flexible:
            self._add(indent, "n = b[p]", "p += 1", "if n > 127:")
            self._add(indent + _IN, "n, p = read_varint(b, p - 1)")
            self._add(indent, "n -= 1")
        else:
            self._add(indent, f"n, = {self._format(fixed)}_in(b, p)")
            self._add(indent, f"p += {struct.calcsize('>' + fixed)}")

    def _read_field(self, indent: str, field: Field) -> None:
        if not field.is_array:
            self._read_value(
                indent, f"v_{field.name}", field.type, field.is_nullable(self._version)
            )
            return
        self._length(indent, "i")
        item, name = field.item, f"v_{field.name}"
        size = struct.calcsize(">" + FIXED[item]) if item in FIXED else 1
        self._add(indent, f"check_left(n, {size}, b, p)", "if n < 0:")
        null = "None" if field.is_nullable(self._version) else "not_null()"
        self._add(indent + _IN, f"{name} = {null}")
        self._add(indent, "else:")
        if item in FIXED:
            self._add(
                indent + _IN, f"{name} = list(struct.unpack_from(f'>{{n}}{FIXED[item]}', b, p))"
            )
            self._add(indent + _IN, f"p += n * {size}")
            return
        self._add(indent + _IN, f"{name} = []", "for _ in range(n):")
        self._read_value(indent + _IN * 2, "item", item, nullable=False)
        self._add(indent + _IN * 2, f"{name}.append(item)")

    def _read_value(self, indent: str, name: str, kind: str, nullable: bool) -> None:
        null = "None" if nullable else "not_null()"
        if kind in FIXED:
            self._add(indent, f"{name}, = {self._format(FIXED[kind])}_in(b, p)")
            self._add(indent, f"p += {struct.calcsize('>' + FIXED[kind])}")
        elif kind == "uuid":
            self._add(indent, "check_left(16, 1, b, p)", f"{name} = bytes(b[p:p + 16])", "p += 16")
        elif kind in ("string", "bytes", "records"):
            self._length(indent, "h" if kind == "string" else "i")
            value = {"string": "str(b[p:p + n], 'utf-8')", "bytes": "bytes(b[p:p + n])"}
            self._add(indent, "check_left(n, 1, b, p)", "if n < 0:")
            self._add(indent + _IN, f"{name} = {'None' if kind == 'records' else null}")
            self._add(indent, "else:")
            self._add(indent + _IN, f"{name} = {value.get(kind, 'b[p:p + n]')}", "p += n")
        elif nullable:
            self._add(indent, f"n, = {self._format('b')}_in(b, p)", "p += 1", "if n < 0:")
            self._add(indent + _IN, f"{name} = None")
            self._add(indent, "else:")
            self._add(indent + _IN, f"{name}, p = read_{kind}(b, p)")
        else:
            self._add(indent, f"{name}, p = read_{kind}(b, p)")

    # --- writing --------------------------------------------------------------------------------

    def _write_struct(self, name: str, present: list[Field]) -> None:
        self._add("", f"def write_{name}(o, a):")
        tagged = [field for field in present if field.is_tagged(self._version)]
        for item in _runs([field for field in present if field not in tagged]):
            if isinstance(item, Field):
                self._write_field(_IN, item)
                continue
            letters = "".join(FIXED[field.type] for field in item)
            names = ", ".join(f"o.{field.name}" for field in item)
            self._add(_IN, f"a({self._format(letters)}_out({names}))")
        if self._is_flexible:
            self._write_tags(tagged)
        elif not present:
            self._add(_IN, "pass")

    def _write_tags(self, tagged: list[Field]) -> None:
        if not tagged:
            self._add(_IN, f"a({_COMPACT_NULL})")
            return
        self._add(_IN, "out, count = a, 0", "tags = []")
        for field in sorted(tagged, key=lambda field: field.tag or 0):
            self._add(_IN, f"if o.{field.name} != {default(self._message.name, field)}:")
            inner = _IN * 2
            self._add(inner, "parts = []", "a = parts.append")
            self._write_field(inner, field)
            self._add(inner, "part = b''.join(parts)", "count += 1")
            self._add(inner, f"tags += [varint({field.tag}), varint(len(part)), part]")
        self._add(_IN, "out(varint(count))", "for part in tags:")
        self._add(_IN * 2, "out(part)")

    def _write_length(self, indent: str, source: str, fixed: str) -> None:
        if self._is_flexible:
            self._add(indent, f"a(varint({source} + 1))")
        else:
            self._add(indent, f"a({self._format(fixed)}_out({source}))")

    def _write_field(self, indent: str, field: Field) -> None:
        source = f"o.{field.name}"
        if not field.is_array:
            self._write_value(indent, source, field.type, field.is_nullable(self._version))
            return
        self._add(indent, f"if {source} is None:")
        self._add(indent + _IN, f"a({_COMPACT_NULL if self._is_flexible else _NULL32})")
        self._add(indent, "else:")
        inner = indent + _IN
        self._write_length(inner, f"len({source})", "i")
        if field.item in FIXED:
            self._add(inner, f"a(struct.pack(f'>{{len({source})}}{FIXED[field.item]}', *{source}))")
            return
        self._add(inner, f"for item in {source}:")
        self._write_value(inner + _IN, "item", field.item, nullable=False)

    def _write_value(self, indent: str, source: str, kind: str, nullable: bool) -> None:
        if kind in FIXED:
            self._add(indent, f"a({self._format(FIXED[kind])}_out({source}))")
        elif kind == "uuid":
            self._add(indent, f"a({source})")
        elif kind in ("string", "bytes", "records"):
            null = _NULL16 if kind == "string" else _NULL32
            self._add(indent, f"if {source} is None:")
            self._add(indent + _IN, f"a({_COMPACT_NULL if self._is_flexible else null})")
            inner = indent + _IN
            if kind == "records":
                self._add(indent, f"elif type({source}) is list:")
                self._write_length(inner, f"sum(map(len, {source}))", "i")
                self._add(inner, f"for part in {source}:")
                self._add(inner + _IN, "a(part)")
            self._add(indent, "else:")
            self._add(inner, f"data = {source}{'.encode()' if kind == 'string' else ''}")
            self._write_length(inner, "len(data)", "h" if kind == "string" else "i")
            self._add(inner, "a(data)")
        elif nullable:
            self._add(indent, f"if {source} is None:")
            self._add(indent + _IN, r"a(b'\xff')")
            self._add(indent, "else:")
            self._add(indent + _IN, r"a(b'\1')", f"write_{kind}({source}, a)")
        else:
            self._add(indent, f"write_{kind}({source}, a)")


def _runs(fields: list[Field]) -> list[Field | list[Field]]:
    """Join neighbouring fields of fixed size into runs."""
    found: list[Field | list[Field]] = []
    for field in fields:
        if field.type not in FIXED:
            found.append(field)
        elif found and isinstance(found[-1], list):
            found[-1].append(field)
        else:
            found.append([field])
    return found
