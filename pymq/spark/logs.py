"""What a source reads from: a cluster through a client, or a folder from its files.

Both are made from an address in whatever process needs one. A client is kept for the life of the
process, and never taken along into a forked one: Spark forks its Python workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import pymq
from pymq.client.client import Client
from pymq.core import message as msg
from pymq.core.record import RecordBatch
from pymq.core.runs import split
from pymq.core.values import value
from pymq.errors import ConfigError, OffsetOutOfRange, RequestTimeout
from pymq.spark.options import SourceOptions
from pymq.spark.planning import Range

POLL_MS = 1000  # how long a fetch waits for what is not there yet


@value
class Topic:
    """A topic as of now."""

    id: str
    partitions: tuple[str, ...]


class Log(Protocol):
    """Where records come from."""

    def topics(self) -> list[str]:
        """The names of all topics but the internal ones."""
        ...

    def topic(self, name: str) -> Topic:
        """A topic.

        Raises:
            UnknownTopic: there is none of that name.
        """
        ...

    def bounds(self, topic: str, partitions: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Where the partitions start and end now."""
        ...

    def at_time(
        self, topic: str, partitions: Sequence[str], timestamp_ms: int
    ) -> Mapping[str, int]:
        """The first offset that is not older than a time; the end when all are."""
        ...

    def read(self, wanted: Range, fetch_bytes: int) -> Iterator[RecordBatch]:
        """All batches that have something of a range, checked, in order.

        Raises:
            OffsetOutOfRange: what the range begins with is not there any more.
        """
        ...


class ClusterLog:
    """A log behind a client."""

    def __init__(self, mq: Client, timeout_s: float) -> None:
        self._client = mq
        self._questions = mq.questions
        self._timeout_s = timeout_s

    def topics(self) -> list[str]:
        """As :class:`Log`."""
        return self._client.topics()

    def topic(self, name: str) -> Topic:
        """As :class:`Log`."""
        found = self._questions.topic_metadata(name, self._timeout_s)
        return Topic(found.topic_id, tuple(each.partition for each in found.partitions))

    def bounds(self, topic: str, partitions: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """As :class:`Log`."""
        return self._questions.all_bounds(topic, partitions, self._timeout_s)

    def at_time(
        self, topic: str, partitions: Sequence[str], timestamp_ms: int
    ) -> Mapping[str, int]:
        """As :class:`Log`."""
        found = self._questions.ask_leaders(
            topic,
            partitions,
            lambda request, partition: msg.FindOffset(request, topic, partition, timestamp_ms),
            self._timeout_s,
        )
        return {
            partition: answer.offset
            for partition, answer in found.items()
            if isinstance(answer, msg.OffsetFound)
        }

    def read(self, wanted: Range, fetch_bytes: int) -> Iterator[RecordBatch]:
        """As :class:`Log`."""
        topic, partition, position, end = wanted
        until = self._client.driver.monotonic() + self._timeout_s
        while position < end:
            ask = partial(_fetch, topic, partition, position, end, fetch_bytes)
            answer = self._questions.ask_leader(topic, partition, ask)
            assert isinstance(answer, msg.Fetched)
            if answer.log_start > position:
                raise OffsetOutOfRange(
                    f"{topic}/{partition} begins at offset {answer.log_start}, after {position}",
                    start=answer.log_start,
                )
            for batch in split(answer.data):
                if batch.end_offset > position:
                    yield batch.verify().at(topic, partition)
                    position = batch.end_offset
                    until = self._client.driver.monotonic() + self._timeout_s
            if position < end and self._client.driver.monotonic() > until:
                raise RequestTimeout(
                    f"{topic}/{partition} gave nothing from offset {position} on for "
                    f"{self._timeout_s} s, though it is known to reach {end}"
                )


def _fetch(
    topic: str, partition: str, position: int, end: int, size: int, request: int
) -> msg.Message:
    return msg.Fetch(request, topic, partition, position, size, POLL_MS, end)


def is_folder(url: str) -> bool:
    """Whether an address is a folder's."""
    return "://" not in url and not is_memory(url)


def is_memory(url: str) -> bool:
    """Whether an address is of a queue that lives in its own process alone."""
    return url.startswith("memory:")


@contextmanager
def open_log(options: SourceOptions) -> Iterator[Log]:
    """The log that a source was asked for.

    Raises:
        ConfigError: it cannot be read from another process.
    """
    if is_memory(options.url):
        raise ConfigError("option 'url': what is in memory can be read by its own process alone")
    if is_folder(options.url):
        from pymq.spark.folder import FolderLog  # only now: it loads sqlite3

        yield FolderLog(options.url)
    else:
        yield ClusterLog(client(options.url), options.timeout_s)


_caches: dict[tuple[int, str], dict[Any, Any]] = {}


def process_cache(name: str) -> dict[Any, Any]:
    """A dictionary that lives as long as this process, and is empty in one that it forks."""
    key = (os.getpid(), name)
    if key not in _caches:
        for other in [other for other in _caches if other[0] != key[0]]:
            del _caches[other]  # What a fork has left here is the parent's.
        _caches[key] = {}
    return _caches[key]


def client(url: str) -> Client:
    """This process's client of a cluster; made at the first call."""
    clients: dict[str, Client] = process_cache("clients")
    found = clients.get(url)
    if found is None or found.closed:
        clients[url] = found = pymq.open(url)
    return found
