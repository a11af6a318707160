"""Two copies of a Raft block have the same length, but different content."""

from __future__ import annotations

import pytest

from pymq import Client
from pymq.testing import Cluster
from pymq.testing.simulation import probe


def leader(mq: Client) -> str | None:
    """The leader of the partition."""
    return mq.describe_topic("t").partitions[0].leader


def ends(c: Cluster) -> dict[str, int]:
    """The end of each broker's copy of the open block."""
    found = {}
    for name, host in c.brokers.items():
        assert host.broker is not None
        for partition in probe.partitions(host.broker):
            look = probe.look(partition, None)
            assert look is not None
            found[name] = look.end
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_copy_of_a_leader_that_was_replaced_is_no_copy(seed: int) -> None:
    """Half of the voters lose their disks.

    One of the two others has all records, the other one does not.

    A leader that is cut off has appended records that no other replica has. Meanwhile the next
    leader's log has the same length, with a later epoch at its end, and that log was committed.
    """
    with Cluster(brokers=4, zkservers=1, seed=seed) as c:
        mq, other = c.client(), c.client("other")
        mq.create_topic("t", acks="raft", replicas=4)
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", b"first").result()
        old = leader(mq)
        assert old is not None
        rest = [name for name in c.brokers if name != old]
        c.cut(old, rest)
        lost = other.producer(linger_ms=0)
        lost.send("t", b"lost")
        c.run_until(lambda: ends(c)[old] == 2)
        c.crash("other")
        c.cut(old, ["client-0", "zkserver-0"])
        c.run_until(lambda: leader(mq) in rest)
        new = leader(mq)
        c.run(seconds=1)
        assert set(ends(c).values()) == {2}
        for name in c.brokers:
            if name in (old, new):
                c.crash(name, "all")
            else:
                c.wipe(name)
        c.heal()
        for name in c.brokers:
            c.restart(name)
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", b"last").result()
        c.run(seconds=5)
        assert mq.describe_topic("t").partitions[0].blocks[0].end_offset == 2
        reader = mq.consumer("t", mode="psb", offset="begin")
        assert [record.value for record in reader.until_end()] == [b"first", b"last"]
