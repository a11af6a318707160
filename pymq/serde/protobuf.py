"""Values by Protocol Buffers."""

from __future__ import annotations

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
