"""Scripts of replicas, one for each scenario; each file is named after the scenario's source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replication.fetch_script import FetchScript
from tests.replication.raft_script import RaftScript
from tests.simulator.script import check_script

DATA = Path(__file__).parents[1] / "data"
SCRIPTS = sorted((DATA / "raft").glob("*.txt"))
FETCH_SCRIPTS = sorted((DATA / "fetch").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, rewrite_scripts: bool) -> None:
    check_script(path, RaftScript(), rewrite=rewrite_scripts)


@pytest.mark.parametrize("path", FETCH_SCRIPTS, ids=lambda path: path.stem)
def test_fetch_script(path: Path, rewrite_scripts: bool) -> None:
    check_script(path, FetchScript(), rewrite=rewrite_scripts)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 120
    assert len(FETCH_SCRIPTS) >= 10
