"""The decision log of a sink: which staged batches are committed, and which are copied.

A decision is one record in a compacted topic, with the sink's id as its key. A decision names
staged batches and their target partitions, and commits these batches: after a crash the next driver
finishes it first. Two drivers cannot both decide: a driver appends a decision with the sequence
after the last one it knows, and the broker refuses the second of two appends with the same
sequence.

Copies have sequences, too. A decision holds the first sequence of its records in each partition, so
the partition's next sequence tells how many of them have been copied.
"""

from __future__ import annotations

from typing import Any

from pymq.client.admin.appends import append, sequences
from pymq.client.client import Client
from pymq.core import cbor
from pymq.core.batch.header import EPOCH_HALF, NO_PRODUCER
from pymq.core.batch.record import EncodedBatch
from pymq.core.counts import clause, plural
from pymq.core.values import value
from pymq.errors import (
    CorruptMetadata,
    DuplicateSequence,
    InvalidRequest,
    OutOfOrderSequence,
    PymqError,
    RequestTimeout,
)
from pymq.hash.partitioner import key_partition
from pymq.spark.log.cluster_log import ClusterLog
from pymq.spark.planning import Range
from pymq.spark.write import staging
from pymq.spark.write.copying import FETCH_BYTES, BatchWriter, StagedCopy, Target
from pymq.spark.write.staging import StagedPiece

TOPIC = f"{staging.PREFIX}decisions"
PARTITIONS = 8
BLOCK_BYTES = 4 << 20  # small blocks, so that after compaction a reader has few records to read
RECORD_BYTES = 32 << 20
PAUSE_S = 0.02


@value
class Decision:
    """A committed batch of a sink."""

    number: int  # sequence of this record in the topic of decisions
    batch: int
    stage: str  # the staging topic
    targets: tuple[Target, ...] = ()
    pieces: tuple[StagedPiece, ...] = ()
    is_done: bool = False  # all batches are copied
    count: int = 0  # number of records
    tasks: int = 0  # number of tasks of this task's job; 0 if unknown

    def encode(self) -> bytes:
        """Encode the decision as a record's value."""
        index = {target.place: number for number, target in enumerate(self.targets)}
        return cbor.dumps(
            {
                "v": 1,
                "number": self.number,
                "batch": self.batch,
                "stage": self.stage,
                "done": self.is_done,
                "count": self.count,
                "tasks": self.tasks,
                "targets": [[*each.place, each.topic_id, each.start] for each in self.targets],
                "pieces": [[p.staged, p.offset, p.count, index[p.place]] for p in self.pieces],
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Decision:
        """Decode a record's value.

        Raises:
            CorruptMetadata: *data* is no decision, or has a later version.
        """
        try:
            found: dict[str, Any] = cbor.loads(data)
            if found["v"] != 1:
                raise CorruptMetadata(f"a decision of version {found['v']} is of a later pymq")
            targets = tuple(
                Target((str(topic), str(partition)), str(id), int(start))
                for topic, partition, id, start in found["targets"]
            )
            pieces = tuple(
                StagedPiece(str(staged), int(offset), int(count), targets[index].place)
                for staged, offset, count, index in found["pieces"]
            )
            return cls(
                int(found["number"]),
                int(found["batch"]),
                str(found["stage"]),
                targets,
                pieces,
                bool(found["done"]),
                int(found["count"]),
                int(found["tasks"]),
            )
        except CorruptMetadata:
            raise
        except (IndexError, KeyError, PymqError, TypeError, ValueError) as error:
            raise CorruptMetadata(f"topic {TOPIC} holds what is no decision: {error!r}") from None


def task_name(job: str, task: int | str) -> str:
    """Return the sink id of a single task of a job."""
    return f"{job}.task{task}"


class DecisionLedger:
    """The decisions of one sink; only one process at a time can add to them.

    The tasks of one *job* are sinks that share a partition, so each task reads the decisions of the
    others.
    """

    def __init__(
        self, client: Client, sink: str, timeout_s: float, *, job: str | None = None, run: str = ""
    ) -> None:
        self._client = client
        self._questions = client.questions
        self._log = ClusterLog(client, timeout_s)
        self._timeout_s = timeout_s
        self._sink = sink
        self._key = sink.encode()
        name = f"{staging.PREFIX}{sink}"
        self._name = name
        staging.create(
            client,
            TOPIC,
            PARTITIONS,
            timeout_s=timeout_s,
            cleanup_policy="compact",
            block_bytes=BLOCK_BYTES,
            max_record_bytes=RECORD_BYTES,
        )
        self._job = None if job is None else task_name(job, "").encode()
        together = self._key if job is None else job.encode()
        self._partition = str(key_partition(together, PARTITIONS))
        self._run: str | None = None
        self._writer = BatchWriter(NO_PRODUCER, 0)
        self.enter(run)
        self._read_to = -1
        self._finished = -1  # number of the last decision known to be finished
        self.last: Decision | None = None
        self._tasks: dict[int, int] = {}  # how many tasks the job has, by batch

    def enter(self, run: str) -> None:
        """Enter a run of the sink; this fences all earlier runs.

        Processes that enter the same run share its epoch and do not fence each other. An empty
        *run* is always a new run.
        """
        if run == self._run:
            return
        identities = self._questions.identities
        producer, epoch = staging.patiently(
            self._client, self._timeout_s, lambda: identities.named(self._name, run)
        )
        self._writer = BatchWriter(producer, epoch << EPOCH_HALF)
        self._run = run

    # --- decisions ------------------------------------------------------------------------------

    def refresh(self) -> Decision | None:
        """Return the last decision, after reading the topic to its end."""
        until = self._client.driver.monotonic() + self._timeout_s
        while True:
            wanted = self._sequence()
            self._read()
            number = self.last.number + 1 if self.last is not None else 0
            if wanted in (number, 0):
                return self.last
            # The decision of another process is not committed yet; wait until the decision is
            # readable.
            if self._client.driver.monotonic() > until:
                raise RequestTimeout(
                    f"{clause(wanted, 'record', 'was', 'were')} made for sink {self._sink!r}, "
                    f"{clause(number, 'record', 'is', 'are')} visible"
                )
            self._client.driver.pause(PAUSE_S)

    def commit(
        self, batch: int, stage: str, pieces: tuple[StagedPiece, ...], tasks: int = 0
    ) -> bool:
        """Decide on a batch and copy it; first finishes the last decision.

        Returns:
            Whether the batch is new; if the batch was decided before, its new stage is deleted.

        Raises:
            InvalidRequest: a later batch is already decided, or this batch with other contents.
            ProducerFenced: another process has taken over the sink.
        """
        count = sum(piece.count for piece in pieces)
        while True:
            last = self.refresh()
            if last is not None:
                self.finish(last)
            if last is not None and batch <= last.batch:
                staging.drop(self._client, stage, self._timeout_s)
                if batch == last.batch:
                    if self._job is not None and count != last.count:
                        raise InvalidRequest(
                            f"{self._sink!r} has written {plural(last.count, 'record')}, and is "
                            f"now given {count}: under the name of a job the same tasks must have "
                            "the same rows. Run it in as many tasks as before, or give it another "
                            "name"
                        )
                    return False
                raise InvalidRequest(
                    f"sink {self._sink!r} has written batch {last.batch}, and is now given batch "
                    f"{batch}: its checkpoint was copied or set back, or two queries write under "
                    "one id. Another 'sinkId' makes it another sink"
                )
            known = self._tasks.get(batch, 0)
            if known and tasks and known != tasks:
                staging.drop(self._client, stage, self._timeout_s)
                raise InvalidRequest(
                    f"{self._sink!r} is of a job that was run in {known} tasks, and is now run in "
                    f"{tasks}: rows would be written twice. Run it in as many as before, or under "
                    "another name"
                )
            try:
                decision = self.decide(batch, stage, pieces, tasks)
            except (DuplicateSequence, OutOfOrderSequence):
                continue  # Another process decided first: read its decision.
            self.finish(decision)
            return True

    def decide(
        self, batch: int, stage: str, pieces: tuple[StagedPiece, ...], tasks: int = 0
    ) -> Decision:
        """Append the decision that commits staged batches.

        Raises:
            OutOfOrderSequence: another process has decided first; call :meth:`refresh`.
            ProducerFenced: another process has taken over.
        """
        wanted: dict[str, list[str]] = {}
        for topic, partition in dict.fromkeys(piece.place for piece in pieces):
            wanted.setdefault(topic, []).append(partition)
        targets = []
        for topic, partitions in wanted.items():
            known = self._questions.topic_metadata(topic, self._timeout_s)
            starts = sequences(
                self._questions, topic, partitions, self._writer.producer, self._timeout_s
            )
            targets += [
                Target((topic, partition), known.topic_id, starts[partition])
                for partition in partitions
            ]
        count = sum(piece.count for piece in pieces)
        decision = Decision(
            self._sequence(), batch, stage, tuple(targets), pieces, count=count, tasks=tasks
        )
        self._write(decision)
        return decision

    def finish(self, decision: Decision) -> None:
        """Copy the rest of a decision's batches, mark it as done and delete its stage."""
        if decision.number == self._finished:
            return
        if not decision.is_done:
            StagedCopy(
                self._client,
                self._log,
                self._writer,
                decision.stage,
                decision.targets,
                decision.pieces,
                self._timeout_s,
            ).run()
            done = Decision(
                decision.number + 1,
                decision.batch,
                decision.stage,
                is_done=True,
                count=decision.count,
                tasks=decision.tasks,
            )
            try:
                self._write(done)
            except DuplicateSequence:
                self.last = done  # Another process of this run has marked it.
        staging.drop(self._client, decision.stage, self._timeout_s)
        self._finished = self.last.number if self.last is not None else -1

    def _write(self, decision: Decision) -> None:
        """Append a decision, if its number is the next one."""
        known = self.last.number + 1 if self.last is not None else 0
        if decision.number not in (known, 0):
            raise OutOfOrderSequence(
                f"decision {decision.number} of sink {self._sink!r} would follow {known - 1}"
            )
        batch = EncodedBatch.encode(
            [decision.encode()],
            keys=[self._key],
            timestamp_ms=staging.now_ms(),
            producer_id=self._writer.producer,
            producer_epoch=self._writer.epoch,
            base_sequence=decision.number,
        )
        topic = self._questions.topic_metadata(TOPIC, self._timeout_s)
        append(self._questions, topic, {self._partition: batch}, self._timeout_s, sync=True)
        self.last = decision

    def _sequence(self) -> int:
        found = sequences(
            self._questions, TOPIC, [self._partition], self._writer.producer, self._timeout_s
        )
        return found[self._partition]

    def _read(self) -> None:
        """Read the decisions appended since the last call."""
        start, end = self._log.bounds(TOPIC, [self._partition])[self._partition]
        start = max(start, self._read_to)
        if start >= end:
            return
        for batch in self._log.read(Range(TOPIC, self._partition, start, end), FETCH_BYTES):
            if batch.header.is_control or not len(batch):
                continue
            for key, data in zip(batch.keys, batch.values, strict=True):
                if key == self._key:
                    self.last = Decision.decode(data)
                elif self._is_of_job(key):
                    other = Decision.decode(data)
                    self._tasks[other.batch] = other.tasks or self._tasks.get(other.batch, 0)
        self._read_to = end

    def _is_of_job(self, key: bytes | None) -> bool:
        """Whether a record belongs to a task of this job; the name of another job may begin with
        the name of this one.
        """
        if self._job is None or key is None:
            return False
        return key.startswith(self._job) and key[len(self._job) :].isdigit()
