"""From a queue to Kafka: each record once by a transaction of Kafka, or at least once.

A transaction of Kafka holds the records of a round and, as committed offsets of the group
``pymq-mirror-NAME``, the offsets of the queue after them. So the next round begins where the last
committed transaction ended, and readers with ``isolation.level=read_committed`` get each record
once. Without transactions the offsets are committed after the records are acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pymq.core.batch.kafka.records import TOMBSTONE
from pymq.errors import (
    ConfigError,
    Disconnected,
    InvalidRequest,
    PymqError,
    RecordTooLarge,
)
from pymq.mirror.journal import OUT, MirrorJournal, Place, check_no_loop
from pymq.mirror.kafka_client import (
    REQUEST_S,
    KafkaAdmin,
    KafkaTopic,
    library,
    may_pass,
    raise_kafka,
)
from pymq.mirror.plan import TopicCopy, check_found, chosen, to_kafka
from pymq.mirror.progress import MirrorProgress, TopicProgress

if TYPE_CHECKING:
    from pymq.client.client import Client
    from pymq.client.consumer.consumer import Consumer
    from pymq.core.batch.record import Record
    from pymq.mirror.options import MirrorOptions

POLL_S = 0.2
REFRESH_S = 30.0
BATCH_MAX = 64 << 20
RECORD_MAX = BATCH_MAX // 2
RETRY_S = 1.0
TRIES = 60  # of a step of a transaction, while brokers are away

Told = Callable[[MirrorProgress], object]


class OutwardMirror:
    """Mirrors topics of a queue to a Kafka; made by :func:`pymq.mirror.start.mirror`."""

    def __init__(self, mq: Client, options: MirrorOptions) -> None:
        if options.groups:
            raise ConfigError("groups= is for a mirror from Kafka: offsets in Kafka are not set")
        self._mq = mq
        self._options = options
        self._kafka = library()
        self._admin = KafkaAdmin(options.conf)
        self._journal = MirrorJournal(mq, options.name)
        self._producer: Any = None
        self._positions: Any = None  # a consumer that reads and commits our offsets
        self._readers: dict[str, Consumer] = {}
        self._numbers: dict[str, dict[str, int]] = {}  # Kafka's number of each partition
        self._compacted: set[str] = set()
        self._next: dict[Place, int] = {}
        self._ends: dict[Place, int] = {}
        self._failed: list[Any] = []
        self._began = time.monotonic()
        self.progress = MirrorProgress()
        self._metrics = self.progress.metrics
        mq.sources.append(self._metrics)

    def plan(self) -> list[TopicCopy]:
        """Return the topics that match.

        Raises:
            UnknownTopic: there is none.
        """
        names = chosen(self._mq.topics(), self._options.topics, self._options.excluded)
        check_found(names, self._options.topics, "the queue")
        return [to_kafka(self._mq, name) for name in names]

    def dry_run(self) -> list[tuple[TopicCopy, int]]:
        """Return the topics that match, each with the number of offsets to mirror."""
        found = []
        self._positions = self._consumer()
        try:
            for copy in self.plan():
                parts = self._mq.describe_topic(copy.topic).partitions
                at = self._committed([(copy.topic, part.index) for part in parts])
                left = sum(
                    part.high_watermark - max(part.start_offset, at[copy.topic, part.index])
                    for part in parts
                )
                found.append((copy, left))
        finally:
            self.close()
        return found

    def run(self, stop: Callable[[], bool], told: Told | None = None) -> MirrorProgress:
        """Mirror until *stop* returns true, or with ``once`` until the ends of now.

        Raises:
            ProducerFenced: another mirror of this name has begun.
            ConfigError: the Kafka has no transactions.
        """
        self._began = time.monotonic()
        self._positions = self._consumer()
        self._open_producer()
        self._adopt(self.plan())
        refresh = self._began + REFRESH_S
        while not stop() and not (self._options.once and self._is_done()):
            count = self._round()
            self._measure()
            if told is not None:
                told(self.progress)
            if count and self._options.rate is not None:
                self._mq.questions.pause(count / self._options.rate)
            if not self._options.once and time.monotonic() >= refresh:
                refresh = time.monotonic() + REFRESH_S
                try:
                    self._adopt(self.plan())
                except Disconnected as error:
                    self.progress.trouble = str(error)
        self._measure()
        return self.progress

    def close(self) -> None:
        """Leave both sides; closing twice is allowed."""
        if self._metrics in self._mq.sources:
            self._mq.sources.remove(self._metrics)
        for reader in self._readers.values():
            reader.close()
        self._readers = {}
        self._producer = None  # librdkafka ends its threads when the object is deleted
        positions, self._positions = self._positions, None
        if positions is not None:
            positions.close()

    # --- before -----------------------------------------------------------------------------------

    def _consumer(self) -> Any:
        return self._kafka.Consumer(
            {
                **self._options.conf,
                "group.id": f"pymq-mirror-{self._options.name}",
                "enable.auto.commit": False,
            }
        )

    def _open_producer(self) -> None:
        conf = {
            "linger.ms": 5,
            "compression.type": self._options.compression or "none",
            "message.max.bytes": BATCH_MAX,
            **self._options.conf,
            "enable.idempotence": True,
        }
        if self._options.exactly_once:
            conf["transactional.id"] = f"pymq-mirror-{self._options.name}"
        self._producer = self._kafka.Producer(conf)
        if not self._options.exactly_once:
            return
        try:
            self._step(lambda: self._producer.init_transactions(REQUEST_S))
        except Disconnected as error:
            cause = error.__cause__
            refused = self._kafka.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if cause is not None and cause.args[0].code() == refused:
                raise ConfigError(
                    "this Kafka does not let us use transactions; --at-least-once needs none"
                ) from error
            raise

    def _adopt(self, copies: list[TopicCopy]) -> None:
        fresh = [
            copy for copy in copies if len(self._numbers.get(copy.topic, ())) < copy.partitions
        ]
        if not fresh:
            return
        check_no_loop(self._mq, [copy.topic for copy in fresh], OUT)
        if not self._numbers:
            self._journal.claim(like=fresh[0].topic)
        self._journal.note_outward([copy.topic for copy in fresh])
        for copy in fresh:
            self._admin.create(KafkaTopic(copy.topic, copy.partitions, copy.replicas, copy.options))
            topic = self._mq.describe_topic(copy.topic)
            parts = topic.partitions
            if topic.config.cleanup_policy == "compact":
                self._compacted.add(copy.topic)
            known = self._numbers.get(copy.topic, {})
            self._numbers[copy.topic] = {part.name: part.index for part in parts}
            self.progress.topics.setdefault(copy.topic, TopicProgress())
            reader = self._readers.get(copy.topic)
            if reader is None:
                reader = self._mq.consumer(copy.topic, mode="psb", offset="begin")
                self._readers[copy.topic] = reader
            new = [part for part in parts if part.name not in known]
            at = self._committed([(copy.topic, part.index) for part in new])
            for part in new:
                place = (copy.topic, part.index)
                self._next[place] = max(at[place], part.start_offset)
                self._ends[place] = part.high_watermark
                reader.seek(part.name, self._next[place])

    def _committed(self, places: list[Place]) -> dict[Place, int]:
        """Return the offsets of the queue that are committed in Kafka; 0 if there is none."""
        asked = [self._kafka.TopicPartition(*place) for place in places]
        found = self._step(lambda: self._positions.committed(asked, timeout=REQUEST_S))
        return {(each.topic, each.partition): max(0, each.offset) for each in found}

    # --- work -------------------------------------------------------------------------------------

    def _is_done(self) -> bool:
        return all(self._next[place] >= end for place, end in self._ends.items())

    def _take(self) -> list[Record]:
        most = self._options.records
        if self._options.rate is not None:
            most = max(1, min(most, int(self._options.rate)))
        found: list[Record] = []
        for number, reader in enumerate(self._readers.values()):
            is_last = number == len(self._readers) - 1
            wait = POLL_S if is_last and not found else 0.0
            if len(found) < most:
                found += reader.poll(most - len(found), timeout=wait)
        # Another topic is the first in the next round.
        first = next(iter(self._readers), None)
        if first is not None:
            self._readers[first] = self._readers.pop(first)
        return found

    def _round(self) -> int:
        records = self._take()
        if not records:
            for topic, reader in self._readers.items():
                for name, number in self._numbers[topic].items():
                    # Compaction and elections leave gaps, even just before the end.
                    at = reader.position(name)
                    self._next[topic, number] = max(self._next[topic, number], at)
            return 0
        positions = dict[Place, int]()
        taken = []
        for record in records:  # checked before a transaction begins
            positions[record.topic, self._numbers[record.topic][record.partition]] = (
                record.offset + 1
            )
            error = self._refusal(record)
            if error is None:
                taken.append(record)
            elif not self._options.skips:
                raise error
            else:
                self.progress.topics[record.topic].skipped += 1
        if self._options.exactly_once:
            self._step(self._producer.begin_transaction)
        self._failed = []
        for record in taken:
            self._produce(record, self._numbers[record.topic][record.partition])
        self._commit(positions)
        self._next |= positions
        for record in taken:
            told = self.progress.topics[record.topic]
            told.records += 1
            told.size += len(record.value) + len(record.key or b"")
        return len(records)

    def _refusal(self, record: Record) -> PymqError | None:
        """Return the reason why Kafka would refuse a record; None if it takes it."""
        where = f"{record.topic}/{record.partition} at offset {record.offset}"
        size = len(record.value) + len(record.key or b"")
        size += sum([len(name) + len(item) for name, item in record.headers])
        if size > RECORD_MAX:
            return RecordTooLarge(f"{where}: {size} bytes are too many for a message of Kafka")
        if record.key is None and record.topic in self._compacted:
            return InvalidRequest(
                f"{where}: a compacted topic of Kafka takes no record without key"
            )
        return None

    def _produce(self, record: Record, number: int) -> None:
        item: bytes | None = record.value
        headers = list(record.headers)
        if TOMBSTONE in headers:
            item = None
            headers = [pair for pair in headers if pair != TOMBSTONE]
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    item,
                    record.key,
                    number,
                    on_delivery=self._delivered,
                    timestamp=record.timestamp_ms,
                    headers=headers,
                )
            except BufferError:
                self._producer.poll(POLL_S)  # librdkafka's queue is full
            else:
                return

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append((error, message.topic(), message.partition()))

    def _commit(self, positions: dict[Place, int]) -> None:
        offsets = [self._kafka.TopicPartition(*place, at) for place, at in positions.items()]
        producer = self._producer
        if not self._options.exactly_once:
            producer.flush()
            self._raise_failed()
            self._step(lambda: self._positions.commit(offsets=offsets, asynchronous=False))
            return
        group = self._positions.consumer_group_metadata()
        try:
            self._step(lambda: producer.send_offsets_to_transaction(offsets, group, REQUEST_S))
            self._step(lambda: producer.commit_transaction(REQUEST_S))
        except Disconnected as error:
            cause = error.__cause__
            if cause is not None and cause.args[0].txn_requires_abort():
                self._step(lambda: producer.abort_transaction(REQUEST_S))
                self._raise_failed()
            raise

    def _raise_failed(self) -> None:
        if self._failed:
            error, topic, number = self._failed[0]
            kafka = self._kafka.KafkaError
            if error.code() in (kafka.MSG_SIZE_TOO_LARGE, kafka.RECORD_LIST_TOO_LARGE):
                raise RecordTooLarge(
                    f"{topic}/{number}: Kafka refuses a batch: {error.str()}; raise its "
                    "max.message.bytes"
                )
            kind = Disconnected if may_pass(error) else InvalidRequest
            raise kind(f"{topic}/{number}: Kafka refuses a record: {error.str()}")

    def _step(self, call: Callable[[], Any]) -> Any:
        """Do a step of a transaction, again while librdkafka says that this may help.

        Raises:
            ProducerFenced: another mirror of this name has begun.
        """
        for tried in range(TRIES):
            try:
                return call()
            except self._kafka.KafkaException as error:
                cause, kafka = error.args[0], self._kafka.KafkaError
                if cause.code() in (kafka._FENCED, kafka.INVALID_PRODUCER_EPOCH):
                    raise self._journal.fenced() from error
                if may_pass(cause) and tried < TRIES - 1:
                    self.progress.trouble = cause.str()
                    self._mq.questions.pause(RETRY_S)
                    continue
                raise_kafka(error)
        raise AssertionError("the last try returns or raises")

    def _measure(self) -> None:
        progress = self.progress
        progress.seconds = time.monotonic() - self._began
        for topic, reader in self._readers.items():
            numbers, ends = self._numbers[topic], reader.end_offsets()
            progress.topics[topic].lag = sum(
                max(0, ends[name] - self._next[topic, number])
                for name, number in numbers.items()
                if name in ends
            )
