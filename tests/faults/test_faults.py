"""Processes are killed, paused, cut off and starved under load; no acknowledged record is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pymq.core.batch.record import Record
from tests.faults.storm import Storm
from tests.simulator.history import Delivered, RecordedHistory, RecordedSend, outages, percentile
from tests.simulator.namespaces import Namespaces
from tests.simulator.processes import Disk

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


def test_nodes_die(tmp_path: Path, tell: Tell) -> None:
    """A cluster survives kill -9 and an empty folder; the soak has all other faults."""
    with Storm(tmp_path, seed=1) as storm:
        run(storm, ("kill", 1), ("wipe", 1))
        tell(storm.check())


@pytest.mark.slow
@pytest.mark.skipif(Namespaces.why_not() is not None, reason=str(Namespaces.why_not()))
def test_wires_are_cut(tmp_path: Path, tell: Tell) -> None:
    """A cluster survives cuts between two brokers, around one, and in one direction."""
    with Storm(tmp_path, seed=2, is_wired=True) as storm:
        run(storm, ("cut", 1))
        tell(storm.check())


@pytest.mark.slow
@pytest.mark.skipif(Disk.why_not() is not None, reason=str(Disk.why_not()))
def test_a_disk_is_full(tmp_path: Path, tell: Tell) -> None:
    """A broker with a full disk does not stop the others, and recovers."""
    with Storm(tmp_path, seed=3, is_small=True) as storm:
        run(storm, ("fill_disk", 1))
        tell(storm.check())


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_a_hundred_kills(tmp_path: Path, tell: Tell) -> None:
    """A cluster survives kill -9 of random nodes, a hundred times."""
    with Storm(tmp_path, seed=42) as storm:
        run(storm, ("kill", 100))
        tell(storm.check())


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_everything_for_long(tmp_path: Path, tell: Tell) -> None:
    """A cluster survives all faults except cuts and a full disk, including a killed ZooKeeper
    leader.
    """
    with Storm(tmp_path, seed=43, zookeepers=3) as storm:
        run(storm, ("kill_zookeeper_leader", 5), ("stop_in_the_middle", 20))
        run(storm, ("without_zookeeper", 3), ("wipe", 5), ("restart_everything", 5))
        tell(storm.check())


def test_the_judge_sees_what_is_wrong() -> None:
    """The checker of histories finds each kind of mistake, and reports none in a correct
    history.
    """
    part = ("t", "0")
    sent = [RecordedSend("p", part, n, 0.1 * n, 0.1 * n + 0.05, n) for n in range(3)]
    log = [Record("t", "0", each.offset, 0, None, each.payload, (), 1) for each in sent]
    given = [Delivered("c", part, s.offset, s.payload, 1.0, 1.1) for s in sent]
    good = RecordedHistory(sent, given, [(part, 0, 1.2)])
    assert good.problems({part: log}) == []
    assert "lost (1)" in str(good.problems({part: log[:2]}))
    twice = [*log, log[0]._replace(offset=3)]
    assert "twice in the log (1)" in str(good.problems({part: twice}))
    assert "out of order (1)" in str(good.problems({part: twice}))
    assert "offsets do not rise (1)" in str(good.problems({part: [*log, log[2]]}))
    missed = RecordedHistory(sent, given[:2], [])
    assert "never delivered to the group (1)" in str(missed.problems({part: log}))
    late = Delivered("c", part, 0, sent[0].payload, 1.3, 1.4)
    again = RecordedHistory(sent, [*given, late], [(part, 0, 1.2)])
    assert "delivered after it was settled (1)" in str(again.problems({part: log}))
    wrong = RecordedHistory(sent, given, [], {part: [(0, b"other/0/0")]})
    assert "the reader saw otherwise (1)" in str(wrong.problems({part: log}))
    assert [o.seconds for o in outages(sent, [("x", 0.0, 1.0)], [part])] == [0.75]
    assert (percentile(range(1, 101), 99), percentile([], 50)) == (99, 0.0)
