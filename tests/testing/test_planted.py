"""Planted bugs are found: the measure of the simulator, of its faults and of its rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.testing.planted import AREAS, BUGS, HUNTS, hunt, planted

QUICK = 12  # seeds of each hunt
SOAK = 400
OPEN = 60
FOUND = [name for name in BUGS if not BUGS[name].is_open]
SOON = [name for name in FOUND if not BUGS[name].is_slow]

Property = Callable[[str, object], None]


def find(name: str, seeds: int, record_property: Property) -> None:
    found = hunt(name, seeds)
    bug = BUGS[name]
    assert found is not None, f"{bug.what}: not found in {seeds} seeds of {', '.join(bug.hunts)}"
    seen = f"{found.hunt} {found.seed}"
    record_property("planted", ("cluster", bug.area, name, found.runs, seen, found.rule))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SOON)
def test_a_planted_bug_is_found_soon(name: str, record_property: Property) -> None:
    find(name, QUICK, record_property)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FOUND)
def test_a_planted_bug_is_found(name: str, record_property: Property) -> None:
    find(name, SOAK, record_property)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="a gap of the simulator")
@pytest.mark.parametrize("name", [name for name in BUGS if BUGS[name].is_open])
def test_what_is_not_found_yet(name: str, record_property: Property) -> None:
    """Once one is found, it is to be counted with those above."""
    find(name, OPEN, record_property)


def test_most_are_found_soon() -> None:
    assert len(FOUND) >= 48
    assert len(SOON) >= 0.9 * len(FOUND)
    assert len(AREAS) == 5


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_gone_when_it_is_not_planted(name: str) -> None:
    places = [(owner, key) for owner, key, _ in BUGS[name].patches]
    assert places
    before = [owner.__dict__[key] for owner, key in places]
    with planted(name):
        now = [owner.__dict__[key] for owner, key in places]
        assert all(old is not new for old, new in zip(before, now, strict=True))
    assert [owner.__dict__[key] for owner, key in places] == before


@pytest.mark.parametrize("which", HUNTS)
def test_without_a_bug_nothing_is_found(which: str) -> None:
    assert HUNTS[which].run(2).violation is None
