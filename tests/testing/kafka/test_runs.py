"""Runs with clients of Kafka break no rule, and are the same each time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pymq.testing.faults.plan import Plan, generate
from pymq.testing.run import SimulationRun, run_plan
from tests.seeds import seeds


def plan_of(seed: int, seconds: float = 3.0) -> Plan:
    return generate(
        seed, brokers=None, zkservers=None, profile="kafka", seconds=seconds, restart="any"
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", seeds(3, 400))
def test_nothing_is_broken(seed: int) -> None:
    result = run_plan(plan_of(seed))
    assert result.violation is None, result.message


def test_a_run_is_the_same_each_time() -> None:
    first, second = (run_plan(plan_of(3, 2.0)) for _ in range(2))
    assert first.digest == second.digest
    assert first.events == second.events
    assert run_plan(plan_of(4, 2.0)).digest != first.digest


def test_clients_of_kafka_write_and_read() -> None:
    """Otherwise the rules would hold, as nothing happens."""
    plan = generate(5, brokers=3, zkservers=1, profile="kafka", seconds=3)
    plan.faults.clear()
    run = SimulationRun(plan)
    run.execute()
    run.close()
    assert run.kafka is not None
    sent = [each for each in run.history.sent if each.app.startswith("kafka-")]
    assert sum(each.is_acked for each in sent) > 5
    assert len(run.kafka.records.seen) > 5


def test_some_runs_of_all_have_clients_of_kafka() -> None:
    plans = [generate(seed, profile="all", seconds=1) for seed in range(200)]
    assert 15 < sum(bool(plan.kafka) for plan in plans) < 45


def test_the_simulator_loads_the_gate_on_demand() -> None:
    script = (
        "import sys, pymq.testing, pymq.testing.run; "
        "print(*(name for name in sys.modules if name.startswith('pymq.kafka')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == []
