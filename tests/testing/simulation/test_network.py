"""The parts of a simulated world: time, links, clocks, disks, sessions.

Each fault has the described effect.
"""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest

from pymq.core.message import ListTopics
from pymq.core.metadata.coordination import (
    Changed,
    Commit,
    Committed,
    CoordEvent,
    Create,
    Load,
    Loaded,
    Resumed,
    SessionExpired,
    Suspended,
    Uncertain,
)
from pymq.testing.simulation.coordinator import CoordinatorSession, Ensemble
from pymq.testing.simulation.disk import SimDisk
from pymq.testing.simulation.files import ProcessFiles
from pymq.testing.simulation.network import LinkFaults, Network
from pymq.testing.simulation.nodes import ClientHost
from pymq.testing.simulation.process import Clock, Crash
from pymq.testing.simulation.world import World


def links(**faults: Any) -> tuple[World, Network, list[tuple[int, int]]]:
    """Two processes; returns the messages that b gets, as (number, time)."""
    world = World(1)
    network = Network(world, LinkFaults(100, 10, **faults))
    got: list[tuple[int, int]] = []
    network.join("a", lambda peer, source, message: None)

    def receive(peer: str, source: str, message: object) -> None:
        assert isinstance(message, ListTopics)
        got.append((message.id, world.now))

    network.join("b", receive)
    return world, network, got


def send(world: World, network: Network, count: int, pause: int = 50) -> None:
    for number in range(count):
        network.send(network.link("a", "b"), "b", "a", ListTopics(number), 0)
        world.run(world.now + pause)
    world.run(world.now + 60_000_000)


def test_a_good_link_delivers_in_order() -> None:
    world, network, got = links()
    send(world, network, 200)
    assert [number for number, _ in got] == list(range(200))


@pytest.mark.parametrize(
    ("fault", "rate"), [("loss", 0.2), ("duplicate", 0.2), ("late", 0.2), ("reorder", 0.3)]
)
def test_a_fault_has_its_rate_and_nothing_else(fault: str, rate: float) -> None:
    world, network, got = links(**{fault: rate})
    send(world, network, 2_000, 10)
    numbers = [number for number, _ in got]
    if fault == "loss":
        assert 1_500 < len(numbers) < 1_700
        assert numbers == sorted(numbers)
    elif fault in ("duplicate", "late"):
        assert 2_300 < len(numbers) < 2_500
        assert set(numbers) == set(range(2_000))
    else:
        assert sorted(numbers) == list(range(2_000))
        assert numbers != sorted(numbers)


def test_a_tail_is_long_and_holds_up_what_follows() -> None:
    world, network, got = links(tail=0.01)
    send(world, network, 1_000, 1_000)
    assert [number for number, _ in got] == list(range(1_000))
    assert max(at - number * 1_000 for number, at in got) > 10_000


def test_taking_a_fault_out_leaves_the_dice_alone() -> None:
    """If a link's fault is removed, its messages arrive as if the fault had never been drawn, and
    those of other links as before.
    """
    lossy, calm = links(loss=0.2), links()
    for world, network, _ in (lossy, calm):
        send(world, network, 500, 5_000)
    assert set(lossy[2]) < set(calm[2])


def test_cuts_add_up_and_are_mended_one_by_one() -> None:
    world, network, got = links()
    one, two = network.cut(["a"], ["b"]), network.cut(["a"], ["b"], one_way=True)
    send(world, network, 1)
    network.mend(one)
    assert not network.link("b", "a").cuts
    send(world, network, 1)
    assert got == []
    network.mend(two)
    send(world, network, 1)
    assert len(got) == 1
    network.cut(["a"], ["b"])
    network.heal()
    assert not network.is_cut("a", "b")


def test_a_clogged_link_is_not_silent_after_it_has_healed() -> None:
    """Messages that were held back arrive at once and in order.

    Later messages do not wait behind the lost ones.
    """
    world, network, got = links(tail=0.5)  # a late message also delays those behind it
    network.clog("a", "b", 50_000_000)
    for number in range(20):
        network.send(network.link("a", "b"), "b", "a", ListTopics(number), 0)
    world.run(1_000_000)
    assert not got
    network.calm()
    network.send(network.link("a", "b"), "b", "a", ListTopics(20), 0)
    world.run(1_100_000)
    assert [number for number, _ in got] == list(range(21))


def test_a_clog_delivers_later() -> None:
    world, network, got = links()
    network.clog("a", "b", 5_000_000)
    send(world, network, 3)
    assert [at for _, at in got] == [5_000_000] * 3


def test_a_reset_loses_what_is_on_its_way() -> None:
    world, network, got = links()
    network.send(network.link("a", "b"), "b", "a", ListTopics(1), 0)
    network.reset("a")
    send(world, network, 1)
    assert [number for number, _ in got] == [0]


def test_a_clock_may_run_fast_and_jump_and_tells_when() -> None:
    world = World(0)
    clock = Clock(world, 1_000)
    world.run(1_000_000)
    assert clock() == 2_000
    clock.change(rate=2_000_000)
    world.run(2_000_000)
    assert clock() == 4_000
    clock.change(rate=500_000, jump_us=10_000_000)
    assert clock() == 14_000
    at = clock.when(14_003)
    world.run(at - 1)
    assert clock() == 14_002
    world.run(at)
    assert clock() == 14_003


def test_events_of_one_time_come_in_order() -> None:
    world = World(0)
    seen: list[int] = []
    for number in range(5):
        world.at(10, lambda a, b: seen.append(a), number)
    world.at(5, lambda a, b: seen.append(a), 99)
    while world.step():
        pass
    assert seen == [99, 0, 1, 2, 3, 4]
    assert world.now == 10


def test_the_digest_tells_runs_apart() -> None:
    worlds = [World(0) for _ in range(3)]
    for number, world in enumerate(worlds):
        for event in range(3_000):
            world.note(event if (number, event) != (2, 1_500) else 0, "x")
    assert worlds[0].digest == worlds[1].digest != worlds[2].digest
    first = [a == b for a, b in zip(worlds[0].windows, worlds[2].windows, strict=True)]
    assert first == [True, False]


# --- disks ------------------------------------------------------------------------------------


def files() -> tuple[ProcessFiles, ClientHost]:
    world = World(0)
    host = ClientHost(world, Network(world), "p", 1)
    return ProcessFiles(SimDisk(), host, Random(0)), host


def test_what_is_synced_survives_and_the_rest_may_not() -> None:
    for keep, expected in (("none", b"abc"), ("all", b"abcdef")):
        disk = SimDisk()
        handle = disk.create("/x")
        disk.pwritev(handle, [b"abc"], 0)
        disk.sync(handle)
        disk.sync_dir("/")
        disk.pwritev(handle, [b"def"], 3)
        disk.crash(Random(1), keep)
        assert disk.pread(disk.open("/x"), 100, 0) == expected


def test_a_name_needs_its_folder_synced() -> None:
    disk = SimDisk()
    handle = disk.create("/x")
    disk.sync(handle)
    disk.crash(Random(1), "none")
    with pytest.raises(FileNotFoundError):
        disk.open("/x")


def test_a_fork_goes_its_own_way() -> None:
    disk = SimDisk()
    handle = disk.create("/x")
    disk.pwritev(handle, [b"abc"], 0)
    other = disk.fork()
    disk.pwritev(handle, [b"x"], 0)
    assert other.pread(other.open("/x"), 3, 0) == b"abc"  # The other disk has no open file.


def test_a_full_disk_takes_what_fits() -> None:
    disk, _ = files()
    handle = disk.create("/x")
    disk.room = 4
    disk.pwritev(handle, [b"abc"], 0)
    with pytest.raises(OSError, match="No space") as caught:
        disk.pwritev(handle, [b"def"], 3)
    assert caught.value.errno == errno.ENOSPC
    assert disk.pread(handle, 10, 0) == b"abcd"
    disk.pwritev(handle, [b"x"], 0)  # overwriting needs no space


def test_operations_fail_as_often_as_told_and_cost_time() -> None:
    disk, host = files()
    handle = disk.create("/x")
    disk.failing["sync"] = 1
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(handle)
    before = host.lag
    disk.sync(handle)
    once = host.lag - before
    disk.slow = 100
    disk.sync(handle)
    assert host.lag - before > 50 * once


def test_nothing_happens_after_a_crash() -> None:
    """After a crash not even clean-up code has an effect."""
    disk, host = files()
    handle = disk.create("/x")
    host.crash_in(0)
    with pytest.raises(Crash):
        disk.pwritev(handle, [b"abc"], 0)
    with pytest.raises(Crash):
        disk.unlink("/x")
    assert disk.list("/") == ["x"]


# --- sessions ---------------------------------------------------------------------------------


class Zk(ClientHost):
    """An empty zkserver: the test reads the events."""

    def events(self, session: CoordinatorSession) -> list[CoordEvent]:
        self.world.run(self.world.now + 100_000)
        return list(session.poll())


def sessions() -> tuple[Ensemble, Zk, CoordinatorSession, Zk, CoordinatorSession]:
    world = World(3)
    ensemble, network = Ensemble(world), Network(world)
    a, b = Zk(world, network, "a", 1), Zk(world, network, "b", 2)
    return ensemble, a, ensemble.connect(a), b, ensemble.connect(b)


def test_answers_come_in_order_and_changes_after_them() -> None:
    _, a, one, b, two = sessions()
    one.submit(Load(1, "/"))
    two.submit(Load(1, "/"))
    assert a.events(one) == b.events(two) == [Loaded(1, ())]
    one.submit(Commit(2, (Create("/x", b""),)))
    assert a.events(one) == [Committed(2, (0,)), Changed("/x")]
    assert b.events(two) == [Changed("/x")]


def test_a_lost_connection_leaves_commits_uncertain() -> None:
    """Over many runs, some of these commits are done, and some are not."""
    outcomes = set()
    for number in range(20):
        ensemble, a, one, _, _ = sessions()
        for _ in range(number):
            one.rng.getrandbits(1)
        one.submit(Commit(1, (Create("/x", b""),)))
        one.suspend()
        one.submit(Load(2, "/"))
        assert a.events(one) == [Uncertain(1), Suspended()]
        outcomes.add(len(ensemble.entries()))
        one.resume()
        found = a.events(one)
        assert found[0] == Resumed()
        assert found[-1] == Loaded(2, ensemble.entries())
    assert outcomes == {0, 1}


def test_an_expired_session_takes_its_nodes_along() -> None:
    ensemble, a, one, b, two = sessions()
    two.submit(Load(1, "/"))
    one.submit(Commit(1, (Create("/x", b"", True),)))
    a.events(one)
    b.events(two)
    ensemble.expire(one.session)
    assert b.events(two) == [Changed("/x")]
    assert a.events(one) == [Suspended(), SessionExpired("session-3")]
    assert ensemble.entries() == ()


def test_a_session_outlives_a_short_silence_only() -> None:
    ensemble, a, one, _, _ = sessions()
    one.link.check(True)
    a.world.run(a.world.now + 1_000_000)
    one.link.check(False)
    assert [type(event) for event in a.events(one)] == [Suspended, Resumed]
    one.link.check(True)
    a.world.run(a.world.now + 5_000_000)
    assert one.session not in ensemble.sessions
    one.link.check(False)
    assert [type(event) for event in a.events(one)] == [Suspended, SessionExpired]


def test_a_cut_is_noticed_late_and_what_is_sent_into_it_is_never_done() -> None:
    ensemble, a, one, _, two = sessions()
    one.submit(Load(1, "/"))
    assert a.events(one) == [Loaded(1, ())]
    one.link.check(True)
    one.submit(Commit(2, (Create("/x", b""),)))
    two.submit(Commit(1, (Create("/y", b""),)))
    a.world.run(a.world.now + 600_000)  # less than a third of the session
    assert one.poll() == []
    a.world.run(a.world.now + 800_000)
    assert one.poll() == [Uncertain(2), Suspended()]
    one.link.check(False)
    assert a.events(one) == [Resumed(), Changed("/")]  # no event tells what has changed below "/"
    assert [entry.path for entry in ensemble.entries()] == ["/y"]


def test_of_commits_under_way_the_first_so_many_are_done() -> None:
    """No such commit is done after the client is connected again and reads which ones were done."""
    outcomes = set()
    for number in range(120):
        ensemble, a, one, _, _ = sessions()
        for _ in range(number):
            one.rng.getrandbits(1)
        for tag in range(4):
            one.submit(Commit(tag, (Create(f"/{tag}", b""),)))
        one.suspend()
        a.world.run(a.world.now + number * 1_000)
        one.resume()
        one.submit(Load(9, "/"))
        found = [entry.path for entry in ensemble.entries()]
        assert found == [f"/{tag}" for tag in range(len(found))]
        assert a.events(one)[-1] == Loaded(9, ensemble.entries())
        a.world.run(a.world.now + 1_000_000)
        assert [entry.path for entry in ensemble.entries()] == found
        outcomes.add(len(found))
    assert outcomes == {0, 1, 2, 3, 4}
