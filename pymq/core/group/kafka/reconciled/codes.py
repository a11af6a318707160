"""The error codes by which the coordinator steers members (KIP-848)."""

from __future__ import annotations

from enum import IntEnum


class ReconciledCode(IntEnum):
    """Kafka's own numbers and names."""

    NONE = 0
    INCONSISTENT_GROUP_PROTOCOL = 23
    UNKNOWN_MEMBER_ID = 25
    INVALID_REQUEST = 42
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
