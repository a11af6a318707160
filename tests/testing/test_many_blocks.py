"""A partition has more blocks than fit into one message to a broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pymq.client.option_types import Acks
from pymq.core.message import LeaderAndIsr, Message, chunks
from pymq.core.observe.coverage import counting
from pymq.testing import Cluster
from pymq.testing.faults.limits import LIMITS, limited
from pymq.testing.simulation.network import LinkFaults
from pymq.testing.simulation.process import Process

BYTES = 1_500  # large enough for some four blocks
COUNT = 150


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(LIMITS, "STATES_BYTES_MAX", ("pymq.controller.", (BYTES,)))
    with limited({"STATES_BYTES_MAX": BYTES}):
        yield


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize("acks", ["leader", "raft"])
def test_it_is_told_in_parts(acks: Acks, loss: float) -> None:
    """Restarted brokers serve all of the blocks, and brokers with new disks adopt them.

    Messages may be lost.
    """
    with Cluster(brokers=4, zkservers=1, seed=11) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks=acks, block_bytes=4_096)
        mq.create_topic("other", partitions=3, replicas=3, acks=acks)
        told: list[LeaderAndIsr] = []

        def note(_: Process, __: str, ___: str, message: Message) -> None:
            assert isinstance(message, LeaderAndIsr)
            told.append(message)

        cluster.zkservers["zkserver-0"].on_send.setdefault(LeaderAndIsr, []).append(note)
        with mq.producer(linger_ms=0) as producer:
            for number in range(COUNT):
                producer.send("t", b"%d" % number + bytes(500))
                cluster.run(seconds=0.005)
        blocks = len(mq.describe_topic("t").partitions[0].blocks)
        assert blocks > 15
        for name in cluster.brokers:
            cluster.network.link("zkserver-0", name).faults = LinkFaults(loss=loss)
        with counting() as marks:
            for name in cluster.brokers:
                cluster.crash(name, "all")
                cluster.restart(name)
                cluster.run(seconds=2)
            cluster.calm()
            cluster.run(seconds=5)
        assert (marks["parts.missing"] > 0) == (loss > 0)
        assert max(sum(map(chunks.size, m.partitions)) for m in told) <= BYTES
        assert len({state.earlier for m in told for state in m.partitions}) > 3
        with mq.consumer("t", mode="psb") as consumer:
            found = [int(record.value.rstrip(b"\0")) for record in consumer.until_end()]
        assert found == list(range(COUNT))
