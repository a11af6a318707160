"""A real ZooKeeper for the tests that need one, started once for each process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pymq.testing.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def zookeeper(
    needs_zookeeper: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeper]:
    """Start a server for tests that do not stop it; each test uses a separate root."""
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running
