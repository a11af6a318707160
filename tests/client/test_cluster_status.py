"""For each fault, a consumer's status gives the reason for missing records, for readers and for
groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import pymq
from pymq.core.types import OFFSETS_TOPIC
from pymq.hash.partitioner import key_partition
from pymq.testing import Cluster
from pymq.testing.simulation.network import LinkFaults

AT_END = "it has reached the end of all its partitions"


class Scene:
    """A consumer that has read everything; its partition and its group are on different brokers."""

    def __init__(self, cluster: Cluster, consumer: pymq.Consumer) -> None:
        self.cluster = cluster
        self.consumer = consumer
        self.mq = cluster.client()
        (leader,) = self._leaders("t")
        leaders = self._leaders(OFFSETS_TOPIC)
        self.leader, self.coordinator = leader, leaders[key_partition(b"g", len(leaders))]

    def _leaders(self, topic: str) -> list[str]:
        return [str(found.leader) for found in self.mq.describe_topic(topic).partitions]

    def others(self, *names: str) -> list[str]:
        return [name for name in self.cluster.brokers if name not in names]

    def cut(self, *nodes: str) -> None:
        """Cut the connections between the consumer and some nodes."""
        for node in nodes:
            for link in (("client-0", node), (node, "client-0")):
                self.cluster.network.link(*link).faults = LinkFaults(loss=1.0)

    def crash(self, *nodes: str) -> None:
        for node in nodes:
            self.cluster.crash(node)

    def idle(self) -> str:
        assert self.consumer.poll(timeout=3.0) == []
        since = self.cluster.now
        idle = self.consumer.status().idle
        assert self.cluster.now - since < 4  # The status does not wait for a silent node.
        assert idle is not None
        return idle


@contextmanager
def scene(mode: str, seed: int = 5) -> Iterator[Scene]:
    with Cluster(brokers=3, zkservers=2, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="raft")
        options = {"group": "g"} if mode == "ptp" else {"mode": "psb"}
        with mq.consumer("t", **options) as consumer:  # type: ignore[arg-type]  # they are texts
            put(cluster.client(), 1)
            records: list[pymq.Record] = []
            while not records:
                records = consumer.poll(timeout=1.0)
            if mode == "ptp":
                consumer.ack(records)
                consumer.commit()
            else:
                with cluster.client().consumer("t", group="h"):
                    pass  # The coordinators have been created by now.
            yield Scene(cluster, consumer)


def put(mq: pymq.Client, *numbers: int) -> None:
    with mq.producer() as producer:
        for number in numbers:
            producer.send("t", b"%d" % number)


# For each fault: how to cause it, and the resulting status for a reader and for a group member.
# Words in braces stand for the names of brokers.
FAULTS: dict[str, tuple[Callable[[Scene], None], str, str]] = {
    "nothing": (lambda s: None, AT_END, AT_END),
    "the leader is alone, and leads no more": (
        lambda s: s.crash(*s.others(s.leader)),
        "{leader}: t/0 has no leader now",
        "the coordinator of group 'g'",
    ),
    "all brokers are dead": (
        lambda s: s.crash(*s.cluster.brokers),
        "the leader of t/0 is unknown: none was elected yet",
        "the coordinator of group 'g' is unknown: none was elected yet",
    ),
    "the leader cannot be reached": (
        lambda s: s.cut(s.leader),
        "{leader} did not answer",
        "{leader} did not answer",
    ),
    "the coordinator cannot be reached": (
        lambda s: s.cut(s.coordinator),
        AT_END,
        "the coordinator of group 'g': {coordinator} did not answer",
    ),
    "no zkserver is there, which is no reason": (
        lambda s: s.crash(*s.cluster.zkservers),
        AT_END,
        AT_END,
    ),
    "no zkserver can tell who leads now": (
        lambda s: s.crash(*s.cluster.zkservers, s.leader),
        "{leader} did not answer",
        "{leader} did not answer",
    ),
    "nobody can be reached": (
        lambda s: s.cut(*s.cluster.brokers, *s.cluster.zkservers),
        "{leader} did not answer",
        "the coordinator of group 'g': {coordinator} did not answer",
    ),
    "paused": (
        lambda s: s.consumer.pause(),
        "all its partitions are paused",
        "all its partitions are paused",
    ),
}


@pytest.mark.parametrize("mode", ["psb", "ptp"])
@pytest.mark.parametrize("fault", FAULTS)
def test_why_it_is_idle(fault: str, mode: str) -> None:
    happens, reader, member = FAULTS[fault]
    with scene(mode) as on:
        assert on.leader != on.coordinator
        happens(on)
        expected = (reader if mode == "psb" else member).format(
            leader=on.leader, coordinator=on.coordinator
        )
        assert on.idle().startswith(expected)


def test_records_that_are_leased_and_those_that_come_later() -> None:
    with scene("ptp") as on:
        put(on.mq, 2, 3)
        held: list[pymq.Record] = []
        while len(held) < 2:
            held += on.consumer.poll(timeout=1.0)
        assert on.idle() == (
            "2 records are leased and not acknowledged, 0 are to be delivered again later"
        )
        on.consumer.nack(held, delay=60.0)
        assert on.idle() == (
            "0 records are leased and not acknowledged, 2 are to be delivered again later"
        )


@pytest.mark.parametrize("mode", ["psb", "ptp"])
def test_records_need_no_zkserver(mode: str) -> None:
    """Existing partitions, and requests for their bounds, work without a zkserver."""
    with scene(mode) as on, on.cluster.client().producer() as producer:
        producer.send("t", b"2").result(timeout=10)
        on.crash(*on.cluster.zkservers)
        producer.send("t", b"3").result(timeout=10)
        found = list(on.consumer.until_end())
        assert [record.value for record in found] == [b"2", b"3"]
        if mode == "ptp":
            assert on.consumer.lag() == {"0": 2}
            on.consumer.ack(found)
            on.consumer.commit()
        assert on.consumer.lag() == {"0": 0}
