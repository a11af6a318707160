"""Serializers: values of an application's own types as the bytes of a record, and back.

A serializer makes a :class:`Codec` for a type. :meth:`pymq.Client.topic` uses one:

>>> import attrs, pymq
>>> @attrs.frozen
... class Order:
...     item: str
...     count: int = 1
>>> with pymq.open("memory:") as mq:
...     mq.create_topic("orders")
...     with mq.topic("orders", Order) as orders:
...         _ = orders.send(Order("teapot"))
...         with orders.consumer(group="billing") as consumer:
...             print([record.value for record in consumer.until_end()])
[Order(item='teapot', count=1)]

==================  ====================================  ========================================
serializer          types                                 needs
==================  ====================================  ========================================
:class:`Json`       dataclasses, attrs, TypedDict,        nothing
                    NamedTuple, enums, dates, builtins
:class:`Msgspec`    ``msgspec.Struct`` and more           ``pip install msgspec``
:class:`Pydantic`   models, and what TypeAdapter takes    ``pip install pydantic``
:class:`Avro`       dicts, dataclasses, attrs             ``pip install fastavro``
:class:`Protobuf`   generated messages                    ``pip install protobuf``
==================  ====================================  ========================================
"""

from __future__ import annotations

from pymq.serde.avro import Avro
from pymq.serde.json_values import Json
from pymq.serde.msgspec_values import Msgspec
from pymq.serde.protobuf import Protobuf
from pymq.serde.pydantic_values import Pydantic
from pymq.serde.serializer import Codec, Schema, Serializer

__all__ = ["Avro", "Codec", "Json", "Msgspec", "Protobuf", "Pydantic", "Schema", "Serializer"]
