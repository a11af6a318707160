"""The registry's verdict on two schemas, compared with an actual read."""

from __future__ import annotations

import types
from dataclasses import dataclass, field, make_dataclass
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymq.errors import ConfigError
from pymq.serde import Avro, Json
from pymq.serde.compatibility import problems, unreadable
from pymq.serde.serializer import Schema, text_of


def schema(kind: Any) -> Schema:
    return Json().codec(kind).schema


def of(**fields: Any) -> Schema:
    """The schema of a class of this name; a field given as a pair has a default."""
    rows = [
        (name, kind[0], field(default=kind[1])) if isinstance(kind, tuple) else (name, kind)
        for name, kind in fields.items()
    ]
    rows.sort(key=len)
    return schema(make_dataclass("Order", rows))


@dataclass
class Node:
    name: str
    rest: Node | None = None


@pytest.mark.parametrize(
    ("new", "old", "said"),
    [
        (of(a=int), of(a=int), []),
        (of(a=int), of(a=int, b=str), []),
        (of(a=int, b=(int, 1)), of(a=int), []),
        (of(a=float), of(a=int), []),
        (of(a=int | None), of(a=int), []),
        (of(a=Any), of(a=list[int]), []),
        (of(a=Literal["x", "y"]), of(a=Literal["x"]), []),
        (of(a=dict[str, float]), of(a=dict[str, int]), []),
        (schema(Node), schema(Node), []),
        (of(a=int, b=int), of(a=int), ["b is required and was not"]),
        (of(a=int), of(a=(int, 1)), ["a is required and was not"]),
        (of(a=int), of(a=str), ["a was string"]),
        (of(a=int), of(a=float), ["a was number"]),
        (of(a=int), of(a=int | None), ["a was null"]),
        (of(a=int), of(a=Any), ["a was anything"]),
        (of(a=bytes), of(a=str), ["a has another contentEncoding"]),
        (of(a=Literal["x"]), of(a=Literal["x", "y"]), ["a was 'y', too"]),
        (of(a=Literal["x"]), of(a=str), ["a was not one of some values"]),
        (of(a=list[int]), of(a=list[str]), ["a[] was string"]),
        (of(a=tuple[int, int]), of(a=tuple[int]), ["a has another maxItems"]),
        (of(a=dict[str, int]), of(a=dict[str, str]), ["a.* was string"]),
        (of(a=Node), of(a=dict[str, str]), ["a.name is required and was not"]),
        (schema(int), Schema("avro", '"int"'), ["one schema is json, the other avro"]),
        (Schema("x", "1"), Schema("x", "2"), ["pymq cannot compare schemas of the format 'x'"]),
    ],
)
def test_backward(new: Schema, old: Schema, said: list[str]) -> None:
    assert problems(new, [old], "backward")[:1] == said


def test_the_directions() -> None:
    old, new = of(a=int, b=int), of(a=int)
    assert problems(new, [old], "backward") == []
    assert problems(new, [old], "forward") == ["b is required and was not"]
    assert problems(new, [old], "full") == ["b is required and was not"]
    assert problems(new, [old], "none") == []
    with pytest.raises(ConfigError, match="compatibility='sideways'"):
        problems(new, [old], "sideways")


def test_all_earlier_schemas_count() -> None:
    """A field that was removed comes back with another type, which conflicts with the earlier
    schema.
    """
    assert problems(of(a=int, b=(str, "")), [of(a=int, b=int), of(a=int)], "backward") != []


def avro(kind: Any) -> Schema:
    return Schema("avro", text_of(kind))


def record(*fields: tuple[Any, ...]) -> dict[str, Any]:
    rows = [dict(zip(("name", "type", "default"), row, strict=False)) for row in fields]
    return {"type": "record", "name": "R", "fields": rows}


@pytest.mark.parametrize(
    ("new", "old", "said"),
    [
        ("long", "int", []),
        ("int", "long", ["the value was long"]),
        ("bytes", "string", []),
        (["null", "int"], "int", []),
        ("int", ["null", "int"], ["the value was null"]),
        (record(("a", "int"), ("b", "int", 0)), record(("a", "int")), []),
        (record(("a", "int"), ("b", "int")), record(("a", "int")),
         ["b has no default and was not there"]),
        (record(("a", record(("b", "int")))), record(("a", record(("b", "string")))),
         ["a.b was string"]),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "string"},
         ["[] was string"]),
        ({"type": "enum", "name": "E", "symbols": ["A"]},
         {"type": "enum", "name": "E", "symbols": ["A", "B"]}, ["the value was 'B', too"]),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
         {"type": "enum", "name": "E", "symbols": ["A", "B"]}, []),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3},
         ["the value has another size"]),
        ({**record(("a", "int")), "name": "S", "aliases": ["R"]}, record(("a", "int")), []),
        ({**record(("a", "int")), "name": "S"}, record(("a", "int")), ["the value was R"]),
        (record(("a", ["null", "R"])), record(("a", ["null", "R"]), ("b", "int")), []),
    ],
)  # fmt: skip
def test_avro(new: Any, old: Any, said: list[str]) -> None:
    assert unreadable(avro(new), avro(old)) == said


SCALARS = st.sampled_from(["null", "boolean", "int", "long", "double", "string"])
TYPES = st.recursive(
    SCALARS,
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.lists(SCALARS, min_size=1, max_size=3, unique=True)
    ),
    max_leaves=3,
)
FIELDS = st.dictionaries(st.sampled_from("abc"), TYPES, min_size=1)
VALUES: dict[str, Any] = {
    "null": None, "boolean": True, "int": 1, "long": 1 << 40, "double": 1.5, "string": "x",
}  # fmt: skip


def example(kind: Any) -> Any:
    """A value of a type that a reader of a smaller type could not read."""
    if isinstance(kind, dict):
        return [example(kind["items"])]
    if isinstance(kind, list):
        return example(max(kind, key=lambda each: ["null", "boolean", "int"].count(each) == 0))
    return VALUES[kind]


@settings(max_examples=300, deadline=None)
@given(FIELDS, FIELDS)
def test_avro_reads_what_is_said_to_be_readable(old: dict[str, Any], new: dict[str, Any]) -> None:
    """If the registry finds no problem, fastavro reads a value of the old schema with the new
    one.
    """
    writer, reader = (record(*fields.items()) for fields in (old, new))
    if unreadable(avro(reader), avro(writer)):
        return
    values = {name: example(kind) for name, kind in old.items()}
    data = Avro(writer).codec(dict).encode(values)
    make = Avro(reader).codec(dict).decoder_for
    assert make is not None
    found = make(avro(writer))(data)
    assert found == {name: values[name] for name in new}


PLAIN: Any = st.sampled_from([int, float, str, bool, type(None)])
KINDS: Any = st.recursive(
    PLAIN,
    lambda inner: (
        st.builds(lambda a: types.GenericAlias(list, (a,)), inner)
        | st.builds(lambda a, b: a | b, PLAIN, PLAIN)
        | st.builds(lambda a: types.GenericAlias(dict, (str, a)), inner)
    ),
    max_leaves=3,
)
SAMPLES: list[Any] = [
    1, 1.5, "x", True, None, [], [1], ["x"], [None], [1.5], {}, {"a": 1}, {"a": "x"}, [[1]],
    {"a": [1]}, [{"a": 1}], {"a": None},
]  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(KINDS, KINDS)
def test_json_reads_what_is_said_to_be_readable(old: Any, new: Any) -> None:
    """If the registry finds no problem, each value of the old type can be read with the new one."""
    writer, reader = Json().codec(old), Json().codec(new)
    if unreadable(reader.schema, writer.schema):
        return
    for sample in SAMPLES:
        try:
            data = writer.encode(sample)
        except ValueError:
            continue
        assert reader.decode(data) == sample
