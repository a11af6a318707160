"""The registry: the schemas of all typed topics, in a compacted topic of the same cluster.

A record of the topic ``pymq.schemas`` has the key ``TOPIC/VERSION`` and a JSON object with
``topic``, ``version``, ``format``, ``schema`` (a text), ``fingerprint`` and ``compatibility``. Only
one client at a time can register a schema (:mod:`pymq.client.admin.owned_topic`), so a schema is
compared with all earlier schemas.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from pymq.client.admin.owned_topic import OwnedTopic
from pymq.core.values import value
from pymq.errors import ProducerFenced, SchemaIncompatible, UnknownTopic
from pymq.serde.compatibility import Compatibility, problems
from pymq.serde.serializer import Schema

if TYPE_CHECKING:
    from pymq.client.client import Client

TOPIC = "pymq.schemas"
SCHEMA_MAX = 1 << 20  # bytes of one record
RELOAD_S = 1.0  # seconds between two reads of the topic for an unknown schema
ATTEMPTS = 20  # attempts to register a schema while other clients register theirs
NAMED = 3  # most problems that an error names


@value
class SchemaVersion:
    """A registered schema."""

    topic: str
    version: int
    """Versions count from 1."""
    schema: Schema
    compatibility: str
    """The rule by which the schema was compared with earlier versions."""


class SchemaRegistry:
    """The registered schemas of a cluster or a folder; :attr:`pymq.Client.schemas` returns it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._log = OwnedTopic(client, TOPIC, SCHEMA_MAX)
        self._known: dict[str, dict[int, SchemaVersion]] = {}
        self._by_fingerprint: dict[str, Schema] = {}
        self._registering = threading.Lock()
        self._loaded_at = float("-inf")

    def register(
        self, topic: str, schema: Schema, compatibility: Compatibility = "backward"
    ) -> SchemaVersion:
        """Register a schema of a topic, if it is new; returns its version.

        Raises:
            SchemaIncompatible: the schema is not compatible with an earlier one;
                ``details["problems"]`` has all reasons.
            UnknownTopic: there is no such topic.
            ConfigError: there is no such *compatibility*.
        """
        problems(schema, (), compatibility)
        # Allow one registration at a time, since two threads would use the same epoch.
        with self._registering:
            self._load()
            if (found := self._find(topic, schema)) is not None:
                return found
            self._log.create(like=topic)
            for _ in range(ATTEMPTS):
                # If claim returns False, another client has taken the topic over for its own
                # registration.
                if self._log.claim(self._load) and (
                    found := self._append(topic, schema, compatibility)
                ):
                    return found
        raise ProducerFenced("other clients register schemas without a pause; try again")

    def _append(
        self, topic: str, schema: Schema, compatibility: Compatibility
    ) -> SchemaVersion | None:
        """Append a version as the topic's owner; None if another client has taken it over."""
        if (found := self._find(topic, schema)) is not None:
            return found
        earlier = self.versions(topic)
        if why := problems(schema, [each.schema for each in earlier], compatibility):
            more = f" and {len(why) - NAMED} more" if len(why) > NAMED else ""
            raise SchemaIncompatible(
                f"the schema of topic {topic!r} is not {compatibility} compatible with version "
                f"{earlier[-1].version} or an earlier one: {'; '.join(why[:NAMED])}{more}",
                problems=why,
            )
        version = earlier[-1].version + 1 if earlier else 1
        new = SchemaVersion(topic, version, schema, compatibility)
        if not self._log.append(f"{topic}/{version}".encode(), _encode(new)):
            return None
        self._add(new)
        return new

    def versions(self, topic: str) -> list[SchemaVersion]:
        """The known registered schemas of a topic, oldest first."""
        known = self._known.get(topic, {})
        return [known[version] for version in sorted(known)]

    def refresh(self) -> None:
        """Read all schemas again."""
        self._load()

    def find(self, fingerprint: str) -> Schema | None:
        """Return the schema with a fingerprint; reads the topic again at most once a second."""
        now = self._client.driver.monotonic()
        if fingerprint not in self._by_fingerprint and now >= self._loaded_at + RELOAD_S:
            self._load()
            self._loaded_at = now
        return self._by_fingerprint.get(fingerprint)

    def _find(self, topic: str, schema: Schema) -> SchemaVersion | None:
        return next((each for each in self.versions(topic) if each.schema == schema), None)

    def _add(self, found: SchemaVersion) -> None:
        self._known.setdefault(found.topic, {})[found.version] = found
        self._by_fingerprint[found.schema.fingerprint] = found.schema

    def _load(self) -> None:
        try:
            with self._client.consumer(TOPIC, mode="psb", offset="begin") as records:
                for record in records.until_end():
                    found = decode_version(record.value) if record.key else None
                    if found is not None:
                        self._add(found)
        except UnknownTopic:
            return


def _encode(found: SchemaVersion) -> bytes:
    item = {
        "topic": found.topic,
        "version": found.version,
        "format": found.schema.format,
        "schema": found.schema.text,
        "fingerprint": found.schema.fingerprint,
        "compatibility": found.compatibility,
    }
    return json.dumps(item).encode()


def decode_version(data: bytes) -> SchemaVersion | None:
    """Decode an entry; None if it has a format that this version of pymq cannot read."""
    try:
        item = json.loads(data)
        schema = Schema(str(item["format"]), str(item["schema"]))
        return SchemaVersion(
            str(item["topic"]), int(item["version"]), schema, str(item["compatibility"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
