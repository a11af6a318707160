"""Fixture: a queue for the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pymq
from tests.web.helpers import fill


@pytest.fixture
def mq() -> Iterator[pymq.Client]:
    with pymq.open("memory:") as client:
        fill(client)
        yield client
