"""A broker dies at each of its effects, in turn: nothing that was promised is missing."""

from __future__ import annotations

import pytest

from pymq.testing.cluster import Cluster
from pymq.testing.crashpoints import STATES, Script, enumerate_crashes
from tests.testing import scripts

SCRIPTS = [
    scripts.produce,
    scripts.roll,
    scripts.change_modes,
    scripts.retain,
    scripts.commit,
    scripts.reopen,
]


def identify(script: Script) -> str:
    return script.__name__


@pytest.mark.parametrize("script", SCRIPTS, ids=identify)
def test_a_crash_anywhere(script: Script) -> None:
    """One state of the disk for each place; which one goes round."""
    every = 1 if script is scripts.produce else 7
    for number, state in enumerate(STATES):
        found = enumerate_crashes(
            script, then=scripts.all_is_there, brokers=1, states=[state], every=every, seed=number
        )
        assert found.boundaries > 10
        assert found.failed == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("script", SCRIPTS, ids=identify)
def test_a_crash_anywhere_in_every_way(script: Script) -> None:
    """Every place, every state, some more dice, and crashes during the recovery too."""
    found = enumerate_crashes(
        script, then=scripts.all_is_there, brokers=1, states=[*STATES, "random-1"]
    )
    assert found.failed == []
    for again in (2, 9, 25):
        found = enumerate_crashes(
            script, then=scripts.all_is_there, brokers=1, states=["random"], every=4, again=again
        )
        assert found.failed == []


def test_a_lie_is_found() -> None:
    """What is not synced is missing after a crash, whatever its producer was told."""

    def script(cluster: Cluster) -> None:
        mq = cluster.client()
        mq.create_topic("t", acks="leader", fsync="os", exist_ok=True)
        cluster.notes["values"] = values = [b"a", b"b", b"c"]
        with mq.producer(idempotent=False) as producer:
            for value in values:
                producer.send("t", value).result()

    def check(cluster: Cluster) -> None:
        with cluster.client().consumer("t", mode="psb") as consumer:
            found = {record.value for record in consumer.until_end()}
        missing = set(cluster.notes["values"]) - found
        assert not missing, f"{sorted(missing)} were acknowledged"

    crashes = enumerate_crashes(script, then=check, brokers=1, states=["none"])
    assert "were acknowledged" in crashes.failed[0].problem
    assert enumerate_crashes(script, then=check, brokers=1, states=["all"]).failed == []
