"""Permanently removed members get the reason; the coordinator remembers a bounded number of
them.
"""

from __future__ import annotations

import pytest

from pymq.core.group import member as members
from pymq.core.group.member import TRANSITIONS, FencedMembers, Member, MemberState
from pymq.core.message import BEGIN, Acquire


def member(name: str) -> Member:
    return Member(name, name, "t", "sticky", 1_000, 100, 0, BEGIN, 1_000, ())


def test_who_was_given_up_first_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "FENCED_MAX", 2)
    found = FencedMembers()
    for name in ("m1", "m2", "m3"):
        found.add(member(name), is_deleted=True)
    told = [found.reason("g", name).details.get("deleted") for name in ("m1", "m2", "m3", "m4")]
    assert told == [None, "t", "t", None]


@pytest.mark.parametrize("start", MemberState)
@pytest.mark.parametrize("to", MemberState)
def test_a_member_changes_its_state_only_as_the_table_says(
    start: MemberState, to: MemberState
) -> None:
    one = member("m1")
    one.state = start
    if to in TRANSITIONS[start]:
        one.move(to)
        assert one.state is to
    else:
        with pytest.raises(AssertionError):
            one.move(to)


def test_one_request_of_a_member_waits_at_a_time() -> None:
    one, request = member("m1"), Acquire(1, "g", "m1", (), 10, 1)
    with pytest.raises(AssertionError):  # the member's Join waits
        one.move(MemberState.WAITING, request, 5)
    one.move(MemberState.STABLE)
    one.move(MemberState.WAITING, request, 5)
    with pytest.raises(AssertionError):
        one.move(MemberState.WAITING, Acquire(2, "g", "m1", (), 10, 1), 5)
    assert one.waiting is request
    one.move(MemberState.STABLE)
    assert one.waiting is None
