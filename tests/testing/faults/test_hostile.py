"""A misbehaving client is refused, and does not affect other clients."""

from __future__ import annotations

from random import Random

import pytest

from pymq.testing import Cluster
from pymq.testing.faults.hostile import ACTS, LIES, NAME, Hostile
from pymq.testing.faults.kinds import HOSTILE_SHARE, ROTATION
from pymq.testing.faults.plan import generate
from pymq.testing.run import run_plan
from pymq.testing.simulation.world import Violation
from tests.testing.planted import planted


@pytest.mark.parametrize("seed", range(3))
def test_all_works_beside_it(seed: int) -> None:
    plan = generate(seed, zkservers=1, profile="hostile", seconds=4)
    assert any(step[1] == NAME for step in plan.faults)
    result = run_plan(plan)
    assert result.violation is None, result.message


def misbehave(cluster: Cluster) -> Hostile:
    """Let the hostile client do all its acts, while another client sends records."""
    mq, rng = cluster.client(), Random(1)
    mq.create_topic("t", acks="raft")
    hostile = Hostile(cluster, ["t"], ["g"])
    with mq.producer() as producer:
        for number in range(400):
            producer.send("t", b"%d" % number, partition="0").result()
            hostile.do(ACTS[number % len(ACTS)], rng.getrandbits(32))
            cluster.run(seconds=0.05)
    with mq.consumer("t", mode="psb", offset="begin") as consumer:
        assert [record.value for record in consumer.until_end()] == [
            b"%d" % number for number in range(400)
        ]
    return hostile


def test_whatever_it_sends_is_refused_and_in_no_log() -> None:
    with Cluster(brokers=1, seed=1) as cluster:
        hostile = misbehave(cluster)
        said = "\n".join(hostile.refused.batches.values())
        for what in ("another CRC", "(repeat", "(gap", "(epoch", *LIES):
            assert what in said


@pytest.mark.parametrize(
    "bug", ["produced-body-unchecked", "produced-form-unchecked", "other-batches-acknowledged"]
)
def test_what_is_taken_in_all_the_same_is_told(bug: str) -> None:
    with (
        planted(bug),
        pytest.raises(Violation, match=r"refused-is|acked-is-written"),
        Cluster(brokers=1, seed=1) as cluster,
    ):
        misbehave(cluster)


def test_it_is_in_some_runs_of_all_profiles_and_leaves_the_others_as_they_were() -> None:
    count = 0
    for seed in range(200):
        plan = generate(seed, profile="all", seconds=2)
        mine = [step for step in plan.faults if step[1] == NAME]
        count += bool(mine)
        profile = ROTATION[seed % len(ROTATION)]
        plan.faults = [step for step in plan.faults if step[1] != NAME]
        if plan.kafka:
            continue  # Kafka's clients are in some of these runs, too.
        assert plan.to_json() == generate(seed, profile=profile, seconds=2).to_json()
    assert 0.5 * HOSTILE_SHARE < count / 200 < 1.5 * HOSTILE_SHARE


def test_a_member_is_not_refused_when_a_log_begins_beyond_the_end_that_it_knew() -> None:
    """In a run of the simulator, retention had removed records faster than members read them.

    Found by: --profile all --seconds 5 --restart any --seeds 30.
    """
    plan = generate(30, brokers=None, zkservers=None, profile="all", seconds=5, restart="any")
    result = run_plan(plan)
    assert result.violation is None, result.message
