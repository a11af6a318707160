"""Parses and formats sizes, durations, times and counts for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from pymq.core.metadata.topic_config import TopicConfig
from pymq.errors import ConfigError

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNITS_BYTES = {"": 1, "b": 1}
for _shift, _letter in ((10, "k"), (20, "m"), (30, "g"), (40, "t")):
    _UNITS_BYTES |= dict.fromkeys((_letter, f"{_letter}ib"), 1 << _shift)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def duration_ms(text: str) -> int | None:
    """Parse ``90s``, ``15m``, ``1.5h`` or ``7d`` into milliseconds; None for other text."""
    match = _DURATION.fullmatch(text.strip().lower())
    return round(float(match[1]) * _UNITS_MS[match[2]]) if match else None


def size_bytes(text: str) -> int | None:
    """Parse ``4096``, ``64k`` or ``1GiB`` into bytes, by powers of 1024; None for other text."""
    match = _SIZE.fullmatch(text.strip().replace("_", ""))
    if match is None or match[2].lower() not in _UNITS_BYTES:
        return None
    return round(float(match[1]) * _UNITS_BYTES[match[2].lower()])


def option_value(name: str, text: str) -> object:
    """Parse the value of a topic option from the command line.

    Accepts ``retention_ms=7d`` and ``block_bytes=64MiB``, and ``none``, ``true``, ``false``.

    Raises:
        ConfigError: the option needs a duration or a size, and *text* is not one.
    """
    lowered = text.strip().lower()
    if lowered in ("none", "null", ""):
        return None
    if lowered in ("true", "false"):
        return lowered == "true"
    if re.fullmatch(r"-?[\d_]+", lowered):
        return int(lowered)
    found: int | None = None
    wanted = ""
    if name.endswith("_ms"):
        found, wanted = duration_ms(lowered), "duration; give one as 250ms, 90s, 15m, 12h or 7d"
    elif name.endswith("_bytes"):
        found, wanted = size_bytes(lowered), "size; give one as 4096, 64KiB, 64MiB or 1GiB"
    # For an unknown name, a later check of the options raises an error that lists the valid names.
    if wanted and found is None and name in TopicConfig().to_dict():
        raise ConfigError(f"{name}={text.strip()!r} is not a {wanted}")
    return text.strip() if found is None else found


def options(pairs: list[str]) -> dict[str, Any]:
    """Parse options of the form ``NAME=VALUE``.

    Raises:
        ConfigError: an option has another form.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"{pair!r} is not NAME=VALUE, as retention_ms=7d is")
        found[name.strip()] = option_value(name.strip(), text)
    return found


# --- formatting ---------------------------------------------------------------------------------


def size_text(count: float) -> str:
    """Format bytes in about three digits: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def duration_text(ms: float) -> str:
    """Format a duration in the largest unit that fits: ``1.5 h``."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if abs(ms) >= size:
            return f"{ms / size:,.1f} {unit}".replace(".0 ", " ")
    return f"{ms:,.0f} ms"


def time_text(ms: int) -> str:
    """Format milliseconds since 1970 as a time in UTC: ``2013-01-01T05:00:00.000Z``."""
    try:
        moment = datetime.fromtimestamp(ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"  # the time is beyond the calendar
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def parse_time_ms(text: str) -> int | None:
    """Parse an ISO 8601 time, in UTC by default, into milliseconds since 1970."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
