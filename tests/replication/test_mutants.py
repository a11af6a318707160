"""Planted bugs are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymq.core.marks import BrokenInvariant
from pymq.testing.script import ScriptError, check_script
from tests.replication import chaos
from tests.replication.mutants import MUTANTS, planted
from tests.replication.raft_script import RaftScript

SCRIPTS = Path(__file__).parents[1] / "data" / "raft"
SEEDS = range(500)


def killing_seed() -> int | None:
    """The first seed that finds what is wrong."""
    for seed in SEEDS:
        try:
            chaos.run(seed)
        except (AssertionError, BrokenInvariant):
            return seed
    return None


@pytest.mark.parametrize("name", [name for name in MUTANTS if MUTANTS[name].script is None])
def test_chance_finds(name: str) -> None:
    with planted(name):
        assert killing_seed() is not None, MUTANTS[name].what


@pytest.mark.parametrize("name", [name for name in MUTANTS if MUTANTS[name].script])
def test_script_finds(name: str) -> None:
    path = SCRIPTS / f"{MUTANTS[name].script}.txt"
    check_script(path, RaftScript())
    with planted(name), pytest.raises(ScriptError):
        check_script(path, RaftScript())
