"""The journal of a mirror: which records of each Kafka partition are written, and where.

The journal is a compacted topic ``pymq.mirror.NAME`` with a record for each mirrored partition. A
mirror takes it over by its producer name, and appends records to the mirrored topics with the same
producer name. So the brokers refuse an earlier mirror of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pymq.client.admin.owned_topic import OWNER, OwnedTopic
from pymq.core import cbor
from pymq.core.values import Factory, define
from pymq.errors import (
    ConfigError,
    CorruptMetadata,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownTopic,
)
from pymq.mirror.offset_map import OffsetMap

if TYPE_CHECKING:
    from pymq.client.client import Client

PREFIX = "pymq.mirror."
VERSION = 1
IN, OUT = "in", "out"  # from Kafka, to Kafka
RECORD_MAX = 4 << 20
Span = tuple[int, int]  # first source offset, number of consecutive offsets
Place = tuple[str, int]  # topic, number of the partition


def spans_of(offsets: Sequence[int]) -> list[Span]:
    """Return ascending offsets as runs of consecutive ones."""
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        return [(offsets[0], len(offsets))]
    found = [(offsets[0], 1)]
    for offset in offsets[1:]:
        first, count = found[-1]
        if first + count == offset:
            found[-1] = (first, count + 1)
        else:
            found.append((offset, 1))
    return found


def skip(spans: Iterable[Span], count: int) -> Iterator[Span]:
    """Return the spans without their first *count* offsets."""
    for first, length in spans:
        if count < length:
            yield first + count, length - count
        count = max(0, count - length)


def take(spans: Iterable[Span], count: int) -> Iterator[Span]:
    """Return the first *count* offsets of the spans."""
    for first, length in spans:
        if count <= 0:
            return
        yield first, min(length, count)
        count -= length


def total(spans: Iterable[Span]) -> int:
    """Return the number of offsets in the spans."""
    return sum(count for _, count in spans)


@define
class MirrorEntry:
    """The state of one mirrored partition.

    The partition gets the declared records in their order, with sequences from *first* on, and has
    the first *sent* of them. *sent* is not stored: the leader of the partition knows it.
    """

    topic_id: str  # of the copy
    next: int = -1  # source offset after the last record that is written; -1: nothing is
    first: int = 0
    end: int = 0  # offset of the copy after the last record that is written
    declared: list[Span] = Factory(list)
    offsets: OffsetMap = Factory(OffsetMap)
    sent: int = 0

    def declare(self, offsets: Sequence[int]) -> bool:
        """Declare the records to send next; returns False if exactly these are declared already.

        Records that were declared and not sent stay declared if *offsets* begins them: an earlier
        mirror may still send them.
        """
        spans = spans_of(offsets)
        left = list(skip(self.declared, self.sent))
        if list(take(left, len(offsets))) == spans:
            return False
        self.first, self.sent, self.declared = self.first + self.sent, 0, spans
        return True

    def settle(self) -> bool:
        """Close the declared records; returns False if there are none."""
        if not self.declared:
            return False
        self.first, self.sent, self.declared = self.first + self.sent, 0, []
        return True

    def wrote(self, offsets: Sequence[int], base: int) -> None:
        """Note that a batch of the declared records was written at offset *base*."""
        self.sent += len(offsets)
        self.next, self.end = offsets[-1] + 1, base + len(offsets)
        for first, count in spans_of(offsets):
            self.offsets.add(first, base, count)
            base += count

    def recover(self, sequence: int, high_watermark: int) -> int:
        """Note the records that were written without an answer; returns their number.

        Args:
            sequence: the next sequence of the mirror's producer in the partition.
            high_watermark: the end of the partition.

        Raises:
            OutOfOrderSequence: the partition does not have what the journal says.
        """
        new = sequence - self.first - self.sent
        if not 0 <= new <= total(self.declared) - self.sent:
            raise OutOfOrderSequence(
                f"the partition has {sequence} records of this mirror, but the journal says "
                f"{self.first + self.sent} to {self.first + total(self.declared)}"
            )
        if not new:
            return 0
        written = list(take(skip(self.declared, self.sent), new))
        if high_watermark - self.end == new:
            at = self.end
            for first, count in written:
                self.offsets.add(first, at, count)
                at += count
        else:
            # Other records are among them, so only the place of the first one is certain enough.
            self.offsets.add(written[0][0], self.end, 0)
        self.next = written[-1][0] + written[-1][1]
        self.end = max(self.end, high_watermark)
        self.sent += new
        return new

    def encode(self) -> bytes:
        """Encode the entry, without *sent*."""
        assert self.sent == 0, "the sequence of the first declared record includes what was sent"
        state = [self.next, self.first, self.end]
        runs = [list(run) for run in self.offsets.runs]
        spans = [list(span) for span in self.declared]
        return cbor.dumps([VERSION, IN, self.topic_id, *state, spans, self.offsets.grain, runs])

    @classmethod
    def decode(cls, data: bytes) -> MirrorEntry | None:
        """Decode an entry; None for that of a mirror to Kafka.

        Raises:
            CorruptMetadata: *data* is not an entry, or a newer pymq wrote it.
        """
        try:
            version, way, topic_id, *rest = cbor.loads(data)
            if version != VERSION:
                raise CorruptMetadata("a newer pymq has written this journal of a mirror")
            if way == OUT:
                return None
            at, first, end, spans, grain, runs = rest
            offsets = OffsetMap([(s, t, c) for s, t, c in runs], grain)
            return cls(topic_id, at, first, end, [(s, c) for s, c in spans], offsets)
        except (ValueError, TypeError) as error:
            raise CorruptMetadata(f"no journal of a mirror: {error}") from None


def key_of(place: Place) -> bytes:
    """Return the key of a partition's entry."""
    return f"{place[0]}/{place[1]}".encode()


class MirrorJournal:
    """The entries of one mirror."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.log = OwnedTopic(client, PREFIX + name, RECORD_MAX)
        self.entries: dict[Place, MirrorEntry] = {}

    def load(self) -> None:
        """Read the journal, if there is one."""
        self.entries = {}
        for key, data in _records(self._client, self.log.name):
            topic, _, number = key.rpartition("/")
            entry = MirrorEntry.decode(data)
            if entry is not None:
                self.entries[topic, int(number)] = entry

    def claim(self, like: str) -> None:
        """Create the journal like the topic *like* if it is missing, and fence an earlier mirror.

        Raises:
            ProducerFenced: another mirror of this name has begun.
        """
        self.log.create(like=like)
        if not self.log.claim(self.load):
            raise self.fenced()

    def write(self, places: Sequence[Place]) -> None:
        """Write the entries of some partitions, durably.

        Raises:
            ProducerFenced: another mirror of this name has begun.
        """
        if not self.log.append_all([(key_of(p), self.entries[p].encode()) for p in places]):
            raise self.fenced()

    def note_outward(self, topics: Iterable[str]) -> None:
        """Note that topics are mirrored to Kafka, so that no mirror brings them back.

        Raises:
            ProducerFenced: another mirror of this name has begun.
        """
        rows = [(key_of((topic, 0)), cbor.dumps([VERSION, OUT, ""])) for topic in topics]
        if not self.log.append_all(rows):
            raise self.fenced()

    def fenced(self) -> ProducerFenced:
        """Return the error for a mirror that a later one has replaced."""
        return ProducerFenced(f"another mirror with the journal {self.log.name!r} has begun")


def check_no_loop(client: Client, topics: Iterable[str], way: str) -> None:
    """Check that no journal of the queue has these topics in the other direction.

    Raises:
        ConfigError: records of a topic would go around for ever.
    """
    wanted = set(topics)
    for name in client.topics():
        if not name.startswith(PREFIX):
            continue
        for key, data in _records(client, name):
            topic = key.rpartition("/")[0]
            other = IN if way == OUT else OUT
            is_other = (MirrorEntry.decode(data) is None) == (other == OUT)
            if topic in wanted and is_other:
                other_way = "from" if other == IN else "to"
                raise ConfigError(
                    f"topic {topic!r} is mirrored {other_way} Kafka by {name!r}: its records would "
                    f"go around for ever; exclude the topic, or delete {name!r} if that mirror has "
                    "ended"
                )


def _records(client: Client, name: str) -> Iterator[tuple[str, bytes]]:
    """Return the last record of each key of a journal, without those that take it over."""
    found: dict[bytes, bytes] = {}
    try:
        with client.consumer(name, mode="psb", offset="begin") as records:
            for record in records.until_end():
                found[record.key or OWNER] = record.value
    except UnknownTopic:
        return
    for key, data in found.items():
        if key != OWNER:
            yield key.decode(), data
