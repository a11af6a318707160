"""From Kafka to a queue: each record once, at the partition that it has in Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pymq.client.admin.appends import append, sequences
from pymq.core.batch import compression
from pymq.core.batch.priority import priority_bits
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.route import routed_bit
from pymq.errors import (
    Disconnected,
    DuplicateSequence,
    InvalidTimestamp,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    RecordTooLarge,
)
from pymq.mirror.journal import IN, MirrorEntry, MirrorJournal, Place, check_no_loop
from pymq.mirror.kafka_client import KafkaAdmin, KafkaReader
from pymq.mirror.plan import TopicCopy, check_found, chosen, create_in_pymq, to_pymq
from pymq.mirror.progress import MirrorProgress, TopicProgress
from pymq.mirror.rows import MirrorRows, add
from pymq.mirror.translated_groups import sync_groups

if TYPE_CHECKING:
    from pymq.client.client import Client
    from pymq.core.metadata.descriptions import TopicMetadata
    from pymq.mirror.options import MirrorOptions

TIMEOUT_S = 60.0
POLL_S = 0.2
FIRST_TAKE = 500  # records, until their size is known
TAKE_BYTES = 16 << 20  # of a round
REFRESH_S = 30.0  # new topics and partitions are looked for this often
GROUPS_S = 10.0
TRIES = 5  # rounds in a row that another process disturbs

Told = Callable[[MirrorProgress], object]


class InwardMirror:
    """Mirrors topics of a Kafka to a queue; made by :func:`pymq.mirror.start.mirror`."""

    def __init__(self, mq: Client, options: MirrorOptions) -> None:
        self._mq = mq
        self._options = options
        self._admin = KafkaAdmin(options.conf)
        self._reader: KafkaReader | None = None
        self._journal = MirrorJournal(mq, options.name)
        self._codec = compression.codec_number(options.compression)
        self._topics: dict[str, TopicMetadata] = {}
        self._ends: dict[Place, int] = {}  # offsets of Kafka at which ``once`` ends
        self._at: dict[Place, int] = {}  # offset of Kafka up to which all was read
        self._take = min(FIRST_TAKE, options.records)
        self._began = time.monotonic()
        self.progress = MirrorProgress()
        self._metrics = self.progress.metrics
        mq.sources.append(self._metrics)

    # --- before -----------------------------------------------------------------------------------

    def plan(self) -> list[TopicCopy]:
        """Return the topics that match.

        Raises:
            UnknownTopic: there is none.
        """
        options = self._options
        names = chosen(self._admin.topics(), options.topics, options.excluded)
        check_found(names, options.topics, "Kafka")
        brokers = sum(broker.alive for broker in self._mq.cluster().brokers)
        return [to_pymq(topic, brokers) for topic in self._admin.describe(names)]

    def dry_run(self) -> list[tuple[TopicCopy, int]]:
        """Return the topics that match, each with the number of offsets to mirror."""
        self._journal.load()
        reader = self._open()
        try:
            found = []
            for copy in self.plan():
                left = 0
                for number in range(copy.partitions):
                    entry = self._journal.entries.get((copy.topic, number))
                    low, high = reader.bounds((copy.topic, number))
                    left += high - max(low, entry.next if entry is not None else 0)
                found.append((copy, left))
            return found
        finally:
            self.close()

    def _open(self) -> KafkaReader:
        if self._reader is None:
            self._reader = KafkaReader(self._options.conf, self._options.name)
        return self._reader

    # --- work -------------------------------------------------------------------------------------

    def run(self, stop: Callable[[], bool], told: Told | None = None) -> MirrorProgress:
        """Mirror until *stop* returns true, or with ``once`` until the ends of now.

        The round in progress is finished first.
        """
        reader, once = self._open(), self._options.once
        self._began = time.monotonic()
        self._adopt(self.plan())
        refresh, groups = self._began + REFRESH_S, 0.0
        disturbed = 0
        while not stop() and not (once and self._is_done()):
            try:
                count = self._round(reader)
            except (OutOfOrderSequence, DuplicateSequence):
                # An earlier mirror of this name has written, too, before it was fenced.
                disturbed += 1
                if disturbed == TRIES:
                    raise
                self._recover(list(self._journal.entries))
                continue
            disturbed = 0
            self._measure(reader)
            if told is not None:
                told(self.progress)
            if count and self._options.rate is not None:
                self._mq.questions.pause(count / self._options.rate)
            now = time.monotonic()
            if not once and now >= refresh:
                refresh = now + REFRESH_S
                self._patiently(lambda: self._adopt(self.plan()))
            if not once and now >= groups:
                groups = now + GROUPS_S
                self._patiently(self._sync_groups)
        self._settle()
        self._sync_groups()
        self._measure(reader)
        return self.progress

    def _patiently(self, call: Callable[[], None]) -> None:
        """Do what the next round does again if Kafka does not answer."""
        try:
            call()
        except Disconnected as error:
            self.progress.trouble = str(error)

    def _is_done(self) -> bool:
        return all(self._at[place] >= end for place, end in self._ends.items())

    def close(self) -> None:
        """Leave Kafka; closing twice is allowed."""
        if self._metrics in self._mq.sources:
            self._mq.sources.remove(self._metrics)
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _adopt(self, copies: list[TopicCopy]) -> None:
        """Begin with the partitions that are not mirrored yet."""
        fresh = [copy for copy in copies if len(self._parts(copy.topic)) < copy.partitions]
        if not fresh:
            return
        check_no_loop(self._mq, [copy.topic for copy in fresh], IN)
        for copy in fresh:
            create_in_pymq(self._mq, copy)
        if not self._topics:
            self._journal.claim(like=fresh[0].topic)
        places = []
        for copy in fresh:
            known = self._parts(copy.topic)
            self._topics[copy.topic] = self._mq.questions.topic_metadata(copy.topic)
            self.progress.topics.setdefault(copy.topic, TopicProgress())
            places += [(copy.topic, n) for n in range(copy.partitions) if n not in known]
        self._recover(places)

    def _parts(self, topic: str) -> set[int]:
        return {number for name, number in self._ends if name == topic}

    def _recover(self, places: list[Place]) -> None:
        """Learn what the partitions have, and read Kafka from there on."""
        reader, starts, new = self._open(), dict[Place, int](), list[Place]()
        for topic in dict.fromkeys(name for name, _ in places if name in self._topics):
            numbers = [number for name, number in places if name == topic]
            metadata = self._topics[topic]
            names = {number: metadata.partitions[number].partition for number in numbers}
            known = sequences(
                self._mq.questions,
                topic,
                list(names.values()),
                self._journal.log.producer_id,
                TIMEOUT_S,
            )
            bounds = self._mq.questions.all_bounds(topic, names.values())
            for number, name in names.items():
                place = (topic, number)
                entry = self._journal.entries.get(place)
                if entry is None or entry.topic_id != metadata.topic_id:
                    entry = MirrorEntry(metadata.topic_id, first=known[name], end=bounds[name][1])
                    self._journal.entries[place] = entry
                    new.append(place)
                entry.recover(known[name], bounds[name][1])
                starts[place] = entry.next
        if new:  # Even without records, no other mirror may bring the topic back to Kafka.
            self._journal.write(new)
        for place, start in starts.items():
            low, high = reader.bounds(place)
            self._at[place] = max(start, low)
            if place in self._ends:
                reader.seek(place, start)
                continue
            self._journal.entries[place].offsets.forget(low)
            self._ends[place] = high
            reader.assign(place, start)

    def _round(self, reader: KafkaReader) -> int:
        """Mirror the next records; returns their number."""
        most = self._take
        if self._options.rate is not None:
            most = max(1, min(most, int(self._options.rate)))
        parts = self._sorted(reader, reader.take(most, POLL_S))
        if not parts:
            self._settle()
            return 0
        entries = self._journal.entries
        changed = []
        for place, chunks in parts.items():
            offsets = [offset for chunk in chunks for offset in chunk.offsets]
            if entries[place].declare(offsets):
                changed.append(place)
        if changed:
            self._journal.write(changed)
        return self._send(parts)

    def _sorted(self, reader: KafkaReader, messages: list[Any]) -> dict[Place, list[MirrorRows]]:
        """Return records as batches of each partition, and note events."""
        parts = dict[Place, list[MirrorRows]]()
        wall_ms, size, count = self._mq._wall_ms(), 0, 0
        for message in messages:
            place = (message.topic(), message.partition())
            if message.error() is not None:
                self._event(reader, message)
                continue
            chunks = parts.get(place)
            if chunks is None:
                chunks = parts[place] = [MirrorRows()]
            elif chunks[-1].is_full:
                chunks.append(MirrorRows())
            rows = chunks[-1]
            before = rows.size
            try:
                add(rows, message, self._topics[place[0]].config, wall_ms)
            except (RecordTooLarge, InvalidTimestamp):
                if not self._options.skips:
                    raise
                self.progress.topics[place[0]].skipped += 1
            size, count = size + rows.size - before, count + 1
            self._at[place] = message.offset() + 1
        if count:
            self._take = max(1, min(self._options.records, TAKE_BYTES // max(1, size // count)))
        for chunks in parts.values():
            chunks[:] = [chunk for chunk in chunks if chunk.offsets]
        return {place: chunks for place, chunks in parts.items() if chunks}

    def _event(self, reader: KafkaReader, message: Any) -> None:
        try:
            if reader.is_end(message):
                self._at[message.topic(), message.partition()] = message.offset()
        except OffsetOutOfRange as error:
            if not self._options.skips:
                raise
            place: Any = error.details["place"]
            reader.seek(place, -1)

    def _send(self, parts: dict[Place, list[MirrorRows]]) -> int:
        """Append the batches: one for each partition at a time."""
        count = 0
        for wave in _waves(parts):
            for topic in dict.fromkeys(name for name, _ in wave):
                metadata = self._topics[topic]
                names = {
                    number: metadata.partitions[number].partition
                    for name, number in wave
                    if name == topic
                }
                batches = dict[str, EncodedBatch]()
                for number, name in names.items():
                    entry = self._journal.entries[topic, number]
                    sequence = entry.first + entry.sent
                    batches[name] = self._batch(wave[topic, number], sequence)
                # Synced, since the journal relies on the number of records.
                questions = self._mq.questions
                try:
                    bases = append(questions, metadata, batches, TIMEOUT_S, sync=True)
                except ProducerFenced:
                    raise self._journal.fenced() from None
                told = self.progress.topics[topic]
                for number, name in names.items():
                    rows = wave[topic, number]
                    self._journal.entries[topic, number].wrote(rows.offsets, bases[name])
                    told.records += len(rows.offsets)
                    told.size += rows.size
                    count += len(rows.offsets)
        return count

    def _batch(self, rows: MirrorRows, sequence: int) -> EncodedBatch:
        log = self._journal.log
        return EncodedBatch.encode(
            rows.values,
            timestamp_ms=rows.times[0],
            keys=rows.keys,
            headers=rows.headers,
            timestamps=rows.times,
            producer_id=log.producer_id,
            producer_epoch=log.producer_epoch,
            base_sequence=sequence,
            codec=self._codec,
            attributes=routed_bit(rows.headers) | priority_bits(rows.headers),
        )

    # --- between rounds ---------------------------------------------------------------------------

    def _settle(self) -> None:
        """Write what the last rounds have done, so that nothing is left to be found out."""
        done = [place for place, entry in self._journal.entries.items() if entry.settle()]
        if done:
            self._journal.write(done)

    def _measure(self, reader: KafkaReader) -> None:
        progress = self.progress
        progress.seconds = time.monotonic() - self._began
        progress.trouble = reader.trouble
        lags = dict.fromkeys(progress.topics, 0)
        for place, end in self._ends.items():
            high = reader.bounds(place, cached=True)[1]
            lags[place[0]] += max(0, max(high, end) - self._at[place])
        for name, lag in lags.items():
            progress.topics[name].lag = lag

    def _sync_groups(self) -> None:
        if self._options.groups:
            names = {
                place: self._topics[place[0]].partitions[place[1]].partition for place in self._ends
            }
            sync_groups(
                self._mq,
                self._admin,
                self._options.groups,
                names,
                self._journal.entries,
                self.progress,
            )


def _waves(parts: dict[Place, list[MirrorRows]]) -> Iterator[dict[Place, MirrorRows]]:
    """Return the first batch of each partition, then the second, and so on."""
    for number in range(max(map(len, parts.values()))):
        yield {place: chunks[number] for place, chunks in parts.items() if number < len(chunks)}
