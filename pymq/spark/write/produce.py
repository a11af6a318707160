"""Producers inside Spark's tasks: for ``mapInArrow``, ``foreachBatch``, or a UDF.

Spark may run a task twice, or repeat a query for its next action. So each task stages its records,
and appends a decision when it ends; a sink's driver does that for all of its tasks. The first
attempt's decision counts, and later attempts read it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException

import pymq
from pymq.errors import ConfigError
from pymq.spark.options import STREAM_TIMEOUT_MS, SinkOptions, sink_options
from pymq.spark.process import Prompt, client, process_cache, settle
from pymq.spark.write import staging
from pymq.spark.write.decisions import task_name
from pymq.spark.write.rows import Rows
from pymq.spark.write.sink import BATCH, QUERY, Direct, ledger, stage_name, write

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.udf import UserDefinedFunction

ACK_SCHEMA = "job string, task int, topic string, partition string, records long, is_new boolean"
_ACKS = pa.schema(
    [
        ("job", pa.string()),
        ("task", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.string()),
        ("records", pa.int64()),
        ("is_new", pa.bool_()),
    ]
)
TIMEOUT = "requestTimeoutMs"
ROWS = 5000  # rows of a batch of ``foreach_partition``


def produce_in_arrow(
    topic: str | None = None,
    *,
    url: str,
    job: str | None = None,
    tasks: int | None = None,
    **options: Any,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``df.mapInArrow(..., pymq.spark.ACK_SCHEMA)`` that produces its rows.

    Columns and options are those of the sink. The result has a row for each task and partition: the
    number of records written, and whether this attempt wrote them.

    Args:
        topic: the target; None to take it from the rows' column ``topic``.
        url: of the cluster.
        job: names this piece of work. A repetition under the same name writes nothing, so each task
            must have the same rows again. A streaming query needs no name.
        tasks: the number of the job's tasks, as in ``df.repartition(tasks)``. Spark does not pass
            it to tasks, so without it a repetition in more tasks is not detected.
        options: of the sink.

    Raises:
        ConfigError: an option is wrong. While the function runs: there is neither a job nor a
            query, or the job has more tasks than *tasks*.
        InvalidRequest: while the function runs: an earlier run of the job had another number of
            tasks, or of rows in this task. Nothing is written.
    """
    work = Work(_options(url, topic, options), job, tasks or 0)

    def produce(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield work.attempt(batches)

    return produce


def produce_in_pandas(
    topic: str | None = None,
    *,
    url: str,
    job: str | None = None,
    tasks: int | None = None,
    **options: Any,
) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """:func:`produce_in_arrow` for ``df.mapInPandas``."""
    work = Work(_options(url, topic, options), job, tasks or 0)

    def produce(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        batches = (pa.RecordBatch.from_pandas(frame, preserve_index=False) for frame in frames)
        yield work.attempt(batches).to_pandas()

    return produce


def foreach_partition(
    topic: str | None = None,
    *,
    url: str,
    job: str | None = None,
    tasks: int | None = None,
    **options: Any,
) -> Callable[[Iterable[Row]], None]:
    """:func:`produce_in_arrow` for ``df.foreachPartition``: slower, and without a result."""
    work = Work(_options(url, topic, options), job, tasks or 0)

    def produce(rows: Iterable[Row]) -> None:
        work.attempt(_batches(iter(rows)))

    return produce


def foreach_batch(
    topic: str | None = None, *, url: str, sink: str | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``writeStream.foreachBatch`` that writes each batch once.

    Use it for output mode ``update``, which Spark does not allow for Python sinks, and for queries
    with several sinks; give each sink its own name in *sink*. Under Spark Connect the id of the
    query is not known here: *sink* is then the whole name of the sink, like ``sinkId``.
    """
    more = {"url": url, **({"topic": topic} if topic is not None else {}), **options}
    if TIMEOUT.lower() not in {name.lower() for name in more}:
        # Spark treats this as the write of a table, whose timeout is shorter.
        more[TIMEOUT] = STREAM_TIMEOUT_MS

    def write_batch(frame: DataFrame, number: int) -> None:
        query = _query_of(frame)
        if query is None and sink is None:
            raise ConfigError(
                "under Spark Connect give foreach_batch(sink='...'), a name that no other query "
                "writes under: the id of the query is not known there"
            )
        name = ".".join(each for each in (query, sink) if each is not None)
        writer = frame.write.format("pymq").options(**more)
        writer.options(txnAppId=name, txnVersion=number).mode("append").save()

    return write_batch


def _query_of(frame: DataFrame) -> str | None:
    """Return the id of the query that a batch belongs to; None under Spark Connect."""
    try:
        context = frame.sparkSession.sparkContext
    except PySparkException:
        return None
    found: str | None = context.getLocalProperty(QUERY)
    return found


def send_udf(topic: str, *, url: str) -> UserDefinedFunction:
    """Return a UDF that appends values and returns their offsets.

    A row that Spark repeats is appended twice. If no later step of the plan reads the column, Spark
    drops the column, and no record is appended.
    """
    from pyspark.sql.pandas.functions import arrow_udf

    sending = Sending(_options(url, topic, {}))

    def send(values: Iterator[pa.Array]) -> Iterator[pa.Array]:
        yield from sending.append_all(values)

    # Annotations are strings in this module; Spark needs types.
    send.__annotations__ = {"values": Iterator[pa.Array], "return": Iterator[pa.Array]}
    make: Any = arrow_udf  # Spark's type hints reject annotations set at run time.
    return cast("UserDefinedFunction", make(send, "long").asNondeterministic())


@dataclass
class Sending(Prompt):
    """The work of a UDF's tasks."""

    options: SinkOptions

    def append_all(self, columns: Iterable[pa.Array]) -> Iterator[pa.Array]:
        """Append columns of values, each to one partition; yields their offsets.

        While one column is in flight, this method takes the next one from Spark.
        """
        options, mq = self.options, client(self.options.url)
        metadata = cache(mq.questions.topic_metadata)
        turns = process_cache("turns")
        known: dict[str, Direct] = process_cache("direct")
        # Reused only after success: after an error it is unknown which sequences were written.
        direct = known.pop(options.url, None) or Direct(mq, options.timeout_s)
        starts: deque[int] = deque()
        counts: deque[list[int]] = deque()  # by column in flight: the record counts of its batches
        for column in columns:
            turn = turns[options.topic] = turns.get(options.topic, _task() - 1) + 1
            rows = Rows(metadata, staging.now_ms, options.topic, turn)
            mine: list[int] = []
            counts.append(mine)
            for place, encoded in rows.all([pa.record_batch({"value": column})]):
                direct.put(place, encoded)
                mine.append(len(encoded))
            if len(counts) > 1:
                starts += direct.flush(left=len(mine))
                yield _offsets(starts, counts.popleft())
        starts += direct.flush()
        while counts:
            yield _offsets(starts, counts.popleft())
        known[options.url] = direct
        settle()


def _offsets(starts: deque[int], counts: list[int]) -> pa.Array:
    """Return the offsets of all records of some batches; *starts* yields their base offsets."""
    runs = [np.arange(count, dtype=np.int64) + starts.popleft() for count in counts]
    return pa.array(np.concatenate(runs) if runs else np.empty(0, np.int64))


@dataclass
class Work(Prompt):
    """A job or a batch of a query; *tasks* is 0 if unknown."""

    options: SinkOptions
    job: str | None
    tasks: int = 0

    def attempt(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        """Run one attempt of one task; returns the records written by it or by an earlier attempt.

        Raises:
            ConfigError: there is neither a job nor a query, or the job has more than *tasks* tasks.
            InvalidRequest: an earlier run had another number of tasks or rows.
        """
        options, job, tasks = self.options, self.job, self.tasks
        task, number = _task(), 0
        if not options.is_exactly_once:
            job = job or ""
        elif job is None:
            job, number = _query()
        if tasks and task >= tasks:
            raise ConfigError(
                f"job {job!r} was to have tasks={tasks}, and this is number {task + 1}"
            )
        sink = task_name(job, task)
        stage = stage_name(sink, number)
        staged = write(options, sink, stage, batches)
        is_new = True
        if staged.pieces:
            # All attempts share one run, so none fences another, and the first decision counts.
            ours = ledger(options, sink, "attempts", job)
            is_new = ours.commit(number, stage, staged.pieces, tasks)
        rows = [
            dict(zip(_ACKS.names, (job, task, *place, count, is_new), strict=True))
            for place, count in staged.counts
        ]
        return pa.RecordBatch.from_pylist(rows, _ACKS)


def _options(url: str, topic: str | None, options: Mapping[str, Any]) -> SinkOptions:
    found = {"url": url, **({"topic": topic} if topic is not None else {}), **options}
    parsed = sink_options({name: str(text) for name, text in found.items()})
    if parsed.values.format == "binary":
        return parsed
    from pymq.spark.values.registered import resolve_sink

    # Close the client afterwards: this is the application's process.
    with pymq.open(parsed.url) as mq:
        return resolve_sink(parsed, mq)


def _task() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _query() -> tuple[str, int]:
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY) if context is not None else None
    batch = context.getLocalProperty(BATCH) if context is not None else None
    if query is None or batch is None:
        raise ConfigError(
            "give job=..., a name for this piece of work, so that what Spark runs twice is written "
            "once; or delivery='at-least-once'"
        )
    return f"{query}.udf", int(batch)


def _batches(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    while some := [row.asDict() for row in islice(rows, ROWS)]:
        yield pa.RecordBatch.from_pylist(some)
