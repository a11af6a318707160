"""Sends dead letters back to their topics, each exactly once even if the process crashes.

The journal is a compacted topic (named like the dead-letter topic, with ``.redriven``). For each
partition, the journal stores which letters were sent back, and the round in progress. These are the
steps of a round:

1. Choose up to :data:`ROUND` letters, and the partition for each.
2. Write the round to the journal: its letters, and the first sequence in each partition.
3. Append the letters with these sequences and the producer name of the journal.
4. Write to the journal that the letters were sent. If a round follows, this is its step 2, too.

After a crash between these steps, the next redrive asks the partitions for the next sequence of the
producer name. These sequences show how many letters of the round were written; the redrive sends
the others. Two redrives of a topic cannot both send letters: the second takes over the producer
name, and the brokers refuse the first (Spark's sink uses the same protocol).

A topic may refuse a letter, for example because it is too large. The redrive then fails and ends
its round: the journal lists the letters that were sent, and the next redrive or purge chooses
letters again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pymq.client.admin.appends import append, sequences
from pymq.client.admin.owned_topic import TIMEOUT_S
from pymq.client.options import check_callback, check_flag, check_range, check_rate
from pymq.client.redrive.journal import Journal, JournalEntry, Round
from pymq.core.batch.columns import Headers
from pymq.core.batch.dead_letter import OBITUARY
from pymq.core.batch.record import Record
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.types import check_name, is_internal
from pymq.core.values import value
from pymq.errors import (
    ConfigError,
    DuplicateSequence,
    InvalidName,
    OutOfOrderSequence,
    ProducerFenced,
    PymqError,
    RecordTooLarge,
    UnknownTopic,
)
from pymq.hash.partitioner import key_partition

if TYPE_CHECKING:
    from pymq.client.client import Client

ROUND = 500  # letters in a round
ROUND_BYTES = 1 << 20
REDRIVEN_HEADER = "pymq.redriven"  # how often a record was sent back

Where = Callable[[Record], object]


@value
class Redriven:
    """The result of :meth:`pymq.Client.redrive`."""

    count: int  # number of letters that were sent back, or that a dry run would send back
    # number of letters that remain, because they were not chosen or their topic is unknown
    skipped: int


class Redrive:
    """One redrive of a dead-letter topic."""

    def __init__(
        self,
        client: Client,
        topic: str,
        to: str | None,
        where: Where | None,
        rate: float | None,
        limit: int | None = None,
    ) -> None:
        check_callback("where", where)
        if to is not None:
            check_name(to, "topic")
            if is_internal(to):
                raise ConfigError(f"to={to!r} is a topic of pymq's own")
        if to == topic:
            raise ConfigError(f"to={to!r} is the dead-letter topic itself")
        if rate is not None:
            check_rate("rate", rate)
        if limit is not None:
            check_range("limit", limit, 1, 1 << 62)
        self._client = client
        self._questions = client.questions
        self._topic = client.questions.topic_metadata(topic)
        self._to = to
        self._where = where
        self._rate = rate
        self._room = limit  # how many more letters may be chosen; None: all
        self._round = ROUND if rate is None else max(1, min(ROUND, int(rate)))
        self._targets: dict[str, TopicMetadata | None] = {}
        self._turn = 0  # index of the next partition for letters without a key
        self.journal = Journal(client, self._topic)

    # --- public operations ------------------------------------------------------------------------

    def run(self) -> Redriven:
        """Send letters back; returns the counts."""
        self.journal.claim()
        count = skipped = 0
        for name, entry in self.journal.entries.items():
            count += self._resume(name, entry)
            for chosen, passed in self._rounds(name, entry):
                skipped += passed
                for to in dict.fromkeys(self._target(letter) for letter in chosen):
                    letters = [letter for letter in chosen if self._target(letter) == to]
                    assert to is not None
                    count += self._send(name, entry, to, letters)
            self.journal.write(name)
        return Redriven(count, skipped)

    def dry_run(self) -> Redriven:
        """Count the letters that would be sent back."""
        self.journal.load()
        rounds = [
            (len(chosen), passed)
            for name, entry in self.journal.entries.items()
            for chosen, passed in self._rounds(name, entry)
        ]
        return Redriven(sum(count for count, _ in rounds), sum(passed for _, passed in rounds))

    def purge(self) -> int:
        """Mark the chosen letters as done without sending them; returns their number."""
        self.journal.claim()
        count = 0
        for name, entry in self.journal.entries.items():
            self._resume(name, entry)
            for chosen, _ in self._rounds(name, entry, needs_target=False):
                entry.add(letter.offset for letter in chosen)
                count += len(chosen)
            self.journal.write(name)
        return count

    def letters(self) -> Iterator[Record]:
        """Iterate over the chosen letters that were neither sent back nor purged."""
        self.journal.load()
        for name, entry in self.journal.entries.items():
            for chosen, _ in self._rounds(name, entry, needs_target=False):
                yield from chosen

    # --- choosing -------------------------------------------------------------------------------

    def _rounds(
        self, partition: str, entry: JournalEntry, *, needs_target: bool = True
    ) -> Iterator[tuple[list[Record], int]]:
        """Choose letters of a partition, round by round, with the number of skipped letters."""
        chosen, passed, size = list[Record](), 0, 0
        with self._client.consumer(self._topic.topic, mode="psb", partition=partition) as records:
            start = records.begin_offsets()[partition]
            entry.done = [each for each in entry.done if each[1] > start]
            if entry.done and entry.done[0][0] <= start:
                records.seek(partition, entry.done[0][1])  # no need to read earlier letters again
            for letter in records.until_end():
                if self._room == 0:
                    break
                if entry.has(letter.offset):
                    continue
                if (self._where is not None and not self._where(letter)) or (
                    needs_target and self._target(letter) is None
                ):
                    passed += 1
                    continue
                chosen.append(letter)
                if self._room is not None:
                    self._room -= 1
                size += len(letter.value)
                if len(chosen) >= self._round or size >= ROUND_BYTES:
                    yield chosen, passed
                    chosen, passed, size = [], 0, 0
        yield chosen, passed

    def _target(self, letter: Record) -> str | None:
        """Return the target topic of a letter; None if the topic is unknown or does not exist."""
        headers = dict(letter.headers)
        if "pymq.end_offset" in headers:
            return None  # The letter only notes that unreadable records were skipped.
        to = self._to or headers.get("pymq.topic", b"").decode(errors="replace")
        if not to or to == self._topic.topic or is_internal(to):
            return None
        return to if self._metadata(to) is not None else None

    def _metadata(self, to: str) -> TopicMetadata | None:
        if to not in self._targets:
            try:
                self._targets[to] = self._questions.topic_metadata(to)
            except (UnknownTopic, InvalidName):
                if to == self._to:
                    raise
                self._targets[to] = None
        return self._targets[to]

    def _place(self, letter: Record, topic: TopicMetadata) -> str:
        """Return the target partition of a letter: its former one, or that of its key."""
        headers, names = dict(letter.headers), [part.partition for part in topic.partitions]
        before = headers.get("pymq.partition", b"").decode(errors="replace")
        if before in names and headers.get("pymq.topic") == topic.topic.encode():
            return before
        if letter.key is not None:
            return names[key_partition(letter.key, len(names))]
        self._turn += 1
        return names[self._turn % len(names)]

    # --- sending --------------------------------------------------------------------------------

    def _send(self, partition: str, entry: JournalEntry, to: str, letters: list[Record]) -> int:
        """Send letters of a partition to a topic; returns their number."""
        topic = self._metadata(to)
        assert topic is not None
        places = tuple((letter.offset, self._place(letter, topic)) for letter in letters)
        names = list(dict.fromkeys(name for _, name in places))
        producer = self.journal.log.producer_id
        first = sequences(self._questions, to, names, producer, TIMEOUT_S)
        entry.round = Round(to, topic.topic_id, places, first)
        self.journal.write(partition)
        count = self._finish(partition, entry, {letter.offset: letter for letter in letters})
        if self._rate is not None:
            self._questions.pause(count / self._rate)
        return count

    def _resume(self, partition: str, entry: JournalEntry) -> int:
        """Finish the round of an earlier redrive; returns the number of sent letters.

        If the topic refuses the letters, they may be chosen again.
        """
        if entry.round is None:
            return 0
        try:
            return self._finish(partition, entry, {})
        except PymqError as error:
            if _may_pass(error):
                raise
            return 0

    def _finish(self, partition: str, entry: JournalEntry, letters: dict[int, Record]) -> int:
        """Send the unsent letters of a round; returns their number."""
        sent, entry.round = entry.round, None
        assert sent is not None
        count = 0
        while True:
            left = self._left(sent)
            if left is None:
                return 0  # The topic was deleted, so choose these letters again.
            if not left:
                entry.add(sent.offsets)
                return count
            offsets = [offset for found in left.values() for offset in found]
            count = count or len(offsets)
            if not letters:
                letters = self._read(partition, offsets)
            if any(offset not in letters for offset in offsets):
                there = set(sent.offsets) - set(offsets)
                entry.add(sorted(there))
                # Retention has removed letters of the round. The remaining letters are chosen
                # again.
                return 0
            try:
                self._append(sent, left, letters)
            except PymqError as error:
                if not _may_pass(error):
                    self._give_up(partition, entry, sent, letters)
                raise

    def _give_up(
        self, partition: str, entry: JournalEntry, sent: Round, letters: dict[int, Record]
    ) -> None:
        """End a round if one of its target partitions refuses letters.

        The other partitions get their letters.

        Otherwise letters that the topic refuses would block each later redrive.
        """
        left = self._left(sent) or {}
        for name, offsets in left.items():
            try:
                self._append(sent, {name: offsets}, letters)
            except PymqError as error:
                if _may_pass(error):
                    raise
        still = self._left(sent)
        if still is not None:
            missing = {offset for offsets in still.values() for offset in offsets}
            entry.add(sorted(set(sent.offsets) - missing))
        self.journal.write(partition)

    def _left(self, sent: Round) -> dict[str, list[int]] | None:
        """Return the letters of a round that are not written yet; None if the topic was deleted."""
        try:
            topic = self._questions.topic_metadata(sent.to)
        except UnknownTopic:
            return None
        if topic.topic_id != sent.topic_id:
            return None
        names, producer = list(sent.first), self.journal.log.producer_id
        known = sequences(self._questions, sent.to, names, producer, TIMEOUT_S)
        if any(known[name] < first for name, first in sent.first.items()):
            return None  # The partition has lost records that it had acknowledged before.
        return sent.left(known)

    def _append(self, sent: Round, left: dict[str, list[int]], letters: dict[int, Record]) -> None:
        """Append letters to their partitions.

        After an error the caller has to find out which letters were written.
        """
        batches = {}
        for name, offsets in left.items():
            rows = [letters[offset] for offset in offsets]
            of_partition = [offset for offset, place in sent.places if place == name]
            sequence = sent.first[name] + len(of_partition) - len(offsets)
            batches[name] = self.journal.log.batch(
                [row.value for row in rows],
                [row.key for row in rows],
                [_headers(row) for row in rows],
                sequence,
            )
        try:
            append(
                self._questions,
                self._questions.topic_metadata(sent.to),
                batches,
                TIMEOUT_S,
                sync=True,
            )
        except (OutOfOrderSequence, DuplicateSequence):
            return  # A late batch of the previous redrive has arrived.
        except ProducerFenced:
            raise self.journal.fenced() from None
        except RecordTooLarge as error:
            raise RecordTooLarge(
                f"a dead letter is too large for {sent.to!r}: {error.message}; raise the topic's "
                "max_record_bytes with alter_topic, then redrive again",
                **error.details,
            ) from None

    def _read(self, partition: str, offsets: list[int]) -> dict[int, Record]:
        """Read the letters of a round that an earlier redrive has begun."""
        wanted, found = set(offsets), dict[int, Record]()
        with self._client.consumer(self._topic.topic, mode="psb", partition=partition) as records:
            start = records.begin_offsets()[partition]
            records.seek(partition, max(start, min(offsets)))
            for record in records.until_end():
                if record.offset in wanted:
                    found[record.offset] = record
                if len(found) == len(wanted):
                    break
        return found


def _may_pass(error: PymqError) -> bool:
    """Whether the topic may still accept the letters, or another redrive may send them."""
    return error.retriable or isinstance(error, ProducerFenced)


def _headers(letter: Record) -> Headers:
    """Return the headers of a record that is sent back: its own, and the number of returns."""
    before = dict(letter.headers).get(REDRIVEN_HEADER, b"0")
    count = int(before) + 1 if before.isdigit() and len(before) < 9 else 1
    own = (
        header
        for header in letter.headers
        if header[0] not in OBITUARY and header[0] != REDRIVEN_HEADER
    )
    return (*own, (REDRIVEN_HEADER, str(count).encode()))


def redrive(
    client: Client,
    topic: str,
    to: str | None,
    where: Where | None,
    rate: float | None,
    limit: int | None,
    *,
    dry_run: bool,
) -> Redriven:
    """Send dead letters back; see :meth:`pymq.Client.redrive`."""
    check_flag("dry_run", dry_run)
    work = Redrive(client, topic, to, where, rate, limit)
    return work.dry_run() if dry_run else work.run()
