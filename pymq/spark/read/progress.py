"""How far a running query is behind what it reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pymq.spark.read.offsets import IDS, Position

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery


def lag(query: StreamingQuery | StreamingQueryProgress) -> dict[str, dict[str, int]]:
    """How many records of each partition a query had not read when it told of itself last.

    Takes a query, or the progress that a listener is told. The result is by topic and partition;
    it is empty before the end of a query's first batch. Of several sources of one partition the one
    that is farther behind counts.
    """
    progress = query.lastProgress if hasattr(query, "lastProgress") else query
    found: dict[str, dict[str, int]] = {}
    for source in progress.sources if progress is not None else ():
        at, latest = _position(source.endOffset), _position(source.latestOffset)
        if at is None or latest is None:
            continue  # It is of another kind, or has read nothing yet.
        for (topic, partition), end in latest.sorted():
            # A topic that was made again has the offsets of another one.
            is_same = at.ids.get(topic) == latest.ids[topic]
            start = at.offsets.get((topic, partition), 0) if is_same else 0
            waiting = found.setdefault(topic, {})
            waiting[partition] = max(waiting.get(partition, 0), end - start, 0)
    return found


def _position(text: str | None) -> Position | None:
    """What a source of pymq has said; None when it was another source."""
    tree = json.loads(text) if text else None
    return Position.from_json(tree) if isinstance(tree, dict) and IDS in tree else None
