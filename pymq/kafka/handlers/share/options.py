"""The options of share groups: each has one value, which a client may read, and set again.

A group of pymq has no options of its own: pymq's consumers bring theirs when they join.
"""

from __future__ import annotations

from pymq.core.group.leases import SPANS_OPEN
from pymq.errors import ConfigError
from pymq.kafka.handlers.share.membership import LOCK_MS, MAX_DELIVER
from pymq.kafka.shared.options import BOOLEAN, INT, STRING
from pymq.kafka.shared.share_members import HEARTBEAT_MS, SESSION_MS

FIXED = {
    # As for pymq's own consumers, so no record is missed before the first worker joins.
    "share.auto.offset.reset": ("earliest", STRING),
    "share.delivery.count.limit": (str(MAX_DELIVER), INT),
    "share.heartbeat.interval.ms": (str(HEARTBEAT_MS), INT),
    "share.isolation.level": ("read_uncommitted", STRING),
    "share.partition.max.record.locks": (str(SPANS_OPEN), INT),
    "share.record.lock.duration.ms": (str(LOCK_MS), INT),
    "share.renew.acknowledge.enable": ("true", BOOLEAN),
    "share.session.timeout.ms": (str(SESSION_MS), INT),
}
"""The options by their names in Kafka, with value and type."""


def check(name: str, text: str | None) -> None:
    """Check that an option keeps its value; None stands for its default.

    Raises:
        ConfigError: groups do not have the option, or not with this value.
    """
    if name not in FIXED:
        raise ConfigError(f"a group has no option {name}")
    fixed = FIXED[name][0]
    if text is not None and text != fixed:
        raise ConfigError(f"{name} can only be {fixed}, not {text}")
