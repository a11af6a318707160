"""Fixtures for tests of applications, available once pymq is installed.

``pymq_cluster`` makes clusters in virtual time, and checks them at the end of the test::

    def test_mine(pymq_cluster):
        cluster = pymq_cluster(brokers=3)
        mq = cluster.client()
        ...

``--pymq-seed N`` sets the seed of all random choices; a test that fails reports its seed.

``pymq_kafka`` is a Kafka in memory for the test alone, with ``pymq_kafka.bootstrap`` for Kafka's
clients (:class:`pymq.testing.kafka.KafkaForTests`)::

    def test_mine(pymq_kafka):
        producer = confluent_kafka.Producer({"bootstrap.servers": pymq_kafka.bootstrap})
        ...
        assert pymq_kafka.records("invoices") == [...]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pymq.testing.cluster import Cluster
    from pymq.testing.kafka import KafkaForTests

MakeCluster = Callable[..., "Cluster"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--pymq-seed``."""
    group = parser.getgroup("pymq")
    group.addoption("--pymq-seed", type=int, default=0, help="seed of the clusters of pymq_cluster")


@pytest.fixture
def pymq_cluster(request: pytest.FixtureRequest) -> Iterator[MakeCluster]:
    """Make clusters: call it with the arguments of :class:`pymq.testing.Cluster`."""
    from pymq.testing.cluster import Cluster  # on demand: few tests of a suite need it

    seed: int = request.config.getoption("--pymq-seed")
    made: list[Cluster] = []

    def make(**options: Any) -> Cluster:
        cluster = Cluster(**{"seed": seed, **options}).start()
        made.append(cluster)
        request.node.add_report_section(
            "setup", "pymq", f"pymq cluster with seed {cluster.seed}; --pymq-seed chooses it"
        )
        return cluster

    yield make
    for cluster in made:
        cluster.check()


@pytest.fixture
def pymq_kafka() -> Iterator[KafkaForTests]:
    """Make a Kafka in memory; needs the extra ``kafka``."""
    from pymq.testing.kafka import KafkaForTests  # only now: few tests of a suite need it

    with KafkaForTests() as kafka:
        yield kafka
