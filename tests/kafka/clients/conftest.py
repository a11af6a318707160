"""Queues that Kafka's own clients connect to: in memory, in a folder, and with three brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pymq
from pymq.kafka.endpoint import KafkaEndpoint


class Served:
    """A queue, and where Kafka's clients find it."""

    def __init__(self, mq: pymq.Client, endpoint: KafkaEndpoint) -> None:
        self.mq = mq
        self.bootstrap = endpoint.bootstrap

    def conf(self, **more: Any) -> dict[str, Any]:
        """Return options for confluent-kafka; a dot in a name is written as two underscores."""
        named = {name.replace("__", "."): value for name, value in more.items()}
        return {"bootstrap.servers": self.bootstrap, "log_level": 3, **named}

    def records(self, topic: str) -> list[pymq.Record]:
        """Return all records of a topic, as pymq's own consumer reads them."""
        with self.mq.consumer(topic, mode="reader") as consumer:
            return list(consumer.until_end())


def served(mq: pymq.Client) -> Iterator[Served]:
    with mq, mq.kafka() as endpoint:
        yield Served(mq, endpoint)


@pytest.fixture(params=["memory", "folder", "three brokers"])
def kafka(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A queue of each kind."""
    where = str(tmp_path / "queue") if request.param == "folder" else "memory:"
    yield from served(pymq.open(where, brokers=3 if request.param == "three brokers" else 1))


@pytest.fixture
def memory() -> Iterator[Served]:
    """A queue in memory."""
    yield from served(pymq.open("memory:"))
