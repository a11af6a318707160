"""Planted bugs are found: this measures the quality of the simulator, its faults and its rules."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testing.planted import AREAS, BUGS, HUNTS, Kill, attempt, hunt, is_clean, planted
from tests.testing.planted.bug import check_fit
from tests.testing.planted.soonest import FINDS, SOONEST, choose

ROOT = Path(__file__).resolve().parents[2]
QUICK = 12  # seeds of each hunt, where the run that found the bug soonest does not find it now
SOAK = 400
PARTS = 4  # the bugs that ordinary tests find are divided into PARTS, so that workers share them
BY_TEST = [name for name in BUGS if BUGS[name].test]
AT_ONCE = [name for name in BY_TEST if not BUGS[name].is_slow]
FOUND = [name for name in BUGS if BUGS[name].hunts]
SOON = [name for name in FOUND if not BUGS[name].is_slow]

Property = Callable[[str, object], None]


def tell(name: str, found: Kill | None, seeds: int, record_property: Property) -> None:
    bug = BUGS[name]
    assert found is not None, f"{bug.what}: not found in {seeds} seeds of {', '.join(bug.hunts)}"
    seen = f"{found.hunt} {found.seed}"
    record_property("planted", ("cluster", bug.area, name, found.runs, seen, found.rule))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SOON)
def test_a_planted_bug_is_found_soon(name: str, record_property: Property) -> None:
    """The run that found a bug soonest finds it, or another one, if runs are not what they were."""
    found: Kill | None = None
    if name in SOONEST:  # the next test makes this run without the bug
        which, seed = SOONEST[name]
        result = attempt(name, which, seed)
        if result is not None:
            found = Kill(which, seed, 1, str(result.violation))
    tell(name, found or hunt(name, QUICK), QUICK, record_property)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", FINDS, ids=lambda run: f"{run[0]}-{run[1]}")
def test_a_run_that_finds_bugs_finds_nothing_without_them(run: tuple[str, int]) -> None:
    """Otherwise the run would prove nothing about the bugs: choose another one for them."""
    assert is_clean(*run), f"choose the runs anew: {FINDS[run]}"


def test_few_runs_are_chosen() -> None:
    """A run that finds two bugs is better than two shorter ones, as each is made without a bug."""
    one, two, both = ("calm", 1), ("calm", 2), ("crash", 1)
    finds = {"first": {one: 10, both: 20}, "second": {two: 10, both: 20}}
    assert choose(finds, {one: 30, two: 30, both: 30}) == {both: ["first", "second"]}
    assert choose(finds, {one: 1, two: 1, both: 30}) == {one: ["first"], two: ["second"]}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FOUND)
def test_a_planted_bug_is_found(name: str, record_property: Property) -> None:
    tell(name, hunt(name, SOAK), SOAK, record_property)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_ordinary_tests_find_the_others(part: int, record_property: Property) -> None:
    """If no run finds a bug in a reasonable time, a test that causes its conditions finds it at
    once.
    """
    find_by_tests(AT_ONCE[part::PARTS], record_property)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_slow_tests_find_the_last(record_property: Property) -> None:
    find_by_tests([name for name in BY_TEST if BUGS[name].is_slow], record_property)


def find_by_tests(names: list[str], record_property: Property) -> None:
    """Run the ordinary test of each bug, which must fail for the reason of the bug."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.testing.planted.plugin", *names],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    found = {
        name: (status, said) for name, status, said in map(json.loads, done.stdout.split("\n")[:-1])
    }
    assert [*found] == names
    for name, (status, said) in found.items():
        bug = BUGS[name]
        assert status == pytest.ExitCode.TESTS_FAILED, f"{name}: {said}"
        # The bug must break a promise or an answer to a client, not merely stop the test from
        # running.
        how = r"^E  .*(assert|DID NOT RAISE|Violation|pymq\.errors\.)"
        assert re.search(how, said, re.MULTILINE), said
        where = bug.test.rpartition("/")[2].partition("[")[0]
        record_property("planted", ("cluster", bug.area, name, 1, "", where))


def test_most_are_found_soon() -> None:
    assert len(FOUND) >= 48
    assert len(SOON) >= 0.9 * len(FOUND)
    assert len(AT_ONCE) >= 0.9 * len(BY_TEST)
    assert {*SOONEST} <= {*SOON}
    assert all(which in BUGS[name].hunts for name, (which, _) in SOONEST.items())
    assert len(AREAS) == 10
    assert len(BY_TEST) + len(FOUND) == len(BUGS)


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_gone_when_it_is_not_planted(name: str) -> None:
    places = [(owner, key) for owner, key, _ in BUGS[name].patches]
    assert places
    before = [owner.__dict__[key] for owner, key in places]
    with planted(name):
        now = [owner.__dict__[key] for owner, key in places]
        assert all(old is not new for old, new in zip(before, now, strict=True))
    assert [owner.__dict__[key] for owner, key in places] == before


def test_a_patch_takes_the_arguments_of_its_original() -> None:
    """A patch that cannot be called would make every run fail, and no hunt would report that."""

    def original(self: object, batch: object, now: int, *, durable: bool) -> None: ...

    def fits(original: object, self: object, *arguments: object, durable: bool) -> None: ...

    def is_outdated(original: object, self: object, batch: object, *, durable: bool) -> None: ...

    check_fit("one", original, fits)
    with pytest.raises(TypeError, match="planted bug one: is_outdated: too many positional"):
        check_fit("one", original, is_outdated)


@pytest.mark.slow
@pytest.mark.parametrize("which", HUNTS)
def test_without_a_bug_nothing_is_found(which: str) -> None:
    assert HUNTS[which].run(2).violation is None
