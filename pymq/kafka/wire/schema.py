"""Reads ``schema.json``: the fields of each message, by version."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).with_name("schema.json")
NO_VERSION = (1, 0)
_ANY = 1 << 15

# the first and the last version; the first is greater if there is no version
Versions = tuple[int, int]

FIXED = dict(
    zip("bool int8 int16 uint16 int32 uint32 int64 float64".split(), "?bhHiIqd", strict=True)
)
"""The types of fixed size, and their letters for :mod:`struct`."""

HINTS = {"string": "str", "bytes": "bytes", "records": "Records", "uuid": "bytes"}
"""The other types, as in Python."""


class Field(NamedTuple):
    """A field of a message or of a struct."""

    name: str
    type: str
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions  # the versions in which the field is a tagged field
    default: str | None  # as Kafka's definitions write it; None: the default of the type

    @property
    def item(self) -> str:
        """The type of the items of an array, or the type itself."""
        return self.type.removeprefix("[]")

    @property
    def is_array(self) -> bool:
        """Whether the field is an array."""
        return self.type.startswith("[]")

    def is_in(self, version: int) -> bool:
        """Whether a version has the field."""
        return self.versions[0] <= version <= self.versions[1]

    def is_nullable(self, version: int) -> bool:
        """Whether the field may be null in a version."""
        return self.nullable[0] <= version <= self.nullable[1]

    def is_tagged(self, version: int) -> bool:
        """Whether the field is a tagged field in a version."""
        return self.tagged[0] <= version <= self.tagged[1]


class MessageSchema(NamedTuple):
    """A message."""

    name: str
    key: int
    versions: Versions
    flexible: Versions  # versions with compact lengths and tagged fields
    structs: dict[str, tuple[Field, ...]]  # by name; the message itself is the last one

    def is_flexible(self, version: int) -> bool:
        """Whether a version has compact lengths and tagged fields."""
        return self.flexible[0] <= version <= self.flexible[1]


def parse_versions(text: str) -> Versions:
    """Read a range of versions: ``3``, ``3-5``, ``3+`` or ``none``."""
    if text == "none":
        return NO_VERSION
    if text.endswith("+"):
        return int(text[:-1]), _ANY
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _field(name: str, found: list[Any]) -> Field:
    """Read ``[type, versions]`` or ``[type, versions, {exceptions}]``."""
    kind, versions, *rest = found
    odd: dict[str, Any] = rest[0] if rest else {}
    return Field(
        name,
        kind,
        parse_versions(versions),
        parse_versions(odd.get("nullable", "none")),
        odd.get("tag"),
        parse_versions(odd.get("tagged", "none")),
        odd.get("default"),
    )


def parse(document: dict[str, Any]) -> dict[str, MessageSchema]:
    """Read the content of ``schema.json``."""
    return {
        name: MessageSchema(
            name,
            found["key"],
            parse_versions(found["versions"]),
            parse_versions(found["flexible"]),
            {
                struct: tuple(_field(field, what) for field, what in fields.items())
                for struct, fields in found["structs"].items()
            },
        )
        for name, found in document["messages"].items()
    }


def class_name(message: str, struct: str) -> str:
    """Return the name of a struct's class."""
    return message if struct == message else f"{message}{struct}"


def default(message: str, field: Field) -> str:
    """Return a field's default, as Python source."""
    item, text = field.item, field.default
    if text == "null" or item == "records":
        return "None"
    if field.is_array:
        return "[]"
    if item in FIXED:
        if item == "bool":
            return str(text == "true")
        return str(float(text or 0)) if item == "float64" else str(int(text or "0", 0))
    if item in HINTS:
        return {"string": repr(text or ""), "bytes": "b''", "uuid": "NO_ID"}[item]
    # A struct among the tagged fields is absent by default.
    return "None" if field.tag is not None else f"{class_name(message, item)}()"


@cache
def schemas() -> dict[str, MessageSchema]:
    """The schemas of all messages, by name."""
    return parse(json.loads(PATH.read_text(encoding="utf-8")))
