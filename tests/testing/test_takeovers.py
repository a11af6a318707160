"""A slow take-over of a fetch block: the leader is cut off from the zkserver, and continues."""

from __future__ import annotations

import pytest

from pymq import Client
from pymq.core.message import Sealed
from pymq.testing import Cluster

SLOW_US = 300_000  # time of a commit, which passes between answer and roll


def slow_cluster(brokers: int) -> Cluster:
    """A cluster whose coordinator backend is slow."""
    return Cluster(brokers=brokers, zkservers=1, seed=5, coordinator_us=SLOW_US, session_ms=1_500)


def leader(mq: Client) -> str | None:
    """The leader of the partition."""
    return mq.describe_topic("t").partitions[0].leader


@pytest.mark.parametrize("restarts_after_s", [None, 0.05, 0.25])
def test_a_replica_that_has_answered_follows_its_leader_no_more(
    restarts_after_s: float | None,
) -> None:
    """Otherwise the leader would show records behind the end that the replica has reported to the
    zkserver.

    This also holds after a restart: the replica has forgotten its answer, and gets the seal request
    again.
    """
    with slow_cluster(brokers=2) as c:
        mq = c.client()
        mq.create_topic("t", acks="leader", replicas=2)
        with mq.producer(linger_ms=0) as producer:
            producer.send("t", b"first").result()
            old = leader(mq)
            assert old is not None
            follower = next(name for name in c.brokers if name != old)
            answers: list[float] = []
            watched = c.brokers[follower].on_send.setdefault(Sealed, [])
            watched.append(lambda *_: answers.append(c.now))
            c.cut(old, "zkserver-0")
            for number in range(400):
                producer.send("t", b"%d" % number)
                c.run(seconds=0.01)
                is_due = answers and c.now >= answers[0] + (restarts_after_s or 0)
                if is_due and restarts_after_s is not None:
                    restarts_after_s = None
                    c.crash(follower, "none")
                    c.restart(follower)
            assert answers
            c.heal()
            c.run(seconds=5)
            assert leader(mq) == follower
