"""Members that were given up for good are told why, as far as there is room."""

from __future__ import annotations

import pytest

from pymq.core.group import fenced_members
from pymq.core.group.fenced_members import FencedMembers
from pymq.core.group.membership import Member
from pymq.core.message import BEGIN


def member(name: str) -> Member:
    return Member(name, name, "t", "sticky", 1_000, 100, 0, BEGIN, 1_000, ())


def test_who_was_given_up_first_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fenced_members, "EXILES_MAX", 2)
    found = FencedMembers()
    for name in ("m1", "m2", "m3"):
        found.add(member(name), is_deleted=True)
    told = [found.reason("g", name).details.get("deleted") for name in ("m1", "m2", "m3", "m4")]
    assert told == [None, "t", "t", None]
