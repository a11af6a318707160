"""Brings what was decided to where it belongs, from wherever a crash has left it.

Brokers copy what they lead on both sides themselves; what is left goes through this process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, zip_longest

from pymq.client.client import Client
from pymq.client.router import Call
from pymq.core import message as msg
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.nodes import TopicMetadata
from pymq.core.values import value
from pymq.errors import DuplicateSequence, InternalError, OutOfOrderSequence, UnknownTopic
from pymq.spark.log.cluster_log import ClusterLog
from pymq.spark.planning import Place, Range
from pymq.spark.write.appends import ON_THEIR_WAY, Appends, mode, sequences
from pymq.spark.write.staging import StagedPiece

FETCH_BYTES = 4 << 20
AHEAD = 5  # staged batches that are asked for before they are needed
ON_THEIR_WAY_MAX = 32  # of all partitions, each of up to a megabyte
PIECES = 32  # that a broker is asked to copy at once, for one partition
TRIES = 20  # that another process, which is doing the same, gets in between

Numbered = tuple[int, StagedPiece]  # what is to be copied, and the sequence of its first record


@value
class BatchWriter:
    """Under whose numbers something is appended."""

    producer: int
    epoch: int


@value
class Target:
    """One partition that is written to."""

    place: Place
    topic_id: str
    start: int  # sequence of the writer's first record


class StagedCopy:
    """Copies staged batches; each is there once, however often and from wherever it is begun."""

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
        """Copy what is missing.

        Raises:
            ProducerFenced: another process has taken over; it goes on.
        """
        if rest := self._missing():
            with suppress(UnknownTopic):  # Another process has been at it, perhaps to the end.
                self._ask(rest)
        tries = TRIES
        while rest := self._missing():
            try:
                self._append(rest)
            except (DuplicateSequence, OutOfOrderSequence, UnknownTopic):
                # Another process has been at it, perhaps to the end, or what an answer did not come
                # for was written, and too much after it: look how far it got.
                tries -= 1
                if not tries:
                    raise

    def _missing(self) -> dict[Place, list[Numbered]]:
        """What is to be copied to each partition, in order, with its sequences."""
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
                    "it has lost what it had acknowledged, or forgotten its producers"
                )
            found.setdefault(piece.place, []).append((start + at, piece))
        return found

    def _begun(self) -> dict[Place, tuple[int, int]]:
        """At which sequence the records of each partition begin, and how many of them it has."""
        by_topic: dict[str, list[Target]] = {}
        for target in self._targets:
            by_topic.setdefault(target.place[0], []).append(target)
        found = {}
        for topic, targets in by_topic.items():
            id = self._questions.topic_metadata(topic, self._timeout_s).topic_id
            names = [target.place[1] for target in targets]
            now = sequences(self._questions, topic, names, self._writer.producer, self._timeout_s)
            for target in targets:
                # A topic that was made anew knows of none.
                start = target.start if target.topic_id == id else 0
                found[target.place] = start, now[target.place[1]] - start
        return found

    def _ask(self, rest: dict[Place, list[Numbered]]) -> None:
        """Have the brokers copy what they lead themselves, without a way through this process.

        What they do not do, for whatever reason, is still missing afterwards.
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
        """The topics that are copied to."""
        names = dict.fromkeys(topic for topic, _ in rest)
        return {name: self._questions.topic_metadata(name, self._timeout_s) for name in names}

    def _append(self, rest: dict[Place, list[Numbered]]) -> None:
        """Copy all that is left, of each partition in turn.

        Some batches are read while others are written. Each has its sequence, so that of those that
        follow one that was lost none is taken.
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
        """Staged batches, in this order; the next ones are on their way meanwhile."""
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
    """What is asked for at once."""
    for first in range(0, len(numbered), PIECES):
        yield numbered[first : first + PIECES]
