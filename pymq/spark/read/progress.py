"""The lag of a running query."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pymq.core.values import value
from pymq.spark.read.offsets import IDS, Position

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery


def lag(query: StreamingQuery | StreamingQueryProgress) -> dict[str, dict[str, int]]:
    """Return the lag, in records, of each partition in a query's last progress report.

    Takes a query, or the progress that a listener receives. The result is keyed by topic and
    partition; it is empty before the end of a query's first batch. If several sources read a
    partition, the largest lag counts.
    """
    progress = query.lastProgress if hasattr(query, "lastProgress") else query
    found: dict[str, dict[str, int]] = {}
    for source in progress.sources if progress is not None else ():
        far = behind(source)
        for (topic, partition), records in far.records.items() if far is not None else ():
            waiting = found.setdefault(topic, {})
            waiting[partition] = max(waiting.get(partition, 0), records)
    return found


def describe(query: StreamingQuery | StreamingQueryProgress) -> list[str]:
    """Describe each source of a query, for example ``pymq[orders,payments]``.

    Spark shows the name of a Java class as the description of a Python source. The argument is that
    of :func:`lag`; the list is empty before the end of a query's first batch.
    """
    progress = query.lastProgress if hasattr(query, "lastProgress") else query
    return [description(source) for source in progress.sources] if progress is not None else []


def description(source: SourceProgress) -> str:
    """Describe one source; for a source of another kind, return Spark's description."""
    found = _position(source.latestOffset) or _position(source.endOffset)
    return str(source.description) if found is None else f"pymq[{','.join(sorted(found.ids))}]"


@value
class OffsetsBehind:
    """How far a source is behind the ends of its partitions."""

    records: dict[tuple[str, str], int]  # unread records, by (topic, partition)
    at: Position
    latest: Position


def behind(source: SourceProgress) -> OffsetsBehind | None:
    """Return how far one source is behind; None for other sources, and before the first batch."""
    at, latest = _position(source.endOffset), _position(source.latestOffset)
    if at is None or latest is None:
        return None
    found = {}
    for (topic, partition), end in latest.sorted():
        # A topic that was created again has unrelated offsets.
        is_same = at.ids.get(topic) == latest.ids[topic]
        start = at.offsets.get((topic, partition), 0) if is_same else 0
        found[topic, partition] = max(end - start, 0)
    return OffsetsBehind(found, at, latest)


def _position(text: str | None) -> Position | None:
    """Parse the position of a pymq source; None for other sources."""
    tree = json.loads(text) if text else None
    return Position.from_json(tree) if isinstance(tree, dict) and IDS in tree else None
