"""A Kafka for tests of applications: a queue in memory that unmodified Kafka clients speak to.

The fixture ``pymq_kafka`` makes such a Kafka for each test (:mod:`pymq.testing.pytest_plugin`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import pymq
from pymq.errors import ConfigError
from pymq.kafka.codes import Code
from pymq.kafka.endpoint import KafkaEndpoint


class KafkaForTests:
    """A Kafka in this process, with methods to inspect it and to inject faults."""

    def __init__(self, *, brokers: int = 1, partitions: int = 1) -> None:
        self._partitions = partitions
        self.mq = pymq.open("memory:", brokers=brokers)
        """pymq's own client of the same queue: topics, producers and consumers."""
        self._endpoint = self._open(0)

    def _open(self, port: int) -> KafkaEndpoint:
        return self.mq.kafka(port=port, partitions=self._partitions)

    @property
    def bootstrap(self) -> str:
        """The option ``bootstrap.servers`` for clients."""
        return self._endpoint.bootstrap

    def records(self, topic: str) -> list[pymq.Record]:
        """Return all records of a topic; empty if there is no such topic."""
        if topic not in self.mq.topics():
            return []
        with self.mq.consumer(topic, mode="reader") as consumer:
            return list(consumer.until_end())

    def lag(self, group: str) -> int:
        """Return how many records a group has not committed yet.

        Raises:
            UnknownGroup: the group has committed nothing so far.
        """
        return sum(self.mq.describe_group(group).lag.values())

    def fail(self, topic: str, error: str, times: int = 1) -> None:
        """Refuse the next batches for a topic with an error, given by Kafka's name.

        Raises:
            ConfigError: there is no such error.
        """
        if error not in Code.__members__:
            raise ConfigError(f"{error!r} is none of {', '.join(Code.__members__)}")
        with self.mq.driver:
            self._endpoint.fail(topic, Code[error], times)

    def restart(self) -> None:
        """Close all connections and listen at the same port again, like a restarted broker.

        Raises:
            ConfigError: there are several brokers.
        """
        if len(self._endpoint.addresses) > 1:
            raise ConfigError("restart() is for a single broker")
        port = self._endpoint.addresses[0][1]
        self._endpoint.close()
        self._endpoint = self._open(port)

    def close(self) -> None:
        """Close the listener, the client and the queue."""
        self.mq.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
