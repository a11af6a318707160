"""Constants of the machines that a run makes small, so that what is rare happens in seconds.

Checkpoints every 32 MiB, a list of 512 ranges, a session of half a minute: a run of some seconds
never gets there. So each run draws some of them anew, as FoundationDB does with its knobs
(apple.github.io/foundationdb/testing.html).

The session of a group's members is the exception: hardly any run has the usual one. What a crashed
member holds comes free when its session has run out, and every run crashes its applications when
its faults end. With half a minute that wait, in which nothing happens that has not happened before,
was three fifths of all events of all runs, and no session ever ran out while there were faults.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from types import ModuleType

Knobs = dict[str, tuple[str | tuple[str, ...], tuple[int, ...]]]
# Of each constant, the package that it stands in and what it may be instead.
LIMITS: Knobs = {
    "CHECKPOINT_BYTES": ("pymq.core.", (1, 5_000)),
    "RECENT_BYTES": ("pymq.core.", (1, 2_000)),
    "RANGES_MAX": ("pymq.core.", (1, 3)),
    "LOAD_BYTES": ("pymq.core.", (1, 1_000)),
    "RETENTION_CHECK_MS": ("pymq.core.", (100, 500)),
    "FETCH_BYTES": ("pymq.client.", (1, 1_000)),
    "FETCH_WAIT_MS": ("pymq.client.", (200, 1_000)),
    "SESSION_MS": ("pymq.client.", (600, 2_000)),
    "ACQUIRES_MAX": ("pymq.client.", (1, 2)),
    "SLICE_OPS": ("pymq.controller.", (1, 5)),
}
# Where readers go, which is drawn apart: how far from the end they take any replica.
SPREAD: Knobs = {
    "BEHIND_BYTES": ("pymq.client.", (1, 1_000)),
    "BEHIND_RECORDS": ("pymq.client.", (1, 20)),
    "NEAR_WAIT_MS": ("pymq.client.", (1, 100)),
}
# How much of what concerns very many partitions is done in a turn, which is drawn apart as well.
TURNS: Knobs = {
    "TURN_MAX": ("pymq.controller.", (1, 2)),
    "TOLD_MAX": (("pymq.broker.", "pymq.controller."), (1, 2)),
    "LOOKS_MAX": ("pymq.controller.", (1, 2)),
    "STOPS_MAX": ("pymq.controller.", (1, 2)),
}
# What most runs have in place of the usual number, when they draw none of the above; the others,
# one run in so many, have the usual one.
MOSTLY = {"SESSION_MS": 4_000}
USUAL_SHARE = 20


def draw_limits(rng: Random) -> dict[str, int]:
    """Some of them, each with a probability of a third, and those that are mostly other."""
    found = {}
    for name, (_, choices) in LIMITS.items():
        number, dice = rng.choice(choices), rng.random()
        if dice < 1 / 3:
            found[name] = number
        elif name in MOSTLY and dice < 1 - 1 / USUAL_SHARE:
            found[name] = MOSTLY[name]
    return found


def draw_spread(rng: Random) -> dict[str, int]:
    """Some of those that say where readers go, each with a probability of one half."""
    return _draw_half(SPREAD, rng)


def draw_turns(rng: Random) -> dict[str, int]:
    """Some of those that bound a turn, each with a probability of one half."""
    return _draw_half(TURNS, rng)


def _draw_half(table: Knobs, rng: Random) -> dict[str, int]:
    return {
        name: rng.choice(choices) for name, (_, choices) in table.items() if rng.random() < 1 / 2
    }


@contextmanager
def limited(limits: Mapping[str, int]) -> Iterator[None]:
    """Let the constants be so within the ``with``.

    Raises:
        AttributeError: there is no such constant.
    """
    before: list[tuple[ModuleType, str, int]] = []
    try:
        for name, number in limits.items():
            package, _ = (LIMITS | SPREAD | TURNS)[name]
            places = [
                module
                for path, module in list(sys.modules.items())
                if path.startswith(package) and hasattr(module, name)
            ]
            if not places:
                raise AttributeError(f"no module in {package} has a constant {name}")
            for module in places:
                before.append((module, name, getattr(module, name)))
                setattr(module, name, number)
        yield
    finally:
        for module, name, number in reversed(before):
            setattr(module, name, number)
