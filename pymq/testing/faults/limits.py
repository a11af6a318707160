"""Constants of the state machines that a run reduces, so that rare events happen within seconds.

Otherwise a run of some seconds would never reach a checkpoint after 32 MiB, a list of 512 ranges or
the end of a session of half a minute. So each run draws some of these constants, as FoundationDB
does with its knobs (apple.github.io/foundationdb/testing.html).

In nearly every run, group members have a short session. When the faults end, each run crashes its
applications, and the leases of a crashed member stay until its session runs out. With sessions of
half a minute, this idle wait made up three fifths of all events, and no session ran out during the
faults.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from types import ModuleType

Knobs = dict[str, tuple[str | tuple[str, ...], tuple[int, ...]]]
# Each constant with its module and its other values.
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
# Drawn separately: how far behind the end a reader must be to fetch from any replica.
SPREAD: Knobs = {
    "BEHIND_BYTES": ("pymq.client.", (1, 1_000)),
    "BEHIND_RECORDS": ("pymq.client.", (1, 20)),
    "NEAR_WAIT_MS": ("pymq.client.", (1, 100)),
}
# Drawn separately: how many of very many partitions a machine handles in a turn of the loop.
TURNS: Knobs = {
    "TURN_MAX": ("pymq.controller.", (1, 2)),
    "TOLD_MAX": (("pymq.broker.", "pymq.controller."), (1, 2)),
    "LOOKS_MAX": ("pymq.controller.", (1, 2)),
    "STOPS_MAX": ("pymq.controller.", (1, 2)),
}
# Drawn separately: constants of delayed records.
DELAY: Knobs = {
    "SEGMENT": ("pymq.core.delay.", (1, 7)),
    "COPIES_MAX": ("pymq.core.delay.", (1, 3)),
    "NOTE_OFFSETS": ("pymq.core.delay.", (1, 20)),
    "MOVE_OFFSETS": ("pymq.core.delay.", (1, 20)),
}
# Drawn separately: the letters of a round of a redrive.
REDRIVE: Knobs = {"ROUND": ("pymq.client.redrive.", (1, 4))}
# Drawn separately: bounds of Kafka's connections and of their fetch sessions.
KAFKA: Knobs = {
    "OUT_BYTES_MAX": ("pymq.kafka.", (1, 5_000)),
    "REQUESTS_MAX": ("pymq.kafka.", (1, 3)),
    "SCRATCH_BYTES": ("pymq.kafka.", (16, 100)),
    "READ_BYTES": ("pymq.kafka.", (1, 1_000)),
    "ROUND_BYTES": ("pymq.kafka.", (1, 1_000)),
    "SESSIONS_MAX": ("pymq.kafka.", (1, 2)),
    "SLICE": ("pymq.kafka.", (1, 10)),
}
# The value in most runs that draw none of the constants above; a few runs have the usual value.
MOSTLY = {"SESSION_MS": 4_000}
USUAL_SHARE = 20


def draw_limits(rng: Random) -> dict[str, int]:
    """Draw each constant with a probability of one third, but members' sessions nearly always."""
    found = {}
    for name, (_, choices) in LIMITS.items():
        number, dice = rng.choice(choices), rng.random()
        if dice < 1 / 3:
            found[name] = number
        elif name in MOSTLY and dice < 1 - 1 / USUAL_SHARE:
            found[name] = MOSTLY[name]
    return found


def draw_spread(rng: Random) -> dict[str, int]:
    """Draw each constant of readers with a probability of one half."""
    return _draw_half(SPREAD, rng)


def draw_turns(rng: Random) -> dict[str, int]:
    """Draw each bound of a turn with a probability of one half."""
    return _draw_half(TURNS, rng)


def draw_delay(rng: Random) -> dict[str, int]:
    """Draw each constant of delayed records with a probability of one half."""
    return _draw_half(DELAY, rng)


def draw_redrive(rng: Random) -> dict[str, int]:
    """Draw the letters of a round with a probability of one half."""
    return _draw_half(REDRIVE, rng)


def draw_kafka_limits(rng: Random) -> dict[str, int]:
    """Draw each bound of Kafka's connections with a probability of one third."""
    return {
        name: rng.choice(choices) for name, (_, choices) in KAFKA.items() if rng.random() < 1 / 3
    }


def _draw_half(table: Knobs, rng: Random) -> dict[str, int]:
    return {
        name: rng.choice(choices) for name, (_, choices) in table.items() if rng.random() < 1 / 2
    }


@contextmanager
def limited(limits: Mapping[str, int]) -> Iterator[None]:
    """Set the constants within the ``with`` block.

    Raises:
        AttributeError: there is no such constant.
    """
    before: list[tuple[ModuleType, str, int]] = []
    try:
        for name, number in limits.items():
            package, _ = (LIMITS | SPREAD | TURNS | DELAY | REDRIVE | KAFKA)[name]
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
