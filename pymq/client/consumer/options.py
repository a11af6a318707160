"""What users may ask of consumers, and how one is made of it.

A process that only produces never loads this, nor what is behind a consumer.
"""

from __future__ import annotations

from collections.abc import Mapping

from pymq.client.group.membership import WorkerConfig
from pymq.client.options import check_callback, check_choice, check_range, check_seconds
from pymq.core.message import BEGIN, END
from pymq.core.metadata.topic_config import check_options
from pymq.core.types import INTERNAL_PREFIX, check_name, is_internal
from pymq.errors import ConfigError, InvalidName
from pymq.hash.assign import names as assignor_names

DEFAULT_GROUP = "ptp"
CREDIT_MAX = 1 << 20
CREDIT = 1000  # records that a push consumer is given ahead, by default

DEAD_LETTER = ".dlq"  # behind the name of a topic

# What only groups have, with the defaults of :meth:`pymq.Client.consumer`.
GROUP_OPTIONS: dict[str, object] = {
    "auto_ack": False,
    "ack_wait_s": 30.0,
    "max_deliver": 5,
    "dead_letter": None,
    "auto_offset_reset": "begin",
    "assignor": "sticky",
    "on_assigned": None,
    "on_revoked": None,
    "max_poll_interval_s": 300.0,
    "ordered": None,
    "prefetch": None,
    "session_timeout_s": 10.0,
}
PREFETCH_MAX = 1 << 20  # records


class CalledElsewhere:
    """In place of ``on_record``: an event loop pushes the records, not a thread of the consumer."""

    def __call__(self, record: object) -> None:
        """Nothing calls this; it only makes this a callback for the type checker."""
        raise AssertionError("the event loop calls the application")


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
    "rack",
    "ordered",
    "prefetch",
    "session_timeout_s",
)


def check_consumer(
    group: str | None,
    mode: str,
    partition: str | int | None,
    delivery: str,
    on_record: object,
    credit: int,
    offset: int | str | None,
    unknown: dict[str, object],
) -> None:
    """Whether these options of a consumer go together.

    Raises:
        ConfigError: they do not, or one is unknown or out of its range.
    """
    check_options(unknown, _CONSUMER_OPTIONS)
    check_choice("mode", mode, ("ptp", "psb"))
    check_choice("delivery", delivery, ("pull", "push"))
    check_range("credit", credit, 1, CREDIT_MAX)
    check_callback("on_record", on_record)
    if (delivery == "push") != (on_record is not None):
        raise ConfigError("on_record goes with delivery='push', and the other way round")
    if mode == "psb" and group is not None:
        raise ConfigError("a psb consumer reads on its own: it has no group")
    if mode == "ptp" and partition is not None:
        raise ConfigError("a ptp consumer's partitions are assigned; use mode='psb' to choose")
    if mode == "ptp" and offset is not None:
        raise ConfigError(
            "a group has its own offset: offset= goes with mode='psb'. A new group begins at "
            "auto_offset_reset=, and mq.reset_group() moves one that has no members"
        )
    if delivery == "pull" and credit != CREDIT:
        raise ConfigError("credit goes with delivery='push'; poll(max_records=) bounds a pull")


def dead_letter_topic(
    topic: str, dead_letter: str | None, mode: str, max_deliver: int
) -> str | None:
    """Where a consumer moves records that were delivered too often; None for nowhere.

    Raises:
        InvalidName: the name may not be one, or is the topic's own: each record that is moved there
            would be delivered, fail and be moved again, for ever.
        ConfigError: nothing is ever moved, because there is no limit of deliveries.
    """
    if mode != "ptp":
        return None
    if not max_deliver:
        if dead_letter is not None:
            raise ConfigError("dead_letter needs max_deliver above 0: nothing is given up without")
        return None
    name = f"{topic}{DEAD_LETTER}" if dead_letter is None else dead_letter
    try:
        check_name(name, "dead-letter topic")
    except InvalidName as error:
        if dead_letter is not None:
            raise
        raise InvalidName(f"{error.message}; choose another with dead_letter=") from None
    if is_internal(name):
        raise InvalidName(f"dead_letter={name!r}: names with {INTERNAL_PREFIX!r} are pymq's own")
    if name == topic:
        raise InvalidName(f"dead_letter={name!r} is the topic that is consumed")
    return name


def check_reader(given: Mapping[str, object]) -> None:
    """Refuse options of a group for a consumer that has none; they would do nothing.

    *given* has the values of :data:`GROUP_OPTIONS` that the user may have chosen.

    Raises:
        ConfigError: one of them differs from its default.
    """
    for name, found in given.items():
        if found != GROUP_OPTIONS[name]:
            raise ConfigError(f"{name} is for groups: a consumer with mode='psb' has none")


def check_rack(rack: object) -> None:
    """Whether that is the name of a rack, or None.

    Raises:
        ConfigError: it is neither.
    """
    if rack is not None and (not isinstance(rack, str) or not rack):
        raise ConfigError(f"rack={rack!r} must be the name of a rack, as brokers are given")


def worker_config(
    group: str | None,
    assignor: str,
    ack_wait_s: float,
    max_deliver: int,
    auto_offset_reset: str,
    max_poll_interval_s: float,
    ordered: bool | None,
    prefetch: int | None,
    session_timeout_s: float,
) -> WorkerConfig:
    """What a consumer asks of its group.

    Raises:
        ConfigError, InvalidName: an option is out of its range.
    """
    check_choice("assignor", assignor, assignor_names())
    check_choice("auto_offset_reset", auto_offset_reset, ("begin", "end"))
    check_seconds("ack_wait_s", ack_wait_s)
    check_seconds("max_poll_interval_s", max_poll_interval_s)
    check_seconds("session_timeout_s", session_timeout_s)
    if ordered is not None and type(ordered) is not bool:
        raise ConfigError(f"ordered={ordered!r} must be True, False or None")
    if prefetch is not None:
        check_range("prefetch", prefetch, 1, PREFETCH_MAX)
    check_range("max_deliver", max_deliver, 0, 1 << 30)
    return WorkerConfig(
        check_name(group if group is not None else DEFAULT_GROUP, "group name"),
        assignor,
        max(1, round(ack_wait_s * 1000)),
        max_deliver,
        BEGIN if auto_offset_reset == "begin" else END,
        max(1, round(max_poll_interval_s * 1000)),
        ordered,
        prefetch,
        max(1, round(session_timeout_s * 1000)),
    )
