"""Serializers of other libraries, and a serializer that a user has written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import attrs
import msgspec
import pydantic
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pymq import serde
from pymq.errors import ConfigError
from pymq.serde.compatibility import problems
from pymq.serde.serializer import Codec, Schema


class Struct(msgspec.Struct):
    item: str
    count: int = 1


class StructNext(msgspec.Struct):
    item: str
    count: int = 1
    note: str | None = None


class StructWrong(msgspec.Struct):
    item: str
    count: str


class Model(pydantic.BaseModel):
    item: str
    count: int = 1


class ModelNext(pydantic.BaseModel):
    item: str
    count: int = 1
    note: str | None = None


class ModelWrong(pydantic.BaseModel):
    item: str
    count: str


@attrs.frozen
class Row:
    item: str
    count: int = 1


def avro(*more: dict[str, Any], count: str = "int") -> serde.Avro:
    fields = [{"name": "item", "type": "string"}, {"name": "count", "type": count}, *more]
    return serde.Avro({"type": "record", "name": "Order", "fields": fields})


def message(*more: tuple[str, int, int], count: int = 5, number: int = 2) -> Any:
    """A message class with ``item`` and ``count``, and further fields, each given by name, number
    and type.
    """
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    found = file.message_type.add(name="Order")
    for name, place, kind in (("item", 1, 9), ("count", number, count), *more):
        found.field.add(name=name, number=place, type=cast(Any, kind), label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


ANYTHING = Exception  # each library raises its own errors
Order, OrderNext = message(), message(("note", 3, 9))

# for each codec: its serializer and type, a later version that can read its values, a version that
# cannot, and a value
KINDS: dict[str, tuple[Any, Any, Any, Any]] = {
    "msgspec": (
        (serde.Msgspec(), Struct),
        (serde.Msgspec(), StructNext),
        (serde.Msgspec(), StructWrong),
        Struct("teapot", 2),
    ),
    "pydantic": (
        (serde.Pydantic(), Model),
        (serde.Pydantic(), ModelNext),
        (serde.Pydantic(), ModelWrong),
        Model(item="teapot", count=2),
    ),
    "avro": (
        (avro(), dict),
        (avro({"name": "note", "type": ["null", "string"], "default": None}), dict),
        (avro({"name": "note", "type": "string"}), dict),
        {"item": "teapot", "count": 2},
    ),
    "avro to attrs": (
        (avro(), Row),
        (avro(count="long"), Row),
        (avro(count="string"), Row),
        Row("teapot", 2),
    ),
    "protobuf": (
        (serde.Protobuf(), Order),
        (serde.Protobuf(), OrderNext),
        (serde.Protobuf(), message(count=9)),
        Order(item="teapot", count=2),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_values_survive(name: str) -> None:
    (serializer, kind), *_, value = KINDS[name]
    codec = serializer.codec(kind)
    found = codec.decode(codec.encode(value))
    assert found == value
    assert type(found) is type(value)
    assert codec.schema == serializer.codec(kind).schema


@pytest.mark.parametrize("name", KINDS)
def test_a_later_schema_reads_what_an_earlier_one_wrote(name: str) -> None:
    """A later schema reads the values of an earlier one and is compatible by the registry's rules.

    The ``wrong`` schema is incompatible.
    """
    first, then, wrong, value = KINDS[name]
    old, new, bad = (serializer.codec(kind) for serializer, kind in (first, then, wrong))
    decode = new.decode if new.decoder_for is None else new.decoder_for(old.schema)
    found = decode(old.encode(value))
    read = found.__getitem__ if isinstance(found, dict) else lambda name: getattr(found, name)
    assert (read("item"), read("count")) == ("teapot", 2)
    assert problems(new.schema, [old.schema], "backward") == []
    assert problems(bad.schema, [old.schema], "backward") != []


@pytest.mark.parametrize("name", [name for name in KINDS if name != "protobuf"])
def test_bytes_that_are_no_value_are_refused(name: str) -> None:
    """Protobuf accepts nearly any bytes as a message, so it needs special input."""
    (serializer, kind), *_ = KINDS[name]
    codec = serializer.codec(kind)
    for data in (b"", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b'{"item": 1}'):
        with pytest.raises(ANYTHING):
            codec.decode(data)


@pytest.mark.parametrize("name", KINDS)
def test_values_of_another_type_are_refused(name: str) -> None:
    (serializer, kind), *_ = KINDS[name]
    with pytest.raises(ANYTHING):
        serializer.codec(kind).encode("nonsense")


def test_bytes_after_a_value_of_avro_are_refused() -> None:
    codec = avro().codec(dict)
    with pytest.raises(ValueError, match="bytes are left"):
        codec.decode(codec.encode({"item": "a", "count": 1}) + b"x")


@pytest.mark.parametrize(
    "make",
    [
        lambda: serde.Avro({"type": "nonsense"}).codec(dict),
        lambda: serde.Protobuf().codec(int),
        lambda: serde.Msgspec().codec(cast(Any, object.__init__)),
        lambda: serde.Pydantic().codec(cast(Any, object.__init__)),
    ],
)
def test_types_and_schemas_that_do_not_go_together_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_a_serializer_of_ones_own() -> None:
    class Text:
        def codec(self, kind: type[str]) -> Codec[str]:
            return Codec(Schema("text", "utf-8"), str.encode, bytes.decode)

    found: serde.Serializer = Text()  # type: ignore[assignment] # it has one type only
    assert found.codec(str).decode(found.codec(str).encode("x")) == "x"
