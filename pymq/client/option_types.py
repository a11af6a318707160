"""The types of options, for type checkers; :mod:`.options` checks them at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypedDict

from pymq.core.types import AckMode

if TYPE_CHECKING:
    from pymq.client.backoff import Backoff

Acks = AckMode | Literal[-2, -1, 0, 1, "raft", "leader", "none", "unset"]
ConsumerMode = Literal["group", "reader", "ptp", "psb"]
DeliveryMode = Literal["pull", "push"]
Compression = Literal["lz4", "zstd"]
Assignor = Literal["sticky", "range", "ring"]
Reset = Literal["begin", "end"]
Expired = Literal["drop", "dead_letter"]
Fsync = Literal["always", "interval", "os"]


class GroupOptions(TypedDict, total=False):
    """The options that only consumers of groups have; see :meth:`pymq.Client.consumer`."""

    auto_ack: bool
    ack_wait_s: float
    max_deliver: int
    dead_letter: str | None
    expired: Expired
    auto_offset_reset: Reset
    assignor: Assignor
    on_assigned: Callable[[tuple[str, ...]], object] | None
    on_revoked: Callable[[tuple[str, ...]], object] | None
    max_poll_interval_s: float
    ordered: bool | None
    prefetch: int | None
    session_timeout_s: float
    retry: Backoff | None


class TopicOptions(TypedDict, total=False):
    """The options of a topic; see :class:`pymq.TopicConfig`."""

    block_bytes: int
    block_ms: int
    retention_bytes: int | None
    retention_ms: int | None
    cleanup_policy: Literal["delete", "compact"]
    max_record_bytes: int
    timestamp_after_max_ms: int | None
    min_in_sync: int
    unclean_election: bool
    fsync: Fsync | None
    fsync_interval_ms: int
    tombstone_ms: int
    producer_expire_ms: int
    route: str | None
