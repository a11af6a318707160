"""The public producer: send, send_many, flush."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from pymq.client.base import Handle, check_timeout
from pymq.client.producer.delivery import (
    RECORD_BYTES,
    ColumnBuffer,
    Deliveries,
    Delivery,
    DeliveryPart,
    Row,
    header_bytes,
)
from pymq.client.producer.partition_queue import PartitionQueue
from pymq.client.producer.producer_topic import ProducerTopic
from pymq.client.producer.send_times import with_priority, with_times
from pymq.client.producer.sender import Sender, SenderConfig
from pymq.core.batch.columns import Headers
from pymq.core.counts import plural
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.types import AckMode
from pymq.errors import (
    BufferFull,
    Closed,
    DeliveryFailed,
    DeliveryTimeout,
    InvalidRequest,
    PartitionUnset,
    PymqError,
    RecordTooLarge,
    UnknownPartition,
)
from pymq.hash.partitioner import key_partition, key_partitions

if TYPE_CHECKING:
    from pymq.client.client import Client

HeaderPairs = Iterable[tuple[str, bytes]]
TIME_MAX = 1 << 62  # milliseconds; differences of two times still have 64 bits


class Producer(Handle):
    """Sends records; made by :meth:`pymq.Client.producer`. Any thread may use a producer.

    A record with a key goes to the partition to which the key hashes. Records without a key fill
    one batch after the other, each for another partition; a burst smaller than a batch is spread
    over up to eight partitions. Within a partition, records of one thread keep their order. A
    producer uses partitions that are added to the topic: at once if this client has added the
    partitions, otherwise within 30 s of sending. Keys are then hashed over all partitions, so a key
    may move to another partition, and a consumer may read the key's new records before its old
    ones.
    """

    def __init__(self, client: Client, sender: Sender, config: SenderConfig) -> None:
        self._client = client
        self._driver = client.driver
        self._sender = sender
        self._backlog = sender.backlog
        self._config = config
        self._topics: dict[str, ProducerTopic] = {}
        self._clock = client.driver.loop.clock
        self._linger_ms = config.linger_ms
        self._batch_bytes = config.batch_bytes
        self._buffer_bytes = config.buffer_bytes
        self._growing = threading.Lock()
        self._is_closed = False
        sender.on_metadata = self._look_at_topics

    # --- sending --------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None = None,
        headers: HeaderPairs | None = None,
        partition: str | int | None = None,
        timestamp_ms: int | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | None = None,
        expires_s: float | None = None,
        priority: int = 0,
    ) -> Delivery:
        """Send one record and return its delivery, without waiting for it.

        Args:
            topic: the topic's name.
            value: the payload, any bytes-like object.
            key: chooses the partition; records of one key keep their order.
            headers: pairs of a name and a bytes value.
            partition: the partition's name or index, if the key shall not choose it.
            timestamp_ms: the record's own time; by default the time at which its batch is closed.
            delay_s: seconds until groups may get the record.
            deliver_at: instead of *delay_s*, the time from which groups may get the record, with a
                time zone.
            expires_s: seconds after which groups no longer get the record; they count from its time
                of delivery if it has one.
            priority: 0 to 9; groups get available records of a higher priority first
                (docs/howto/priorities.md).

        Readers see a delayed record at once (docs/howto/delays.md). The partition and offset in the
        delivery's result are the arguments of :meth:`pymq.Client.cancel`.

        Raises:
            TypeError: value, key or a header is not bytes-like.
            ConfigError: a delay or an expiry is negative, or above 1,000 years, or a priority is
                not 0 to 9.
            InvalidRequest: *timestamp_ms* is negative or too large.
            UnknownTopic, UnknownPartition, RecordTooLarge: as their names say.
            BufferFull: the buffer stayed full for ``delivery_timeout_s``.
            Closed: the producer was closed.

        If ``send`` raises, the record was not sent and will not be sent.
        """
        if type(value) is not bytes:
            value = _bytes(value, "value")
        if delay_s is not None or deliver_at is not None or expires_s is not None:
            headers = with_times(headers, self._client._wall_ms, delay_s, deliver_at, expires_s)
            self._backlog.has_times = True
        if priority != 0:
            headers = with_priority(headers, priority)
            self._backlog.has_priorities = True
        found = self._topics.get(topic) or self._open_topic(topic)
        size = len(value)
        if key is not None:
            if type(key) is not bytes:
                key = _bytes(key, "key")
            size += len(key)
        if partition is not None:
            queue = self._chosen(found, partition)
        elif key is None or len(found.queues) == 1:
            queue = found.sticky
        else:
            queue = found.queues[key_partition(key, len(found.queues))]
        if key is not None:
            queue.has_keys = True
        if size > found.limit:
            raise _too_large(topic, size, found.limit)
        if headers is None and timestamp_ms is None:
            row: Row = (value,) if key is None else (value, key)
        else:
            row, size = self._full(queue, value, key, headers, timestamp_ms, size, found)
        backlog = self._backlog
        if backlog.buffered >= self._buffer_bytes:
            self._wait_for_space()
        gathering = queue.gathering
        gathering.items.append(row)
        if queue.gathering is not gathering:
            queue.late.append(gathering)
        delivery = Delivery()
        delivery.owner = gathering
        delivery.row = row
        size += RECORD_BYTES
        queue.bytes += size
        backlog.buffered += size
        if queue.bytes >= queue.limit:
            self._fill(found, queue)
        elif not queue.is_armed:
            self._arm(queue)
        return delivery

    def _full(
        self,
        queue: PartitionQueue,
        value: bytes,
        key: bytes | None,
        headers: HeaderPairs | None,
        timestamp_ms: int | None,
        size: int,
        topic: ProducerTopic,
    ) -> tuple[Row, int]:
        pairs = _headers(headers)
        if timestamp_ms is not None:
            wrong = f"timestamp_ms must be milliseconds since 1970, not {timestamp_ms!r}"
            if type(timestamp_ms) is not int:
                raise TypeError(wrong)
            if not 0 <= timestamp_ms < TIME_MAX:
                raise InvalidRequest(wrong)
        size += header_bytes(pairs)
        if size > topic.limit:
            raise _too_large(topic.metadata.topic, size, topic.limit)
        queue.has_extras = True
        return (value, key, pairs, timestamp_ms), size

    def _arm(self, queue: PartitionQueue) -> None:
        """Start the linger time when a batch gets its first record."""
        now = self._clock()
        if queue.held_at == now:
            return  # The thread that handles the next answers will check this queue.
        queue.is_armed = True
        due = now + self._linger_ms
        self._backlog.armed.append((due, queue))
        self._driver.arm(due, self._sender.name)

    def _fill(self, topic: ProducerTopic, queue: PartitionQueue) -> None:
        """Send a full batch, or let another partition begin a batch."""
        if queue.bytes < self._batch_bytes:
            queue.limit = self._batch_bytes
            if queue is topic.sticky:
                topic.spread()
            if not queue.is_armed:
                self._arm(queue)
            return
        if queue is topic.sticky:
            topic.is_bulk = True
            topic.rotate()
        # The loop may be closing the batch at this moment; the next notification is sent one batch
        # later.
        queue.bytes = 0
        self._backlog.full.append(queue)
        self._sender.push()
        if self._is_closed:
            raise Closed("the producer was closed")

    def _wait_for_space(self) -> None:
        """Wait for space before the record is queued, since a record whose ``send`` raises must not
        be sent.
        """
        timeout = self._config.delivery_timeout_ms / 1000
        if not self._backlog.wait_for_space(timeout):
            raise BufferFull(
                f"{self._backlog.buffered} bytes are unacknowledged; the buffer stayed full for "
                f"{timeout:g} s; this record was not sent: slow down, or check the broker"
            )
        if self._is_closed:
            raise Closed("the producer was closed")

    def _chosen(self, topic: ProducerTopic, partition: str | int) -> PartitionQueue:
        if isinstance(partition, str) and partition in topic.by_name:
            return topic.by_name[partition]
        is_flag = isinstance(partition, bool)  # True would be partition 1
        if isinstance(partition, int) and not is_flag and 0 <= partition < len(topic.queues):
            return topic.queues[partition]
        name = topic.metadata.topic
        fresh = self._client.questions.topic_metadata(name)
        is_another = fresh.topic_id != topic.metadata.topic_id
        if is_another or len(fresh.partitions) > len(topic.queues):
            grown = self._grow(name, fresh)
            if self._is_closed:
                raise Closed("the producer was closed")
            return self._chosen(grown, partition)
        names = ", ".join(list(topic.by_name)[:8])
        raise UnknownPartition(f"topic {name!r} has no partition {partition!r}; it has {names}")

    def _grow(self, name: str, fresh: TopicMetadata) -> ProducerTopic:
        """Adopt a topic's partitions; keep the queues of known partitions."""
        with self._growing:  # Two threads must not create two queues for a new partition.
            topic = self._topics[name]
            # whether the topic was deleted and created again
            is_another = fresh.topic_id != topic.metadata.topic_id
            has_more = len(fresh.partitions) > len(topic.queues)
            if (is_another or has_more) and not self._is_closed:
                grown = ProducerTopic(fresh, self._sender, topic.turn)
                grown.queues = [topic.by_name.get(q.partition, q) for q in grown.queues]
                grown.by_name = {queue.partition: queue for queue in grown.queues}
                grown.choose()
                grown.follow(fresh.config)
                self._topics[name] = topic = grown
        return topic

    def _look_at_topics(self, known: Mapping[str, TopicMetadata]) -> None:
        """Adopt changed metadata, since topics may have more partitions; the loop calls this.

        A partition without an ack mode accepts no records. The producer uses the new partitions of
        a topic only when all of them have an ack mode.
        """
        for name, topic in list(self._topics.items()):
            fresh = known.get(name)
            if fresh is None:
                continue
            topic.follow(fresh.config)
            if any(part.acks is AckMode.UNSET for part in fresh.partitions):
                continue
            if fresh.topic_id != topic.metadata.topic_id:
                self._grow(name, fresh)
            elif len(fresh.partitions) > len(topic.queues):
                names = [part.partition for part in fresh.partitions[: len(topic.queues)]]
                if names == [queue.partition for queue in topic.queues]:
                    self._grow(name, fresh)

    def _open_topic(self, name: str) -> ProducerTopic:
        if self._is_closed:
            raise Closed("the producer was closed")
        metadata = self._client.questions.topic_metadata(name)
        for partition in metadata.partitions:
            if partition.acks is AckMode.UNSET:
                raise PartitionUnset(
                    f"partition {name}/{partition.partition} has no ack mode yet; call "
                    f"set_partition_state({name!r}, {partition.partition!r}, acks='leader') first"
                )
        # Two threads may be here at once, and two queues would use the same sequences twice.
        return self._topics.setdefault(
            name, ProducerTopic(metadata, self._sender, len(self._topics))
        )

    def send_many(
        self,
        topic: str,
        values: Iterable[bytes],
        keys: Iterable[bytes | None] | None = None,
        *,
        partition: str | int | None = None,
    ) -> Deliveries:
        """Send many records with one call and return their deliveries as one.

        *keys*, if given, has a key or None for each value. Errors are those of :meth:`send`; if the
        call raises an error, none of the records is sent.
        """
        found = self._topics.get(topic)
        if found is None:
            found = self._open_topic(topic)
        elif self._is_closed:
            raise Closed("the producer was closed")
        columns = _columns(values, keys)
        if not columns.values:
            return Deliveries(self._driver, [], self._sender)
        if columns.largest > found.limit:
            raise _too_large(topic, columns.largest, found.limit)
        if partition is not None:
            parts = [(self._chosen(found, partition), DeliveryPart(columns, None))]
        elif columns.keys is None:
            parts = [(found.sticky, DeliveryPart(columns, None))]
            found.rotate()
        else:
            parts = self._by_key(found, columns)
        sender, backlog = self._sender, self._backlog
        if backlog.buffered >= self._buffer_bytes:
            self._wait_for_space()
        for queue, part in parts:
            queue.has_parts = True
            queue.add(part)
            backlog.buffered += part.size
            queue.bytes += part.size
            if queue.bytes >= self._batch_bytes:
                queue.bytes = 0
                backlog.full.append(queue)
            elif queue.held_at < 0:  # otherwise the next answer sends the batch
                queue.is_armed = True
                backlog.armed.appendleft((self._clock(), queue))
        sender.push()
        return Deliveries(self._driver, [part for _, part in parts], sender)

    def _by_key(
        self, topic: ProducerTopic, columns: ColumnBuffer
    ) -> list[tuple[PartitionQueue, DeliveryPart]]:
        """Sort records into the partitions of their keys; records without a key stay together."""
        keys, values = columns.keys or [], columns.values
        if len(topic.queues) == 1:
            return [(topic.queues[0], DeliveryPart(columns, None))]
        hashed = key_partitions([key or b"" for key in keys], len(topic.queues))
        places: dict[int, list[int]] = {}
        for place, (index, key) in enumerate(zip(hashed, keys, strict=True)):
            chosen = topic.turn if key is None else index
            places.setdefault(chosen, []).append(place)
        found = []
        for index, mine in places.items():
            part = ColumnBuffer([values[place] for place in mine], [keys[place] for place in mine])
            found.append((topic.queues[index], DeliveryPart(part, mine)))
        return found

    # --- waiting --------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records sent so far are acknowledged or have failed.

        Raises:
            DeliveryTimeout: *timeout* seconds are over; the producer continues to send.
            DeliveryFailed: records have failed, and the application has not checked their
                deliveries.
            ConfigError: *timeout* is not a number of seconds.
        """
        check_timeout(timeout)
        until = None if timeout is None else self._driver.monotonic() + timeout
        for batch in self._sender.flush():
            left = None if until is None else until - self._driver.monotonic()
            if not self._driver.wait(batch, left):
                raise DeliveryTimeout(f"not everything was answered within {timeout} s")
        self._raise_failed()

    def _raise_failed(self) -> None:
        records, more = self._backlog.take_failed()
        if records or more:
            error = records[0].exception() if records else None
            why = f", the first because: {error}" if error is not None else ""
            raise DeliveryFailed(
                f"{plural(len(records) + more, 'record')} failed{why}", records=records
            ) from error

    def next_sequence(self, topic: str, partition: str | int) -> int:
        """Return how many records this ``producer_id`` has written to a partition.

        The count continues over restarts, so a restarted application knows where to resume.
        """
        found = self._topics.get(topic) or self._open_topic(topic)
        queue = self._chosen(found, partition)
        if not self._client.questions.has_seen(topic):
            # The topic was deleted and created again, so repeat the request for the new topic.
            self._client.questions.topic_metadata(topic)
        self._sender.ask_sequence(queue)
        timeout = self._config.delivery_timeout_ms / 1000
        if queue.next_sequence < 0 and not self._driver.wait(queue.known, timeout):
            raise DeliveryTimeout(f"the leader of {topic}/{partition} did not answer")
        return queue.next_sequence

    # --- leaving --------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Flush and close; closing twice is allowed. Errors are those of :meth:`flush`."""
        check_timeout(timeout)
        if self._is_closed:
            return
        try:
            self.flush(timeout)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        with self._growing:
            self._is_closed = True
            for topic in self._topics.values():
                # A later send then checks the producer's state and raises Closed.
                topic.limit = -1
        try:
            with self._driver as loop:
                self._sender.close(loop.clock())
                loop.remove(self._sender.name)
        except (Closed, PymqError):
            pass  # The client was closed first, and has flushed the producer.
        self._client.forget(self)


def _too_large(topic: str, size: int, limit: int) -> PymqError:
    if limit < 0:
        return Closed("the producer was closed")
    return RecordTooLarge(
        f"a record of {size} bytes is larger than max_record_bytes={limit} of topic {topic!r}; "
        "send it in parts or alter the topic"
    )


def _bytes(item: object, what: str) -> bytes:
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    hint = "; encode it first" if isinstance(item, str) else ""
    raise TypeError(f"{what} must be bytes-like, not {type(item).__name__}{hint}")


def _headers(headers: HeaderPairs | None) -> Headers:
    if headers is None:
        return ()
    pairs = []
    for pair in headers:
        try:
            name, item = pair
        except (TypeError, ValueError):
            raise TypeError(f"headers must be pairs of (str, bytes), not {pair!r}") from None
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        if not name.isascii():
            # A lone surrogate raises UnicodeEncodeError here rather than in the loop.
            name.encode()
        pairs.append((name, item if type(item) is bytes else _bytes(item, "a header's value")))
    return tuple(pairs)


def _columns(values: Iterable[bytes], keys: Iterable[bytes | None] | None) -> ColumnBuffer:
    rows = list(values)  # The caller may change its list before the batch is closed.
    if not {bytes}.issuperset(map(type, rows)):
        rows = [row if type(row) is bytes else _bytes(row, "value") for row in rows]
    if keys is None:
        return ColumnBuffer(rows)
    names = list(keys)
    if not {bytes, type(None)}.issuperset(map(type, names)):
        names = [k if k is None or type(k) is bytes else _bytes(k, "key") for k in names]
    if len(names) != len(rows):
        raise ValueError(f"{plural(len(rows), 'value')}, but {plural(len(names), 'key')}")
    return ColumnBuffer(rows, names)


Callback = Callable[[Delivery], object]
