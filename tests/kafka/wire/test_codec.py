"""All versions of all messages can be written and read again, and equal kafka-python's byte for
byte.
"""

from __future__ import annotations

import importlib
import json
import os
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pymq.core.batch.columns import Buffer
from pymq.kafka.wire import codec, messages, schema, update
from pymq.kafka.wire.schema import FIXED, Field, MessageSchema

SCHEMAS = schema.schemas()


def versions(name: str) -> range:
    first, last = SCHEMAS[name].versions
    return range(first, last + 1)


def filled(message: MessageSchema, struct: str, version: int, rng: random.Random) -> Any:
    """Return a struct with other values than the defaults in all fields of a version."""
    made = getattr(messages, schema.class_name(message.name, struct))()
    for field in message.structs[struct]:
        if field.is_in(version):
            setattr(made, field.name, content(message, field, version, rng))
    return made


def content(message: MessageSchema, field: Field, version: int, rng: random.Random) -> Any:
    if field.is_nullable(version) and rng.random() < 0.2:
        return None
    count = rng.choice((0, 1, 3)) if field.is_array else 1
    items = [item(message, field.item, version, rng) for _ in range(count)]
    return items if field.is_array else items[0]


def item(message: MessageSchema, kind: str, version: int, rng: random.Random) -> Any:
    if kind == "bool":
        return rng.random() < 0.5
    if kind in FIXED:
        return rng.randrange(1, 100)
    if kind == "string":
        return rng.choice(("x", "é" * 70, "orders"))
    if kind in ("bytes", "records"):
        return rng.randbytes(rng.choice((1, 130)))
    if kind == "uuid":
        return rng.randbytes(16)
    return filled(message, kind, version, rng)


def plain(found: Any) -> Any:
    """Return a message as plain values, which compare by content."""
    if isinstance(found, list):
        return [plain(each) for each in found]
    if isinstance(found, memoryview):
        return bytes(found)
    names = getattr(found, "__match_args__", None)
    return found if names is None else {name: plain(getattr(found, name)) for name in names}


def written(name: str, version: int, message: Any) -> bytes:
    parts: list[Buffer] = []
    codec.writer(name, version)(message, parts.append)
    return b"".join(parts)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_message_is_read_as_it_was_written(name: str) -> None:
    for version in versions(name):
        rng = random.Random(f"{name} {version}")
        for _ in range(3):
            message = filled(SCHEMAS[name], name, version, rng)
            data = written(name, version, message)
            found, end = codec.reader(name, version)(memoryview(b"head" + data + b"more"), 4)
            assert end == 4 + len(data)
            assert plain(found) == plain(message)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_message_that_is_cut_short_is_malformed(name: str) -> None:
    """Whatever a length field says, no reader reads beyond the end of the bytes."""
    for version in versions(name):
        rng = random.Random(f"{name} {version}")
        data = written(name, version, filled(SCHEMAS[name], name, version, rng))
        for end in {*range(min(len(data), 20)), max(0, len(data) - 1)} if data else ():
            with pytest.raises(codec.MALFORMED):
                codec.reader(name, version)(memoryview(data[:end]), 0)


@pytest.mark.parametrize("name", SCHEMAS)
def test_damaged_bytes_are_malformed_or_another_message(name: str) -> None:
    for version in versions(name):
        rng = random.Random(f"{name} {version}")
        data = written(name, version, filled(SCHEMAS[name], name, version, rng))
        for _ in range(20 if data else 0):
            bad = bytearray(data)
            bad[rng.randrange(len(bad))] = rng.randrange(256)
            try:
                codec.reader(name, version)(memoryview(bad), 0)
            except codec.MALFORMED:
                pass


def test_a_length_beyond_the_message_allocates_nothing() -> None:
    with pytest.raises(ValueError, match="greater than the message"):
        codec.reader("DeleteGroupsRequest", 0)(b"\x7f\xff\xff\xff" + bytes(9), 0)


def test_tagged_fields_that_are_not_known_are_skipped() -> None:
    known = written("LeaveGroupResponse", 4, messages.LeaveGroupResponse(7))
    assert known[-1] == 0
    more = known[:-1] + b"\x01\x09\x03abc"
    found, end = codec.reader("LeaveGroupResponse", 4)(more, 0)
    assert (found.throttle_time_ms, end) == (7, len(more))


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 1 << 14, (1 << 31) - 1])
def test_varints(number: int) -> None:
    assert codec.read_varint(b"x" + codec.varint(number) + b"y", 1)[0] == number


@pytest.mark.parametrize("data", [b"\xff" * 9, b"\xff\xff\xff\xff\x0f", b"\x80"])
def test_bad_varints_are_malformed(data: bytes) -> None:
    with pytest.raises(codec.MALFORMED):
        codec.read_varint(data, 0)


# --- an independent implementation of the same definitions --------------------------------------


@cache
def peers() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in ("admin", "consumer", "metadata", "producer", "sasl"):
        found |= vars(importlib.import_module(f"kafka.protocol.{part}"))
    return found


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name in SCHEMAS
        # It does not know the new groups.
        if name != "ApiVersionsResponse"
        and not name.startswith("ConsumerGroup")
        and "Share" not in name
    ),
)
def test_kafka_python_writes_the_same_bytes(name: str) -> None:
    """kafka-python's decoder of ApiVersionsResponse reads version 0 only."""
    pytest.importorskip("kafka", reason="kafka-python is not installed")
    peer = peers()[name]
    for version in range(peer.min_version, peer.max_version + 1):
        if version not in versions(name):
            continue
        rng = random.Random(f"{name} {version}")
        for _ in range(3):
            data = written(name, version, filled(SCHEMAS[name], name, version, rng))
            found = peer.decode(data, version=version)
            # kafka-python's decoder does not set this field, but its encoder reads it
            found._header = None
            assert bytes(found.encode(version=version)) == data


# --- what is generated --------------------------------------------------------------------------


def test_the_classes_are_those_of_the_schema() -> None:
    text = update.MESSAGES.read_text(encoding="utf-8")
    assert text == update.render_messages(SCHEMAS), "run: python -m pymq.kafka.wire.update"


def test_the_schema_is_written_as_the_generator_writes_it() -> None:
    text = schema.PATH.read_text(encoding="utf-8")
    assert update.render_schema(json.loads(text)) == text


def test_the_schema_is_that_of_the_jar() -> None:
    jar = Path(os.environ.get("PYMQ_KAFKA_CLIENTS_JAR", ""))
    if not jar.is_file():
        pytest.skip("PYMQ_KAFKA_CLIENTS_JAR names no kafka-clients jar")
    text = schema.PATH.read_text(encoding="utf-8")
    assert update.render_schema(update.read_jar(str(jar))) == text


def test_requests_and_responses_have_the_same_keys_and_versions() -> None:
    for name, message in SCHEMAS.items():
        if name.endswith("Request"):
            response = SCHEMAS[name.removesuffix("Request") + "Response"]
            assert message.key == response.key
            assert set(versions(name)) <= set(versions(response.name))
    assert {message.key for message in SCHEMAS.values()} == update.KEYS
