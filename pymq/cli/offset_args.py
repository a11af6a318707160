"""Parses start positions in a partition: the earliest record, an offset, a time."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pymq
from pymq.cli.units import duration_ms, parse_time_ms
from pymq.core.metadata.descriptions import PartitionDescription
from pymq.core.values import value
from pymq.errors import ConfigError, RequestTimeout

FORMS = "earliest, latest, an OFFSET, -N for the last N, a time as 2026-01-31T08:00, or 15m ago"


@value
class OffsetArg:
    """A start position in every partition of a topic."""

    kind: str  # "earliest", "latest", "offset", "last" (a number before the end) or "time"
    number: int = 0


def parse_place(text: str, now_ms: int | None = None) -> OffsetArg:
    """Parse a start position.

    Raises:
        ConfigError: *text* is not a start position.
    """
    word = text.strip()
    if word in ("earliest", "begin", "latest", "end"):
        return OffsetArg({"begin": "earliest", "end": "latest"}.get(word, word))
    if word.isascii() and word.isdigit():
        return OffsetArg("offset", int(word))
    if word.startswith("-") and word[1:].isascii() and word[1:].isdigit():
        return OffsetArg("last", int(word[1:]))
    ago = duration_ms(word.removesuffix(" ago"))
    if ago is not None:
        now = round(time.time() * 1000) if now_ms is None else now_ms
        return OffsetArg("time", max(0, now - ago))
    moment = parse_time_ms(word)
    if moment is None or moment < 0:
        raise ConfigError(f"{text!r} is not a position in a topic; use {FORMS}")
    return OffsetArg("time", moment)


def offsets_of(
    mq: pymq.Client, topic: str, place: OffsetArg, partitions: Mapping[str, PartitionDescription]
) -> dict[str, int]:
    """Return the offset of a start position in each partition, limited to the partition's start and
    end.

    Raises:
        RequestTimeout: no replica of a partition has reported its end in time.
    """
    silent = [name for name, partition in partitions.items() if not partition.is_reported]
    if silent:
        if len(silent) == 1:
            what = f"the end of partition {silent[0]} is not known"
        else:
            what = f"the ends of {len(silent):,} partitions are not known, the first is {silent[0]}"
        raise RequestTimeout(f"{topic}: {what}: no replica has reported in time; try again")
    at = mq.offsets_at(topic, place.number) if place.kind == "time" else {}
    found = {}
    for name, partition in partitions.items():
        start, end = partition.start_offset, partition.high_watermark
        wanted = {
            "earliest": start,
            "latest": end,
            "offset": place.number,
            "last": end - place.number,
            "time": at.get(name, end),
        }[place.kind]
        found[name] = min(max(wanted, start), end)
    return found
