"""How many records lie between two offsets, where that is not how many offsets do.

A partition with several replicas spends an offset on each leader that begins and on each block that
ends, and compaction leaves gaps. Among many records nobody minds; but where all that is left are
offsets of pymq's own, whoever looks must not be told that records wait. So if there are few offsets
it is looked at what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping

from pymq.client.admin.requests import Requests
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.view import RecordBatch
from pymq.core.message import Fetch, Fetched
from pymq.core.metadata.nodes import TopicDescription
from pymq.errors import PymqError

FEW = 32  # offsets, up to which they are looked at
ROUND_BYTES = 32 << 10  # of one look at each partition; ...
ROUNDS_MAX = 4  # ... and what is beyond counts as it is

Spans = Mapping[str, tuple[int, int]]


def records_of(questions: Requests, topic: TopicDescription) -> int:
    """How many records a topic holds, at most, that consumers can read."""
    spans = {part.name: (part.start_offset, part.high_watermark) for part in topic.partitions}
    return sum(records_between(questions, topic.name, spans).values())


def records_between(questions: Requests, topic: str, spans: Spans) -> dict[str, int]:
    """How many records are in ``[start, end)`` of each partition, at most.

    Of more than :data:`FEW` offsets each counts as a record.
    """
    found = {name: max(0, end - start) for name, (start, end) in spans.items()}
    at = {name: start for name, (start, _) in spans.items() if 0 < found[name] <= FEW}
    for _ in range(ROUNDS_MAX):
        if not at:
            break

        def fetch(request: int, name: str, at: Mapping[str, int] = at) -> Fetch:
            return Fetch(request, topic, name, at[name], ROUND_BYTES, 0, spans[name][1])

        try:
            answers = questions.ask_leaders(topic, at, fetch)
        except PymqError:
            break  # Somebody else has all trouble to tell of; this is how far we know.
        next_at = {}
        for name, answer in answers.items():
            assert isinstance(answer, Fetched)
            end = spans[name][1]
            start, read = at[name], _read(answer, topic, name, at[name], end)
            if read is not None:
                found[name] -= read[0] - start - read[1]
                if read[0] < end:
                    next_at[name] = read[0]
        at = next_at
    return found


def _read(answer: Fetched, topic: str, name: str, at: int, end: int) -> tuple[int, int] | None:
    """How far an answer reaches, and how many records are in it; None if it holds nothing."""
    records, start = 0, at
    for batch in split(answer.data):
        view = RecordBatch(batch.verify().at(topic, name), start, end)
        records += 0 if view.is_control else len(view)
        at = min(batch.end_offset, end)
    return (at, records) if at > start else None
