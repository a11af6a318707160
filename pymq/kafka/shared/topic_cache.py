"""Cached metadata of topics. Kafka names partitions by numbers, and topics by names or ids.

A client's metadata request asks the zkserver each time. Other requests use the cached metadata,
until a broker refuses one of them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pymq.core.message import Answer, GetMetadata, ListTopics
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.core.types import is_internal
from pymq.errors import PymqError, UnknownTopic
from pymq.kafka.shared.controllers import ask_controller
from pymq.kafka.shared.conversation import GateContext, Wait

TOPICS_MAX = 10_000
LIST_MS = 1_000  # between two lists of topics, for ids that may belong to no topic
NO_ID = bytes(16)


def id_bytes(topic_id: str) -> bytes:
    """Return a topic's id in the form of Kafka's protocol."""
    return bytes.fromhex(topic_id.rjust(32, "0")[-32:])


class TopicCache:
    """The metadata of topics."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicMetadata] = {}
        self._names: dict[bytes, str] = {}
        self.listed_at = -LIST_MS

    def put(self, metadata: TopicMetadata) -> None:
        """Store the metadata that the zkserver returned."""
        if len(self._topics) >= TOPICS_MAX:
            self._topics.clear()
            self._names.clear()
        self._topics[metadata.topic] = metadata
        self._names[id_bytes(metadata.topic_id)] = metadata.topic

    def drop(self, name: str) -> None:
        """Forget a topic, because a broker has refused a request about it."""
        found = self._topics.pop(name, None)
        if found is not None:
            self._names.pop(id_bytes(found.topic_id), None)

    def get(self, name: str) -> TopicMetadata | None:
        """Return a cached topic."""
        return self._topics.get(name)

    def name(self, topic_id: bytes) -> str | None:
        """Return the name of a topic by its id, if it is known."""
        return self._names.get(topic_id)


def load_topic(
    context: GateContext, name: str, *, is_own: bool = False
) -> Generator[Wait, Any, TopicMetadata | PymqError]:
    """Ask the zkserver for a topic. Kafka's clients do not see internal ones.

    With *is_own* the gate asks for itself, whatever the client may do.
    """
    if is_internal(name):
        return UnknownTopic(f"topic {name!r} is internal")
    answer = yield from ask_controller(context, lambda r: GetMetadata(r, name), is_own=is_own)
    if isinstance(answer, Answer) and isinstance(answer.result, TopicMetadata):
        context.topics.put(answer.result)
        return answer.result
    context.topics.drop(name)
    error: PymqError = answer.error
    return error


def topic_names(context: GateContext) -> Generator[Wait, Any, list[str] | PymqError]:
    """Return the names of all topics that the client may see, or the error."""
    found = yield from ask_controller(context, ListTopics, is_own=True)
    if not isinstance(found, Answer) or not isinstance(found.result, tuple):
        error: PymqError = found.error
        return error
    names = [name for name in found.result if isinstance(name, str) and not is_internal(name)]
    return [name for name in names if context.caller.may_describe(name)]


def load_all(context: GateContext, pause_ms: int = 0) -> Generator[Wait, Any, None]:
    """Load all topics, so that their ids are known; not again within *pause_ms*."""
    if context.now < context.topics.listed_at + pause_ms:
        return
    context.topics.listed_at = context.now
    names = yield from topic_names(context)
    if isinstance(names, list):
        for name in names:
            if context.topics.get(name) is None:
                yield from load_topic(context, name)


def find_topic(
    context: GateContext, name: str, topic_id: bytes = NO_ID
) -> Generator[Wait, Any, TopicMetadata | PymqError | None]:
    """Return a topic by its id, or else its name; None if the id is unknown.

    A client may have the id from another broker, so the gate looks for ids that it does not know.
    """
    if topic_id != NO_ID:
        found = context.topics.name(topic_id)
        if found is None:
            yield from load_all(context, LIST_MS)
            found = context.topics.name(topic_id)
        if found is None:
            return None
        name = found
    if (known := context.topics.get(name)) is not None and context.caller.may_describe(name):
        return known
    loaded = yield from load_topic(context, name)
    if topic_id == NO_ID or isinstance(loaded, PymqError):
        return loaded
    return loaded if id_bytes(loaded.topic_id) == topic_id else None


def partition_of(metadata: TopicMetadata, index: int) -> PartitionLeader | None:
    """Return a partition by its number."""
    partitions = metadata.partitions
    if 0 <= index < len(partitions) and partitions[index].index == index:
        return partitions[index]
    return next((each for each in partitions if each.index == index), None)
