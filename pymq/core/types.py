"""The small nouns that everything else is written with."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple, Protocol

from pymq.errors import ConfigError, InvalidName, InvalidRequest

NAME_LENGTH_MAX = 249
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

INTERNAL_PREFIX = "__"
OFFSETS_TOPIC = "__consumer_offsets"

NEVER = 1 << 62  # the deadline of what is not due


class AckMode(IntEnum):
    """What an acknowledgement means, and by which discipline a partition replicates."""

    UNSET = -2  # created, takes no records yet
    RAFT = -1  # answered when a majority has it durably
    NONE = 0  # not answered
    LEADER = 1  # answered when the leader has written it

    @classmethod
    def of(cls, value: AckMode | int | str) -> AckMode:
        """Read a mode from its number or its name in any case.

        Raises:
            ConfigError: it is none of the four.
        """
        try:
            if not isinstance(value, str) and type(value) not in (int, cls):
                raise ValueError
            return cls[value.upper()] if isinstance(value, str) else cls(value)
        except (KeyError, ValueError):
            raise ConfigError(
                f"{value!r} is no ack mode; "
                "use 'raft' (-1), 'none' (0), 'leader' (1) or 'unset' (-2)"
            ) from None


class Rng(Protocol):
    """The dice that a machine is given; ``random.Random`` is one."""

    def randrange(self, start: int, stop: int) -> int:
        """Return an integer of ``start <= n < stop``."""
        ...


class TopicPartition(NamedTuple):
    """A partition, by its names."""

    topic: str
    partition: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class BlockId(NamedTuple):
    """A block for ever: a topic that is deleted and made again has another *topic_id*."""

    topic_id: str  # 32 hex digits
    partition: int  # the partition's index
    number: int  # counts the blocks of the partition from 0

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}/{self.number}"


def is_internal(topic: str) -> bool:
    """Whether a topic is pymq's own."""
    return topic.startswith(INTERNAL_PREFIX)


def node_of(machine: str) -> str:
    """The node of a machine that is not a node itself; nodes may have dots, and parts have none."""
    return machine.rpartition(".")[0] or machine


def check_name(name: object, what: str = "name") -> str:
    """Return *name* if it may name a topic, a partition, a group or a broker.

    Raises:
        InvalidName: it may not.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidName(
            f"{what} {name!r} must be 1 to {NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ - "
            "and neither '.' nor '..'"
        )
    return name


def check_topic_id(topic_id: object) -> str:
    """Return *topic_id* if it may be the id of a topic.

    A zkserver makes ids of 32 hex digits. The check is wider than that, and excludes all that means
    something in a path, because a topic's id is the name of the folder that holds its blocks.

    Raises:
        InvalidRequest: it may not.
    """
    if not isinstance(topic_id, str) or not _TOPIC_ID.fullmatch(topic_id):
        raise InvalidRequest(f"{str(topic_id)[:64]!r} is not the id of a topic")
    return topic_id
