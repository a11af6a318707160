"""Fixtures: queues in memory, in a folder, and on a broker over sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pymq
from tests.client.helpers import opened


@pytest.fixture(params=["memory", "folder", "zmq"])
def mq(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[pymq.Client]:
    with opened(request.param, tmp_path / "data") as client:
        yield client
