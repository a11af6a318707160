"""Runs of many seeds break no rule, the same seed gives the same run, and failing plans are
shrunk.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from pymq.core.block import log, recent_batches
from pymq.testing.faults.kinds import FAULTS, PROFILES
from pymq.testing.faults.limits import LIMITS, limited
from pymq.testing.faults.plan import Plan, generate
from pymq.testing.run import SimulationRun, run_plan
from pymq.testing.shrink import report, shrink
from pymq.testing.simulation.world import Violation
from pymq.testing.workload.liveness import Waived
from tests.testing.planted import planted

# number of seeds in a test, so that workers share them, and number of such tests
CHUNK, CHUNKS = 5, 5
SECONDS = 3.0  # seconds of faults in each run: some 5,000 events
PLANS = Path(__file__).parents[1] / "data" / "plans"


def broken(seeds: Iterable[int]) -> list[str]:
    """Run each seed, with all profiles in turn.

    Returns the failures, each with the command to repeat it.
    """
    found = []
    for seed in seeds:
        plan = generate(
            seed, brokers=None, zkservers=None, profile="all", seconds=SECONDS, restart="any"
        )
        result = run_plan(plan)
        if result.violation is not None:
            command = f"python -m pymq.testing --profile all --seconds {SECONDS:g} --seeds {seed}"
            found.append(f"{command} --trace\n{result.message}")
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nothing_is_broken(chunk: int, request: pytest.FixtureRequest) -> None:
    """Some seeds of clusters of all sizes; others with ``--pymq-seed``, many in ``make soak``."""
    first = CHUNK * (CHUNKS * int(request.config.getoption("--pymq-seed", 0)) + chunk)
    failed = broken(range(first, first + CHUNK))
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("name", sorted(path.stem for path in PLANS.glob("*.json")))
def test_what_failed_once(name: str) -> None:
    """Plans that once found a bug, which was fixed since."""
    result = run_plan(Plan.from_json((PLANS / f"{name}.json").read_text(encoding="utf-8")))
    assert result.violation is None, result.message


def test_what_is_waived_is_told() -> None:
    """A broken rule that a run waives does not fail it, but is reported."""
    plan = generate(0, brokers=1, profile="calm", seconds=2)
    run = SimulationRun(plan, ["sends-are-answered"])
    with pytest.raises(Waived, match="sends-are-answered"):
        run._liveness.until(lambda: False, "sends-are-answered", 0.1)
    with pytest.raises(Violation, match="auditor-reads"):
        run._liveness.until(lambda: False, "auditor-reads", 0.1)


def test_what_is_only_slow_is_waited_for() -> None:
    """A group that takes one record at a time is slow, but passes.

    Without progress a run fails as soon as before.
    """
    run = SimulationRun(generate(0, brokers=1, profile="calm", seconds=2))
    begun = run.world.now

    def seconds() -> int:
        return (run.world.now - begun) // 1_000_000

    run._liveness.until(lambda: seconds() > 3, "groups-reach-the-end", 2.0, progress=seconds)
    with pytest.raises(Violation, match="groups-reach-the-end"):
        run._liveness.until(lambda: False, "groups-reach-the-end", 2.0, progress=seconds)
    assert seconds() == 3 + 1 + 10
    with pytest.raises(Violation, match="groups-reach-the-end"):
        run._liveness.until(lambda: False, "groups-reach-the-end", 2.0)


def test_disks_that_failed_are_left_as_they_are_in_half_of_the_runs() -> None:
    """An operator who restarts each broker would hide errors that only a restart repairs."""
    plans = [generate(seed, seconds=1) for seed in range(400)]
    assert 160 < sum(plan.operator for plan in plans) < 240


def test_not_everything_is_restarted_when_the_faults_end() -> None:
    """A restart would hide errors such as a stuck replica or a client that waits forever."""
    kinds = Counter(generate(seed, seconds=1, restart="any").restart for seed in range(400))
    assert set(kinds) == {"all", "apps", "none"}
    assert min(kinds.values()) > 60
    assert generate(0, seconds=1, restart="none").restart == "none"


@pytest.mark.parametrize(("seed", "seconds"), [(560, 3), (324_036, 4), (324_562, 4)])
def test_brokers_whose_disk_failed_are_looked_after_before_everything_is_to_work(
    seed: int, seconds: float
) -> None:
    """The faults end between a failed sync and a restart.

    In two of the plans a block could not be read; the broker reads it again without a restart.
    """
    plan = generate(
        seed, brokers=None, zkservers=None, profile="all", seconds=seconds, restart="none"
    )
    result = run_plan(plan)
    assert result.violation is None, result.message


def test_no_broker_beats_so_slowly_that_it_is_taken_for_dead() -> None:
    """However different the clocks are, no broker's heartbeats are so slow that it is declared
    dead.

    In an earlier version such a broker was registered and declared dead again and again.
    """
    plans = [generate(101_812, brokers=None, zkservers=None, profile="all", seconds=4)]
    plans += [generate(seed, brokers=3, zkservers=2, profile="swarm") for seed in range(100)]
    for plan in plans:
        rates = plan.knobs.get("rates", {})
        brokers = [rates.get(f"broker-{i}", 1.0) for i in range(plan.brokers)]
        zkservers = [rates.get(f"zkserver-{i}", 1.0) for i in range(plan.zkservers)]
        beat = plan.knobs["heartbeat_ms"] / min(brokers)
        patience = plan.knobs["session_ms"] / max(zkservers)
        assert 1.5 * beat <= patience


def test_a_plan_is_data() -> None:
    """The same seed gives the same plan; a stored plan gives the same run."""
    plan = generate(3, brokers=3, zkservers=2)
    assert plan == generate(3, brokers=3, zkservers=2) or plan.to_json() == (
        generate(3, brokers=3, zkservers=2).to_json()
    )
    kept = Plan.from_json(plan.to_json())
    assert kept.to_json() == plan.to_json()
    assert generate(4, brokers=3, zkservers=2).to_json() != plan.to_json()


def test_every_kind_of_fault_is_planned_for() -> None:
    """Within a few seeds each kind of fault is drawn at least once, and is left out at least
    once.
    """
    plans = [generate(seed, brokers=3, profile="swarm") for seed in range(40)]
    kinds = [{str(step[1]) for step in plan.faults} | set(plan.link) for plan in plans]
    # Some kinds are carried out as cut, crash or isolate; others have a rate.
    known = set(FAULTS) - {"one_way", "crash_zk", "uncertain"}
    for kind in known:
        assert any(kind in found for found in kinds), kind
        assert any(kind not in found for found in kinds), kind
    assert all(set(faults) <= set(FAULTS) for faults in PROFILES.values())


def run(hash_seed: int) -> list[list[str]]:
    """Runs of several profiles and sizes.

    A run with a single broker has no order of brokers to vary.
    """
    command = "-m pymq.testing --seeds 0:10 --profile all --seconds 1".split()
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert not done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:11]]
    return [row[:3] + row[5:] for row in rows]  # the rows without their speeds


@pytest.mark.timeout(600)
def test_the_hash_seed_changes_nothing() -> None:
    plans = [generate(n, brokers=None, zkservers=None, profile="all") for n in range(10)]
    assert {3, 5} <= {plan.brokers for plan in plans}
    assert {1, 3} <= {plan.zkservers for plan in plans}
    assert len({plan.profile for plan in plans}) >= 4
    assert run(1) == run(2)


def test_a_failing_plan_gets_small(tmp_path: Path) -> None:
    """Shrinking leaves a few of dozens of operations, and the run fails for the same reason."""
    plans = (generate(seed, brokers=1, profile="network", seconds=6) for seed in range(30))
    with planted("repeats-written"):
        plan = next(p for p in plans if run_plan(p).violation == "written-once")
        small = shrink(plan, budget_s=30)
    assert small.result.violation == "written-once"
    assert len(small.plan.ops) <= 8 < len(plan.ops)
    assert len(small.plan.faults) <= 2
    text = report(small)
    assert "written-once" in text
    file = tmp_path / "it.json"
    file.write_text(small.plan.to_json())
    with planted("repeats-written"):
        assert run_plan(Plan.from_json(file.read_text())).digest == small.result.digest


def test_what_does_not_fail_is_not_shrunk() -> None:
    with pytest.raises(ValueError, match="breaks no rule"):
        shrink(generate(0, brokers=1, profile="calm", seconds=2))


def test_what_was_drawn_is_told() -> None:
    """Faults, rates, knobs and limits of a run can be read."""
    plan = generate(3, brokers=None, zkservers=None, profile="all")
    text = "\n".join(plan.describe())
    for kind in {str(step[1]) for step in plan.faults} | set(plan.link) | set(plan.limits):
        assert kind in text


def test_sizes_are_drawn() -> None:
    """Three and five brokers, one to three zkservers."""
    plans = [generate(seed, brokers=None, zkservers=None, seconds=2) for seed in range(60)]
    assert {3, 5} < {plan.brokers for plan in plans}
    assert {plan.zkservers for plan in plans} == {1, 2, 3}


def test_limits_are_put_back() -> None:
    """Constants have small values only during a run, and each name exists."""
    before = log.CHECKPOINT_BYTES, recent_batches.RECENT_BYTES
    with limited({name: choices[0] for name, (_, choices) in LIMITS.items()}):
        assert LIMITS["CHECKPOINT_BYTES"][1][0] == log.CHECKPOINT_BYTES
    assert before == (log.CHECKPOINT_BYTES, recent_batches.RECENT_BYTES)


def test_few_runs_wait_half_a_minute_for_a_dead_member() -> None:
    """Most groups' sessions are short, and one run in twenty keeps the long session.

    Each kind of plan occurs.
    """
    counts = Counter(generate(seed, seconds=1).limits.get("SESSION_MS") for seed in range(600))
    assert {*counts} == {600, 2_000, 4_000, None}
    assert 10 < counts[None] < 60
    assert counts[4_000] > 300
