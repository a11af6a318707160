"""The typed columns of a topic, by its registered schemas; follows later versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pymq import serde
from pymq.client.typed.values import SCHEMA_HEADER
from pymq.errors import ConfigError
from pymq.serde.serializer import Schema
from pymq.table.rows import Value
from pymq.table.schema import union
from pymq.table.values.columns import (
    Column,
    avro_columns,
    both,
    json_columns,
    plain_columns,
    schema_of,
)
from pymq.table.values.decoder import Decoder, load_json

if TYPE_CHECKING:
    from pymq.client.client import Client

__all__ = ["SCHEMA_HEADER", "GivenValues", "RegisteredValues"]


class GivenValues:
    """JSON objects as values, with columns that the user has named."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.decode = Decoder(plain_columns(schema), load_json)

    def learn(self, fingerprints: Iterable[bytes]) -> None:
        """Do nothing: the columns are fixed."""


class RegisteredValues:
    """Values with the schemas that are registered for a topic."""

    def __init__(self, client: Client, topic: str) -> None:
        self._registry = client.schemas
        self._topic = topic
        self._heard: set[bytes] = set()  # fingerprints of records, also of unregistered schemas
        self.schema = pa.schema([])
        self.decode = Decoder([], load_json)
        self._refresh()

    @property
    def is_registered(self) -> bool:
        """Whether the topic has a schema."""
        return bool(self._registry.versions(self._topic))

    def learn(self, fingerprints: Iterable[bytes]) -> None:
        """Look up the schemas of records before the records are decoded.

        A schema is registered before the first record that has it. So a refresh of the registry
        after a record was read finds the record's schema.
        """
        new = set(fingerprints) - self._heard
        if new:
            self._heard |= new
            self._refresh()

    def _refresh(self) -> None:
        self._registry.refresh()
        versions = self._registry.versions(self._topic)
        if not versions:
            return
        formats = {each.schema.format for each in versions}
        if len(formats) != 1 or not formats <= {"json", "avro"}:
            raise ConfigError(
                f"the values of {self._topic!r} are {' and '.join(sorted(formats))}; a table has "
                "typed columns for json or for avro. With schema='raw' it keeps the bytes"
            )
        columns_of = json_columns if formats == {"json"} else avro_columns
        known: dict[str, Column] = {}
        schema = pa.schema([])
        for version in versions:
            columns = columns_of(version.schema.text)
            schema = union(schema, schema_of(columns), widens=True)
            for column in columns:
                before = known.get(column.name)
                known[column.name] = column if before is None else both(before, column)
        load: Callable[[Value], Any] = load_json
        if formats == {"avro"}:
            load = _avro([each.schema for each in versions])
        self.schema, self.decode = schema, Decoder(list(known.values()), load)


def _avro(schemas: list[Schema]) -> Callable[[Value], Any]:
    """Return a function that decodes a value with its writer's schema.

    The function does not convert to the latest schema, because the latest schema may lack fields of
    earlier schemas.
    """
    decoders = {each.fingerprint.encode(): serde.Avro(each.text).codec(dict) for each in schemas}
    last = schemas[-1].fingerprint.encode()

    def load(value: Value) -> Any:
        return decoders[last if value.fingerprint is None else value.fingerprint].decode(value.data)

    return load
