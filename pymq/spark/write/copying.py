"""Copies decided batches from the staging topic to their targets; resumes after a crash.

A broker that leads both partitions copies the batch itself; this process copies all other batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, zip_longest

from pymq.client.admin.appends import ON_THEIR_WAY, Appends, mode, sequences
from pymq.client.client import Client
from pymq.client.router import Call
from pymq.core import message as msg
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.values import value
from pymq.errors import DuplicateSequence, InternalError, OutOfOrderSequence, UnknownTopic
from pymq.spark.log.cluster_log import ClusterLog
from pymq.spark.planning import Place, Range
from pymq.spark.write.staging import StagedPiece

FETCH_BYTES = 4 << 20
AHEAD = 5  # staged batches fetched ahead
ON_THEIR_WAY_MAX = 32  # batches in flight for all partitions, up to a megabyte each
PIECES = 32  # batches in one copy request, for one partition
TRIES = 20  # an attempt fails only if another process copies the same batches

Numbered = tuple[int, StagedPiece]  # sequence of its first record, batch


@value
class BatchWriter:
    """The producer id and epoch of appends."""

    producer: int
    epoch: int


@value
class Target:
    """A partition that a decision writes to."""

    place: Place
    topic_id: str
    start: int  # sequence of the writer's first record


class StagedCopy:
    """Copies staged batches; each is appended once, even if several runs or processes copy it."""

    def __init__(
        self,
        client: Client,
        log: ClusterLog,
        writer: BatchWriter,
        stage: str,
        targets: Sequence[Target],
        pieces: Sequence[StagedPiece],
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
        """Copy the batches that are missing in their targets.

        Raises:
            ProducerFenced: another process has taken over and will finish the copy.
        """
        if rest := self._missing():
            # Another process has finished the copy and deleted the stage.
            with suppress(UnknownTopic):
                self._ask(rest)
        tries = TRIES
        while rest := self._missing():
            try:
                self._append(rest)
            except (DuplicateSequence, OutOfOrderSequence, UnknownTopic):
                # Ask for the sequences again. Another process has copied batches; or a broker has
                # appended a batch, its answer was lost, and the broker has forgotten the batch
                # since then.
                tries -= 1
                if not tries:
                    raise

    def _missing(self) -> dict[Place, list[Numbered]]:
        """Return the batches that each partition still lacks, in order, with their sequences."""
        found: dict[Place, list[Numbered]] = {}
        begun = self._begun()
        position = dict.fromkeys(begun, 0)
        for piece in self._pieces:
            at, (start, done) = position[piece.place], begun[piece.place]
            position[piece.place] = at + piece.count
            if at + piece.count <= done:
                continue
            if at < done or done < 0:
                topic, partition = piece.place
                raise InternalError(
                    f"{topic}/{partition} has {done} records of a batch that has a border at {at}: "
                    "it has lost acknowledged records, or its producer state"
                )
            found.setdefault(piece.place, []).append((start + at, piece))
        return found

    def _begun(self) -> dict[Place, tuple[int, int]]:
        """Return the first sequence and the number of records already copied, by partition."""
        by_topic: dict[str, list[Target]] = {}
        for target in self._targets:
            by_topic.setdefault(target.place[0], []).append(target)
        found = {}
        for topic, targets in by_topic.items():
            id = self._questions.topic_metadata(topic, self._timeout_s).topic_id
            names = [target.place[1] for target in targets]
            now = sequences(self._questions, topic, names, self._writer.producer, self._timeout_s)
            for target in targets:
                # In a topic that was created again, sequences begin at 0.
                start = target.start if target.topic_id == id else 0
                found[target.place] = start, now[target.place[1]] - start
        return found

    def _ask(self, rest: dict[Place, list[Numbered]]) -> None:
        """Request copies from brokers that lead both partitions, so that no data passes this
        process. :meth:`_append` copies the batches that the brokers have not copied.
        """
        known = self._topics(rest)
        stage = self._questions.topic_metadata(self._stage, self._timeout_s)
        waiting = {place: deque(_parts(numbered)) for place, numbered in rest.items()}
        asked: deque[tuple[Place, Call]] = deque()

        def ask(place: Place) -> None:
            if some := waiting[place]:
                call = self._begin(known[place[0]], stage, place, some.popleft())
                if call is not None:
                    asked.append((place, call))

        for place in waiting:
            ask(place)
        while asked:
            place, call = asked.popleft()
            if isinstance(self._questions.end(call), msg.Copied):
                ask(place)

    def _begin(
        self,
        topic: TopicMetadata,
        stage: TopicMetadata,
        place: Place,
        numbered: Sequence[Numbered],
    ) -> Call | None:
        (sequence, _), (name, partition) = numbered[0], place
        pieces = tuple(msg.Piece(each.staged, each.offset, each.count) for _, each in numbered)
        acks, writer = mode(topic, partition), self._writer

        def make(request: int) -> msg.Message:
            return msg.Copy(
                request,
                name,
                partition,
                acks,
                writer.producer,
                writer.epoch,
                sequence,
                stage.topic,
                pieces,
                topic.topic_id,
                stage.topic_id,
                self._questions.identities.grant(writer.producer),
            )

        return self._questions.begin(name, partition, make)

    def _topics(self, rest: Iterable[Place]) -> dict[str, TopicMetadata]:
        """Return the metadata of the target topics."""
        names = dict.fromkeys(topic for topic, _ in rest)
        return {name: self._questions.topic_metadata(name, self._timeout_s) for name in names}

    def _append(self, rest: dict[Place, list[Numbered]]) -> None:
        """Copy the remaining batches, one of each partition in turn.

        Reads overlap with appends. If a batch is lost, the broker refuses the batches after it,
        because their sequences leave a gap.
        """
        known = self._topics(rest)
        turns = [each for each in chain(*zip_longest(*rest.values())) if each is not None]
        window = min(max(2 * len(rest), ON_THEIR_WAY), ON_THEIR_WAY_MAX)
        appends = Appends(self._questions, self._timeout_s, window)
        staged = self._staged([piece for _, piece in turns])
        for (sequence, piece), batch in zip(turns, staged, strict=True):
            topic, partition = piece.place
            numbered = batch.renamed(self._writer.producer, self._writer.epoch, sequence)
            appends.put(known[topic], partition, numbered)
        appends.flush()

    def _staged(self, pieces: Sequence[StagedPiece]) -> Iterator[EncodedBatch]:
        """Yield staged batches in this order; fetches ahead."""
        asked: deque[tuple[Range, Call | None]] = deque()
        coming = iter(pieces)
        for piece in pieces:
            while len(asked) < AHEAD and (later := next(coming, None)) is not None:
                end = later.offset + later.count
                wanted = Range(self._stage, later.staged, later.offset, end)
                asked.append((wanted, self._log.begin(wanted, FETCH_BYTES)))
            (batch,) = self._log.read(asked[0][0], FETCH_BYTES, asked.popleft()[1])
            if (batch.base_offset, len(batch)) != (piece.offset, piece.count):
                raise InternalError(
                    f"{self._stage}/{piece.staged} at {piece.offset} holds another batch"
                )
            yield batch


def _parts(numbered: Sequence[Numbered]) -> Iterator[Sequence[Numbered]]:
    """Split batches into the pieces of one copy request each."""
    for first in range(0, len(numbered), PIECES):
        yield numbered[first : first + PIECES]
