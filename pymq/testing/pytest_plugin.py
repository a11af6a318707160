"""A fixture for tests of applications: clusters in virtual time, checked at the test's end.

The fixture is available once pymq is installed::

    def test_mine(pymq_cluster):
        cluster = pymq_cluster(brokers=3)
        mq = cluster.client()
        ...

``--pymq-seed N`` decides everything that is random; a test that fails reports its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pymq.testing.cluster import Cluster

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
