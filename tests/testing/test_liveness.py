"""Once faults have ended all services must work again; each of these rules can be broken."""

from __future__ import annotations

from typing import Any

import pytest

from pymq.controller.election import Election
from pymq.core.group.leases import Leases
from pymq.core.partition.fetch import FetchHandler
from pymq.core.pending.pending_produces import PendingProduces
from pymq.replication.raft.raft import Raft
from pymq.testing import run
from pymq.testing.faults.plan import Plan
from pymq.testing.run import SimulationRun, run_plan
from pymq.testing.simulation.world import SECOND

TOPIC = {"name": "t0", "partitions": 1, "replicas": 3, "acks": "raft", "config": {}}
APP = {"readers": ["t0"], "groups": [["t0", "g"]]}
PLAN = Plan(
    seed=1,
    duration_us=4 * SECOND,
    topics=[TOPIC],
    apps=[APP],
    ops=[[SECOND + 300_000 * n, "send", 0, "t0", "0", 1, 100] for n in range(8)],
)
step = Raft.step


def step_elsewhere(self: Raft, source: str, message: Any, now: int) -> None:
    if self._host.me != "broker-2":
        step(self, source, message, now)


def nothing(*arguments: Any, **named: Any) -> Any:
    return ()


# For each rule, a method of a machine that is disabled, so that the rule must be broken.
BROKEN: dict[str, tuple[type, str, Any]] = {
    "zkserver-comes-back": (Election, "decided", nothing),
    "partitions-take-records": (PendingProduces, "due", nothing),
    "readers-reach-the-end": (FetchHandler, "fetch", nothing),
    "groups-reach-the-end": (Leases, "acquire", nothing),
    "replicas-converge": (Raft, "step", step_elsewhere),
}


# Another rule that finds the same problem earlier.
SOONER = {"groups-reach-the-end": "idle-is-served"}


def test_what_works_breaks_none() -> None:
    result = run_plan(PLAN)
    assert result.violation is None, result.message
    assert result.acked >= 8


@pytest.mark.parametrize("rule", BROKEN)
def test_what_does_not_work_again_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HEAL_S", 20.0)
    heal = SimulationRun._heal

    def break_it(self: SimulationRun) -> None:
        monkeypatch.setattr(*BROKEN[rule])
        if rule == "zkserver-comes-back":
            self.cluster.restart("zkserver-0")
        heal(self)

    monkeypatch.setattr(SimulationRun, "_heal", break_it)
    result = run_plan(PLAN)
    assert result.violation in (rule, SOONER.get(rule)), result.message
