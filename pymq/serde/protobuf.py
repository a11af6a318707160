"""Values by Protocol Buffers."""

from __future__ import annotations

import json
from typing import Any, cast

from pymq.errors import ConfigError
from pymq.serde.serializer import Codec, Schema, T, needs, text_of


class Protobuf:
    """Generated message classes of protobuf.

    The schema is the table of the fields of the message and of the messages in it: numbers, names
    and types.
    """

    def codec(self, kind: type[T]) -> Codec[T]:
        """Return the codec for messages of type *kind*."""
        try:
            from google.protobuf.message import Message
        except ImportError as error:
            raise needs("protobuf", error) from None
        if not issubclass(kind, Message):
            raise ConfigError(f"{kind!r} is no message class of protobuf")

        def encode(value: T) -> bytes:
            if not isinstance(value, kind):
                raise TypeError(f"{kind.__name__} is expected, not {type(value).__name__}")
            return cast(Message, value).SerializeToString()

        def decode(data: bytes) -> T:
            return cast(T, kind.FromString(data))

        messages: dict[str, Any] = {}
        _collect(kind.DESCRIPTOR, messages)
        text = text_of({"message": kind.DESCRIPTOR.full_name, "messages": messages})
        return Codec(Schema("protobuf", text), encode, decode)


def message_class(text: str) -> Any:
    """Return a message class for a schema, without the application's generated class.

    The class has generated names for messages, and integers in place of enumerations, because
    neither name is on the wire.

    Raises:
        ConfigError: the text is not a schema of :class:`Protobuf`.
        MissingExtra: protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise needs("protobuf", error) from None
    kinds = descriptor_pb2.FieldDescriptorProto
    unpacked = (kinds.TYPE_STRING, kinds.TYPE_BYTES, kinds.TYPE_MESSAGE)
    file = descriptor_pb2.FileDescriptorProto(name="values.proto", syntax="proto2")
    pool = descriptor_pool.DescriptorPool()
    try:
        tree = json.loads(text)
        for name, fields in tree["messages"].items():
            made = file.message_type.add(name=_own_name(name))
            for number, each in fields.items():
                kind = kinds.TYPE_INT32 if each["type"] == kinds.TYPE_ENUM else each["type"]
                label = kinds.LABEL_REPEATED if each["repeated"] else kinds.LABEL_OPTIONAL
                field = made.field.add(
                    name=each["name"], number=int(number), label=label, type=kind
                )
                if kind == kinds.TYPE_MESSAGE:
                    field.type_name = f".{_own_name(each['of'])}"
                elif each["repeated"] and kind not in unpacked:
                    field.options.packed = True
        pool.Add(file)
        found = pool.FindMessageTypeByName(_own_name(tree["message"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"no schema of a protobuf message: {error!r}") from None
    return message_factory.GetMessageClass(found)


def _own_name(name: str) -> str:
    return "M_" + name.replace("_", "__").replace(".", "_")


def _collect(message: Any, found: dict[str, Any]) -> None:
    """Add the fields of a message and of the messages in it: number to name, type and label."""
    if message.full_name in found:
        return
    fields = found[message.full_name] = {}
    for field in message.fields:
        inside = field.message_type or field.enum_type
        fields[str(field.number)] = {
            "name": field.name,
            "type": field.type,
            "repeated": bool(field.is_repeated),
            "required": bool(field.is_required),
            "of": inside.full_name if inside is not None else None,
        }
        if field.message_type is not None:
            _collect(field.message_type, found)
