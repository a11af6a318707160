"""Converts rows of a data frame to record batches of one partition each.

The conversion works on columns, not row by row: the target partitions are an array of indexes, and
one operation takes all rows of a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pymq.core.batch import columns
from pymq.core.batch.batch_validation import is_too_large
from pymq.core.batch.columns import Headers
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.errors import InvalidRequest, InvalidTimestamp, RecordTooLarge, UnknownPartition
from pymq.spark.planning import Place
from pymq.spark.write import cell_codec

if TYPE_CHECKING:
    from pymq.spark.values.value_columns import ValueWriter

BATCH_BYTES = 512 << 10
HELD_BYTES = 32 << 20  # bytes of rows that wait until their batch is full
BATCH_ROWS = 50_000
NAMES = ("value", "key", "topic", "partition", "headers", "timestamp")

Metadata = Callable[[str], TopicMetadata]


class Held:
    """The rows of one partition that are not encoded yet."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[pa.Table] = []
        self.size = 0


class Rows:
    """Converts Arrow batches to record batches."""

    def __init__(
        self,
        metadata: Metadata,
        now_ms: Callable[[], int],
        topic: str | None,
        turn: int = 0,
        values: ValueWriter | None = None,
    ) -> None:
        self._values = values
        self._metadata = metadata
        self._now_ms = now_ms
        self._topic = topic
        self._topics: dict[str, TopicMetadata] = {}
        # partition index for rows without a key, for about a batch
        self._turns: dict[str, int] = {}
        self._turn = turn
        self._held: dict[Place, Held] = {}
        self._size = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[tuple[Place, EncodedBatch]]:
        """Add rows; yields the batches that become full.

        Raises:
            InvalidRequest: a row has no value or no topic, or a header no key.
            UnknownTopic, UnknownPartition, RecordTooLarge, InvalidTimestamp: a row does not fit.
        """
        table = pa.table({name: rows.column(name) for name in NAMES if name in rows.schema.names})
        if self._values is not None:
            table = self._values.encode(table)
        for name in ("value", "key"):
            if name in table.column_names:
                at = table.column_names.index(name)
                table = table.set_column(at, name, table[name].cast(pa.binary()))
        if table["value"].null_count:
            raise InvalidRequest(
                "a row has no value: the column 'value' must not be null. With the option "
                "'nullTombstones' set to 'true' it is a tombstone, which deletes its key"
            )
        for topic, part in self._by_topic(table):
            self._check_sizes(topic, part)
            self._check_times(topic, part)
            for place, mine in self._by_partition(topic, part):
                yield from self._hold(place, mine)

    def all(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Place, EncodedBatch]]:
        """Yield all record batches of some rows; raises as :meth:`add`."""
        for batch in batches:
            yield from self.add(batch)
        yield from self.finish()

    def finish(self) -> Iterator[tuple[Place, EncodedBatch]]:
        """Yield the batches of the remaining rows."""
        for place in list(self._held):
            yield from self._give(place)

    # --- the partition of a row -----------------------------------------------------------------

    def _by_topic(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if self._topic is not None:
            yield self._topic, table
            return
        if "topic" not in table.column_names:
            raise InvalidRequest("no topic: set the option 'topic', or give a column 'topic'")
        column = table["topic"]
        if column.null_count:
            raise InvalidRequest("a row has no topic, and the option 'topic' is not set")
        for name in pc.unique(column).to_pylist():
            yield name, table.filter(pc.equal(column, name))

    def _known(self, topic: str, *, at_least: int = 0) -> TopicMetadata:
        found = self._topics.get(topic)
        if found is None or len(found.partitions) < at_least:
            found = self._topics[topic] = self._metadata(topic)
        return found

    def _check_sizes(self, topic: str, rows: pa.Table) -> None:
        limit = self._known(topic).config.max_record_bytes
        largest = int(_sizes(rows).max(initial=0))
        if largest > limit:
            raise RecordTooLarge(
                f"a record of {largest} bytes is larger than max_record_bytes={limit} of topic "
                f"{topic!r}; send it in parts or alter the topic"
            )

    def _check_times(self, topic: str, rows: pa.Table) -> None:
        """Raise for timestamps that brokers refuse, because a broker must not refuse a decided
        batch.
        """
        after = self._known(topic).config.timestamp_after_max_ms
        if after is None or "timestamp" not in rows.column_names or not len(rows):
            return
        latest = max(_times(rows["timestamp"], 0))
        if latest > self._now_ms() + after:
            raise InvalidTimestamp(
                f"a row's timestamp is {latest} ms, later than timestamp_after_max_ms={after} of "
                f"topic {topic!r} allows; send it without one, or alter the topic"
            )

    def _by_partition(self, topic: str, rows: pa.Table) -> Iterator[tuple[Place, pa.Table]]:
        known = self._known(topic)
        count = len(known.partitions)
        turn = self._turns.setdefault(topic, self._turn % count)
        if count == 1 and "partition" not in rows.column_names:
            yield (topic, known.partitions[0].partition), rows
            return
        chosen = np.full(len(rows), turn, np.int64)
        if "key" in rows.column_names:
            hashed = cell_codec.partitions(rows["key"], count)
            has_key = ~np.asarray(rows["key"].is_null())
            chosen = np.where(has_key, hashed, chosen)
        if "partition" in rows.column_names:
            named = self._named(topic, rows["partition"])
            chosen = np.where(named >= 0, named, chosen)
        known = self._known(topic)
        if len(known.partitions) <= 1 << 16:
            chosen = chosen.astype(np.uint16)  # numpy sorts 16-bit integers with a radix sort
        order = np.argsort(chosen, kind="stable")
        ordered = chosen[order]
        edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
        for low, high in pairwise(edges):
            if high > low:
                name = known.partitions[int(ordered[low])].partition
                is_all = high - low == len(rows)
                yield (topic, name), rows if is_all else rows.take(pa.array(order[low:high]))

    def _named(self, topic: str, column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
        """Return the index of the partition that each row names; -1 for a row that names none."""
        asked = pc.unique(column).to_pylist()
        places = {None: -1} | {each: self._index(topic, each) for each in asked if each is not None}
        coded = pc.index_in(column, pa.array(asked, column.type))
        found: np.ndarray[Any, Any] = np.array([places[each] for each in asked])[np.asarray(coded)]
        return found

    def _index(self, topic: str, asked: str | int) -> int:
        for again in (False, True):
            known = self._known(topic, at_least=len(self._topics[topic].partitions) + again)
            names = [each.partition for each in known.partitions]
            if isinstance(asked, str) and asked in names:
                return names.index(asked)
            if isinstance(asked, int) and 0 <= asked < len(names):
                return asked
        raise UnknownPartition(f"topic {topic!r} has no partition {asked!r}")

    # --- full batches ---------------------------------------------------------------------------

    def _hold(self, place: Place, rows: pa.Table) -> Iterator[tuple[Place, EncodedBatch]]:
        held = self._held.setdefault(place, Held())
        held.parts.append(rows)
        size = rows.nbytes
        held.size += size
        self._size += size
        if held.size >= BATCH_BYTES:
            yield from self._give(place)
            topic, partition = place
            known = self._topics[topic].partitions
            if known[self._turns[topic]].partition == partition:
                self._turns[topic] = (self._turns[topic] + 1) % len(known)
        while self._size > HELD_BYTES:
            yield from self._give(max(self._held, key=lambda each: self._held[each].size))

    def _give(self, place: Place) -> Iterator[tuple[Place, EncodedBatch]]:
        held = self._held.pop(place)
        self._size -= held.size
        rows = pa.concat_tables(held.parts).combine_chunks()
        sizes = (_sizes(rows) + 16).cumsum()
        limit = self._known(place[0]).config.max_record_bytes
        start = 0
        while start < len(rows):
            before = sizes[start - 1] if start else 0
            end = int(np.searchsorted(sizes, before + 2 * BATCH_BYTES))
            end = max(start + 1, min(end, start + BATCH_ROWS, len(rows)))
            batch = encode(rows.slice(start, end - start), self._now_ms())
            if is_too_large(batch.header, limit):
                raise RecordTooLarge(
                    f"a record takes {batch.header.raw_length} bytes in a batch, too many for "
                    f"max_record_bytes={limit} of topic {place[0]!r}; give it fewer headers or "
                    "alter the topic"
                )
            yield place, batch
            start = end


def encode(rows: pa.Table, now_ms: int) -> EncodedBatch:
    """Encode one record batch; rows without a timestamp get *now_ms*."""
    names, first, last = rows.column_names, now_ms, now_ms
    encoded = {columns.VALUES: cell_codec.encode(rows["value"])}
    if "key" in names and rows["key"].null_count < len(rows):
        encoded[columns.KEYS] = cell_codec.encode(rows["key"])
    if "timestamp" in names:
        times = _times(rows["timestamp"], now_ms)
        first, last = times[0], max(times)
        if first != last or min(times) != first:
            encoded[columns.TIMESTAMPS] = columns.encode_numbers([each - first for each in times])
    if "headers" in names and any(headers := _headers(rows["headers"])):
        encoded[columns.HEADERS] = columns.encode_headers(headers)
    return EncodedBatch.of_columns(len(rows), encoded, first, last)


def _sizes(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bytes of each row's key, value and headers, which ``max_record_bytes`` limits."""
    sizes = _lengths(rows["value"])
    if "key" in rows.column_names:
        sizes = sizes + _lengths(rows["key"])
    if "headers" in rows.column_names and rows["headers"].null_count < len(rows):
        headers = rows["headers"].combine_chunks()
        pairs = pc.list_flatten(headers)
        of_pairs = sum(_lengths(pc.struct_field(pairs, name)) for name in ("key", "value"))
        of_rows = np.bincount(np.asarray(pc.list_parent_indices(headers)), of_pairs, len(rows))
        sizes = sizes + of_rows.astype(np.int64)
    return sizes


def _lengths(column: pa.ChunkedArray | pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(pc.fill_null(pc.binary_length(column), 0), np.int64)


def _times(column: pa.ChunkedArray, now_ms: int) -> list[int]:
    micros = pc.fill_null(column.cast(pa.int64()), now_ms * 1000)
    times = np.floor_divide(np.asarray(micros), 1000)
    if len(times) and times.min() < 0:
        raise InvalidRequest("a timestamp is before 1970")
    return times.tolist()  # type: ignore[no-any-return] # numpy has no types for it


def _headers(column: pa.ChunkedArray) -> Sequence[Headers]:
    keys = pc.struct_field(pc.list_flatten(column), "key")
    if keys.null_count:
        raise InvalidRequest("a header has no key: in 'headers' the field 'key' must not be null")
    return [
        tuple((pair["key"], pair["value"] or b"") for pair in pairs) if pairs else ()
        for pairs in column.to_pylist()
    ]
