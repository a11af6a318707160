"""Whether readers with one schema can read values that were written with another.

=============  ===============================================================================
``backward``   the new schema can read values of earlier ones; update consumers first
``forward``    earlier schemas can read values of the new one; update producers first
``full``       both directions
``none``       nothing is checked
=============  ===============================================================================

The check compares a schema with all earlier schemas of its topic, since a log may hold values of
each (Confluent calls that ``BACKWARD_TRANSITIVE``). In doubt, the schemas count as incompatible: a
rule that only one of two JSON schemas has is a difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Literal

from pymq.errors import ConfigError
from pymq.serde import avro_resolution
from pymq.serde.serializer import Schema

Compatibility = Literal["backward", "forward", "full", "none"]
COMPATIBILITIES = ("backward", "forward", "full", "none")


def problems(new: Schema, earlier: Iterable[Schema], mode: str) -> list[str]:
    """Return why *new* is not compatible with the *earlier* schemas; nothing if it is compatible.

    Raises:
        ConfigError: there is no such *mode*.
    """
    if mode not in COMPATIBILITIES:
        raise ConfigError(f"compatibility={mode!r} is none of {', '.join(COMPATIBILITIES)}")
    found: list[str] = []
    for old in earlier:
        if mode in ("backward", "full"):
            found += unreadable(reader=new, writer=old)
        if mode in ("forward", "full"):
            found += unreadable(reader=old, writer=new)
    return list(dict.fromkeys(found))


def unreadable(reader: Schema, writer: Schema) -> list[str]:
    """Return why values of *writer* may not be readable with *reader*."""
    if reader.format != writer.format:
        return [f"one schema is {reader.format}, the other {writer.format}"]
    if reader.text == writer.text:
        return []
    check = _CHECKS.get(reader.format)
    if check is None:
        return [f"pymq cannot compare schemas of the format {reader.format!r}"]
    return check(json.loads(reader.text), json.loads(writer.text))


# --- JSON Schema ----------------------------------------------------------------------------------

# keywords that are no rules
_SAID = {"title", "description", "examples", "default", "$defs", "definitions"}
_HANDLED = {
    *("$ref", "anyOf", "oneOf", "type", "enum", "const", "properties", "required"),
    *("additionalProperties", "items", "prefixItems"),
}


def _of_json(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    return list(_JsonComparison(reader, writer).compare(reader, writer, ""))


class _JsonComparison:
    """Compares two JSON schemas, each of which may contain references into itself."""

    def __init__(self, reader: dict[str, Any], writer: dict[str, Any]) -> None:
        self._reader = reader
        self._writer = writer
        self._seen: set[tuple[str, str]] = set()

    def compare(self, reader: Any, writer: Any, at: str) -> Iterable[str]:
        """Yield the differences because of which *reader* cannot read the values of *writer*."""
        names = (_reference(reader), _reference(writer))
        if names[0] or names[1]:
            if names in self._seen:
                return  # an outer level already compares this schema
            self._seen.add(names)
        reader, writer = _resolve(reader, self._reader), _resolve(writer, self._writer)
        if reader in (True, {}) or not set(reader) - _SAID:
            return
        if writer is True or not set(writer) - _SAID:
            yield f"{at or 'the value'} was anything"
            return
        if (several := _alternatives(writer)) is not None:
            for each in several:
                yield from self.compare(reader, each, at)
        elif (several := _alternatives(reader)) is not None:
            tried = [list(self.compare(each, writer, at)) for each in several]
            if all(tried):
                yield min(tried, key=len)[0]
        else:
            yield from self._compare_plain(reader, writer, at)

    def _compare_plain(self, reader: Any, writer: Any, at: str) -> Iterable[str]:
        where = at or "the value"
        if "enum" in reader or "const" in reader:
            known, written = _values(reader) or [], _values(writer)
            if written is None:
                yield f"{where} was not one of some values"
            elif missing := [each for each in written if each not in known]:
                yield f"{where} was {missing[0]!r}, too"
            return
        others = _types(writer) - _types(reader)
        if others and not (others == {"integer"} and "number" in _types(reader)):
            yield f"{where} was {' or '.join(sorted(others))}"
            return
        for rule in sorted(set(reader) - _SAID - _HANDLED):
            if reader[rule] != writer.get(rule):
                yield f"{where} has another {rule}"
        yield from self._compare_object(reader, writer, at)
        yield from self._compare_array(reader, writer, at)

    def _compare_object(self, reader: Any, writer: Any, at: str) -> Iterable[str]:
        known, written = reader.get("properties", {}), writer.get("properties", {})
        for name in reader.get("required", ()):
            if name not in writer.get("required", ()):
                yield f"{_join(at, name)} is required and was not"
        for name, schema in written.items():
            if name in known:
                yield from self.compare(known[name], schema, _join(at, name))
            elif reader.get("additionalProperties") is False:
                yield f"{_join(at, name)} is not allowed any more"
        more = reader.get("additionalProperties")
        if isinstance(more, dict) and more and not known:
            theirs = writer.get("additionalProperties", True)
            for schema in written.values() or [theirs]:
                yield from self.compare(more, schema, _join(at, "*"))

    def _compare_array(self, reader: Any, writer: Any, at: str) -> Iterable[str]:
        known, written = reader.get("prefixItems", []), writer.get("prefixItems", [])
        if len(known) != len(written):
            yield f"{at or 'the value'} has another number of items"
        for index, (mine, theirs) in enumerate(zip(known, written, strict=False)):
            yield from self.compare(mine, theirs, f"{at}[{index}]")
        if "items" in reader and not known:
            yield from self.compare(reader["items"], writer.get("items", True), f"{at}[]")


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _reference(schema: Any) -> str:
    return str(schema.get("$ref", "")) if isinstance(schema, dict) else ""


def _resolve(schema: Any, root: dict[str, Any]) -> Any:
    for _ in range(100):  # a reference may lead to another reference
        name = _reference(schema)
        if not name:
            break
        found: Any = root
        for part in name.removeprefix("#/").split("/"):
            found = found[part.replace("~1", "/").replace("~0", "~")]
        schema = found
    return schema


def _alternatives(schema: dict[str, Any]) -> list[Any] | None:
    found: list[Any] | None = schema.get("anyOf") or schema.get("oneOf")
    if found is None and isinstance(schema.get("type"), list):
        found = [{**schema, "type": each} for each in schema["type"]]
    return found


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    found: list[Any] | None = schema.get("enum")
    return found


def _types(schema: dict[str, Any]) -> set[str]:
    if "type" in schema:
        return {schema["type"]}
    values = _values(schema)
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    return set() if values is None else {kinds.get(type(each), "object") for each in values}


# --- Protocol Buffers -----------------------------------------------------------------------------

# Groups of types that can read each other's values (protobuf.dev, "Updating A Message Type").
_LIKE = ({5, 3, 13, 4, 8, 14}, {17, 18}, {9, 12}, {7, 15}, {6, 16})


def _of_protobuf(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    return list(_compare_messages(reader, writer, reader["message"], writer["message"], set()))


def _compare_messages(
    reader: Any, writer: Any, mine: str, theirs: str, seen: set[tuple[str, str]]
) -> Iterable[str]:
    if (mine, theirs) in seen:
        return
    seen.add((mine, theirs))
    known, written = reader["messages"][mine], writer["messages"][theirs]
    for number, field in known.items():
        at = f"{mine}.{field['name']} ({number})"
        old = written.get(number)
        if old is None or not old["required"]:
            if field["required"]:
                yield f"{at} is required and was not"
            if old is None:
                continue
        alike = any(field["type"] in group and old["type"] in group for group in _LIKE)
        if field["type"] != old["type"] and not alike:
            yield f"{at} has another type"
        elif field["repeated"] != old["repeated"]:
            yield f"{at} is {'repeated' if field['repeated'] else 'single'} and was not"
        elif field["of"] in reader["messages"] and old["of"] in writer["messages"]:
            yield from _compare_messages(reader, writer, field["of"], old["of"], seen)


_CHECKS: dict[str, Callable[[Any, Any], list[str]]] = {
    "json": _of_json,
    "avro": avro_resolution.unreadable,
    "protobuf": _of_protobuf,
}
