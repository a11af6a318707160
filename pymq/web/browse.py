"""Reads a few records of a partition for the page, without a subscription."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymq.client.client import Client
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.record import Record
from pymq.core.batch.view import RecordBatch
from pymq.core.message import Fetch, Fetched
from pymq.core.types import is_internal
from pymq.errors import AuthorizationFailed, InvalidRequest

LIMIT = 50
LIMIT_MAX = 200
FETCH_BYTES = 1 << 18
FETCHES_MAX = 8
TEXT_MAX = 4_096  # most characters shown of a value
HEX_MAX = 256  # most bytes shown of a value that is not text
HEADERS_MAX = 50

Json = dict[str, Any]


def browse(client: Client, query: Mapping[str, str]) -> Json:
    """Return records of a partition from ``offset`` on, or before its ``end``.

    ``offset`` is a number, ``begin``, or ``end`` for the last records; ``time_ms`` replaces it.

    Raises:
        InvalidRequest: the query is malformed.
        PymqError: the records cannot be read.
    """
    topic = query.get("topic", "")
    if is_internal(topic):
        raise AuthorizationFailed("what is in internal topics is pymq's own")
    name = client.questions.partition_name(topic, query.get("partition", "0"))
    limit = min(_number(query.get("limit", str(LIMIT))), LIMIT_MAX)
    start, end = client.questions.bounds(topic, name)
    offset = query.get("offset", "end")
    if "time_ms" in query:
        at = client.offsets_at(topic, _number(query["time_ms"]))[name]
    elif offset == "begin":
        at = start
    elif offset == "end":
        at = end - limit
    else:
        at = _number(offset)
    at = min(max(at, start), end)
    records = _read(client, topic, name, at, end, limit)
    return {
        "topic": topic,
        "partition": name,
        "start": start,
        "end": end,
        "from": at,
        "to": records[-1].offset + 1 if records else at,
        "records": [_shown(record) for record in records],
    }


def _read(
    client: Client, topic: str, partition: str, at: int, end: int, limit: int
) -> list[Record]:
    records: list[Record] = []
    for _ in range(FETCHES_MAX):
        if at >= end or len(records) >= limit:
            break

        def fetch(request: int, at: int = at) -> Fetch:
            return Fetch(request, topic, partition, at, FETCH_BYTES, 0, end)

        answer = client.questions.ask_leader(topic, partition, fetch)
        if not isinstance(answer, Fetched) or not answer.data:
            break
        for batch in split(answer.data):
            view = RecordBatch(batch.verify().at(topic, partition), at)
            if not view.is_hidden:
                # Decode only the shown part of a large batch.
                records += view.part(at, min(end, at + limit - len(records)), 1).records()
            at = max(at, batch.end_offset)
            if len(records) >= limit:
                break
    return records[:limit]


def _shown(record: Record) -> Json:
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": payload(record.key),
        "value": payload(record.value),
        "headers": [[name, payload(found)] for name, found in record.headers[:HEADERS_MAX]],
    }


def payload(data: bytes | None) -> Json | None:
    """Return bytes as text if they are UTF-8, otherwise in hexadecimal."""
    if data is None:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if data and (not text or any(not (c.isprintable() or c in "\n\r\t") for c in text[:TEXT_MAX])):
        return {"size": len(data), "hex": data[:HEX_MAX].hex(" "), "cut": len(data) > HEX_MAX}
    return {"size": len(data), "text": text[:TEXT_MAX], "cut": len(text) > TEXT_MAX}


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidRequest(f"{text!r} is not a whole number")
    return int(text)
