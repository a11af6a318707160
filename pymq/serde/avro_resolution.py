"""Whether Avro's schema resolution can read one schema's values with another.

The rules are those of the Avro 1.12 specification, section "Schema Resolution".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PROMOTIONS = {
    "int": {"int", "long", "float", "double"},
    "long": {"long", "float", "double"},
    "float": {"float", "double"},
    "string": {"string", "bytes"},
    "bytes": {"bytes", "string"},
}
_NAMED = ("record", "error", "enum", "fixed")


def unreadable(reader: Any, writer: Any) -> list[str]:
    """Return why values of *writer*, a parsed Avro schema, may not be readable with *reader*."""
    mine, theirs = dict[str, Any](), dict[str, Any]()
    _collect(reader, mine, "")
    _collect(writer, theirs, "")
    return list(_Resolution(mine, theirs).compare(reader, writer, ""))


def _full(schema: Any, namespace: str) -> str:
    name = str(schema["name"])
    space = schema.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _collect(schema: Any, found: dict[str, Any], namespace: str) -> None:
    """Add all named types of a schema, by their full and their short names."""
    if isinstance(schema, list):
        for each in schema:
            _collect(each, found, namespace)
    elif isinstance(schema, dict):
        if schema["type"] in _NAMED:
            name = _full(schema, namespace)
            namespace = name.rpartition(".")[0]
            found[name] = schema
            found.setdefault(name.rpartition(".")[2], schema)
        for inner in (schema.get("items"), schema.get("values")):
            _collect(inner, found, namespace)
        if isinstance(schema["type"], (dict, list)):
            _collect(schema["type"], found, namespace)
        for field in schema.get("fields", ()):
            _collect(field["type"], found, namespace)


class _Resolution:
    def __init__(self, mine: dict[str, Any], theirs: dict[str, Any]) -> None:
        self._mine = mine
        self._theirs = theirs
        self._seen: set[tuple[int, int]] = set()

    def compare(self, reader: Any, writer: Any, at: str) -> Iterable[str]:
        """Yield the differences because of which the reader's schema cannot read the writer's
        values.
        """
        reader, writer = _plain(reader, self._mine), _plain(writer, self._theirs)
        where = at or "the value"
        if isinstance(writer, list):
            for each in writer:
                yield from self.compare(reader, each, at)
            return
        if isinstance(reader, list):
            tried = [list(self.compare(each, writer, at)) for each in reader]
            if all(tried):
                yield f"{where} was {_kind(writer)}"
            return
        mine, theirs = _kind(reader), _kind(writer)
        if mine not in PROMOTIONS.get(theirs, {theirs}):
            yield f"{where} was {theirs}"
            return
        if mine not in (*_NAMED, "array", "map"):
            return
        if (id(reader), id(writer)) in self._seen:
            return
        self._seen.add((id(reader), id(writer)))
        if mine in ("array", "map"):
            inner = "items" if mine == "array" else "values"
            yield from self.compare(reader[inner], writer[inner], f"{at}[]")
            return
        yield from self._compare_named(reader, writer, at)

    def _compare_named(self, reader: Any, writer: Any, at: str) -> Iterable[str]:
        where = at or "the value"
        names = {each.rpartition(".")[2] for each in (reader["name"], *reader.get("aliases", ()))}
        if writer["name"].rpartition(".")[2] not in names:
            yield f"{where} was {writer['name']}"
        elif reader["type"] == "fixed":
            if reader["size"] != writer["size"]:
                yield f"{where} has another size"
        elif reader["type"] == "enum":
            missing = [each for each in writer["symbols"] if each not in reader["symbols"]]
            if missing and "default" not in reader:
                yield f"{where} was {missing[0]!r}, too"
        else:
            written = {field["name"]: field for field in writer["fields"]}
            for field in reader["fields"]:
                path = f"{at}.{field['name']}" if at else field["name"]
                known = (field["name"], *field.get("aliases", ()))
                old = next((written[name] for name in known if name in written), None)
                if old is not None:
                    yield from self.compare(field["type"], old["type"], path)
                elif "default" not in field:
                    yield f"{path} has no default and was not there"


def _plain(schema: Any, named: dict[str, Any]) -> Any:
    """Resolve names, and unwrap ``{"type": {...}}``."""
    while True:
        if isinstance(schema, str) and schema in named:
            schema = named[schema]
        elif isinstance(schema, dict) and isinstance(schema["type"], (dict, list)):
            schema = schema["type"]
        else:
            return schema


def _kind(schema: Any) -> str:
    return str(schema if isinstance(schema, str) else schema["type"])
