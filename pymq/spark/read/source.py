"""Readers for batch and streaming queries.

Spark creates these objects anew for nearly every call, in several processes, and pickles them. So
the readers contain only options and positions, and open the log in the process that needs it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pymq.errors import ConfigError, OffsetOutOfRange, UnknownPartition, UnknownTopic
from pymq.spark import columns, planning
from pymq.spark.log.cluster_log import open_log
from pymq.spark.log.topic_log import TopicLog
from pymq.spark.options import SourceOptions
from pymq.spark.planning import Place, Range
from pymq.spark.process import Prompt, one_sentence, settle
from pymq.spark.read.admission import limit_bytes, record_sizes, skip_gaps
from pymq.spark.read.offsets import Position
from pymq.spark.read.published import GroupProgress
from pymq.spark.read.subscription import Bounds, check_order, chosen, resolve
from pymq.spark.read.tasks import ReadTask, plan

ARROW_BYTES = 2 << 20  # bytes of record batches that become one Arrow batch
ARROW_ROWS = 50_000

log_ = logging.getLogger("pymq.spark")


class TableReader(Prompt, DataSourceReader):
    """Reads the records that existed when the query was planned."""

    def __init__(
        self, options: SourceOptions, schema: StructType, slots: int | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._slots = slots
        _check_schema(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks; Spark calls this once per query."""
        options = self._options
        with one_sentence(), open_log(options) as log:
            topics = chosen(log, options)
            bounds = Bounds.of(log, topics)
            start = resolve(log, bounds, options.starting, is_end=False, options=options)
            end = resolve(log, bounds, options.ending, is_end=True, options=options)
            check_order(start, end)
            tasks = plan(options, log, self._slots, Position(bounds.ids, start), end)
        settle()
        return tasks

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Carry out a task."""
        return _read(self._options, self._schema, partition)


class StreamReader(Prompt, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new records; only the query's checkpoint keeps positions."""

    def __init__(
        self, options: SourceOptions, schema: StructType, slots: int | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._slots = slots
        self._target: Bounds | None = None  # end of an ``availableNow`` query
        self._admitted_s: float | None = None  # when the last batch began
        self._progress = GroupProgress(options)
        _check_schema(options, schema)

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint."""
        with one_sentence(), open_log(self._options, is_start=True) as log:
            topics = chosen(log, self._options)
            bounds = Bounds.of(log, topics)
            starting = self._options.starting
            start = resolve(log, bounds, starting, is_end=False, options=self._options)
        return Position(bounds.ids, start).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        # For a trigger without a limit, Spark requests all available records instead.
        if options.admission.max_bytes is not None:
            return ReadMaxBytes(options.admission.max_bytes)
        if options.admission.min_offsets is not None:
            return ReadMinRows(options.admission.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the present end of the log as the query's end."""
        with one_sentence(), open_log(self._options, is_start=True) as log:
            self._target = self._bounds(log)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the present end of the log, for the query's progress."""
        with open_log(self._options) as log:
            return _end(self._bounds(log)).to_json()

    def latestOffset(
        self, start: Mapping[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next batch, never before its start."""
        with open_log(self._options) as log:
            bounds = self._target or self._bounds(log)
            target = _end(bounds)
            if start is None:
                return target.to_json()
            begin = Position.from_json(start)
            self._progress.publish(begin, target.offsets, is_last=self._target is not None)
            first = self._first(log, begin, target)
            if not self._options.fail_on_data_loss:
                first = skip_gaps(first, bounds.starts, bounds.ends)
            if self._waits(first, target.offsets, limit):
                return begin.to_json()
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            ends = planning.limit(first, target.offsets, most)
            most_bytes = self._options.admission.max_bytes
            if most_bytes is not None and not isinstance(limit, ReadAllAvailable):
                ends = limit_bytes(record_sizes(log, target), first, ends, most_bytes)
        # Keep the offsets of partitions that are missing now: such a partition is not new if it
        # returns. Drop the offsets of the old topic if a topic was deleted and created again.
        ids = {**begin.ids, **target.ids}
        kept = {
            place: offset
            for place, offset in begin.offsets.items()
            if ids[place[0]] == begin.ids[place[0]]
        }
        return Position(ids, {**kept, **ends}).to_json()

    def _waits(
        self, first: Mapping[Place, int], end: Mapping[Place, int], limit: ReadLimit | None
    ) -> bool:
        """Whether the next batch waits for more records."""
        admission, now = self._options.admission, time.monotonic()
        if admission.min_offsets is None or self._target is not None:
            return False
        if limit is None or isinstance(limit, ReadAllAvailable):
            return False
        is_due = self._admitted_s is None or now - self._admitted_s >= admission.max_delay_s
        waiting = sum(max(0, last - first.get(place, 0)) for place, last in end.items())
        if waiting < admission.min_offsets and not is_due:
            return True
        if waiting:
            self._admitted_s = now
        return False

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Plan the tasks of a batch; after a crash Spark repeats the same batch."""
        begin, finish = Position.from_json(start), Position.from_json(end)
        with open_log(self._options) as log:
            first = Position(finish.ids, self._first(log, begin, finish))
            return plan(self._options, log, self._slots, first, finish.offsets)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Carry out a task."""
        return _read(self._options, self._schema, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: only the batch in Spark's checkpoint counts."""

    def stop(self) -> None:
        """Do nothing: Spark does not always call this."""

    def _bounds(self, log: TopicLog) -> Bounds:
        skips_missing = not self._options.fail_on_data_loss
        topics = chosen(log, self._options, skips_missing=skips_missing)
        return Bounds.of(log, topics, skips_missing=skips_missing)

    def _first(self, log: TopicLog, begin: Position, finish: Position) -> dict[Place, int]:
        """Return the start offset of each partition of *finish*.

        Raises:
            OffsetOutOfRange: records were lost, and ``failOnDataLoss`` is set.
        """
        options = self._options
        found: dict[Place, int] = {}
        fresh = [topic for topic in finish.ids if begin.ids.get(topic) != finish.ids[topic]]
        for topic in fresh:
            if topic in begin.ids:
                _lost(
                    options,
                    f"topic {topic} was deleted and created again: it had the id "
                    f"{begin.ids[topic]} "
                    f"and has {finish.ids[topic]}",
                )
        missing: dict[str, list[str]] = {}
        for (topic, partition), _ in finish.sorted():
            if topic in fresh or (topic, partition) not in begin.offsets:
                missing.setdefault(topic, []).append(partition)
            else:
                found[topic, partition] = begin.offsets[topic, partition]
        for topic, partitions in missing.items():
            # Read a partition that is new to the query from its beginning.
            try:
                bounds = log.bounds(topic, partitions, finish.ids[topic])
            except UnknownTopic as error:
                _lost(options, str(error))
                bounds = {each: (finish.offsets[topic, each], 0) for each in partitions}
            for partition, (start, _) in bounds.items():
                found[topic, partition] = start
        return found


def _end(bounds: Bounds) -> Position:
    return Position(bounds.ids, bounds.ends)


def _check_schema(options: SourceOptions, schema: StructType) -> None:
    for field in schema.fields:
        known = columns.FIELDS.get(field.name)
        if field.name == "value" and options.values.format != "binary":
            from pymq.spark.values.checked import check_type  # most queries need no check

            check_type(options.values.format, field.dataType)
            known = field.dataType
        if known is None:
            names = ", ".join(columns.FIELDS)
            raise ConfigError(f"there is no column {field.name!r}; there are {names}")
        if field.dataType != known:
            raise ConfigError(
                f"column {field.name!r} is {known.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
        if field.name in columns.NULLABLE and not field.nullable:
            raise ConfigError(f"column {field.name!r} may hold nulls: do not declare it NOT NULL")


def _read(
    options: SourceOptions, schema: StructType, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, ReadTask):
        return  # Spark runs one task with None for a query without tasks.
    names = [field.name for field in schema.fields]
    shape = columns.arrow_schema(schema)
    gathered = columns.ArrowColumns(names, shape, _value_column(options, shape))
    with open_log(options) as log:
        for wanted in partition.ranges:
            for batch in _batches(options, log, wanted):
                gathered.add(batch, wanted.start, wanted.end)
                if gathered.size >= ARROW_BYTES or gathered.count >= ARROW_ROWS:
                    yield gathered.take()
    if gathered.count:
        yield gathered.take()
    settle()


def _value_column(options: SourceOptions, shape: pa.Schema) -> columns.Maker | None:
    """Return the function that makes the column of values; None if values stay bytes."""
    values = options.values
    if values.is_plain or "value" not in shape.names:
        return None
    from pymq.spark.values.registered import find
    from pymq.spark.values.schema_types import is_columns
    from pymq.spark.values.value_columns import Reading, ValueColumn

    text = values.schema
    reading = Reading(
        values.format,
        None if text is None or is_columns(text) else text,
        shape.field("value").type,
        # A tombstone has no value to decode.
        values.null_tombstones or values.format != "binary",
        values.is_permissive,
        partial(find, options),
    )
    return ValueColumn(reading, columns.plain_values)


def _batches(options: SourceOptions, log: TopicLog, wanted: Range) -> Iterator[Any]:
    while True:
        try:
            for batch in log.read(wanted, options.fetch_bytes):
                if not batch.header.is_hidden and len(batch):
                    yield batch
        except (UnknownTopic, UnknownPartition) as error:
            _lost(options, str(error))
            return
        except OffsetOutOfRange as error:
            # The gap begins at the next batch, so no batch is yielded twice.
            _lost(options, str(error))
            start = error.details.get("start")
            if not isinstance(start, int) or start >= wanted.end:
                return
            wanted = wanted._replace(start=start)
        else:
            return


def _lost(options: SourceOptions, what: str) -> None:
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"{what}; records are lost for this query. With the option 'failOnDataLoss' set to "
            "'false' it continues without them"
        )
    log_.warning("%s; the query continues without these records", what)
