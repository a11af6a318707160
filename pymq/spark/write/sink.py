"""Writers for batch and streaming queries.

1. A task appends its rows to a staging topic and reports the offsets to the driver.
2. The driver appends one decision per batch, with the attempts that count.
3. The driver has the batches of those attempts copied to their topics.

The rows of an attempt that failed or was slower stay in the staging topic, and are deleted with
this topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from pymq.client.admin.appends import Appends
from pymq.client.client import Client
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.errors import ConfigError, InternalError
from pymq.spark import columns
from pymq.spark.log.cluster_log import ClusterLog
from pymq.spark.options import SinkOptions
from pymq.spark.planning import Place
from pymq.spark.process import Prompt, client, process_cache, settle
from pymq.spark.write import staging
from pymq.spark.write.copying import BatchWriter as Numbers
from pymq.spark.write.copying import StagedCopy, Target
from pymq.spark.write.decisions import DecisionLedger
from pymq.spark.write.rows import Rows
from pymq.spark.write.staging import Stage, StagedPiece

if TYPE_CHECKING:
    from pymq.spark.values.value_columns import ValueWriter

# local properties that Spark passes to its tasks
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
RUN = "spark.jobGroup.id"  # each start of a query has a new id
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "topic": (StringType,),
    "partition": (IntegerType, LongType, StringType),
    "timestamp": (TimestampType,),
}


@dataclass
class Staged(WriterCommitMessage):
    """The batches that a task has staged."""

    sink: str
    stage: str
    pieces: tuple[StagedPiece, ...]
    counts: tuple[tuple[Place, int], ...]  # rows, also of those appended without staging
    run: str = ""  # run id of the query


class TableWriter(Prompt, DataSourceArrowWriter):
    """Writes a table: all of its rows or none."""

    def __init__(self, options: SinkOptions, schema: StructType, *, is_overwrite: bool) -> None:
        check_columns(options, schema, is_overwrite=is_overwrite)
        self._options = options
        self._sink = options.sink or f"job.{uuid4().hex}"
        self._batch = options.version or 0
        # The run is pickled with this object, so the committing process knows it.
        self._run = uuid4().hex

    @property
    def _stage(self) -> str:
        return stage_name(self._sink, self._batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Carry out a task."""
        return write(self._options, self._sink, self._stage, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the batches that all tasks have staged."""
        pieces = gather(messages)
        if self._options.sink is not None:
            commit(self._options, self._sink, self._run, self._batch, self._stage, pieces)
        elif pieces:
            copy_once(self._options, self._stage, pieces)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the stage after a task or the commit has failed."""
        # Keep the stage of a batch with an id: if the batch has been decided, the next run with
        # that id finishes it.
        if self._options.sink is None and self._options.is_exactly_once:
            staging.drop(client(self._options.url), self._stage, self._options.timeout_s)


class StreamWriter(Prompt, DataSourceStreamArrowWriter):
    """Writes a stream: each batch once."""

    def __init__(self, options: SinkOptions, schema: StructType, *, is_overwrite: bool) -> None:
        check_columns(options, schema, is_overwrite=is_overwrite)
        if options.version is not None:
            raise ConfigError("options 'txnAppId' and 'txnVersion' are for tables; see 'sinkId'")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Carry out a task."""
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY) if context is not None else None
        batch = context.getLocalProperty(BATCH) if context is not None else None
        if query is None or batch is None:
            raise InternalError(f"Spark does not tell its task {QUERY} and {BATCH}")
        sink = self._options.sink or query
        staged = write(self._options, sink, stage_name(sink, int(batch)), iterator)
        return replace(staged, run=task_run())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the staged batches of all tasks; after a crash Spark repeats the call."""
        pieces = gather(messages)
        for message in messages:
            if isinstance(message, Staged):
                sink, run, stage = message.sink, message.run, message.stage
                commit(self._options, sink, run, batchId, stage, pieces)
                return

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: if the batch was decided, Spark's repetition of the batch finishes it."""


def check_columns(options: SinkOptions, schema: StructType, *, is_overwrite: bool) -> None:
    """Raise for columns that cannot be written, before any task runs."""
    if is_overwrite and not options.appends_on_overwrite:
        raise ConfigError(
            "a log cannot be overwritten: use .mode('append'), or the output mode 'append'; with "
            "option 'onOverwrite' set to 'append' all rows are appended"
        )
    names = ", ".join([*_TYPES, "headers"])
    for field in schema.fields:
        if field.name == "headers":
            is_right = field.dataType.simpleString() == columns.FIELDS["headers"].simpleString()
        elif field.name == "value" and options.values.format != "binary":
            from pymq.spark.values.checked import check_rows  # on demand: most sinks need no check

            check_rows(options.values, field.dataType)
            is_right = True
        elif field.name in _TYPES:
            is_right = isinstance(field.dataType, _TYPES[field.name])
        elif options.ignores_columns or (field.name == "offset" and field.dataType == LongType()):
            continue  # Rows that were read from pymq have offsets; the sink assigns new ones.
        else:
            raise ConfigError(
                f"column {field.name!r} cannot be written; there are {names}. With option "
                "'ignoreExtraColumns' set to 'true' others are left out"
            )
        if not is_right:
            raise ConfigError(
                f"column {field.name!r} cannot be written as {field.dataType.simpleString()}"
            )
    if "value" not in schema.names:
        raise ConfigError(
            "a column 'value' is needed; for several columns see to_json(struct(...))"
        )
    if options.topic is None and "topic" not in schema.names:
        raise ConfigError("option 'topic' is missing, and there is no column 'topic'")


def stage_name(sink: str, batch: int) -> str:
    """Return the name of a batch's staging topic."""
    return f"{staging.PREFIX}{sink}.{batch}"


# --- in tasks -----------------------------------------------------------------------------------


def task_run() -> str:
    """Return the run of this task's query; empty outside of a query."""
    context = TaskContext.get()
    found = context.getLocalProperty(RUN) if context is not None else None
    return found or ""


def write(options: SinkOptions, sink: str, stage: str, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Write a task's rows to the stage, or directly to their topics."""
    mq = client(options.url)
    context = TaskContext.get()
    turn = context.partitionId() if context is not None else 0
    metadata = partial(mq.questions.topic_metadata, timeout=options.timeout_s)
    rows = Rows(metadata, staging.now_ms, options.topic, turn, _encoder(options))
    staged = Stage(mq, stage, options.timeout_s)
    to = staged if options.is_exactly_once else Direct(mq, options.timeout_s)
    counts: dict[Place, int] = {}
    for place, encoded in rows.all(batches):
        to.put(place, encoded)
        counts[place] = counts.get(place, 0) + len(encoded)
    to.flush()
    settle()
    return Staged(sink, stage, tuple(staged.pieces), tuple(counts.items()))


def _encoder(options: SinkOptions) -> ValueWriter | None:
    """Return the encoder for a task's rows; None if the rows already contain values."""
    if options.values.is_plain:
        return None
    from pymq.spark.values.checked import writing
    from pymq.spark.values.value_columns import ValueWriter

    return ValueWriter(writing(options.values))


class Direct:
    """Appends directly to the target topics; a repeated attempt appends the rows again."""

    def __init__(self, mq: Client, timeout_s: float) -> None:
        self._questions = mq.questions
        self._timeout_s = timeout_s
        self._producer = mq.questions.identities.anonymous()
        self._sequences: dict[Place, int] = {}
        self._appends = Appends(mq.questions, timeout_s)
        self._topics: dict[str, TopicMetadata] = {}

    def put(self, place: Place, batch: EncodedBatch) -> None:
        """Append a batch without waiting for its answer; a few are in flight at a time."""
        topic, partition = place
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(batch)
        known = self._topics.get(topic)
        if known is None or partition not in {each.partition for each in known.partitions}:
            known = self._topics[topic] = self._questions.topic_metadata(topic, self._timeout_s)
        self._appends.put(known, partition, batch.renamed(self._producer, 0, sequence))

    def flush(self, left: int = 0) -> list[int]:
        """Wait until all but *left* batches are appended; return the base offsets since the last
        call.
        """
        self._appends.flush(left)
        found, self._appends.offsets = self._appends.offsets, []
        return found


# --- in the driver ------------------------------------------------------------------------------


def gather(messages: Sequence[WriterCommitMessage | None]) -> tuple[StagedPiece, ...]:
    """Return the staged batches of all tasks, sorted by target, then in the order of the tasks.

    Tasks of a read are in the order of offsets, so records of a partition that several tasks copy
    keep their order.
    """
    pieces = [
        each
        for message in messages
        if isinstance(message, Staged)
        for each in sorted(message.pieces, key=lambda each: (each.staged, each.offset))
    ]
    return tuple(sorted(pieces, key=lambda each: each.place))


def commit(
    options: SinkOptions,
    sink: str,
    run: str,
    batch: int,
    stage: str,
    pieces: tuple[StagedPiece, ...],
) -> None:
    """Commit a batch; an empty batch needs no decision."""
    if pieces:
        ledger(options, sink, run).commit(batch, stage, pieces)
    settle()


def ledger(options: SinkOptions, sink: str, run: str, job: str | None = None) -> DecisionLedger:
    """Return this process's ledger of a sink, which may be a task of a job.

    Spark commits in any idle process of its driver, so several processes hold ledgers of one sink
    in turn. Producers of one *run* share an epoch; another run fences them.
    """
    mq = client(options.url)
    ledgers: dict[Any, DecisionLedger] = process_cache("ledgers")
    key = (id(mq), sink)
    if key not in ledgers:
        ledgers[key] = DecisionLedger(mq, sink, options.timeout_s, job=job, run=run)
    elif run:
        ledgers[key].enter(run)
    return ledgers[key]


def copy_once(options: SinkOptions, stage: str, pieces: tuple[StagedPiece, ...]) -> None:
    """Copy without a decision: after a crash some batches are missing, and no run adds them."""
    mq = client(options.url)
    targets = []
    for place in dict.fromkeys(piece.place for piece in pieces):
        id = mq.questions.topic_metadata(place[0], options.timeout_s).topic_id
        targets.append(Target(place, id, 0))
    log = ClusterLog(mq, options.timeout_s)
    numbers = Numbers(mq.questions.identities.anonymous(), 0)
    StagedCopy(mq, log, numbers, stage, targets, pieces, options.timeout_s).run()
    staging.drop(mq, stage, options.timeout_s)
