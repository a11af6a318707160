"""Processes are killed, stopped, cut off and starved under load; nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pymq.testing.namespaces import Namespaces
from pymq.testing.processes import Disk
from tests.faults.storm import Storm

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.zookeeper,
    pytest.mark.usefixtures("needs_zookeeper"),
]
Tell = Callable[[str], None]


def run(storm: Storm, *causes: tuple[str, int]) -> None:
    for cause, count in causes:
        for _ in range(count):
            storm.round(cause, getattr(storm, cause))


def test_nodes_die_stop_and_restart(tmp_path: Path, tell: Tell) -> None:
    """kill -9, SIGSTOP, no ZooKeeper, an empty folder, and a rolling restart by SIGTERM."""
    with Storm(tmp_path, seed=1) as storm:
        run(storm, ("kill", 3), ("stop_in_the_middle", 2), ("without_zookeeper", 1))
        run(storm, ("wipe", 1), ("restart_everything", 1))
        tell(storm.check())


@pytest.mark.skipif(Namespaces.why_not() is not None, reason=str(Namespaces.why_not()))
def test_wires_are_cut(tmp_path: Path, tell: Tell) -> None:
    """Between two brokers, around one, and in one direction alone."""
    with Storm(tmp_path, seed=2, is_wired=True) as storm:
        run(storm, ("cut", 3))
        tell(storm.check())


@pytest.mark.skipif(Disk.why_not() is not None, reason=str(Disk.why_not()))
def test_a_disk_is_full(tmp_path: Path, tell: Tell) -> None:
    """A broker whose disk is full does not keep the others from going on, and recovers."""
    with Storm(tmp_path, seed=3, is_small=True) as storm:
        run(storm, ("fill_disk", 2))
        tell(storm.check())
