"""The options of a mirror, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pymq.client.options import check_range, check_rate
from pymq.core.batch import compression
from pymq.core.types import check_name
from pymq.core.values import value
from pymq.errors import ConfigError

ON_ERROR = ("stop", "skip")
RECORDS_MAX = 1_000_000


@value
class MirrorOptions:
    """The options of a mirror; :func:`pymq.mirror.start.mirror` describes them."""

    conf: dict[str, Any]  # of librdkafka
    topics: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    name: str = "kafka"
    once: bool = False
    rate: float | None = None
    skips: bool = False
    records: int = 10_000
    compression: str | None = None
    exactly_once: bool = True  # to Kafka: with transactions


def checked(
    servers: str,
    topics: str | Sequence[str],
    *,
    excluded: str | Sequence[str] = (),
    groups: str | Sequence[str] = (),
    name: str = "kafka",
    once: bool = False,
    rate: float | None = None,
    on_error: str = "stop",
    records: int = 10_000,
    codec: str | None = None,
    exactly_once: bool = True,
    properties: Mapping[str, str] | None = None,
) -> MirrorOptions:
    """Return the options.

    Raises:
        ConfigError, InvalidName: an option is out of its range.
    """
    patterns = _patterns(topics)
    if not patterns:
        raise ConfigError("no topics given: name them, or a pattern as 'orders*'")
    if on_error not in ON_ERROR:
        raise ConfigError(f"on_error={on_error!r} is neither 'stop' nor 'skip'")
    if rate is not None:
        check_rate("rate", rate)
    check_range("records", records, 1, RECORDS_MAX)
    check_name("pymq.mirror." + name, "name of the mirror")
    compression.codec_number(codec)
    conf = {"log_level": 3, **(properties or {}), "bootstrap.servers": servers}
    return MirrorOptions(
        conf,
        patterns,
        _patterns(excluded),
        _patterns(groups),
        name,
        once,
        rate,
        on_error == "skip",
        records,
        codec,
        exactly_once,
    )


def _patterns(given: str | Sequence[str]) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())
