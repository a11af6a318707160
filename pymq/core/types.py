"""Types that all packages share: ack modes, names of partitions and blocks, checks of names."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple, Protocol

from pymq.errors import ConfigError, InvalidName, InvalidRequest

NAME_LENGTH_MAX = 249
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

CLIENT_PREFIX = "client-"  # prefix of clients' node names; a unique number follows
INTERNAL_PREFIX = "__"
# The beginnings of a cluster's URL. In a URL, tcp:// is the transport without ZeroMQ.
CLUSTER_SCHEMES = ("zmq+tcp://", "zmq+ipc://", "tcp://", "pymq://", "tls://")
OFFSETS_TOPIC = "__consumer_offsets"

NEVER = 1 << 62  # the deadline of a machine that has none


class AckMode(IntEnum):
    """When a produce is acknowledged, and how the partition replicates."""

    UNSET = -2  # the partition is created, but takes no records yet
    RAFT = -1  # acknowledged when a majority of replicas has the record durably
    NONE = 0  # the producer gets no acknowledgement
    LEADER = 1  # acknowledged when the leader has written the batch

    @classmethod
    def of(cls, value: AckMode | int | str) -> AckMode:
        """Return the mode with a number or a name (in any case).

        Raises:
            ConfigError: *value* is not one of the four modes.
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
    """The random generator that a machine takes as an argument, such as ``random.Random``."""

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
    """The permanent id of a block. A topic that is deleted and created again has a new id."""

    topic_id: str  # 32 hex digits
    partition: int  # the partition's index
    number: int  # counts the blocks of the partition from 0

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}/{self.number}"


def is_internal(topic: str) -> bool:
    """Whether a topic is internal to pymq."""
    return topic.startswith(INTERNAL_PREFIX)


def node_of(machine: str) -> str:
    """Return the node that *machine* runs on: the part before the last dot, if there is a dot.

    Names of nodes may have dots, names of machines within a node have none.
    """
    return machine.rpartition(".")[0] or machine


def is_name(name: object) -> bool:
    """Whether *name* is a valid name of a topic, a partition, a group or a broker."""
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and name not in (".", "..")


def check_name(name: object, what: str = "name") -> str:
    """Return *name* if it is a valid name of a topic, a partition, a group or a broker.

    Raises:
        InvalidName: the name is not valid.
    """
    if not isinstance(name, str) or not is_name(name):
        raise InvalidName(
            f"{what} {name!r} must be 1 to {NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ - "
            "and neither '.' nor '..'"
        )
    return name


def check_topic_id(topic_id: object) -> str:
    """Return *topic_id* if it is a valid topic id.

    The controller makes ids of 32 hex digits. The check allows other ids, but no characters with a
    meaning in a path, because the folder of a topic's blocks is named after its id.

    Raises:
        InvalidRequest: the id is not valid.
    """
    if not isinstance(topic_id, str) or not _TOPIC_ID.fullmatch(topic_id):
        raise InvalidRequest(f"{str(topic_id)[:64]!r} is not the id of a topic")
    return topic_id
