"""What a sink has decided to write, and how far that was carried out.

A decision is one record in a compacted topic, with the sink's id as its key. It names staged
batches and the partitions they go to, and from then on they count: whoever comes next, after a
crash, first finishes it. Two drivers cannot both decide, because a decision is appended with the
number that
follows the last one that its author knows: of two authors of the same number one is refused.

The copies are numbered in the same way: a decision says at which sequence of the sink's producer
its records begin in each partition, so the partition itself knows how much of it has been copied.
"""

from __future__ import annotations

from typing import Any

from pymq.client.client import Client
from pymq.core import cbor
from pymq.core.batch.header import EPOCH_HALF, NO_PRODUCER
from pymq.core.batch.record import EncodedBatch
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
from pymq.spark.write.appends import append, sequences
from pymq.spark.write.copying import FETCH_BYTES, BatchWriter, StagedCopy, Target
from pymq.spark.write.staging import StagedPiece

TOPIC = f"{staging.PREFIX}decisions"
PARTITIONS = 8
BLOCK_BYTES = 4 << 20  # small, so that compaction leaves little to read
RECORD_BYTES = 32 << 20
PAUSE_S = 0.02


@value
class Decision:
    """A batch of a sink, which counts."""

    number: int  # of the sink's records in its partition of the topic of decisions
    batch: int
    stage: str  # the staging topic
    targets: tuple[Target, ...] = ()
    pieces: tuple[StagedPiece, ...] = ()
    is_done: bool = False  # all of it was copied
    count: int = 0  # of records
    tasks: int = 0  # that the job has of which this is one; 0 when nobody said

    def encode(self) -> bytes:
        """As it is kept."""
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
        """Read what was kept.

        Raises:
            CorruptMetadata: it is no decision, or one of a later version.
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
    """The id of a task as a sink of its own."""
    return f"{job}.task{task}"


class DecisionLedger:
    """The decisions of one sink; only one process at a time gets anywhere with them.

    Sinks that are tasks of one *job* have theirs in one partition, where each sees those of others.
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
        self._finished = -1  # the number of the last record that leaves nothing to do
        self.last: Decision | None = None
        self._tasks: dict[int, int] = {}  # that the job has, by batch, as its tasks say

    def enter(self, run: str) -> None:
        """Decide for a run of the sink from now on; runs before it can write nothing any more.

        A process that enters a run which another process has entered takes over its epoch, and does
        not fence it. An empty *run* is one of its own.
        """
        if run == self._run:
            return
        producer, epoch = self._questions.identities.named(self._name, run)
        self._writer = BatchWriter(producer, epoch << EPOCH_HALF)
        self._run = run

    # --- deciding -------------------------------------------------------------------------------

    def refresh(self) -> Decision | None:
        """The last decision, as of now."""
        until = self._client.driver.monotonic() + self._timeout_s
        while True:
            wanted = self._sequence()
            self._read()
            number = self.last.number + 1 if self.last is not None else 0
            if wanted in (number, 0):
                return self.last
            # Somebody's decision is being written: it is to be seen before ours is made.
            if self._client.driver.monotonic() > until:
                raise RequestTimeout(
                    f"{wanted} records of sink {self._sink!r} were made, {number} are to be seen"
                )
            self._client.driver.pause(PAUSE_S)

    def commit(
        self, batch: int, stage: str, pieces: tuple[StagedPiece, ...], tasks: int = 0
    ) -> bool:
        """Let a batch count and carry it out, with what an earlier process has left undone.

        Returns:
            Whether it is new; if not, it was decided before, and what is staged now is dropped.

        Raises:
            InvalidRequest: a later batch was decided before, or this one as another.
            ProducerFenced: another process has taken over the sink.
        """
        count = sum(piece.count for piece in pieces)
        while True:
            last = self.refresh()
            if last is not None:
                self.finish(last)
            if last is not None and batch <= last.batch:
                staging.drop(self._client, stage)
                if batch == last.batch:
                    if self._job is not None and count != last.count:
                        raise InvalidRequest(
                            f"{self._sink!r} has written {last.count} records, and is now given "
                            f"{count}: under the name of a job the same tasks must have the same "
                            "rows. Run it in as many tasks as before, or under another name"
                        )
                    return False
                raise InvalidRequest(
                    f"sink {self._sink!r} has written batch {last.batch}, and is now given batch "
                    f"{batch}: its checkpoint was copied or set back, or two queries write under "
                    "one id. Another 'sinkId' makes it another sink"
                )
            known = self._tasks.get(batch, 0)
            if known and tasks and known != tasks:
                staging.drop(self._client, stage)
                raise InvalidRequest(
                    f"{self._sink!r} is of a job that was run in {known} tasks, and is now run in "
                    f"{tasks}: rows would be written twice. Run it in as many as before, or under "
                    "another name"
                )
            try:
                decision = self.decide(batch, stage, pieces, tasks)
            except (DuplicateSequence, OutOfOrderSequence):
                continue  # Somebody was faster: see what he has decided.
            self.finish(decision)
            return True

    def decide(
        self, batch: int, stage: str, pieces: tuple[StagedPiece, ...], tasks: int = 0
    ) -> Decision:
        """Make staged batches count.

        Raises:
            OutOfOrderSequence: somebody else has decided meanwhile; look again.
            ProducerFenced: somebody else has taken over.
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
        """Carry out what was decided, as far as it was not; then let go of what was staged."""
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
                self.last = done  # Another process of the run has said so at another time.
        staging.drop(self._client, decision.stage)
        self._finished = self.last.number if self.last is not None else -1

    def _write(self, decision: Decision) -> None:
        """Append a record, if it is the next one."""
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
        """Look at what was appended since we last did."""
        start, end = self._log.bounds(TOPIC, [self._partition])[self._partition]
        start = max(start, self._read_to)
        if start >= end:
            return
        for batch in self._log.read(Range(TOPIC, self._partition, start, end), FETCH_BYTES):
            if batch.is_control or not len(batch):
                continue
            for key, data in zip(batch.keys, batch.values, strict=True):
                if key == self._key:
                    self.last = Decision.decode(data)
                elif self._is_of_job(key):
                    other = Decision.decode(data)
                    self._tasks[other.batch] = other.tasks or self._tasks.get(other.batch, 0)
        self._read_to = end

    def _is_of_job(self, key: bytes | None) -> bool:
        """Whether a record is of a task of our job; its name may begin like that of another job."""
        if self._job is None or key is None:
            return False
        return key.startswith(self._job) and key[len(self._job) :].isdigit()
