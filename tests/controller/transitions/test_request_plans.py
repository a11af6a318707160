"""The number of nodes that clients may create is bounded: each name and subscription is a permanent
node.
"""

from __future__ import annotations

import pytest

from pymq.core.message import InitProducer, Subscribe, Unsubscribe
from pymq.errors import GroupLimitReached, ProducerLimitReached
from tests.controller.cluster import Cluster

MODULE = "pymq.controller.transitions.request_plans"


def subscribe(cluster: Cluster, name: str, group: str | None) -> None:
    mode = "psb" if group is None else "ptp"
    cluster.ask(lambda i: Subscribe(i, name, "t", mode, group))


def test_a_topic_has_so_many_subscriptions_of_groups_and_as_many_of_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if there are very many groups, readers and known groups can still subscribe."""
    monkeypatch.setattr(f"{MODULE}.SUBSCRIPTIONS_MAX", 3)
    cluster = Cluster()
    cluster.topic()
    for group in ("a", "b", "c"):
        subscribe(cluster, group, group)
    with pytest.raises(GroupLimitReached, match=r"3 subscriptions of groups.*unsubscribe"):
        subscribe(cluster, "d", "d")
    subscribe(cluster, "a", "a")
    for number in range(3):
        subscribe(cluster, f"client.reader{number}", None)
    with pytest.raises(GroupLimitReached, match="3 subscriptions of readers"):
        subscribe(cluster, "client.reader3", None)
    cluster.ask(lambda i: Unsubscribe(i, "b", "t", "b"))
    subscribe(cluster, "d", "d")
    assert {"a", "c", "d"} < {*cluster.image.topics["t"].subscriptions}


def test_a_cluster_has_so_many_named_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known named producers can continue; producers without a name do not count."""
    monkeypatch.setattr(f"{MODULE}.NAMES_MAX", 2)
    cluster = Cluster()
    cluster.topic()
    cluster.ask(lambda i: InitProducer(i, "loader", takes_ids=True))
    cluster.ask(lambda i: InitProducer(i, "copier", takes_ids=True))
    with pytest.raises(ProducerLimitReached, match="2 named producers") as refused:
        cluster.ask(lambda i: InitProducer(i, "third", takes_ids=True))
    assert refused.value.code == "PRODUCER_LIMIT_REACHED"
    assert not refused.value.retriable
    again = cluster.ask(lambda i: InitProducer(i, "loader", takes_ids=True))
    assert again.epoch == 1
    assert cluster.ask(lambda i: InitProducer(i, "", takes_ids=True)).count > 1
