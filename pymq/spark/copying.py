"""Brings what was decided to where it belongs, from wherever a crash has left it."""

from __future__ import annotations

from collections.abc import Sequence

from pymq.client.client import Client
from pymq.core.record import RecordBatch
from pymq.core.values import value
from pymq.errors import InternalError, OutOfOrderSequence, UnknownTopic
from pymq.spark.appends import append, sequences
from pymq.spark.base import Log
from pymq.spark.planning import Place, Range
from pymq.spark.staging import Piece

FETCH_BYTES = 4 << 20
TRIES = 20  # that another process, which is doing the same, gets in between


@value
class Writer:
    """Under whose numbers something is appended."""

    producer: int
    epoch: int


@value
class Target:
    """One partition that is written to."""

    place: Place
    topic_id: str
    start: int  # sequence of the writer's first record


class Copy:
    """Copies staged batches; each is there once, however often and from wherever it is begun."""

    def __init__(
        self,
        client: Client,
        log: Log,
        writer: Writer,
        stage: str,
        targets: Sequence[Target],
        pieces: Sequence[Piece],
        timeout_s: float,
    ) -> None:
        self._questions = client.questions
        self._log = log
        self._writer = writer
        self._stage = stage
        self._targets = targets
        self._pieces = pieces
        self._timeout_s = timeout_s

    def run(self) -> None:
        """Copy what is missing.

        Raises:
            ProducerFenced: another process has taken over; it goes on.
        """
        tries = TRIES
        while rest := self._missing(self._copied()):
            try:
                while rest:
                    rest = self._round(rest)
            except (OutOfOrderSequence, UnknownTopic):
                # Another process has been at it, perhaps to the end: look how far it got.
                tries -= 1
                if not tries:
                    raise

    def _missing(self, copied: dict[Place, int]) -> dict[Place, list[tuple[int, Piece]]]:
        """What is to be copied to each partition, in order, with its sequences."""
        found: dict[Place, list[tuple[int, Piece]]] = {}
        starts = {each.place: self._start_of(each) for each in self._targets}
        position = dict.fromkeys(copied, 0)
        for piece in self._pieces:
            at, done = position[piece.place], copied[piece.place]
            position[piece.place] = at + piece.count
            if at + piece.count <= done:
                continue
            if at < done or done < 0:
                topic, partition = piece.place
                raise InternalError(
                    f"{topic}/{partition} has {done} records of a batch that has a border at {at}: "
                    "it has lost what it had acknowledged, or forgotten its producers"
                )
            found.setdefault(piece.place, []).append((starts[piece.place] + at, piece))
        return found

    def _round(
        self, rest: dict[Place, list[tuple[int, Piece]]]
    ) -> dict[Place, list[tuple[int, Piece]]]:
        """Copy the next batch of every partition; what is left."""
        by_topic: dict[str, dict[str, tuple[int, RecordBatch]]] = {}
        for (topic, partition), waiting in rest.items():
            sequence, piece = waiting[0]
            batch = self._staged(piece)
            by_topic.setdefault(topic, {})[partition] = (sequence, batch)
        for topic, batches in by_topic.items():
            self._send(topic, batches)
        return {place: waiting[1:] for place, waiting in rest.items() if waiting[1:]}

    def _copied(self) -> dict[Place, int]:
        """How many of the records each partition has."""
        by_topic: dict[str, list[Target]] = {}
        for target in self._targets:
            by_topic.setdefault(target.place[0], []).append(target)
        found = {}
        for topic, targets in by_topic.items():
            id = self._questions.topic_metadata(topic, self._timeout_s).topic_id
            names = [target.place[1] for target in targets]
            now = sequences(self._questions, topic, names, self._writer.producer, self._timeout_s)
            for target in targets:
                start = target.start if target.topic_id == id else 0
                found[target.place] = now[target.place[1]] - start
        return found

    def _start_of(self, target: Target) -> int:
        """The sequence at which a partition's records begin; a topic made anew knows of none."""
        topic = self._questions.topic_metadata(target.place[0], self._timeout_s)
        return target.start if target.topic_id == topic.topic_id else 0

    def _staged(self, piece: Piece) -> RecordBatch:
        """A staged batch."""
        end = piece.offset + piece.count
        wanted = Range(self._stage, piece.staged, piece.offset, end)
        (batch,) = self._log.read(wanted, FETCH_BYTES)
        if (batch.base_offset, len(batch)) != (piece.offset, piece.count):
            raise InternalError(
                f"{self._stage}/{piece.staged} at {piece.offset} holds another batch"
            )
        return batch

    def _send(self, topic: str, batches: dict[str, tuple[int, RecordBatch]]) -> None:
        """Append one batch to each of some partitions of a topic, with these sequences."""
        numbered = {
            partition: batch.renamed(self._writer.producer, self._writer.epoch, sequence)
            for partition, (sequence, batch) in batches.items()
        }
        known = self._questions.topic_metadata(topic, self._timeout_s)
        append(self._questions, known, numbered, self._timeout_s)
