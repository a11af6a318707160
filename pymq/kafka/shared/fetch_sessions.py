"""Fetch sessions (KIP-227): a client names only the partitions whose fetch has changed.

The gate keeps the partitions of each session, and leaves out of an answer those without news:

======================  =========================================================================
epoch of the request    what it is
======================  =========================================================================
0                       the first fetch of a new session; it names all partitions
1, 2, 3, ...            the next ones; each names what has changed, and what is forgotten
-1                      a fetch without a session; it ends the session that it names
======================  =========================================================================

Sessions are bounded. If all places are taken by sessions in use, a client gets none, and names its
partitions each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import attrs

from pymq.core.values import Factory, define
from pymq.kafka.codes import Code
from pymq.kafka.wire.messages import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
    FetchResponsePartitionData,
)

SESSIONS_MAX = 1_000  # max.incremental.fetch.session.cache.slots of Kafka
PARTITIONS_MAX = 200_000  # of all sessions, some 300 bytes each
EVICT_MS = 120_000  # a session that was not used for so long gives its place away
_INITIAL, _FINAL = 0, -1
_LAST_EPOCH = (1 << 31) - 1
_ID_DIGITS = 7  # hex digits of a session's id, which is a positive 32-bit number

Topic = tuple[str, bytes]  # the name or the id, as the client gives it
Key = tuple[str, bytes, int]  # and the partition


@define
class _SessionPart:
    """A partition of a session: what the client asks for, and what it was told last."""

    asked: FetchRequestFetchPartition
    high_watermark: int = -1
    log_start: int = -1


@define
class FetchSession:
    """The partitions that a client fetches."""

    id: int
    epoch: int = 1  # of the next request
    parts: dict[Key, _SessionPart] = Factory(dict)
    used_at: int = 0
    is_first: bool = True  # the answer has to hold all partitions

    def topics(self) -> list[FetchRequestFetchTopic]:
        """Return all partitions, as a request without a session names them."""
        found: dict[Topic, FetchRequestFetchTopic] = {}
        for (name, topic_id, _), part in self.parts.items():
            topic = found.get((name, topic_id))
            if topic is None:
                topic = found[name, topic_id] = FetchRequestFetchTopic(name, topic_id)
            topic.partitions.append(part.asked)
        return list(found.values())

    def finish(self, answer: FetchResponse) -> None:
        """Leave the partitions without news out of an answer, and remember what the client gets."""
        answer.session_id = self.id
        for topic in answer.responses:
            topic.partitions = [
                each
                for each in topic.partitions
                if self._is_news(topic.topic, topic.topic_id, each)
            ]
        answer.responses = [topic for topic in answer.responses if topic.partitions]
        self.is_first = False

    def _is_news(self, name: str, topic_id: bytes, each: FetchResponsePartitionData) -> bool:
        part = self.parts.get((name, topic_id, each.partition_index))
        if part is None:
            return True
        known = part.high_watermark, part.log_start
        now = each.high_watermark, each.log_start_offset
        # A client that was told an error hears when it is over.
        part.high_watermark, part.log_start = (-1, -1) if each.error_code else now
        return self.is_first or bool(each.error_code or each.records) or known != now


class FetchSessions:
    """The sessions of a gate."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def turn(self, m: FetchRequest, now: int) -> FetchSession | Code | None:
        """Return the session of a request, brought up to date; None if it has none.

        The code is that of a refusal: the client then begins a new session.
        """
        if m.session_epoch in (_INITIAL, _FINAL):
            self._end(m.session_id)
            return self._begin(m, now) if m.session_epoch == _INITIAL else None
        session = self._sessions.get(m.session_id)
        if session is None:
            return Code.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != m.session_epoch:
            return Code.INVALID_FETCH_SESSION_EPOCH
        session.epoch = session.epoch + 1 if session.epoch < _LAST_EPOCH else 1
        session.used_at = now
        self._sessions.move_to_end(session.id)
        for forgotten in m.forgotten_topics_data:
            for index in forgotten.partitions:
                gone = session.parts.pop((forgotten.topic, forgotten.topic_id, index), None)
                self._partitions -= gone is not None
        self._add(session, m)
        if self._partitions > PARTITIONS_MAX:
            self._end(session.id)
            return Code.FETCH_SESSION_ID_NOT_FOUND
        return session

    def _begin(self, m: FetchRequest, now: int) -> FetchSession | None:
        count = sum(len(topic.partitions) for topic in m.topics)
        while self._sessions and not self._has_room(count):
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used_at < EVICT_MS:
                break
            self._end(oldest.id)
        if not count or not self._has_room(count):
            return None
        number = 0
        while not number or number in self._sessions:
            number = int(self._new_id()[-_ID_DIGITS:], 16)
        session = self._sessions[number] = FetchSession(number, used_at=now)
        self._add(session, m)
        return session

    def _has_room(self, count: int) -> bool:
        return len(self._sessions) < SESSIONS_MAX and self._partitions + count <= PARTITIONS_MAX

    def _add(self, session: FetchSession, m: FetchRequest) -> None:
        for topic in m.topics:
            for asked in topic.partitions:
                key = topic.topic, topic.topic_id, asked.partition
                known = session.parts.get(key)
                if known is None:
                    session.parts[key] = _SessionPart(asked)
                    self._partitions += 1
                else:
                    session.parts[key] = attrs.evolve(known, asked=asked)

    def _end(self, number: int) -> None:
        session = self._sessions.pop(number, None)
        if session is not None:
            self._partitions -= len(session.parts)
