"""The options of topics by Kafka's names.

The gate refuses options that pymq does not have. The exceptions are options that Kafka's tools and
Connect always set: the gate accepts them with the value that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pymq.core.metadata.topic_config import TopicConfig
from pymq.errors import ConfigError

# Kafka's numbers for the types of options.
BOOLEAN, STRING, INT, LONG, LIST = 1, 2, 3, 5, 7


class Option(NamedTuple):
    """An option of a topic: its name in pymq, and functions that read and show its values."""

    name: str
    kind: int
    read: Callable[[str], Any]
    show: Callable[[Any], str]


def _size(text: str) -> int | None:
    """Read a number; -1 means no limit."""
    number = int(text)
    return None if number == -1 else number


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text == "true"


def _show_size(number: int | None) -> str:
    return str(-1 if number is None else number)


OPTIONS = {
    "cleanup.policy": Option("cleanup_policy", LIST, str, str),
    "delete.retention.ms": Option("tombstone_ms", LONG, int, str),
    "flush.ms": Option("fsync_interval_ms", LONG, int, str),
    "max.message.bytes": Option("max_record_bytes", INT, int, str),
    "message.timestamp.after.max.ms": Option("timestamp_after_max_ms", LONG, _size, _show_size),
    "min.insync.replicas": Option("min_in_sync", INT, int, str),
    "retention.bytes": Option("retention_bytes", LONG, _size, _show_size),
    "retention.ms": Option("retention_ms", LONG, _size, _show_size),
    "segment.bytes": Option("block_bytes", INT, int, str),
    "segment.ms": Option("block_ms", LONG, int, str),
    "unclean.leader.election.enable": Option(
        "unclean_election", BOOLEAN, _flag, lambda found: str(found).lower()
    ),
}
FIXED = {
    "compression.type": ("producer", STRING),
    "file.delete.delay.ms": ("60000", LONG),
    "message.timestamp.type": ("CreateTime", STRING),
}
"""Options that can have only one value."""


def read(name: str, text: str | None) -> dict[str, Any]:
    """Return an option by its name in pymq; nothing for an option without effect.

    Raises:
        ConfigError: pymq does not have the option, or not with this value.
    """
    if name in FIXED:
        if text is None or text == FIXED[name][0] or name == "file.delete.delay.ms":
            return {}
        raise ConfigError(f"{name} can only be {FIXED[name][0]}, not {text}")
    option = OPTIONS.get(name)
    if option is None:
        raise ConfigError(f"a topic has no option {name}")
    if text is None:
        return {option.name: getattr(TopicConfig(), option.name)}
    try:
        return {option.name: option.read(text)}
    except ValueError as error:
        raise ConfigError(f"{name}={text}: {error}") from None


def read_all(given: list[tuple[str, str | None]]) -> dict[str, Any]:
    """Return options by their names in pymq, checked.

    Raises:
        ConfigError: pymq refuses one of the options.
    """
    found: dict[str, Any] = {}
    for name, text in given:
        found |= read(name, text)
    TopicConfig.of(found)
    return found


def defaults() -> dict[str, Any]:
    """The defaults of all options, by their names in pymq."""
    return {option.name: getattr(TopicConfig(), option.name) for option in OPTIONS.values()}
