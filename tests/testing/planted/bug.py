"""Bugs that can be switched on, and hunts for them.

A bug consists of a few small patches. Each patch replaces an attribute that must exist, and takes
the same arguments; if the attribute's name or arguments change, the collection of the tests fails.
A hunt is a family of swarm runs, seed after seed. Hunts do not belong to single bugs: each bug
names the few hunts that can find it. A bug is *killed* by the first seed whose run breaks a rule,
if the same run without the bug breaks none, and if the run did not end just because the patch no
longer fits the code.

If a bug needs several rare events at once, random runs do not find it in reasonable time: then an
ordinary test causes these events and finds the bug, and the bug names this test.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any

from pymq.core.values import Factory, define, value
from pymq.testing.faults.plan import generate
from pymq.testing.run import Result, run_plan

# A patch that does not fit the code any more raises one of these errors, which proves nothing.
BLUNDERS = re.compile(r"^(TypeError|AttributeError|NameError|UnboundLocalError)\b", re.MULTILINE)


@value
class Hunt:
    """Swarm runs of one kind."""

    brokers: int
    zkservers: int
    profile: str
    seconds: float
    knobs: dict[str, Any] = Factory(dict)  # settings of the cluster, instead of the plan's own
    acks: str | None = None  # ack mode of all topics, instead of the plan's own
    limits: dict[str, int] = Factory(dict)  # beside those of the plan

    def run(self, seed: int) -> Result:
        """Carry out the run of one seed."""
        plan = generate(
            seed,
            brokers=self.brokers,
            zkservers=self.zkservers,
            profile=self.profile,
            seconds=self.seconds,
        )
        plan.knobs.update(self.knobs)
        plan.limits.update(self.limits)
        if self.acks is not None:
            for topic in plan.topics:
                topic["acks"], topic["replicas"] = self.acks, min(3, self.brokers)
        return run_plan(plan)


TURN = 12  # number of seeds of a hunt before the next hunt has its turn
HASTE = {"lag_max_ms": 300, "heartbeat_ms": 100, "session_ms": 1_000, "append_bytes": 500}

HUNTS = {
    "calm": Hunt(1, 1, "calm", 8),
    "crash": Hunt(1, 1, "crash", 8),
    "network": Hunt(1, 1, "network", 8),
    "disk": Hunt(1, 1, "disk", 8),
    "time": Hunt(1, 1, "time", 8),
    "calm-3": Hunt(3, 2, "calm", 4),
    "swarm-3": Hunt(3, 2, "swarm", 4),
    "crash-3": Hunt(3, 2, "crash", 4),
    "network-3": Hunt(3, 2, "network", 4),
    "disk-3": Hunt(3, 2, "disk", 4),
    "rolls-3": Hunt(3, 2, "rolls", 4),
    "wipe-3": Hunt(3, 2, "wipe", 6),
    "coordinator-3": Hunt(3, 3, "coordinator", 8),
    "coordinator-soon": Hunt(3, 3, "coordinator", 12, {"session_ms": 1_000}),
    "hostile-3": Hunt(3, 1, "hostile", 5),
    "kafka-1": Hunt(1, 1, "kafka", 5),
    "kafka-3": Hunt(3, 2, "kafka", 4),
    # Connections that are full with one request, and buffers that hold less than one.
    "kafka-narrow": Hunt(
        1, 1, "kafka", 4, {"stream_bytes": 50}, limits={"REQUESTS_MAX": 1, "OUT_BYTES_MAX": 1}
    ),
    # Brokers with short failure timeouts, and blocks that are replicated by fetching.
    "fetch-network": Hunt(3, 1, "network", 8, HASTE, "leader"),
    "fetch-crash": Hunt(3, 1, "crash", 8, HASTE, "leader"),
    "fetch-rolls": Hunt(3, 1, "rolls", 8, HASTE, "leader"),
    "fetch-disk": Hunt(3, 1, "disk", 8, HASTE, "leader"),
    "raft-network": Hunt(3, 1, "network", 8, HASTE, "raft"),
    "raft-crash": Hunt(3, 1, "crash", 8, HASTE, "raft"),
}


@define
class Bug:
    """A known mistake."""

    name: str
    area: str
    what: str  # one line: what goes wrong
    source: str  # who made this mistake before, or which source warns of it
    hunts: tuple[str, ...]  # profiles in which to look for the bug, the most promising one first
    # whether a quick run has too few seeds for the bug, or its test takes long
    is_slow: bool = False
    test: str = ""  # an ordinary test that finds this bug, if no profile does
    patches: list[tuple[Any, str, Any]] = Factory(list)  # (owner, name, replacement)


@value
class Kill:
    """How a bug was found."""

    hunt: str
    seed: int
    runs: int  # number of runs until the bug was found, including the last one
    rule: str


BUGS: dict[str, Bug] = {}


def bug(
    name: str,
    area: str,
    what: str,
    source: str,
    hunts: str = "",
    *,
    is_slow: bool = False,
    test: str = "",
) -> None:
    """Describe a bug, whose patches follow."""
    assert name not in BUGS, name
    assert set(hunts.split()) <= set(HUNTS), hunts
    assert bool(hunts) is not bool(test), name
    BUGS[name] = Bug(name, area, what, source, tuple(hunts.split()), is_slow, test)


def plant(name: str, owner: Any, attribute: str) -> Callable[[Callable[..., Any]], Any]:
    """Replace an attribute by the decorated function, which gets the original as its first
    argument.
    """
    # a KeyError here means that the patched attribute has moved
    original = owner.__dict__[attribute]

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        inner = original
        if isinstance(original, property):
            inner = original.fget
        elif isinstance(original, classmethod | staticmethod):
            inner = original.__func__

        check_fit(name, inner, function)

        def patched(*arguments: Any, **named: Any) -> Any:
            return function(inner, *arguments, **named)

        kind = type(original)
        is_wrapped = kind in (property, classmethod, staticmethod)
        BUGS[name].patches.append((owner, attribute, kind(patched) if is_wrapped else patched))
        return function

    return add


def check_fit(name: str, original: Any, function: Callable[..., Any]) -> None:
    """Raise if a patch cannot be called with the arguments of its original."""
    if not isinstance(original, FunctionType):
        return  # the patch replaces a number by a number
    positional: list[Any] = [original]
    named: dict[str, Any] = {}
    for key, parameter in inspect.signature(original).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[key] = None
        elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            positional.append(None)
    try:
        inspect.signature(function).bind(*positional, **named)
    except TypeError as error:
        raise TypeError(f"planted bug {name}: {function.__name__}: {error}") from None


@contextmanager
def planted(name: str) -> Iterator[Bug]:
    """Plant a bug for the duration of a ``with``."""
    found = BUGS[name]
    before = [(owner, key, owner.__dict__[key]) for owner, key, _ in found.patches]
    try:
        for owner, key, patched in found.patches:
            setattr(owner, key, patched)
        yield found
    finally:
        for owner, key, function in before:
            setattr(owner, key, function)


@cache
def is_clean(which: str, seed: int) -> bool:
    """Whether a run breaks no rule when no bug is planted; computed once for all bugs."""
    return HUNTS[which].run(seed).violation is None


def attempt(name: str, which: str, seed: int) -> Result | None:
    """Return a run with a bug if the bug made it break a rule.

    The same run without the bug must break none, see :func:`is_clean`.
    """
    with planted(name):
        result = HUNTS[which].run(seed)
    if result.violation is None or BLUNDERS.search(result.message):
        return None
    return result


def hunt(name: str, seeds: int) -> Kill | None:
    """Look for a bug in a number of seeds of each of its hunts.

    The hunts take turns after some seeds.
    """
    runs = 0
    for first in range(0, seeds, TURN):
        for which in BUGS[name].hunts:
            for seed in range(first, min(first + TURN, seeds)):
                runs += 1
                result = attempt(name, which, seed)
                if result is not None and is_clean(which, seed):
                    return Kill(which, seed, runs, str(result.violation))
    return None
