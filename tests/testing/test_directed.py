"""Bugs that need two events at once.

Tests cause both events in a cluster, and a rule detects the bug.
"""

from __future__ import annotations

import pytest

from pymq import Client
from pymq.core.message import CreateTopic, RaftTimeout
from pymq.testing import Cluster
from pymq.testing.simulation import probe
from pymq.testing.simulation.process import Process

ZKSERVER = "zkserver-0"


def leader(mq: Client) -> str:
    """The leader of the partition."""
    name = mq.describe_topic("t").partitions[0].leader
    assert name is not None
    return name


def end(c: Cluster, name: str) -> int:
    """The end of a broker's copy of the open block."""
    broker = c.brokers[name].broker
    assert broker is not None
    (look,) = (probe.look(partition, None) for partition in probe.partitions(broker))
    assert look is not None
    return look.end


def test_what_is_asked_while_a_session_ends_is_not_done_in_the_next_one() -> None:
    """The controller epoch is the same, but the ephemeral node of the zkserver that submitted the
    commit no longer exists.
    """
    with Cluster(brokers=1, zkservers=1, seed=1, coordinator_us=20_000) as c:
        mq = c.client()
        mq.create_topic("a")
        told: list[float] = []

        def expire(*_: object) -> None:
            if not told:
                told.append(c.now)
                c.expire_session(ZKSERVER)

        c.zkservers[ZKSERVER].on_receive.setdefault(CreateTopic, []).append(expire)
        mq.create_topic("b")
        assert told
        assert mq.topics() == ["a", "b"]
        assert mq.cluster().controller_epoch == 2


@pytest.mark.parametrize("brokers", [1, 2])
def test_what_a_commit_has_answered_survives_a_power_cut_of_all_brokers(brokers: int) -> None:
    """Without commit(), an acknowledgement is synced within a second, and not before it is
    answered.
    """
    with Cluster(brokers=brokers, zkservers=1, seed=2) as c:
        mq = c.client()
        mq.create_topic("t", acks="raft", replicas=brokers)
        with mq.producer(linger_ms=0) as producer:
            for number in range(10):
                producer.send("t", b"%d" % number)
        with mq.consumer("t", group="g", auto_ack=False) as consumer:
            records = [record for _ in range(10) for record in consumer.poll(max_records=10)][:10]
            for record in records:
                consumer.ack(record)
                consumer.commit()  # the first block has created a file, which syncs all blocks
            for name in c.brokers:
                c.crash(name, "none")
            for name in c.brokers:
                c.restart(name)
        c.run(seconds=5)
        with mq.consumer("t", group="g") as consumer:
            c.run(seconds=5)
            assert len(records) == 10
            assert consumer.committed() == {"0": 10}


@pytest.mark.parametrize("boundary", range(12))
def test_who_takes_the_leadership_over_knows_its_term_after_a_crash(boundary: int) -> None:
    """Otherwise the replica could lead the same term twice, with different batches: only the old
    leader has the batches of the first time.

    The old leader fails, and the third replica has received no message before that.
    """
    with Cluster(brokers=3, zkservers=1, seed=4) as c:
        mq = c.client()
        mq.create_topic("t", acks="raft", replicas=3)
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", b"first").result()
        old = leader(mq)
        heirs: list[str] = []

        def asked(process: Process, *_: object) -> None:
            if not heirs:
                heirs.append(process.name)
                c.cut([name for name in c.brokers if name not in (old, process.name)])
                c.crash(process.name, "none", at_boundary=boundary)

        for host in c.brokers.values():
            host.on_receive.setdefault(RaftTimeout, []).append(asked)
        c.stop(old)
        c.heal()
        c.restart(heirs[0])
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", b"second").result()
            c.restart(old)
            c.run(seconds=2)
            producer.send("t", b"third").result()


def test_what_was_compared_with_one_leader_is_compared_with_the_next() -> None:
    """A follower of a cut-off leader has batches at offsets where the next leader writes other
    batches.
    """
    with Cluster(brokers=5, zkservers=1, seed=3) as c:
        mq, other = c.client(), c.client("other")
        mq.create_topic("t", acks="raft", replicas=5)
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", b"first").result()
            old = leader(mq)
            follower, *rest = (name for name in c.brokers if name != old)
            c.cut([old, follower], [*rest, "zkserver-0", "client-0"])
            lost = other.producer(linger_ms=0)
            for number in range(3):
                lost.send("t", b"lost %d" % number)
            c.run_until(lambda: end(c, follower) == end(c, old) == 4)
            c.crash("other")
            c.run_until(lambda: leader(mq) in rest)
            for number in range(5):
                producer.send("t", b"%d" % number).result()
            c.heal()
            c.run(seconds=2)
        assert {end(c, name) for name in c.brokers} == {end(c, rest[0])}
