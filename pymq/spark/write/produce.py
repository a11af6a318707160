"""Producers inside of what Spark runs: in ``mapInArrow``, ``foreachBatch``, or a UDF.

Spark may run a task twice, or a whole query again for its next action. So a task stages what it
produces and decides at its end, as a sink's driver does for all of its tasks; the decision of the
first attempt holds, and later ones learn of it.
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

from pymq.errors import ConfigError
from pymq.spark.options import SinkOptions, sink_options
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
ROWS = 5000  # that ``foreach_partition`` takes at once


def produce_in_arrow(
    topic: str | None = None,
    *,
    url: str,
    job: str | None = None,
    tasks: int | None = None,
    **options: Any,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``df.mapInArrow(..., pymq.spark.ACK_SCHEMA)`` that produces its rows.

    Columns and options are those of the sink. The result has a row for each task and partition that
    it wrote to: how many records, and whether this attempt has written them.

    Args:
        topic: where to; None when rows say so in their column ``topic``.
        url: of the cluster.
        job: names this piece of work. Whatever is run again under the name writes nothing, so it
            must have the same rows in the same tasks. In a streaming query it is not needed.
        tasks: how many tasks the job has, as in ``df.repartition(tasks)``. Tasks are not told by
            Spark, so only with this it is certain that the job is not run again in more of them.
        options: of the sink.

    Raises:
        ConfigError: an option is wrong; when it is run, that there is neither a job nor a query, or
            that there are more tasks.
        InvalidRequest: when it is run, that the job was run in another number of tasks, or that
            this one had another number of rows. It has written nothing.
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
    """:func:`produce_in_arrow` for ``df.foreachPartition``, which is slower and tells nothing."""
    work = Work(_options(url, topic, options), job, tasks or 0)

    def produce(rows: Iterable[Row]) -> None:
        work.attempt(_batches(iter(rows)))

    return produce


def foreach_batch(
    topic: str | None = None, *, url: str, sink: str | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """A function for ``writeStream.foreachBatch`` that writes each batch once.

    It is for output mode ``update``, which Spark does not let Python sinks run in, and for queries
    with several sinks; each of those needs another name in *sink*.
    """
    more = {"url": url, **({"topic": topic} if topic is not None else {}), **options}

    def write_batch(frame: DataFrame, number: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY)
        name = query if sink is None else f"{query}.{sink}"
        writer = frame.write.format("pymq").options(**more)
        writer.options(txnAppId=name, txnVersion=number).mode("append").save()

    return write_batch


def send_udf(topic: str, *, url: str) -> UserDefinedFunction:
    """A UDF that appends values and returns their offsets; a row that Spark repeats is there twice.

    Spark also leaves out a column that nobody reads, with what it would have done.
    """
    from pyspark.sql.pandas.functions import arrow_udf

    sending = Sending(_options(url, topic, {}))

    def send(values: Iterator[pa.Array]) -> Iterator[pa.Array]:
        yield from sending.append_all(values)

    # Annotations are text here, and Spark wants them as types.
    send.__annotations__ = {"values": Iterator[pa.Array], "return": Iterator[pa.Array]}
    make: Any = arrow_udf  # Its types do not know what is annotated by hand.
    return cast("UserDefinedFunction", make(send, "long").asNondeterministic())


@dataclass
class Sending(Prompt):
    """What the tasks of a UDF do."""

    options: SinkOptions

    def append_all(self, columns: Iterable[pa.Array]) -> Iterator[pa.Array]:
        """Append columns of values, each to one partition; gives their offsets.

        While a column is on its way the next one is asked for.
        """
        options, mq = self.options, client(self.options.url)
        metadata = cache(mq.questions.topic_metadata)
        turns = process_cache("turns")
        known: dict[str, Direct] = process_cache("direct")
        # Kept only if it goes well: nobody knows which of its numbers were written otherwise.
        direct = known.pop(options.url, None) or Direct(mq, options.timeout_s)
        starts: deque[int] = deque()
        counts: deque[list[int]] = deque()  # of the batches of each column on its way
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
    """Those of the records in some batches, whose first ones are taken from *starts*."""
    runs = [np.arange(count, dtype=np.int64) + starts.popleft() for count in counts]
    return pa.array(np.concatenate(runs) if runs else np.empty(0, np.int64))


@dataclass
class Work(Prompt):
    """A piece of work, in so many tasks if that is known."""

    options: SinkOptions
    job: str | None
    tasks: int = 0

    def attempt(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        """One attempt of one task; returns what is written, by it or by an earlier one.

        Raises:
            ConfigError: it cannot be known which piece of work it is.
            InvalidRequest: it was another one when it was run before.
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
            # All attempts are one run: the first decision holds, whoever makes it.
            ours = ledger(options, sink, "attempts", job)
            is_new = ours.commit(number, stage, staged.pieces, tasks)
        rows = [
            dict(zip(_ACKS.names, (job, task, *place, count, is_new), strict=True))
            for place, count in staged.counts
        ]
        return pa.RecordBatch.from_pylist(rows, _ACKS)


def _options(url: str, topic: str | None, options: Mapping[str, Any]) -> SinkOptions:
    found = {"url": url, **({"topic": topic} if topic is not None else {}), **options}
    return sink_options({name: str(text) for name, text in found.items()})


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
