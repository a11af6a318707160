"""A node dies at each of its effects in turn, and the cluster is healthy in the end."""

from __future__ import annotations

import io

import pytest

from pymq.testing.cluster import Cluster
from pymq.testing.crashpoints import (
    Crashes,
    CrashPoint,
    crash,
    enumerate_crashes,
    points,
    sample,
    survey,
)
from tests.simulator.crashes import command, main
from tests.testing.scripts import SCENARIOS

MODULE = "tests.testing.scripts"
SHARE = 80  # one of SHARE points is tested, and at least one of each kind of effect


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if number % 2 else [])
        for number, name in enumerate(SCENARIOS)
    ],
)
def test_a_crash_anywhere(name: str) -> None:
    """A sample of all crash points, the same every time; ``make soak`` tries all of them."""
    scenario = SCENARIOS[name]
    found = Crashes()
    for point in sample(survey(scenario), SHARE):
        found.add(crash(scenario, point))
    failures = [f"{run.problem}\n{command(MODULE, name, run.point)}" for run in found.failed]
    assert not failures, "\n".join(failures)


def test_the_sample_is_large_enough() -> None:
    """The sample contains points of every script and every kind of effect."""
    runs = total = 0
    for scenario in SCENARIOS.values():
        boundaries = survey(scenario)
        chosen = sample(boundaries, SHARE)
        by_place = {(b.node, b.number): b.kind for b in boundaries}
        kinds = {by_place[point.node, point.boundary] for point in chosen}
        assert kinds == {boundary.kind for boundary in boundaries}
        assert len(chosen) == len({*chosen})
        runs += len(chosen)
        total += len(points(boundaries))
    assert len(SCENARIOS) >= 50
    assert runs >= 1_200
    assert total >= 30_000


def test_the_samples_of_all_shifts_are_everything() -> None:
    boundaries = survey(SCENARIOS["commit"])
    found = {point for shift in range(7) for point in sample(boundaries, 7, shift)}
    assert found == {*points(boundaries)}


@pytest.mark.parametrize(
    ("name", "point"),
    [
        # In the end, unread copies of a sealed block were still being completed.
        ("none_to_raft", "broker-0:28:state-0:50"),
        ("three_replicas_none", "broker-0:44:state-0:50:16"),
    ],
)
def test_what_failed_once(name: str, point: str) -> None:
    assert crash(SCENARIOS[name], CrashPoint.parse(point)).problem == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("again", [2, 9, 25])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_anywhere_and_another_one(name: str, again: int) -> None:
    """The node dies a second time while it recovers."""
    scenario = SCENARIOS[name]
    found = Crashes()
    for boundary in survey(scenario)[again % 3 :: 3]:
        for keep in ("state-0", "random"):
            point = CrashPoint(boundary.node, boundary.number, keep, again=again)
            found.add(crash(scenario, point))
    assert found.failed == []


# --- the enumeration itself -----------------------------------------------------------------------


def test_a_point_is_run_again_exactly() -> None:
    """The printed name of a point is enough to repeat its run."""
    scenario = SCENARIOS["roll_by_size"]
    boundaries = survey(scenario)
    for point in points(boundaries)[11::97]:
        first, second = crash(scenario, point), crash(scenario, CrashPoint.parse(str(point)))
        assert (first.digest, first.events) == (second.digest, second.events)
        out = io.StringIO()
        assert main([*command(MODULE, "roll_by_size", point).split()[3:]], out) == 0
        assert first.digest in out.getvalue()


def test_a_point_that_the_script_does_not_reach_is_told() -> None:
    run = crash(SCENARIOS["commit"], CrashPoint("broker-0", 100_000, "none"))
    assert "was not reached" in run.problem


def lying(cluster: Cluster) -> None:
    """A script that sends with a weaker ack mode than its check requires."""
    mq = cluster.client()
    mq.create_topic("t", acks="leader", fsync="os", exist_ok=True)
    cluster.notes["values"] = values = [b"a", b"b", b"c"]
    with mq.producer(idempotent=False) as producer:
        for value in values:
            producer.send("t", value).result()


def believing(cluster: Cluster) -> None:
    with cluster.client().consumer("t", mode="psb") as consumer:
        found = {record.value for record in consumer.until_end()}
    missing = set(cluster.notes["values"]) - found
    assert not missing, f"{sorted(missing)} were acknowledged"


def test_a_lie_is_found() -> None:
    """Data that was not synced is missing after a crash, even if its producer got an
    acknowledgement.
    """
    crashes = enumerate_crashes(lying, then=believing, brokers=1, states=["none"])
    assert "were acknowledged" in crashes.failed[0].problem
    assert enumerate_crashes(lying, then=believing, brokers=1, states=["all"]).failed == []
    every = enumerate_crashes(lying, then=believing, brokers=1, states=None)
    assert {run.disk for run in every.failed} > {"state-0"}
    assert "state-1" not in {run.disk for run in every.failed}  # in state 1 everything survives
