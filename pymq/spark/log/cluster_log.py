"""Reads the log of a cluster through a client, and opens the log for a URL.

Each process opens its own log from the URL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import attrs

from pymq.client.client import Client
from pymq.client.fetching.consumer_machine import located
from pymq.client.fetching.partition_route import PartitionRoute
from pymq.client.fetching.replica_preference import BEHIND_BYTES, Preference
from pymq.client.router import Call
from pymq.core import message as msg
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.record import EncodedBatch
from pymq.core.values import Factory, define
from pymq.errors import ConfigError, CorruptBatch, OffsetOutOfRange, RequestTimeout
from pymq.spark.backfill import BlockSpan
from pymq.spark.log.block_files import verified
from pymq.spark.log.topic_log import Topic, TopicLog
from pymq.spark.options import TABLE_TIMEOUT_MS, SourceOptions
from pymq.spark.planning import Range
from pymq.spark.process import client, process_cache

T = TypeVar("T")

POLL_MS = 1000  # how long a fetch waits for new records
REFRESH_S = 1.0  # time for a zkserver's answer when cached metadata can be used instead
BLOCKS_S = 2.0  # time for the description of blocks, without which a plan is less even
AWAY_S = 5.0  # how long cached metadata is used without a request after such a timeout


@define
class KnownTopics:
    """Cached metadata of a cluster, for queries that continue while no zkserver answers."""

    names: list[str] | None = None
    topics: dict[str, Topic] = Factory(dict)
    away_until: float = 0.0


class ClusterLog:
    """The log of a cluster, read through a client.

    If *known* is given, and no zkserver answers, the log uses the cached metadata. It then finds
    new topics and partitions when a zkserver answers again.

    Records far behind the end are fetched from any replica, a different one for each range, so that
    all brokers serve a long read. A replica in *rack* is preferred.
    """

    def __init__(
        self,
        mq: Client,
        timeout_s: float,
        known: KnownTopics | None = None,
        rack: str | None = None,
    ) -> None:
        self._client = mq
        self._questions = mq.questions
        self._timeout_s = timeout_s
        self._known = known
        self._rack = rack

    def topics(self) -> list[str]:
        """See :class:`TopicLog`."""
        known = self._known
        if known is None or known.names is None:
            names = self._list(self._timeout_s)
        else:
            names = self._refresh(known, known.names, self._list)
        if known is not None:
            known.names = names
        return names

    def topic(self, name: str) -> Topic:
        """See :class:`TopicLog`."""
        known = self._known
        there = known.topics.get(name) if known is not None else None
        if known is None or there is None:
            found = self._describe(name, self._timeout_s)
        else:
            found = self._refresh(known, there, partial(self._describe, name))
        if known is not None:
            known.topics[name] = found
        return found

    def _refresh(self, known: KnownTopics, last: T, ask: Callable[[float], T]) -> T:
        """Return the answer of a zkserver, or *last* if no zkserver answers soon."""
        now = self._client.driver.monotonic()
        if now < known.away_until:
            return last
        try:
            return ask(REFRESH_S)
        except RequestTimeout:
            known.away_until = self._client.driver.monotonic() + AWAY_S
            return last

    def _list(self, timeout_s: float) -> list[str]:
        return list(self._questions.ask(msg.ListTopics, timeout=timeout_s))

    def _describe(self, name: str, timeout_s: float) -> Topic:
        found = self._questions.topic_metadata(name, timeout_s)
        return Topic(found.topic_id, tuple(each.partition for each in found.partitions))

    def bounds(
        self, topic: str, partitions: Sequence[str], topic_id: str = ""
    ) -> Mapping[str, tuple[int, int]]:
        """See :class:`TopicLog`."""
        return self._questions.all_bounds(topic, partitions, self._timeout_s, topic_id)

    def at_time(
        self, topic: str, partitions: Sequence[str], timestamp_ms: int, topic_id: str = ""
    ) -> Mapping[str, int]:
        """See :class:`TopicLog`."""
        found = self._questions.ask_leaders(
            topic,
            partitions,
            lambda request, partition: msg.FindOffset(
                request, topic, partition, timestamp_ms, topic_id
            ),
            self._timeout_s,
        )
        return {
            partition: answer.offset
            for partition, answer in found.items()
            if isinstance(answer, msg.OffsetFound)
        }

    def blocks(
        self, topic: str, partitions: Sequence[str], topic_id: str = ""
    ) -> Mapping[str, Sequence[BlockSpan]]:
        """As :class:`TopicLog`; those of a topic that was created again are as good a hint."""
        timeout_s = min(self._timeout_s, BLOCKS_S)
        found = self._questions.ask(lambda r: msg.DescribeTopic(r, topic), timeout=timeout_s)
        return {
            partition.name: [
                BlockSpan(block.start_offset, block.end_offset, block.size_bytes)
                for block in partition.blocks
                if block.end_offset is not None
            ]
            for partition in found.partitions
            if partition.name in partitions
        }

    def begin(self, wanted: Range, fetch_bytes: int) -> Call | None:
        """Send the fetch whose answer :meth:`read` waits for; None if the leader is unknown."""
        make = partial(_fetch, wanted, fetch_bytes)
        return self._questions.begin(wanted.topic, wanted.partition, make)

    def read(
        self, wanted: Range, fetch_bytes: int, begun: Call | None = None
    ) -> Iterator[EncodedBatch]:
        """See :class:`TopicLog`; *begun* is the result of :meth:`begin` for the same range."""
        topic, partition, position, end, _ = wanted
        preference = Preference(f"spark-{position}", self._rack)
        route = PartitionRoute(topic, partition, preference=preference)
        is_damaged = False  # whether the last answer was
        until = self._client.driver.monotonic() + self._timeout_s
        while position < end:
            left = wanted._replace(start=position)
            answer = self._questions.end(begun, route) if begun is not None else None
            if answer is None:
                answer = self._ask(left, fetch_bytes, verify=is_damaged)
            assert isinstance(answer, msg.Fetched)
            begun = None
            try:
                batches = [batch for batch in split(answer.data) if batch.end_offset > position]
                if batches and batches[-1].end_offset < end:
                    # Send the next fetch while the caller processes these batches.
                    left = left._replace(start=batches[-1].end_offset)
                    is_part = left.start < answer.high_watermark
                    route.is_behind = is_part and len(answer.data) >= BEHIND_BYTES
                    make = partial(_fetch, left, fetch_bytes)
                    begun = self._questions.begin(topic, partition, make, route)
                for batch in batches:
                    yield verified(batch).at(topic, partition)
                    position, is_damaged = batch.end_offset, False
            except CorruptBatch as error:
                if is_damaged:
                    raise located(error, topic, partition, position) from None
                # Perhaps another replica has a sound copy, or only the transfer damaged the batch.
                begun, is_damaged = None, True
                continue
            if batches:
                until = self._client.driver.monotonic() + self._timeout_s
            elif self._client.driver.monotonic() > until:
                raise RequestTimeout(
                    f"{topic}/{partition} gave nothing from offset {position} on for "
                    f"{self._timeout_s} s, though it is known to reach {end}"
                )

    def _ask(self, wanted: Range, fetch_bytes: int, *, verify: bool) -> msg.Message:
        """Fetch from the leader, or from another replica if the leader fails.

        With *verify*, a broker checks the bodies, and refuses those that its disk has damaged.
        """
        topic, partition = wanted.topic, wanted.partition

        def ask(request: int, _: str) -> msg.Message:
            return attrs.evolve(_fetch(wanted, fetch_bytes, request), verify=verify)

        try:
            found = self._questions.ask_leaders(topic, [partition], ask, self._timeout_s)
        except OffsetOutOfRange as error:
            raise _overtaken(wanted, error) from None
        return found[partition]


def _overtaken(wanted: Range, error: OffsetOutOfRange) -> OffsetOutOfRange:
    """Convert a broker's error for a removed offset to the one that :class:`TopicLog` raises."""
    start = error.details.get("log_start")
    if not isinstance(start, int) or start <= wanted.start:
        return error  # The offset is beyond the end of the log.
    place = f"{wanted.topic}/{wanted.partition}"
    return OffsetOutOfRange(f"{place} begins at offset {start}, after {wanted.start}", start=start)


def _fetch(wanted: Range, size: int, request: int) -> msg.Fetch:
    topic, partition, position, end, topic_id = wanted
    return msg.Fetch(request, topic, partition, position, size, POLL_MS, end, topic_id)


def is_folder(url: str) -> bool:
    """Whether the URL names a folder."""
    return "://" not in url and not is_memory(url)


def is_memory(url: str) -> bool:
    """Whether the URL names a queue in memory, which only its own process can read."""
    return url.startswith("memory:")


@contextmanager
def open_log(options: SourceOptions, *, is_start: bool = False) -> Iterator[TopicLog]:
    """Open the source's log in its present state; this process caches it for later calls.

    A stream that runs uses the last known metadata while no zkserver answers. At the start of a
    query (*is_start*) a cluster has to answer within the time of a table's request.

    Raises:
        ConfigError: the queue is in memory, so other processes cannot read it.
    """
    if is_memory(options.url):
        raise ConfigError("option 'url': what is in memory can be read by its own process alone")
    if not is_folder(options.url):
        if is_start or not options.is_stream:
            timeout_s = min(options.timeout_s, TABLE_TIMEOUT_MS / 1000)
            timeout_s = timeout_s if is_start else options.timeout_s
            yield ClusterLog(client(options.url), timeout_s, rack=options.rack)
            return
        known: dict[str, KnownTopics] = process_cache("metadata")
        mq = client(options.url)
        cached = known.setdefault(options.url, KnownTopics())
        yield ClusterLog(mq, options.timeout_s, cached, options.rack)
        return
    from pymq.spark.log.folder_log import FolderLog  # lazy: it loads sqlite3

    folders: dict[str, FolderLog] = process_cache("folders")
    if options.url not in folders:
        folders[options.url] = FolderLog(options.url)
    folders[options.url].look()
    yield folders[options.url]
