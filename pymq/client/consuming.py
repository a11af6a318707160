"""What users may ask of consumers, and how one is made of it.

A process that only produces never loads this, nor what is behind a consumer.
"""

from __future__ import annotations

from pymq.client.membership import WorkerConfig
from pymq.client.options import check_choice, check_range, check_seconds
from pymq.core.config import check_options
from pymq.core.message import BEGIN, END
from pymq.core.types import check_name
from pymq.errors import ConfigError
from pymq.hash.assign import names as assignor_names

DEFAULT_GROUP = "ptp"

_CONSUMER_OPTIONS = (
    "topic",
    "group",
    "mode",
    "partition",
    "offset",
    "delivery",
    "on_record",
    "credit",
    "auto_ack",
    "ack_wait_s",
    "max_deliver",
    "dead_letter",
    "auto_offset_reset",
    "assignor",
    "on_assigned",
    "on_revoked",
    "max_poll_interval_s",
)


def check_consumer(
    group: str | None,
    mode: str,
    partition: str | int | None,
    delivery: str,
    on_record: object,
    credit: int,
    unknown: dict[str, object],
) -> None:
    """Whether these options of a consumer go together.

    Raises:
        ConfigError: they do not, or one is unknown or out of its range.
    """
    check_options(unknown, _CONSUMER_OPTIONS)
    check_choice("mode", mode, ("ptp", "psb"))
    check_choice("delivery", delivery, ("pull", "push"))
    check_range("credit", credit, 1, 1 << 20)
    if (delivery == "push") != (on_record is not None):
        raise ConfigError("on_record goes with delivery='push', and the other way round")
    if mode == "psb" and group is not None:
        raise ConfigError("a psb consumer reads on its own: it has no group")
    if mode == "ptp" and partition is not None:
        raise ConfigError("a ptp consumer's partitions are assigned; use mode='psb' to choose")


def worker_config(
    group: str | None,
    assignor: str,
    ack_wait_s: float,
    max_deliver: int,
    auto_offset_reset: str,
    max_poll_interval_s: float,
) -> WorkerConfig:
    """What a consumer asks of its group.

    Raises:
        ConfigError, InvalidName: an option is out of its range.
    """
    check_choice("assignor", assignor, assignor_names())
    check_choice("auto_offset_reset", auto_offset_reset, ("begin", "end"))
    check_seconds("ack_wait_s", ack_wait_s)
    check_seconds("max_poll_interval_s", max_poll_interval_s)
    check_range("max_deliver", max_deliver, 0, 1 << 30)
    return WorkerConfig(
        check_name(group if group is not None else DEFAULT_GROUP, "group name"),
        assignor,
        max(1, round(ack_wait_s * 1000)),
        max_deliver,
        BEGIN if auto_offset_reset == "begin" else END,
        max(1, round(max_poll_interval_s * 1000)),
    )
