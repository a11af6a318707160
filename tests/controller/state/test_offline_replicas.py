"""A replica whose disk failed is replaced at once, or as soon as another broker is available."""

from __future__ import annotations

import pytest

from pymq.core.message import OfflineReplica, OfflineReplicas
from pymq.core.types import AckMode
from tests.controller.cluster import T0, Cluster


@pytest.mark.parametrize("acks", [AckMode.LEADER, AckMode.RAFT])
def test_a_failed_replica_is_replaced_when_a_broker_comes_later(acks: AckMode) -> None:
    """A partition with a failed replica gets a third sound replica when another broker joins."""
    cluster = Cluster(replace_ms=10_000, check_ms=30_000)
    cluster.topic(acks)
    cluster.write(5)
    failed = cluster.followers()[0]
    replica = OfflineReplica(*T0, cluster.image.topics["t"].node.id, False, "no")
    told = OfflineReplicas(failed, cluster.brokers[failed].incarnation, 1, (replica,))
    cluster.to_active(failed, told)
    cluster.pass_ms(12_000)
    assert failed in cluster.open().replicas
    cluster.start_broker("b3")
    cluster.pass_ms(32_000)
    assert set(cluster.open().replicas) == {"b0", "b1", "b2", "b3"} - {failed}
    number = cluster.open().number
    cluster.pass_ms(120_000, 500)
    assert cluster.open().number == number, "and is not rolled again and again"
