"""Runs of many seeds: nothing is broken, the same seed is the same run, and plans get small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pymq.testing.plan import FAULTS, PROFILES, Plan, generate
from pymq.testing.shrink import report, shrink
from pymq.testing.swarm import Run, Waived, run_plan
from pymq.testing.world import Violation
from tests.testing.test_planted import forget_repeats


@pytest.mark.parametrize("profile", ["calm", "crash"])
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_broken(seed: int, profile: str) -> None:
    result = run_plan(generate(seed, brokers=1, profile=profile, seconds=8))
    assert result.violation is None, result.message


# What several brokers need not come to when faults have ended: empty, or LIVENESS, or some of it.
WAIVED: tuple[str, ...] = ()
# A producer's batch is renumbered while it may yet be written by its first number.
KNOWN = {(1, "swarm"): "written-once"}


@pytest.mark.parametrize("profile", ["calm", "crash", "network", "swarm", "rolls", "wipe"])
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_broken_among_several(seed: int, profile: str) -> None:
    plan = generate(seed, brokers=3, zkservers=1 + seed % 2, profile=profile, seconds=5)
    result = run_plan(plan, waive=WAIVED)
    assert result.violation == KNOWN.get((seed, profile)), result.message


# Disks were replaced, and partitions did not come back although their records were still there.
WIPED = [(0, 5), (0, 6), (4, 6), (18, 6), (64, 6), (107, 6), (213, 6)]


@pytest.mark.parametrize(("seed", "seconds"), WIPED)
def test_what_was_replaced_is_made_up_for(seed: int, seconds: int) -> None:
    plan = generate(seed, brokers=3, zkservers=2, profile="wipe", seconds=seconds)
    result = run_plan(plan)
    assert result.violation is None, result.message


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("profile", ["calm", "crash", "network", "swarm", "rolls", "wipe"])
def test_nothing_is_broken_among_several_in_many(profile: str) -> None:
    for seed in range(2000, 2060):
        plan = generate(seed, brokers=3, zkservers=1 + seed % 2, profile=profile, seconds=6)
        result = run_plan(plan, waive=WAIVED)
        assert result.violation is None, (seed, result.message)


def test_what_is_waived_is_told() -> None:
    """A rule that nobody insists on does not fail a run, and is not passed over in silence."""
    plan = generate(0, brokers=1, profile="calm", seconds=2)
    run = Run(plan, ["sends-are-answered"])
    with pytest.raises(Waived, match="sends-are-answered"):
        run._until(lambda: False, "sends-are-answered", 0.1)
    with pytest.raises(Violation, match="auditor-reads"):
        run._until(lambda: False, "auditor-reads", 0.1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("profile", ["calm", "crash"])
def test_nothing_is_broken_in_many(profile: str) -> None:
    for seed in range(1000, 1200):
        result = run_plan(generate(seed, brokers=1, profile=profile, seconds=8))
        assert result.violation is None, (seed, result.message)


def test_a_plan_is_data() -> None:
    """The same seed gives the same plan; a plan that was kept is the same run."""
    plan = generate(3, brokers=3, zkservers=2)
    assert plan == generate(3, brokers=3, zkservers=2) or plan.to_json() == (
        generate(3, brokers=3, zkservers=2).to_json()
    )
    kept = Plan.from_json(plan.to_json())
    assert kept.to_json() == plan.to_json()
    assert generate(4, brokers=3, zkservers=2).to_json() != plan.to_json()


def test_every_kind_of_fault_is_planned_for() -> None:
    """Within a few seeds each kind is in, and each is left out."""
    plans = [generate(seed, brokers=3, profile="swarm") for seed in range(40)]
    kinds = [{str(step[1]) for step in plan.faults} | set(plan.link) for plan in plans]
    known = set(FAULTS) - {"one_way", "crash_zk", "uncertain"}  # cut, crash, and a rate of its own
    for kind in known:
        assert any(kind in found for found in kinds), kind
        assert any(kind not in found for found in kinds), kind
    assert all(set(faults) <= set(FAULTS) for faults in PROFILES.values())


def run(hash_seed: int) -> list[list[str]]:
    command = "-m pymq.testing --seeds 1:4 --brokers 1 --profile swarm --seconds 6".split()
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:4]]
    return [row[:3] + row[5:] for row in rows]  # without how fast they were


def test_the_hash_seed_changes_nothing() -> None:
    assert run(1) == run(2)


def test_a_failing_plan_gets_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of dozens of operations a few are left, and the run fails for the same reason."""
    forget_repeats(monkeypatch)
    plans = (generate(seed, brokers=1, profile="network", seconds=6) for seed in range(30))
    plan = next(p for p in plans if run_plan(p).violation == "written-once")
    small = shrink(plan, budget_s=30)
    assert small.result.violation == "written-once"
    assert len(small.plan.ops) <= 8 < len(plan.ops)
    assert len(small.plan.faults) <= 2
    text = report(small)
    assert "written-once" in text
    file = tmp_path / "it.json"
    file.write_text(small.plan.to_json())
    assert run_plan(Plan.from_json(file.read_text())).digest == small.result.digest


def test_what_does_not_fail_is_not_shrunk() -> None:
    with pytest.raises(ValueError, match="breaks no rule"):
        shrink(generate(0, brokers=1, profile="calm", seconds=2))
