"""Options of consumers, and the checks that the given options are compatible.

A process that only produces does not load this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pymq.client.backoff import Backoff
from pymq.client.group.membership import WorkerConfig
from pymq.client.option_types import GroupOptions
from pymq.client.options import (
    GROUP_DEFAULTS,
    check_callback,
    check_choice,
    check_flag,
    check_range,
    check_seconds,
    parse_offset,
)
from pymq.core.batch.dead_letter import DEAD_LETTER
from pymq.core.message import BEGIN, END
from pymq.core.metadata.topic_config import check_options
from pymq.core.types import INTERNAL_PREFIX, check_name, is_internal
from pymq.core.values import value
from pymq.errors import ConfigError, InvalidName
from pymq.hash.assign import names as assignor_names

if TYPE_CHECKING:
    from pymq.core.batch.record import Record

DEFAULT_GROUP = "ptp"
CREDIT_MAX = 1 << 20
CREDIT = 1000  # default number of records that a push consumer gets in advance


PREFETCH_MAX = 1 << 20  # records
_OPTIONS = "topic group mode partition offset delivery on_record credit rack".split()


class CalledElsewhere:
    """A placeholder for ``on_record`` if an event loop pushes the records, not a thread."""

    def __call__(self, record: object) -> None:
        """Raise an error; the event loop calls the application, so nothing calls this."""
        raise AssertionError("the event loop calls the application")


_READER_HAS_NONE = "is for groups: mode='psb' has no such option"
_MODES = {"group": "ptp", "reader": "psb"}  # the names that the documentation uses


@value
class ConsumerOptions:
    """The options of one consumer, checked."""

    topic: str
    mode: str  # "ptp" or "psb"
    partition: str | int | None
    offset: int  # an offset, BEGIN or END
    on_record: Callable[[Record], object] | None
    credit: int
    rack: str | None
    group: WorkerConfig | None  # None in mode "psb"
    dead_letter: str | None  # as given by the user; see :func:`dead_letter_topic`
    auto_ack: bool = False
    on_assigned: Callable[[tuple[str, ...]], object] | None = None
    on_revoked: Callable[[tuple[str, ...]], object] | None = None
    retry: Backoff | None = None


def consumer_options(
    topic: str,
    group: str | None,
    mode: str,
    partition: str | int | None,
    offset: int | str | None,
    delivery: str,
    on_record: Callable[[Record], object] | None,
    credit: int,
    rack: str | None,
    options: GroupOptions,
) -> ConsumerOptions:
    """Check the options of a consumer, and that they are compatible.

    Raises:
        ConfigError: an option is unknown or out of its range, or two contradict each other.
        InvalidName: a group may not have that name.
    """
    check_options(options, (*_OPTIONS, *GROUP_DEFAULTS))
    mode = _MODES.get(mode, mode)
    check_choice("mode", mode, ("ptp", "psb"))
    _check_push(delivery, on_record, credit)
    _check_mode(group, mode, partition, offset)
    given: object = rack
    if given is not None and not (isinstance(given, str) and given):
        raise ConfigError(f"rack={rack!r} must be a string, the name of a rack")
    chosen: dict[str, Any] = {**GROUP_DEFAULTS, **options}
    check_flag("auto_ack", chosen["auto_ack"])
    check_callback("on_assigned", chosen["on_assigned"])
    check_callback("on_revoked", chosen["on_revoked"])
    if not isinstance(chosen["retry"], (Backoff, type(None))):
        raise ConfigError(f"retry={chosen['retry']!r} must be a pymq.Backoff")
    if mode == "psb":
        defaults: dict[str, object] = {**GROUP_DEFAULTS}
        for name, found in chosen.items():
            if found != defaults[name]:
                raise ConfigError(f"{name} {_READER_HAS_NONE}")
    worker = _worker_config(group, chosen)
    return ConsumerOptions(
        topic,
        mode,
        partition,
        parse_offset("begin" if offset is None else offset),
        on_record,
        credit,
        rack,
        worker if mode == "ptp" else None,
        chosen["dead_letter"],
        chosen["auto_ack"],
        chosen["on_assigned"],
        chosen["on_revoked"],
        chosen["retry"],
    )


def _check_push(delivery: str, on_record: object, credit: int) -> None:
    check_choice("delivery", delivery, ("pull", "push"))
    check_range("credit", credit, 1, CREDIT_MAX)
    check_callback("on_record", on_record)
    if (delivery == "push") != (on_record is not None):
        raise ConfigError("on_record= and delivery='push' require each other")
    if delivery == "pull" and credit != CREDIT:
        raise ConfigError(
            "credit goes with delivery='push'; otherwise poll(max_records=) sets a limit"
        )


def _check_mode(
    group: str | None, mode: str, partition: str | int | None, offset: int | str | None
) -> None:
    if mode == "psb" and group is not None:
        raise ConfigError("a consumer with mode='psb' has no group: leave out group=")
    if mode == "ptp" and partition is not None:
        raise ConfigError("the group assigns partitions; only mode='psb' can choose them")
    if mode == "ptp" and offset is not None:
        raise ConfigError(
            "a group has its own offset: offset= goes with mode='psb'. A new group begins at "
            "auto_offset_reset=, and mq.reset_group() moves a group without members"
        )


def dead_letter_topic(options: ConsumerOptions) -> str | None:
    """Return the topic for records that were delivered too often, or expired; None for none.

    Raises:
        InvalidName: the name is not allowed, or is that of the consumed topic, whose dead letters
            would then fail and be moved forever.
        ConfigError: with these options no record would ever be moved to the topic.
    """
    topic, dead_letter, group = options.topic, options.dead_letter, options.group
    if group is None:
        return None
    if not group.max_deliver and not group.buries_expired:
        if dead_letter is not None:
            raise ConfigError(
                "dead_letter needs max_deliver above 0, or expired='dead_letter': otherwise no "
                "record is ever moved there"
            )
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


def _worker_config(group: str | None, chosen: Mapping[str, Any]) -> WorkerConfig:
    """Return the options that a consumer sends to its group."""
    check_choice("assignor", chosen["assignor"], assignor_names())
    check_choice("auto_offset_reset", chosen["auto_offset_reset"], ("begin", "end"))
    check_choice("expired", chosen["expired"], ("drop", "dead_letter"))
    for name in ("ack_wait_s", "max_poll_interval_s", "session_timeout_s"):
        check_seconds(name, chosen[name])
    ordered, prefetch = chosen["ordered"], chosen["prefetch"]
    if ordered is not None and type(ordered) is not bool:
        raise ConfigError(f"ordered={ordered!r} must be True, False or None")
    if prefetch is not None:
        check_range("prefetch", prefetch, 1, PREFETCH_MAX)
    check_range("max_deliver", chosen["max_deliver"], 0, 1 << 30)
    return WorkerConfig(
        check_name(group if group is not None else DEFAULT_GROUP, "group name"),
        chosen["assignor"],
        max(1, round(chosen["ack_wait_s"] * 1000)),
        chosen["max_deliver"],
        BEGIN if chosen["auto_offset_reset"] == "begin" else END,
        max(1, round(chosen["max_poll_interval_s"] * 1000)),
        ordered,
        prefetch,
        max(1, round(chosen["session_timeout_s"] * 1000)),
        buries_expired=chosen["expired"] == "dead_letter",
    )
