"""A reader's subscription lasts as long as the reader, whichever zkserver is active."""

from __future__ import annotations

import pytest

from pymq.controller.controller import Controller
from pymq.core.message import Subscribe, Unsubscribe
from pymq.errors import InvalidRequest, PymqError
from pymq.testing import Cluster as Simulated
from tests.controller.cluster import Cluster

R = "client.reader1"


def read(cluster: Cluster, name: str = R, group: str | None = None) -> None:
    mode = "psb" if group is None else "ptp"
    cluster.ask(lambda i: Subscribe(i, name, "t", mode, group))


def subscribed(cluster: Cluster) -> list[str]:
    return sorted(cluster.image.topics["t"].subscriptions)


def test_a_reader_that_is_silent_is_forgotten() -> None:
    cluster = Cluster()
    cluster.topic()
    read(cluster)
    read(cluster, "g", "g")
    read(cluster, "client.other")
    commits = len(cluster.active.commits)
    for _ in range(6):
        cluster.pass_ms(10_000)
        read(cluster)  # the reader repeats its subscription, so nothing is committed
    assert subscribed(cluster) == [R, "g"]
    assert len(cluster.active.commits) == commits + 1
    cluster.ask(lambda i: Unsubscribe(i, R, "t"))
    read(cluster)
    cluster.pass_ms(30_000)
    assert subscribed(cluster) == [R, "g"]
    cluster.pass_ms(40_000)
    assert subscribed(cluster) == ["g"]
    assert cluster.active.machine.deadline > cluster.now


@pytest.mark.parametrize("name", ["", "..", "a/b", "ä", "x" * 300])
def test_what_cannot_be_a_name_is_an_answer_and_not_the_end(name: str) -> None:
    """A request with an invalid name gets an error and does not stop any zkserver."""
    cluster = Cluster()
    cluster.topic()
    for message in (
        Unsubscribe(71, name, "t"),
        Unsubscribe(72, "r", name),
        Subscribe(73, name, "t", "psb"),
        Subscribe(74, "r", name, "psb"),
    ):
        cluster.to_active("client-1", message)
        cluster.run()
        assert isinstance(cluster.answers[message.id].error, PymqError)
    read(cluster)
    assert subscribed(cluster) == [R]


def test_nobody_subscribes_or_unsubscribes_in_the_name_of_another() -> None:
    cluster = Cluster()
    cluster.topic()
    read(cluster)
    read(cluster, "g", "g")
    for message in (
        Unsubscribe(81, R, "t"),
        Unsubscribe(82, "g", "t"),
        Unsubscribe(83, R, "t", "mine"),
        Unsubscribe(84, "g", "t", "mine"),
        Subscribe(85, R, "t", "psb"),
        Subscribe(86, "g", "t", "ptp", "mine"),
        Subscribe(87, R, "t", "ptp", R),
    ):
        cluster.to_active("evil.reader1", message)
        cluster.run()
        assert isinstance(cluster.answers[message.id].error, InvalidRequest)
    assert subscribed(cluster) == [R, "g"]
    cluster.ask(lambda i: Unsubscribe(i, "g", "t", "g"))
    assert subscribed(cluster) == [R]


@pytest.mark.parametrize("mode", ["", "\x1b[31mmode", "PTP"])
def test_a_mode_is_one_of_two(mode: str) -> None:
    cluster = Cluster()
    cluster.topic()
    with pytest.raises(InvalidRequest):
        cluster.ask(lambda i: Subscribe(i, R, "t", mode))


def test_the_next_zkserver_hears_of_it() -> None:
    cluster = Cluster(zks=2)
    cluster.topic()
    read(cluster)
    read(cluster, "g", "g")
    cluster.crash_zk("zk-0")
    assert subscribed(cluster) == ["g"]
    read(cluster)
    assert subscribed(cluster) == [R, "g"]
    cluster.pass_ms(40_000)
    assert subscribed(cluster) == ["g"]


def test_readers_outlive_zkservers_and_not_their_applications() -> None:
    with Simulated(brokers=1, zkservers=2, seed=3) as cluster:
        mq = cluster.client("app")
        mq.create_topic("t")
        # keep a reference, since a dropped consumer is closed
        reader = mq.consumer("t", mode="psb")

        def active() -> tuple[str, Controller]:
            hosts = cluster.zkservers.items()
            ((name, found),) = [
                (name, host.controller)
                for name, host in hosts
                if host.controller is not None and host.controller.is_active
            ]
            return name, found

        def names() -> list[str]:
            return list(active()[1].image.topics["t"].subscriptions)

        before = names()
        assert len(before) == 1
        cluster.crash(active()[0])
        cluster.run(20.0)
        assert names() == before
        cluster.run(60.0)
        assert names() == before
        assert reader.topic == "t"
        cluster.crash("app")
        cluster.run(60.0)
        assert names() == []
