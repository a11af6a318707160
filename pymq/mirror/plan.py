"""The plan of a mirror: its topics by pattern, their options, and the topics to create."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pymq.core.metadata.topic_config import TopicConfig
from pymq.core.values import value
from pymq.errors import ConfigError, UnknownTopic
from pymq.kafka.shared.options import OPTIONS, read_all
from pymq.mirror.journal import PREFIX
from pymq.mirror.kafka_client import KafkaTopic

if TYPE_CHECKING:
    from pymq.client.client import Client

RAFT_REPLICAS = 3  # from so many replicas on, a copy gets the ack mode raft
# Options whose effective value is kept. Others are kept only if they were set for the topic: their
# defaults suit the server, not the data.
_ALWAYS = ("cleanup.policy", "delete.retention.ms", "max.message.bytes")
_RETENTION = ("retention.ms", "retention.bytes")


@value
class TopicCopy:
    """A topic that a mirror keeps."""

    topic: str
    partitions: int
    replicas: int
    options: dict[str, Any]  # of pymq, or of Kafka, by the target's names
    dropped: tuple[str, ...] = ()  # options of the source that the target does not have


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name matches one of the patterns, as ``orders*``."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def chosen(names: Iterable[str], patterns: Sequence[str], excluded: Sequence[str]) -> list[str]:
    """Return the topics to mirror; internal topics and journals are never among them."""
    return sorted(
        name
        for name in names
        if matches(name, patterns)
        and not matches(name, excluded)
        and not name.startswith(("__", PREFIX))
    )


def check_found(found: Sequence[object], patterns: Sequence[str], where: str) -> None:
    """Check that there is a topic.

    Raises:
        UnknownTopic: no topic matches.
    """
    if not found:
        raise UnknownTopic(f"no topic of {where} matches {', '.join(patterns)}")


def to_pymq(topic: KafkaTopic, brokers: int) -> TopicCopy:
    """Return the copy in a queue with so many brokers of a topic of Kafka."""
    replicas = max(1, min(topic.replicas, brokers))
    options: dict[str, Any] = {}
    dropped = []
    for name, text in sorted(topic.options.items()):
        is_own = name in topic.own
        if name == "cleanup.policy" and "compact" in text:
            if "delete" in text:
                dropped.append(f"{name}={text} becomes compact")
            text = "compact"  # noqa: PLW2901  # the nearest that there is
        if name not in (*_ALWAYS, *_RETENTION) and not is_own:
            continue
        try:
            options |= read_all([(name, text)]) if name in OPTIONS else {}
        except ConfigError as error:
            dropped.append(f"{name}={text}: {error}")
        if is_own and name not in OPTIONS:
            dropped.append(f"{name}={text}")
    if "min_in_sync" in options:
        options["min_in_sync"] = min(options["min_in_sync"], replicas)
    return TopicCopy(topic.name, topic.partitions, replicas, options, tuple(dropped))


def create_in_pymq(mq: Client, copy: TopicCopy) -> None:
    """Create a copy, or add the partitions that it lacks."""
    mode = "raft" if copy.replicas >= RAFT_REPLICAS else "leader"
    if copy.topic not in mq.topics():
        acks: Any = mode
        mq.create_topic(
            copy.topic, copy.partitions, copy.replicas, acks=acks, exist_ok=True, **copy.options
        )
    there = len(mq.questions.topic_metadata(copy.topic).partitions)
    for number in range(there, copy.partitions):
        mq.create_partition(copy.topic, str(number))


def to_kafka(mq: Client, topic: str) -> TopicCopy:
    """Return the copy in a Kafka of a topic of the queue; Kafka chooses the number of replicas."""
    found, usual = mq.describe_topic(topic), TopicConfig()
    options = {
        name: option.show(found.config[option.name])
        for name, option in OPTIONS.items()
        if found.config[option.name] != getattr(usual, option.name) or name in _RETENTION
    }
    ours = {option.name for option in OPTIONS.values()}
    dropped = [
        f"{name}={item}"
        for name, item in found.config.to_dict().items()
        if name not in ours and item != getattr(usual, name)
    ]
    return TopicCopy(topic, len(found.partitions), -1, options, tuple(dropped))
