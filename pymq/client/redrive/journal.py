"""The journal of a dead-letter topic stores which of its letters were sent back.

The journal is a compacted topic of one partition, with a record for each partition of the
dead-letter topic. A redrive takes the journal over by the journal's producer name, so that the
brokers refuse an earlier redrive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pymq.client.admin.owned_topic import OWNER, OwnedTopic
from pymq.core import cbor
from pymq.core.batch.offset_ranges import joined
from pymq.core.message import Range
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.values import Factory, define
from pymq.errors import (
    CorruptMetadata,
    InvalidRequest,
    ProducerFenced,
    UnknownTopic,
)

if TYPE_CHECKING:
    from pymq.client.client import Client

JOURNAL = ".redriven"  # suffix of the journal's name
GAPS_MAX = 50_000  # most ranges of letters that the journal holds for a partition


@define
class Round:
    """Letters of one partition that are being sent back."""

    to: str
    topic_id: str
    places: tuple[tuple[int, str], ...]  # each letter's offset, and its target partition
    first: dict[str, int]  # the sequence of the first letter for each target partition

    def left(self, known: dict[str, int]) -> dict[str, list[int]]:
        """The offsets of unsent letters, by target partition; *known* holds the next sequences."""
        found = dict[str, list[int]]()
        for offset, partition in self.places:
            found.setdefault(partition, []).append(offset)
        parts = {name: offsets[known[name] - self.first[name] :] for name, offsets in found.items()}
        return {name: offsets for name, offsets in parts.items() if offsets}

    @property
    def offsets(self) -> list[int]:
        """The offsets of its letters."""
        return [offset for offset, _ in self.places]


@define
class JournalEntry:
    """The journal's entry of one partition of the dead-letter topic."""

    done: list[Range] = Factory(list)  # letters that were sent back or purged, in order
    round: Round | None = None

    def has(self, offset: int) -> bool:
        """Whether a letter was sent back or purged."""
        index = bisect_right(self.done, (offset, 1 << 62)) - 1
        return index >= 0 and offset < self.done[index][1]

    def add(self, offsets: Iterable[int]) -> None:
        """Note that letters were sent back or purged.

        Raises:
            InvalidRequest: there are too many gaps between these letters.
        """
        self.done = joined([*self.done, *((offset, offset + 1) for offset in offsets)])
        if len(self.done) > GAPS_MAX:
            raise InvalidRequest(
                f"more than {GAPS_MAX} gaps between letters that were sent back: redrive or purge "
                "the letters between them, too"
            )

    def encode(self, topic_id: str) -> bytes:
        """Encode the entry; *topic_id* is the id of the dead-letter topic."""
        sent = self.round
        item: list[Any] = [1, topic_id, [list(each) for each in self.done]]
        if sent is not None:
            item += [[sent.to, sent.topic_id, [list(place) for place in sent.places], sent.first]]
        return cbor.dumps(item)

    @classmethod
    def decode(cls, data: bytes, topic_id: str) -> JournalEntry:
        """Decode an entry; an entry of an earlier topic of the same name counts as empty.

        Raises:
            CorruptMetadata: *data* is not an entry, or a newer pymq wrote it.
        """
        try:
            version, written_for, done, *rest = cbor.loads(data)
            if version != 1:
                raise CorruptMetadata("a newer pymq has written this journal of dead letters")
            if written_for != topic_id:
                return cls()
            sent = None
            if rest:
                to, id, places, first = rest[0]
                sent = Round(to, id, tuple((offset, name) for offset, name in places), first)
            return cls([(start, end) for start, end in done], sent)
        except (InvalidRequest, ValueError, TypeError) as error:
            raise CorruptMetadata(f"no journal of dead letters: {error}") from None


class Journal:
    """The entries of one dead-letter topic, by partition."""

    def __init__(self, client: Client, topic: TopicMetadata) -> None:
        self._client = client
        self._of = topic
        self.log = OwnedTopic(client, topic.topic + JOURNAL, 4 << 20)
        self.entries: dict[str, JournalEntry] = {}

    def load(self) -> None:
        """Read the journal; without one, no letter was sent back."""
        self.entries = {part.partition: JournalEntry() for part in self._of.partitions}
        try:
            with self._client.consumer(self.log.name, mode="psb", offset="begin") as records:
                for record in records.until_end():
                    name = (record.key or OWNER).decode()
                    if name in self.entries:
                        self.entries[name] = JournalEntry.decode(record.value, self._of.topic_id)
        except UnknownTopic:
            return

    def claim(self) -> None:
        """Create the journal if it is missing, and fence an earlier redrive.

        Raises:
            ProducerFenced: another redrive of this topic has begun.
        """
        self.log.create(like=self._of.topic)
        if not self.log.claim(self.load):
            raise self.fenced()

    def write(self, partition: str) -> None:
        """Write a partition's entry, durably.

        Raises:
            ProducerFenced: another redrive of this topic has begun.
        """
        entry = self.entries[partition]
        if not self.log.append(partition.encode(), entry.encode(self._of.topic_id)):
            raise self.fenced()

    def fenced(self) -> ProducerFenced:
        """Return the error for a redrive that a later redrive has replaced."""
        return ProducerFenced(
            f"another redrive of {self._of.topic!r} has begun, and continues this one"
        )
