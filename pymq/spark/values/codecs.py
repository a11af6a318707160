"""Encodes and decodes single values, from and to the Python objects that pyarrow makes of structs.
For a value that does not fit, the functions raise any exception; the caller adds the record's
place.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from pymq.errors import ConfigError
from pymq.serde.avro import Avro
from pymq.serde.protobuf import message_class
from pymq.serde.serializer import Schema, text_of
from pymq.spark.values.schema_types import tree_of

Convert = Callable[[Any], Any]


class ValueCodec(NamedTuple):
    """The functions of one format and one schema."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    schema: Schema | None  # None: the values carry no schema
    decoder_for: Callable[[Schema], Callable[[bytes], Any]] | None = None


def codec(format: str, text: str | None, kind: pa.DataType) -> ValueCodec:
    """Return the codec of a format for a column of the Arrow type *kind*.

    Raises:
        ConfigError: the schema is missing or invalid.
        MissingExtra: the library of the format is not installed.
    """
    if format == "json":
        return _json(text, kind)
    if text is None:
        raise ConfigError(
            f"option 'valueSchema' is missing: values of the format {format!r} need a schema, and "
            "the registry has none for this topic"
        )
    return _avro(text, kind) if format == "avro" else _protobuf(text, kind)


# --- JSON ---------------------------------------------------------------------------------------


def _json(text: str | None, kind: pa.DataType) -> ValueCodec:
    read, write = _reader(kind, is_text=True), _writer(kind, is_text=True)
    encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False)

    def decode(data: bytes) -> Any:
        found = json.loads(data)
        return found if read is None else read(found)

    def encode(item: Any) -> bytes:
        return encoder.encode(item if write is None else write(item)).encode()

    schema = Schema("json", text_of(tree_of(text))) if text is not None else None
    return ValueCodec(encode, decode, schema)


# --- Avro ---------------------------------------------------------------------------------------


def _avro(text: str, kind: pa.DataType) -> ValueCodec:
    plain = Avro(text).codec(dict)
    read = _reader(kind, is_text=False, has_uuid='"uuid"' in text)
    write = _writer(kind, is_text=False)

    def encode(item: Any) -> bytes:
        return plain.encode(item if write is None else write(item))

    def reading(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        return decode if read is None else lambda data: read(decode(data))

    def decoder_for(schema: Schema) -> Callable[[bytes], Any]:
        assert plain.decoder_for is not None
        return reading(plain.decoder_for(schema))

    return ValueCodec(encode, reading(plain.decode), plain.schema, decoder_for)


# --- Protocol Buffers ---------------------------------------------------------------------------


def _protobuf(text: str, kind: pa.DataType) -> ValueCodec:
    message = message_class(text)

    def encode(item: Any) -> bytes:
        found = message()
        _fill(found, item)
        data: bytes = found.SerializeToString()
        return data

    def decode(data: bytes) -> Any:
        return _fields(message.FromString(data), kind)

    return ValueCodec(encode, decode, Schema("protobuf", text_of(tree_of(text))))


def _fields(message: Any, kind: pa.DataType) -> dict[str, Any]:
    """Return the fields of a message that a struct has. A field without a value has its default, or
    null if the field is a message.
    """
    known, found = message.DESCRIPTOR.fields_by_name, {}
    for field in kind:
        about = known.get(field.name)
        if about is None:
            continue
        value = getattr(message, field.name)
        if about.is_repeated:
            inner = field.type.value_type
            is_message = about.message_type is not None
            value = [_fields(each, inner) for each in value] if is_message else list(value)
        elif about.message_type is not None:
            value = _fields(value, field.type) if message.HasField(field.name) else None
        found[field.name] = value
    return found


def _fill(message: Any, item: dict[str, Any]) -> None:
    for name, value in item.items():
        if value is None:
            continue
        about = message.DESCRIPTOR.fields_by_name[name]
        if about.is_repeated and about.message_type is not None:
            for each in value:
                _fill(getattr(message, name).add(), each)
        elif about.is_repeated:
            getattr(message, name).extend(value)
        elif about.message_type is not None:
            getattr(message, name).SetInParent()
            _fill(getattr(message, name), value)
        else:
            setattr(message, name, value)


# --- between what a format has and what pyarrow takes -------------------------------------------


def _moment(text: str) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


def _reader(kind: pa.DataType, *, is_text: bool, has_uuid: bool = False) -> Convert | None:
    """Return a function that converts a decoded item for pyarrow; None if the item stays."""
    again = {"is_text": is_text, "has_uuid": has_uuid}
    if pa.types.is_struct(kind):
        some = {each.name: read for each in kind if (read := _reader(each.type, **again))}
        if some:
            return lambda item: {**item, **_each(some, item)}
    elif pa.types.is_map(kind):
        value = _reader(kind.item_type, **again) or (lambda item: item)
        return lambda item: [(name, _optional(value, each)) for name, each in item.items()]
    elif pa.types.is_list(kind):
        if (element := _reader(kind.value_type, **again)) is not None:
            return lambda item: [_optional(element, each) for each in item]
    elif has_uuid and pa.types.is_string(kind):
        return str
    elif is_text:
        return _TEXTS.get(kind.id, (None, None))[0]
    return None


def _writer(kind: pa.DataType, *, is_text: bool) -> Convert | None:
    """Return the reverse of :func:`_reader`; in text formats, structs omit fields that are null."""
    if pa.types.is_struct(kind):
        fields = {each.name: _writer(each.type, is_text=is_text) for each in kind}
        return lambda item: {
            name: value if (write := fields[name]) is None or value is None else write(value)
            for name, value in item.items()
            if value is not None or not is_text
        }
    if pa.types.is_map(kind):
        inner = _writer(kind.item_type, is_text=is_text) or (lambda item: item)
        return lambda item: {name: _optional(inner, each) for name, each in item}
    if pa.types.is_list(kind):
        if (element := _writer(kind.value_type, is_text=is_text)) is not None:
            return lambda item: [_optional(element, each) for each in item]
        return None
    return _TEXTS.get(kind.id, (None, None))[1] if is_text else None


def _optional(convert: Convert, item: Any) -> Any:
    return None if item is None else convert(item)


def _each(converts: dict[str, Convert], item: dict[str, Any]) -> dict[str, Any]:
    return {
        name: convert(value)
        for name, convert in converts.items()
        if (value := item.get(name)) is not None
    }


_ISO: Convert = lambda item: item.isoformat()  # noqa: E731 # as the other entries of the table
_TEXTS: dict[int, tuple[Convert, Convert]] = {  # by the ids of Arrow types, in JSON
    pa.timestamp("us").id: (_moment, _ISO),
    pa.date32().id: (datetime.date.fromisoformat, _ISO),
    pa.decimal128(38, 18).id: (decimal.Decimal, str),
    pa.binary().id: (
        lambda item: base64.b64decode(item, validate=True),
        lambda item: base64.b64encode(item).decode(),
    ),
}
