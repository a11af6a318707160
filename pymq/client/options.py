"""Options of producers, and checks of options; the public calls check each option once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from pymq.client.option_types import Acks, GroupOptions
from pymq.client.producer.sender import SenderConfig
from pymq.core.batch.compression import codec_number
from pymq.core.batch.header import NO_PRODUCER
from pymq.core.block.idempotence import REMEMBERED
from pymq.core.message import BEGIN, END
from pymq.core.metadata.topic_config import check_options
from pymq.core.types import AckMode
from pymq.errors import ConfigError, InvalidName

REQUEST_S = 10.0  # the timeout of a request
PARTITIONS_MAX = 100_000
REPLICAS_MAX = 1_000


GROUP_DEFAULTS: GroupOptions = {
    "auto_ack": False,
    "ack_wait_s": 30.0,
    "max_deliver": 5,
    "dead_letter": None,
    "expired": "drop",
    "auto_offset_reset": "begin",
    "assignor": "sticky",
    "on_assigned": None,
    "on_revoked": None,
    "max_poll_interval_s": 300.0,
    "ordered": None,
    "prefetch": None,
    "session_timeout_s": 10.0,
    "retry": None,
}

_PRODUCER_OPTIONS = (
    "acks",
    "linger_ms",
    "batch_bytes",
    "buffer_bytes",
    "compression",
    "idempotent",
    "producer_id",
    "delivery_timeout_s",
    "max_in_flight",
)


def sender_config(
    acks: Acks | None,
    linger_ms: int,
    batch_bytes: int,
    buffer_bytes: int,
    compression: str | None,
    idempotent: bool,
    producer_id: str | int | None,
    delivery_timeout_s: float,
    max_in_flight: int,
    unknown: Mapping[str, object],
) -> SenderConfig:
    """Return the configuration of a producer, without its identity.

    Raises:
        ConfigError, InvalidName: an option is unknown or out of its range.
    """
    check_options(unknown, _PRODUCER_OPTIONS)
    for name, found, low, high in (
        ("linger_ms", linger_ms, 0, 600_000),
        ("batch_bytes", batch_bytes, 1, 8 << 20),
        ("buffer_bytes", buffer_bytes, 1, 1 << 40),
        ("max_in_flight", max_in_flight, 1, REMEMBERED if idempotent is True else 1000),
    ):
        check_range(name, found, low, high)
    check_seconds("delivery_timeout_s", delivery_timeout_s)
    check_flag("idempotent", idempotent)
    if producer_id is not None and not idempotent:
        raise ConfigError("producer_id needs idempotent=True")
    mode = None if acks is None else AckMode.of(acks)
    if producer_id is not None and mode is AckMode.NONE:
        raise ConfigError(
            "producer_id needs acknowledgements, which count its records: use acks='leader' or "
            "'raft', or leave producer_id out"
        )
    if mode is AckMode.UNSET:
        raise ConfigError("acks='unset' is for partitions; without acks=, their mode applies")
    return SenderConfig(
        mode,
        linger_ms,
        batch_bytes,
        buffer_bytes,
        codec_number(compression),
        NO_PRODUCER,
        0,
        round(delivery_timeout_s * 1000),
        max_in_flight,
        producer_id is not None,
    )


def parse_offset(offset: int | str) -> int:
    """Parse the offset that a user has given: a number, "begin" or "end".

    Raises:
        ConfigError: the value is neither an offset nor "begin" nor "end".
    """
    named = {"begin": BEGIN, "end": END}
    if isinstance(offset, str) and offset in named:
        return named[offset]
    if isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0:
        return offset
    raise ConfigError(f"offset={offset!r} must be an offset from 0 on, 'begin' or 'end'")


def check_topic(name: object) -> None:
    """Check that a name is a string.

    Raises:
        InvalidName: the name is not a string.
    """
    if not isinstance(name, str):
        raise InvalidName(f"a topic's name must be str, not {type(name).__name__}")


def check_range(name: str, found: object, low: int, high: int) -> None:
    """Check that an option is an integer from *low* to *high*.

    Raises:
        ConfigError: the option is not of this kind.
    """
    if type(found) is not int or not low <= found <= high:
        raise ConfigError(f"{name}={found!r} must be an integer from {low} to {high}")


def check_flag(name: str, found: object) -> None:
    """Check that an option is True or False; a text such as "no" would count as True.

    Raises:
        ConfigError: the option is neither True nor False.
    """
    if type(found) is not bool:
        raise ConfigError(f"{name}={found!r} must be True or False")


def check_callback(name: str, found: object) -> None:
    """Check that an option can be called, or is None.

    Raises:
        ConfigError: the option is not callable.
    """
    if found is not None and not callable(found):
        raise ConfigError(f"{name}={found!r} must be a function")


def check_seconds(name: str, found: object) -> None:
    """Check that an option is a time in seconds.

    Raises:
        ConfigError: the option is not of this kind.
    """
    if type(found) not in (int, float) or not 0 < cast(float, found) < 1e9:
        raise ConfigError(f"{name}={found!r} must be a positive number of seconds")


def check_rate(name: str, found: object) -> None:
    """Check that an option is a rate per second.

    Raises:
        ConfigError: the option is not of this kind.
    """
    if type(found) not in (int, float) or not 0 < cast(float, found) < 1e9:
        raise ConfigError(f"{name}={found!r} must be a positive number a second")


def check_commit(given: Sequence[object]) -> None:
    """Check that ``commit`` got no positional argument, such as a record, an offset or a count.

    Raises:
        ConfigError: ``commit`` got a positional argument.
    """
    if given:
        raise ConfigError(
            f"commit({given[0]!r:.40}): commit takes no record, offset or number; ack(record) says "
            "what is done, and commit(timeout=5) waits up to 5 seconds"
        )


def check_choice(name: str, found: object, allowed: Sequence[str]) -> None:
    """Check that an option is one of the values in *allowed*.

    Raises:
        ConfigError: the option is not of this kind.
    """
    if found not in allowed:
        raise ConfigError(f"{name}={found!r} must be one of {', '.join(map(repr, allowed))}")
