"""Counts the records between two offsets; there may be fewer records than offsets.

A partition with several replicas uses an offset for the start of each leader epoch and for the end
of each block, and compaction leaves gaps. In a large range these gaps do not matter. But a lag of
one offset without a record would look like a record that nobody consumes, so in a small range the
client reads and counts the records.
"""

from __future__ import annotations

from collections.abc import Mapping

from pymq.client.admin.requests import Requests
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.view import RecordBatch
from pymq.core.delay.record_times import due_now
from pymq.core.message import Fetch, Fetched
from pymq.core.metadata.descriptions import TopicDescription
from pymq.errors import PymqError

FEW = 32  # offsets; a larger range is not read
ROUND_BYTES = 32 << 10  # bytes read at a time from each partition; ...
ROUNDS_MAX = 4  # ... after this many reads each further offset counts as a record

Spans = Mapping[str, tuple[int, int]]


def records_of(questions: Requests, topic: TopicDescription) -> int:
    """Return the number of records of a topic that consumers can read, or a little more."""
    spans = {part.name: (part.start_offset, part.high_watermark) for part in topic.partitions}
    return sum(records_between(questions, topic.name, spans).values())


def records_between(questions: Requests, topic: str, spans: Spans) -> dict[str, int]:
    """Return the number of records in ``[start, end)`` of each partition, or a little more.

    A range of more than :data:`FEW` offsets counts one record for each offset.
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
            # Ignore the error, because the caller's own requests report it; the offsets count as
            # records.
            break
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
    """Return the end of an answer's batches and their number of records; None if it is empty."""
    records, start = 0, at
    for batch in split(answer.data):
        view = RecordBatch(batch.verify().at(topic, name), start, end)
        records += 0 if view.is_control else len(due_now(view, 0))
        at = min(batch.end_offset, end)
    return (at, records) if at > start else None
