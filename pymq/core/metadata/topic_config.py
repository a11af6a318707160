"""The options of a topic, with defaults and limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import attrs

from pymq.core.metadata.route import parse_route
from pymq.core.types import AckMode
from pymq.core.values import value
from pymq.errors import ConfigError

FSYNC = ("always", "interval", "os")
CLEANUP = ("delete", "compact")
RECORD_MAX = 32 << 20  # bytes; the upper limit of max_record_bytes


@value
class TopicConfig:
    """The options of a topic; None if an option's value depends on the partition's ack mode."""

    block_bytes: int = 128 << 20  # the size at which a block is rolled
    block_ms: int = 7 * 24 * 3600 * 1000  # the age at which a block is rolled
    retention_bytes: int | None = None  # limit for each partition; None keeps everything
    retention_ms: int | None = None  # removes blocks whose newest record is older
    cleanup_policy: str = "delete"  # or "compact": keep the last record of each key
    max_record_bytes: int = 1 << 20  # key, value and headers together
    timestamp_after_max_ms: int | None = 3600 * 1000  # limit ahead of the broker's clock, or None
    min_in_sync: int = 1  # with fewer in-sync replicas, produces that wait for all of them fail
    unclean_election: bool = False  # elect a leader even if acknowledged records may be lost
    fsync: str | None = None  # with ack modes 1 and 0, None is "interval"; raft always syncs
    fsync_interval_ms: int = 1000  # interval for fsync="interval"
    tombstone_ms: int = 24 * 3600 * 1000  # how long compaction keeps a tombstone
    producer_expire_ms: int = (
        24 * 3600 * 1000
    )  # after this much idle time a roll drops an unnamed producer
    route: str | None = None  # records for one group only; see pymq.core.metadata.route

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Check options that a user gave.

        Raises:
            ConfigError: an option is unknown, of a wrong type or out of its range.
        """
        return cls().altered(options)

    def altered(self, options: Mapping[str, Any]) -> Self:
        """Return a copy with some options changed; raises the same errors as :meth:`of`."""
        check_options(options, (field.name for field in attrs.fields(type(self))))
        changed = attrs.evolve(self, **options)
        changed._check()
        return changed

    def _check(self) -> None:
        _range("block_bytes", self.block_bytes, 4096, 1 << 40)
        _range("block_ms", self.block_ms, 1, 1 << 50)
        for name in ("retention_bytes", "retention_ms", "timestamp_after_max_ms"):
            if getattr(self, name) is not None:
                _range(name, getattr(self, name), 0, 1 << 60)
        _range("max_record_bytes", self.max_record_bytes, 1, RECORD_MAX)
        _range("min_in_sync", self.min_in_sync, 1, 1000)
        _range("fsync_interval_ms", self.fsync_interval_ms, 1, 1 << 40)
        _range("tombstone_ms", self.tombstone_ms, 0, 1 << 50)
        _range("producer_expire_ms", self.producer_expire_ms, 60_000, 1 << 50)
        _choice("cleanup_policy", self.cleanup_policy, CLEANUP)
        if self.route is not None:
            parse_route(self.route)
        if self.fsync is not None:
            _choice("fsync", self.fsync, FSYNC)
        if not isinstance(self.unclean_election, bool):
            raise ConfigError(f"unclean_election={self.unclean_election!r} must be True or False")

    def sync_policy(self, acks: AckMode) -> str:
        """Return when appends are synced: ``always``, ``interval`` or ``os``.

        With ``raft`` the policy is always ``always``: a replica that loses its vote breaks the
        guarantees of the whole block (Raft, section 5.2), so no option weakens ack mode -1.
        """
        if acks is AckMode.RAFT:
            return "always"
        return self.fsync if self.fsync is not None else "interval"

    def __getitem__(self, name: str) -> Any:
        """Return an option by its name, as in a dictionary."""
        return self.to_dict()[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain values."""
        return attrs.asdict(self)


def check_options(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse unknown options; the error suggests a similar name.

    Raises:
        ConfigError: an option of *given* is not among *known*.
    """
    names = list(known)
    for name in given:
        if name not in names:
            import difflib  # on demand: it is slow to import and rarely needed

            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
            raise ConfigError(f"unknown option {name!r}; {hint}")


def _range(name: str, found: object, low: int, high: int) -> None:
    if type(found) is not int or not low <= found <= high:
        raise ConfigError(f"{name}={found!r} must be an integer from {low} to {high}")


def _choice(name: str, found: object, allowed: tuple[str, ...]) -> None:
    if found not in allowed:
        raise ConfigError(f"{name}={found!r} must be one of {', '.join(map(repr, allowed))}")
