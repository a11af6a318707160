"""Creating a topic may take longer than the timeout of a request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pymq.testing import Cluster
from pymq.testing.faults.limits import limited

COUNT = 60
REQUEST_S = 10.0


@pytest.fixture
def small() -> Iterator[None]:
    """Make slices so small that a topic of a few partitions counts as a very large one."""
    with limited({"SLICE_OPS": 2, "TOLD_MAX": 5, "TURN_MAX": 2, "LOOKS_MAX": 3}):
        yield


@pytest.mark.usefixtures("small")
def test_a_topic_that_takes_half_a_minute_is_made_and_deleted() -> None:
    """In an earlier version the client gave up after ten seconds: "no zkserver is active".

    Nevertheless the topic was created.
    """
    with Cluster(brokers=3, zkservers=2, seed=3, coordinator_us=150_000) as cluster:
        mq = cluster.client()
        before = cluster.now
        mq.create_topic("large", partitions=COUNT, replicas=3)
        assert cluster.now - before > 2 * REQUEST_S
        assert len(mq.describe_topic("large").partitions) == COUNT
        with mq.producer() as producer:
            producer.send("large", b"x", partition=COUNT - 1).result(10)
        mq.delete_topic("large")
        assert "large" not in mq.topics()
