"""Share sessions (KIP-932): the partitions that a member of a share group reads at one broker.

======================  =========================================================================
epoch of the request    what it is
======================  =========================================================================
0                       the first request of a new session
1, 2, 3, ...            the next ones; each names the partitions that are added or forgotten
-1                      the last request: the session ends, and other members get its records
======================  =========================================================================

For each topic, a session is a member of pymq's group of that name. So the group's coordinator
leases records to share sessions and to pymq's own consumers by the same rules. The session ends
with the client's connection, too.

Sessions are bounded. If all places are taken by sessions in use, a client gets none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import partial

from pymq.core.message import Heartbeat, Leave
from pymq.core.types import NEVER
from pymq.core.values import Factory, define
from pymq.kafka.codes import Code
from pymq.kafka.shared.conversation import Request

SESSIONS_MAX = 2_000  # of a gate
PARTITIONS_MAX = 200_000  # of all sessions
EVICT_MS = 120_000  # a session that was not used for so long gives its place away
BEAT_MS = 10_000  # between two heartbeats for members of pymq's groups
INITIAL, FINAL = 0, -1  # epochs
_LAST_EPOCH = (1 << 31) - 1

Place = tuple[bytes, int]  # a topic's id and a partition


@define
class SessionMember:
    """The member of pymq's group that a session is for one topic."""

    name: str
    topic: str
    topic_id: str
    coordinator: str = ""
    within: tuple[str, ...] = ()  # the partitions that it reads
    partitions: tuple[str, ...] = ()  # all of the topic
    is_joined: bool = False
    generation: int = 0  # of the group, when the member last heard of its assignment
    is_stale: bool = False  # there is a later assignment
    ends: dict[str, int] = Factory(dict)  # of the partitions, as the coordinator knows them


@define
class ShareSession:
    """The partitions that a member reads at this broker."""

    group: str
    member: str
    connection: int
    epoch: int = 1  # of the next request
    parts: dict[Place, None] = Factory(dict)
    members: dict[str, SessionMember] = Factory(dict)  # by topic
    used_at: int = 0
    is_over: bool = False

    def leave(self, topics: Iterable[str]) -> list[Request]:
        """Return the requests that end the membership for some topics."""
        requests: list[Request] = []
        for topic in list(topics):
            member = self.members.pop(topic, None)
            if member is not None and member.coordinator:
                leave = partial(Leave, group=self.group, member=member.name)
                requests.append((member.coordinator, leave))
        return requests


class ShareSessions:
    """The share sessions of a gate."""

    def __init__(self) -> None:
        # least recently used first
        self._sessions: OrderedDict[tuple[str, str], ShareSession] = OrderedDict()
        self._partitions = 0
        self._left: list[Request] = []  # of sessions that gave their place away
        self.beat_at = NEVER

    def __len__(self) -> int:
        return len(self._sessions)

    def turn(
        self, group: str, member: str, epoch: int, connection: int, now: int
    ) -> ShareSession | Code:
        """Return the session of a request, or the code of a refusal."""
        key = group, member
        session = self._sessions.get(key)
        if epoch == INITIAL:
            return self._begin(key, session, connection, now)
        if session is None:
            return Code.SHARE_SESSION_NOT_FOUND
        if epoch == FINAL:
            self._end(key)
            return session
        if session.epoch != epoch:
            return Code.INVALID_SHARE_SESSION_EPOCH
        session.epoch = session.epoch + 1 if session.epoch < _LAST_EPOCH else 1
        session.used_at, session.connection = now, connection
        self._sessions.move_to_end(key)
        return session

    def change(
        self, session: ShareSession, added: Iterable[Place], forgotten: Iterable[Place]
    ) -> Code:
        """Add partitions to a session, and remove others; returns why not."""
        before = len(session.parts)
        session.parts |= dict.fromkeys(added)
        for place in forgotten:
            session.parts.pop(place, None)
        self._partitions += len(session.parts) - before
        if self._partitions > PARTITIONS_MAX:
            self._left += session.leave(session.members)
            self._end((session.group, session.member))
            return Code.SHARE_SESSION_LIMIT_REACHED
        return Code.NONE

    def _begin(
        self, key: tuple[str, str], before: ShareSession | None, connection: int, now: int
    ) -> ShareSession | Code:
        # The client has lost its session, but not the leases: its members remain.
        members = before.members if before is not None else {}
        self._end(key)
        if len(self._sessions) >= SESSIONS_MAX:
            oldest, session = next(iter(self._sessions.items()))
            if now - session.used_at < EVICT_MS:
                return Code.SHARE_SESSION_LIMIT_REACHED
            self._left += session.leave(session.members)
            self._end(oldest)
        session = ShareSession(*key, connection, members=members, used_at=now)
        self._sessions[key] = session
        self.beat_at = min(self.beat_at, now + BEAT_MS)
        return session

    def _end(self, key: tuple[str, str]) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.is_over = True
            self._partitions -= len(session.parts)

    def disconnected(self, connection: int) -> list[Request]:
        """End the sessions of a connection; returns the requests that end their memberships."""
        requests: list[Request] = []
        for key, session in list(self._sessions.items()):
            if session.connection == connection:
                requests += session.leave(session.members)
                self._end(key)
        return requests

    def beats(self, now: int) -> list[Request]:
        """Return the heartbeats that are due: a worker may take long for its records."""
        if now < self.beat_at:
            return []
        requests, self._left = self._left, []
        for session in self._sessions.values():
            for member in session.members.values():
                if member.is_joined:
                    beat = partial(
                        Heartbeat, group=session.group, member=member.name, partitions=()
                    )
                    requests.append((member.coordinator, beat))
        self.beat_at = now + BEAT_MS if self._sessions else NEVER
        return requests
