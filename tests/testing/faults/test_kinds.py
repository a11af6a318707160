"""Faults that a cluster survives, one kind at a time, with their effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random

import attrs
import pytest

from pymq.errors import PymqError
from pymq.testing import Cluster
from pymq.testing.faults.kinds import FAULTS, PROFILES, RATES, ROTATION, FaultSchedule
from pymq.testing.faults.nemesis import Nemesis
from pymq.testing.faults.plan import Plan
from pymq.testing.simulation.coordinator import COORDINATOR


def written(cluster: Cluster, count: int = 40) -> dict[int, bytes]:
    """Return the values of some acknowledged records of topic ``t``, by offset."""
    mq = cluster.client()
    mq.create_topic("t", acks="raft", replicas=3, block_bytes=4096)
    with mq.producer() as producer:
        values = [b"%d " % i + bytes([i]) * 200 for i in range(count)]
        return {producer.send("t", value).result().offset: value for value in values}


@pytest.mark.parametrize("seed", range(6))
def test_what_rots_is_never_read(seed: int) -> None:
    """If bits flip on one disk, a reader gets the written records or an error, and a new disk
    repairs the copy.
    """
    with Cluster(brokers=3, seed=seed) as cluster:
        acked = written(cluster)
        name = f"broker-{seed % 3}"
        for number in range(20):
            cluster.flip(name, Random(seed * 100 + number))
        cluster.crash("broker-0", "all")
        cluster.restart("broker-0")
        cluster.run(seconds=5)
        # Damage is reported as an error.
        with suppress(PymqError), cluster.client().consumer("t", mode="psb") as consumer:
            for record in consumer.poll(timeout=5):
                assert record.value == acked[record.offset]
        cluster.wipe(name)
        cluster.restart(name)
        cluster.run(seconds=20)
        with cluster.client().consumer("t", mode="psb") as consumer:
            assert {r.offset: r.value for r in consumer.until_end()} == acked


@pytest.mark.parametrize("what", ["sync", "write", "read", "rename", "create", "truncate"])
def test_operations_of_the_disk_may_fail(what: str) -> None:
    """If any operation fails on one of three disks, the acknowledged records are there
    afterwards.
    """
    with Cluster(brokers=3, seed=1) as cluster:
        acked = written(cluster, 10)
        cluster.fail_disk("broker-1", what, 3)
        with cluster.client().producer() as producer:
            for i in range(30):
                value = b"later %d" % i + bytes(300)
                acked[producer.send("t", value).result().offset] = value
        cluster.calm()
        cluster.restart("broker-1")
        with cluster.client().consumer("t", mode="psb") as consumer:
            assert {r.offset: r.value for r in consumer.until_end()} == acked


def test_every_kind_of_fault_can_be_carried_out() -> None:
    """The nemesis can carry out each kind of fault that a schedule draws."""
    brokers, zkservers = ["broker-0", "broker-1", "broker-2"], ["zkserver-0"]
    kinds = [kind for kind in FAULTS if kind not in RATES]
    for kind in kinds:
        steps = FaultSchedule(5, brokers, zkservers, 1, 60_000_000).draw([kind])
        assert steps, kind
        with Cluster(brokers=3, seed=2) as cluster:
            cluster.client("app-0")
            plan = Plan(2, faults=[[1_000, *step[1:]] for step in steps[:2]])
            nemesis = Nemesis(cluster, plan, cluster.world.now)
            cluster.run(seconds=8)
            nemesis.stop()
            cluster.run(seconds=8)
            assert cluster.is_ready(), kind


A, B, C, Z = "broker-0", "broker-1", "broker-2", "zkserver-0"
LASTS = 300_000  # duration in microseconds


def lost(cluster: Cluster) -> set[tuple[str, str]]:
    """Pairs of processes, in this direction, between which all messages are lost."""
    routes = [route.split(">") for route in cluster.network.status()]
    return {(source, target) for source, target in routes}


def between(left: Iterable[str], right: Iterable[str]) -> set[tuple[str, str]]:
    """Both directions of all links between two groups."""
    return {pair for a in left for b in right for pair in ((a, b), (b, a))}


def rest(cluster: Cluster, *names: str) -> set[str]:
    """All other processes, including the coordinator."""
    return {*cluster.network.names} - {*names}


Look = Callable[[Cluster], object]
# For each fault, its visible effect while it lasts; before the fault the effect is absent, and also
# afterwards if the fault ends.
SEEN: dict[str, tuple[list[object], Look]] = {
    "crash": (["crash", B, "all", LASTS], lambda c: not c.brokers[B].is_up),
    "crash_zk": (["crash", Z, "all", LASTS], lambda c: not c.zkservers[Z].is_up),
    "crash_all": (["crash_all", "all", LASTS], lambda c: not (c.host(A).is_up or c.host(Z).is_up)),
    "boundary": (["boundary", B, 0, "all", LASTS], lambda c: not c.brokers[B].is_up),
    "crash_loop": (["crash_loop", B, [0], "all", LASTS], lambda c: not c.brokers[B].is_up),
    "pause": (["pause", B, LASTS], lambda c: c.brokers[B].is_paused),
    "wipe": (["wipe", B, LASTS], lambda c: not c.brokers[B].is_up and c.brokers[B].disks > 1),
    "isolate": (["isolate", B, LASTS], lambda c: lost(c) == between([B], rest(c, B))),
    "cut": (["cut", A, B, LASTS, False], lambda c: lost(c) == between([A], [B])),
    "one_way": (["cut", A, B, LASTS, True], lambda c: lost(c) == {(A, B)}),
    "split": (["split", [A, Z], LASTS], lambda c: lost(c) == between([A, Z], rest(c, A, Z))),
    "bridge": (["bridge", [A], [C, Z], LASTS], lambda c: lost(c) == between([A], [C, Z])),
    "swizzle": (["swizzle", [A, B], 0, LASTS], lambda c: {(A, C), (C, B)} <= lost(c)),
    "clog": (["clog", A, B, LASTS], lambda c: c.network.link(A, B).clogged_until > c.world.now),
    "slow_link": (["slow_link", A, B, LASTS, 7], lambda c: c.network.link(A, B).slow == 7),
    "slow_disk": (["slow_disk", B, LASTS, 7], lambda c: c.brokers[B].files.slow == 7),
    "full_disk": (["full_disk", B, LASTS, 9], lambda c: c.brokers[B].files.room is not None),
    "fail_disk": (["fail_disk", B, "unlink", LASTS, 2], lambda c: c.brokers[B].files.failing),
    "clock": (["clock", B, LASTS, 3_000_000], lambda c: c.brokers[B].clock.rate == 3_000_000),
    "suspend": (["suspend", Z, LASTS], lambda c: lost(c) == between([Z], [COORDINATOR])),
    "slow_coordinator": (["slow_coordinator", LASTS, 9], lambda c: c.ensemble.latency_us == 4_500),
}
# These faults do not end.
STAYS: dict[str, tuple[list[object], Look]] = {
    "jump": (["jump", B, 9_000_000], lambda c: c.brokers[B].clock() > c.brokers[C].clock() + 8_000),
    "skew": (["skew", B, -77], lambda c: c.brokers[B].wall_skew_ms == -77),
    "reset": (["reset", A, B], lambda c: c.network.link(A, B).generation > 0),
    "expire": (["expire", Z], lambda c: "session-1" not in c.ensemble.sessions),
    "flip": (["flip", B, 1, LASTS], lambda c: any("flipped" in line for line in c.trace)),
}


@pytest.mark.parametrize("kind", [*SEEN, *STAYS])
def test_a_fault_does_what_its_name_says(kind: str) -> None:
    """Each fault affects the process that it names.

    The test would notice a fault without an effect.
    """
    step, look = (SEEN | STAYS)[kind]
    with Cluster(brokers=3, seed=6, coordinator_us=500, session_ms=6_000) as cluster:
        written(cluster, 3)
        cluster.client("app-0")
        assert not look(cluster), "it is so anyway"
        Nemesis(cluster, Plan(6, faults=[[1_000, *step]]), cluster.world.now)
        cluster.run(seconds=0.2)
        assert look(cluster), "it has not come"
        if kind in SEEN:
            cluster.run(seconds=3)
            assert not look(cluster), "it has not ended"


def test_every_kind_of_fault_is_looked_at() -> None:
    """All kinds are covered here, except crashes of applications (in swarm runs) and rates (tested
    separately).
    """
    assert {*SEEN, *STAYS, "crash_app"} == set(FAULTS) - set(RATES)


def test_rates_of_a_plan_are_those_of_the_links() -> None:
    link = {kind: 0.25 for kind in RATES if kind != "uncertain"}
    with Cluster(brokers=2, seed=1) as cluster:
        Nemesis(cluster, Plan(1, link=link, uncertain=0.5), cluster.world.now)
        faults = attrs.asdict(cluster.network.link(A, B).faults)
        assert {kind: faults[kind] for kind in link} == link
        assert cluster.ensemble.uncertain == 0.5
        cluster.calm()
        assert not any(attrs.asdict(cluster.network.link(A, B).faults)[kind] for kind in link)
        assert not cluster.ensemble.uncertain


def test_each_process_has_a_clock_of_its_own() -> None:
    """The clocks run at the rates that a run has drawn for them."""
    with Cluster(brokers=2, seed=1, rates={A: 0.5, Z: 3.0}) as cluster:
        hosts = [cluster.host(name) for name in (A, B, Z)]
        before = [host.clock() for host in hosts]
        cluster.run(seconds=10)
        passed = [host.clock() - at for host, at in zip(hosts, before, strict=True)]
        assert [round(ms / 100) for ms in passed] == [50, 100, 300]


def test_profiles_are_of_known_kinds() -> None:
    assert all(set(kinds) <= set(FAULTS) for kinds in PROFILES.values())
    assert set(ROTATION) <= set(PROFILES)


def test_a_crash_loop_dies_again_after_each_start() -> None:
    """A broker that dies several times, each time after a number of effects, recovers in the
    end.
    """
    with Cluster(brokers=1, seed=3) as cluster:
        acked = written_alone(cluster)
        plan = Plan(
            3, brokers=1, faults=[[1_000, "crash_loop", "broker-0", [2, 3, 5], "random", 1]]
        )
        before = cluster.brokers["broker-0"].incarnation
        nemesis = Nemesis(cluster, plan, cluster.world.now)
        cluster.run(seconds=20)
        assert cluster.brokers["broker-0"].incarnation >= before + 2
        nemesis.stop()
        with cluster.client().consumer("t", mode="psb") as consumer:
            assert {r.offset: r.value for r in consumer.until_end()} == acked


def written_alone(cluster: Cluster) -> dict[int, bytes]:
    """A record of a topic with one replica."""
    mq = cluster.client()
    mq.create_topic("t", acks="raft")
    with mq.producer() as producer:
        return {producer.send("t", b"it").result().offset: b"it"}


def test_one_disk_is_replaced_at_a_time() -> None:
    """As long as the zkservers do not know that a disk was replaced, no other disk is replaced.

    Found by the simulator: --profile swarm --brokers 5 --zkservers 2 --seconds 4 --seeds 20006.
    """
    steps: list[list[object]] = [
        [1_000, "wipe", "broker-0", 3_000_000],
        [1_000_000, "wipe", "broker-1", 100_000],
        [9_000_000, "wipe", "broker-1", 100_000],
    ]
    plan = Plan(seed=1, brokers=5, faults=steps)
    with Cluster(brokers=5, seed=1, session_ms=6_000) as cluster:
        disks = {name: host.disks for name, host in cluster.brokers.items()}
        Nemesis(cluster, plan, cluster.world.now)
        cluster.run(seconds=2)
        cluster.client().create_topic("t", acks="raft", replicas=5)
        assert cluster.brokers["broker-0"].disks > disks["broker-0"]
        assert cluster.brokers["broker-1"].disks == disks["broker-1"]
        cluster.run(seconds=10)
        assert cluster.brokers["broker-1"].disks > disks["broker-1"]


def test_a_damaged_disk_is_no_reason_to_damage_another() -> None:
    """Another replica may lack exactly the damaged records, so its disk must not be damaged.

    Found by the simulator: --profile all --seconds 4 --seeds 972. The last in-sync replica had lost
    records that its disk did not keep.
    """
    steps: list[list[object]] = [
        [1_000, "flip", "broker-0", 1, 9_000_000],
        [2_000, "flip", "broker-1", 1, 9_000_000],
        [3_000, "wipe", "broker-1", 100_000],
    ]
    with Cluster(brokers=2, seed=4) as cluster:
        mq = cluster.client()
        mq.create_topic("t", acks="leader", replicas=2, fsync="always")
        with mq.producer() as producer:
            producer.send("t", b"it").result()
        cluster.run(seconds=1)
        disks = {name: host.disks for name, host in cluster.brokers.items()}
        nemesis = Nemesis(cluster, Plan(seed=4, brokers=2, faults=steps), cluster.world.now)
        cluster.run(seconds=1)
        assert nemesis.redundancy.rotten == {"broker-0": disks["broker-0"]}
        assert cluster.brokers["broker-1"].disks == disks["broker-1"]
        cluster.run(seconds=20)
        assert nemesis.redundancy.rotten == {}
        assert cluster.brokers["broker-0"].disks > disks["broker-0"]
