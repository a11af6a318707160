"""Known bugs, which tests plant in the code of a simulated cluster."""

from __future__ import annotations

from tests.testing.planted import (
    control,
    delays,
    groups,
    kafka,
    limits,
    moves,
    producers,
    replication,
    storage,
    work,
)
from tests.testing.planted.bug import (
    BUGS,
    HUNTS,
    Bug,
    Hunt,
    Kill,
    attempt,
    hunt,
    is_clean,
    planted,
)

AREAS = (  # each area describes some of BUGS
    control,
    delays,
    groups,
    kafka,
    limits,
    moves,
    producers,
    replication,
    storage,
    work,
)

__all__ = [
    "AREAS",
    "BUGS",
    "HUNTS",
    "Bug",
    "Hunt",
    "Kill",
    "attempt",
    "hunt",
    "is_clean",
    "planted",
]
