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
from pymq.client.options import producer_number
from pymq.core import codec
from pymq.core import message as msg
from pymq.core.header import EPOCH_HALF
from pymq.core.record import RecordBatch
from pymq.core.values import value
from pymq.errors import (
    CorruptMetadata,
    InvalidRequest,
    OutOfOrderSequence,
    PymqError,
    RequestTimeout,
)
from pymq.hash.partitioner import key_partition
from pymq.spark import staging
from pymq.spark.appends import append, sequences
from pymq.spark.copying import FETCH_BYTES, Copy, Target, Writer
from pymq.spark.logs import ClusterLog
from pymq.spark.planning import Range
from pymq.spark.staging import Piece

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
    pieces: tuple[Piece, ...] = ()
    is_done: bool = False  # all of it was copied

    def encode(self) -> bytes:
        """As it is kept."""
        index = {target.place: number for number, target in enumerate(self.targets)}
        return codec.dumps(
            {
                "v": 1,
                "number": self.number,
                "batch": self.batch,
                "stage": self.stage,
                "done": self.is_done,
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
            found: dict[str, Any] = codec.loads(data)
            if found["v"] != 1:
                raise CorruptMetadata(f"a decision of version {found['v']} is of a later pymq")
            targets = tuple(
                Target((str(topic), str(partition)), str(id), int(start))
                for topic, partition, id, start in found["targets"]
            )
            pieces = tuple(
                Piece(str(staged), int(offset), int(count), targets[index].place)
                for staged, offset, count, index in found["pieces"]
            )
            return cls(
                int(found["number"]),
                int(found["batch"]),
                str(found["stage"]),
                targets,
                pieces,
                bool(found["done"]),
            )
        except CorruptMetadata:
            raise
        except (IndexError, KeyError, PymqError, TypeError, ValueError) as error:
            raise CorruptMetadata(f"topic {TOPIC} holds what is no decision: {error!r}") from None


class Ledger:
    """The decisions of one sink; only one process at a time gets anywhere with them."""

    def __init__(self, client: Client, sink: str, timeout_s: float) -> None:
        self._client = client
        self._questions = client.questions
        self._log = ClusterLog(client, timeout_s)
        self._timeout_s = timeout_s
        self._sink = sink
        self._key = sink.encode()
        name = f"{staging.PREFIX}{sink}"
        producer = producer_number(name)
        staging.create(
            client,
            TOPIC,
            PARTITIONS,
            cleanup_policy="compact",
            block_bytes=BLOCK_BYTES,
            max_record_bytes=RECORD_BYTES,
        )
        self._partition = str(key_partition(self._key, PARTITIONS))
        # Whoever held the sink before can write nothing from our first record on.
        init = self._questions.ask(lambda r: msg.InitProducer(r, name=name))
        self._writer = Writer(producer, int(init) << EPOCH_HALF)
        self._read_to = -1
        self._finished = -1  # the number of the last record that leaves nothing to do
        self.last: Decision | None = None

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

    def commit(self, batch: int, stage: str, pieces: tuple[Piece, ...]) -> bool:
        """Let a batch count and carry it out, with what an earlier process has left undone.

        Returns:
            Whether it is new; if not, it was decided before, and what is staged now is dropped.

        Raises:
            InvalidRequest: a later batch was decided before.
            ProducerFenced: another process has taken over the sink.
        """
        while True:
            last = self.refresh()
            if last is not None:
                self.finish(last)
            if last is not None and batch <= last.batch:
                staging.drop(self._client, stage)
                if batch == last.batch:
                    return False
                raise InvalidRequest(
                    f"sink {self._sink!r} has written batch {last.batch}, and is now given batch "
                    f"{batch}: its checkpoint was copied or set back, or two queries write under "
                    "one id. Another 'sinkId' makes it another sink"
                )
            try:
                decision = self.decide(batch, stage, pieces)
            except OutOfOrderSequence:
                continue  # Somebody was faster: see what he has decided.
            self.finish(decision)
            return True

    def decide(self, batch: int, stage: str, pieces: tuple[Piece, ...]) -> Decision:
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
        decision = Decision(self._sequence(), batch, stage, tuple(targets), pieces)
        self._write(decision)
        return decision

    def finish(self, decision: Decision) -> None:
        """Carry out what was decided, as far as it was not; then let go of what was staged."""
        if decision.number == self._finished:
            return
        if not decision.is_done:
            Copy(
                self._client,
                self._log,
                self._writer,
                decision.stage,
                decision.targets,
                decision.pieces,
                self._timeout_s,
            ).run()
            number = decision.number + 1
            self._write(Decision(number, decision.batch, decision.stage, is_done=True))
        staging.drop(self._client, decision.stage)
        self._finished = self.last.number if self.last is not None else -1

    def _write(self, decision: Decision) -> None:
        """Append a record, if it is the next one."""
        known = self.last.number + 1 if self.last is not None else 0
        if decision.number not in (known, 0):
            raise OutOfOrderSequence(
                f"decision {decision.number} of sink {self._sink!r} would follow {known - 1}"
            )
        batch = RecordBatch.encode(
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
        self._read_to = end
