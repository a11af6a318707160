"""The bounds of what a gate keeps for share groups."""

from __future__ import annotations

import pytest

from pymq.core.message import Heartbeat, Leave
from pymq.core.types import NEVER
from pymq.kafka.codes import Code
from pymq.kafka.shared import share_members, share_sessions
from pymq.kafka.shared.share_members import ShareMember, ShareMembers
from pymq.kafka.shared.share_sessions import (
    BEAT_MS,
    EVICT_MS,
    SessionMember,
    ShareSession,
    ShareSessions,
)

ID = bytes(16)


def opened(sessions: ShareSessions, member: str, connection: int = 1, now: int = 0) -> ShareSession:
    found = sessions.turn("g", member, 0, connection, now)
    assert isinstance(found, ShareSession)
    found.members["t"] = SessionMember(f"{member}.t", "t", "1", "broker-0", is_joined=True)
    return found


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that was not used for long gives its place away; one in use does not."""
    monkeypatch.setattr(share_sessions, "SESSIONS_MAX", 2)
    sessions = ShareSessions()
    opened(sessions, "a")
    second = opened(sessions, "b")
    assert sessions.turn("g", "c", 0, 1, EVICT_MS - 1) is Code.SHARE_SESSION_LIMIT_REACHED
    assert sessions.turn("g", "a", 1, 1, EVICT_MS - 1)  # in use
    opened(sessions, "c", now=EVICT_MS)
    assert second.is_over
    assert len(sessions) == 2
    assert sessions.turn("g", "b", 1, 1, EVICT_MS) is Code.SHARE_SESSION_NOT_FOUND
    # The evicted session has left its group.
    first, *beats = [make(7) for _, make in sessions.beats(EVICT_MS)]
    assert first == Leave(7, "g", "b.t")
    assert beats == [Heartbeat(7, "g", "a.t", ()), Heartbeat(7, "g", "c.t", ())]


def test_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "PARTITIONS_MAX", 3)
    sessions = ShareSessions()
    first, second = opened(sessions, "a"), opened(sessions, "b")
    assert sessions.change(first, [(ID, 0), (ID, 1)], []) is Code.NONE
    assert sessions.change(first, [(ID, 1), (ID, 2)], [(ID, 0)]) is Code.NONE
    assert sessions.change(second, [(ID, 0)], []) is Code.NONE
    assert sessions.change(second, [(ID, 1)], []) is Code.SHARE_SESSION_LIMIT_REACHED
    assert second.is_over
    assert sessions.change(first, [(ID, 3)], []) is Code.NONE  # There is room again.


def test_a_session_ends_with_its_connection() -> None:
    sessions = ShareSessions()
    opened(sessions, "a", 1)
    opened(sessions, "b", 2)
    assert sessions.turn("g", "a", 1, 3, 0)  # The client has connected anew.
    assert sessions.disconnected(1) == []
    (request,) = sessions.disconnected(3)
    assert request[0] == "broker-0"
    assert request[1](5) == Leave(5, "g", "a.t")
    assert len(sessions) == 1


def test_a_new_session_keeps_the_leases_of_the_lost_one() -> None:
    sessions = ShareSessions()
    lost = opened(sessions, "a")
    again = sessions.turn("g", "a", 0, 2, 0)
    assert isinstance(again, ShareSession)
    assert lost.is_over
    assert again.members is lost.members
    assert not again.parts


def test_heartbeats_of_sessions() -> None:
    sessions = ShareSessions()
    assert sessions.beat_at == NEVER
    opened(sessions, "a")
    assert sessions.beats(BEAT_MS - 1) == []
    assert len(sessions.beats(BEAT_MS)) == 1
    assert sessions.beat_at == 2 * BEAT_MS
    sessions.turn("g", "a", -1, 1, 0)
    assert sessions.beats(2 * BEAT_MS) == []
    assert sessions.beat_at == NEVER


def member(name: str, now: int = 0) -> ShareMember:
    gone_at = now + share_members.SESSION_MS
    return ShareMember("g", name, 1, None, "c", "h", ("t",), gone_at)


def test_members_are_bounded_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_members, "GROUP_MEMBERS_MAX", 2)
    members = ShareMembers()
    assert members.join(member("a"), 0) is Code.NONE
    assert members.join(member("b"), 0) is Code.NONE
    assert members.join(member("b"), 0) is Code.NONE  # It begins again.
    assert members.join(member("c"), 0) is Code.GROUP_MAX_SIZE_REACHED
    late = share_members.SESSION_MS
    assert isinstance(members.beat("g", "a", 1, late - 1), ShareMember)
    assert [each.id for each in members.of("g", late)] == ["a"]
    assert members.beat("g", "b", 1, late) is Code.UNKNOWN_MEMBER_ID
    assert members.groups(late) == {"g"}
    assert members.leave("g", "a")
    assert not members.leave("g", "a")
    assert len(members) == 0
