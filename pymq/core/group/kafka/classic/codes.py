"""The error codes by which the coordinator of a classic group steers Kafka's clients."""

from __future__ import annotations

from enum import IntEnum


class ClassicCode(IntEnum):
    """Kafka's own numbers and names."""

    NONE = 0
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
