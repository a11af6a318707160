"""Queues to test with: in memory and in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pymq


@pytest.fixture(params=["memory", "folder"])
def mq(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[pymq.Client]:
    url = "memory:" if request.param == "memory" else tmp_path / "data"
    with pymq.open(url) as opened:
        yield opened
