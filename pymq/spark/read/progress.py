"""The lag of a running query."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pymq.spark.read.offsets import IDS, Position

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
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
        at, latest = _position(source.endOffset), _position(source.latestOffset)
        if at is None or latest is None:
            continue  # Another kind of source, or nothing read yet.
        for (topic, partition), end in latest.sorted():
            # A topic that was created again has unrelated offsets.
            is_same = at.ids.get(topic) == latest.ids[topic]
            start = at.offsets.get((topic, partition), 0) if is_same else 0
            waiting = found.setdefault(topic, {})
            waiting[partition] = max(waiting.get(partition, 0), end - start, 0)
    return found


def _position(text: str | None) -> Position | None:
    """Parse the position of a pymq source; None for other sources."""
    tree = json.loads(text) if text else None
    return Position.from_json(tree) if isinstance(tree, dict) and IDS in tree else None
