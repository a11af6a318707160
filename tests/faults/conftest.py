"""What the fault tests share: a reason where there is no ZooKeeper, and a place for reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymq.errors import MissingExtra
from pymq.testing.zookeeper import find_jars


@pytest.fixture(scope="session")
def needs_zookeeper() -> None:
    """Skip, and say so, where a ZooKeeper cannot be started."""
    try:
        find_jars()
    except MissingExtra as missing:
        pytest.skip(f"no real ZooKeeper here: {missing}")


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a report, which is shown when all tests have ended."""

    def told(report: str) -> None:
        request.node.user_properties.append(("faults", f"{request.node.name}: {report}"))

    return told
