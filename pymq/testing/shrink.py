"""Shrinks the plan of a failing run to the steps that break the same rule."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pymq.core.counts import plural
from pymq.core.values import define
from pymq.testing.faults.plan import Plan
from pymq.testing.run import Result, run_plan

OFTEN = 0.5

Say = Callable[[str], None]
Fails = Callable[[Plan], bool]


@define
class Shrunk:
    """A small plan, and its result."""

    plan: Plan
    result: Result
    runs: int
    before: tuple[int, int]  # numbers of faults and operations of the original plan


class _Search:
    def __init__(self, plan: Plan, rule: str, budget_s: float, say: Say) -> None:
        self.plan = plan
        self.rule = rule
        self.until = time.monotonic() + budget_s
        self.say = say
        self.runs = 0

    def try_plan(self, plan: Plan) -> bool:
        """Replace the present plan by *plan* if that breaks the same rule."""
        if time.monotonic() > self.until:
            return False
        self.runs += 1
        result = run_plan(plan)
        if result.violation != self.rule:
            return False
        self.plan = plan
        left = f"{plural(len(plan.faults), 'fault')}, {plural(len(plan.ops), 'operation')}"
        self.say(f"it still fails with {left}")
        return True

    def minimize(self, name: str) -> None:
        """Leave out parts of a list, large ones first (Zeller's ddmin)."""
        size = max(1, len(getattr(self.plan, name)) // 2)
        while size:
            at = 0
            while at < len(items := getattr(self.plan, name)):
                rest = items[:at] + items[at + size :]
                if not self.try_plan(self.plan.copy(**{name: rest})):
                    at += size
            size //= 2

    def simplify(self) -> None:
        """Leave out rates, knobs and applications' habits, one at a time."""
        for name in ("link", "knobs", "limits"):
            for key in list(getattr(self.plan, name)):
                fewer = {k: v for k, v in getattr(self.plan, name).items() if k != key}
                self.try_plan(self.plan.copy(**{name: fewer}))
        for key, rate in self.plan.link.items():
            # Make events frequent, so that fewer operations are enough for one to happen.
            if rate < OFTEN:
                self.try_plan(self.plan.copy(link={**self.plan.link, key: OFTEN}))
        if self.plan.uncertain:
            self.try_plan(self.plan.copy(uncertain=0.0))
        for index, app in enumerate(self.plan.apps):
            for key, item in app.items():
                if item not in (None, 0.0) and key in ("readers", "groups", "nack", "forget"):
                    self._try_app(index, {**self.plan.apps[index], key: type(item)()})
        for index, config in enumerate(self.plan.kafka):
            for key in ("readers", "groups"):
                if config[key]:
                    self._try_kafka(index, {**self.plan.kafka[index], key: []})
        for smaller in (1, 2):
            if smaller < self.plan.zkservers:
                self.try_plan(self.plan.copy(zkservers=smaller))

    def _try_kafka(self, index: int, config: dict[str, Any]) -> None:
        found = [*self.plan.kafka[:index], config, *self.plan.kafka[index + 1 :]]
        self.try_plan(self.plan.copy(kafka=found))

    def _try_app(self, index: int, app: dict[str, Any]) -> None:
        apps = [*self.plan.apps[:index], app, *self.plan.apps[index + 1 :]]
        self.try_plan(self.plan.copy(apps=apps))


def shrink(plan: Plan, *, budget_s: float = 120.0, say: Say = lambda text: None) -> Shrunk:
    """Make a failing plan small.

    Raises:
        ValueError: the plan does not fail.
    """
    first = run_plan(plan)
    if first.violation is None:
        raise ValueError(f"seed {plan.seed} breaks no rule, so there is nothing to make small")
    say(f"seed {plan.seed} breaks {first.violation}")
    search = _Search(plan, first.violation, budget_s, say)
    # Steps after the violation cannot be its cause.
    faults = [step for step in plan.faults if step[0] <= first.at_us]
    ops = [step for step in plan.ops if step[0] <= first.at_us]
    search.try_plan(plan.copy(faults=faults, ops=ops))
    for _ in range(2):  # A simpler plan can often be shrunk further.
        before = (-1, -1)
        while before != (now := (len(search.plan.faults), len(search.plan.ops))):
            before = now
            search.minimize("faults")
            search.minimize("ops")
        search.simplify()
    search.try_plan(
        search.plan.copy(duration_us=max([s[0] for s in _steps(search.plan)], default=0) + 1)
    )
    result = run_plan(search.plan, trace=True)
    return Shrunk(search.plan, result, search.runs, (len(plan.faults), len(plan.ops)))


def _steps(plan: Plan) -> list[list[Any]]:
    return [*plan.faults, *plan.ops]


def report(small: Shrunk) -> str:
    """Return the plan, the last events, and a test that fails as long as the bug exists."""
    plan = small.plan
    steps = sorted(_steps(plan), key=lambda step: float(step[0]))
    lines = [
        f"{plural(small.before[0], 'fault')} and {plural(small.before[1], 'operation')} before, "
        f"{len(plan.faults)} and {len(plan.ops)} after {plural(small.runs, 'run')}.",
        *plan.describe(),
        *(f"{step[0] / 1_000_000:10.6f}  {' '.join(map(str, step[1:]))}" for step in steps),
        "",
        *small.result.trace[-60:],
        "",
        small.result.message,
        "",
        "As a test, with the plan in a file beside it (--out):",
        "",
        "    def test_it() -> None:",
        '        plan = Plan.from_json((Path(__file__).parent / "it.json").read_text())',
        "        assert run_plan(plan).violation is None",
    ]
    return "\n".join(lines)
