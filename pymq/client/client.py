"""The client that :func:`pymq.open` returns."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Never, Unpack

from pymq.client.admin.admin import OFFSET_MAX
from pymq.client.admin.requests import Requests
from pymq.client.base import ClientDriver, Handle
from pymq.client.counters import Counters
from pymq.client.layers import Layers
from pymq.client.option_types import Acks, Compression, ConsumerMode, DeliveryMode, GroupOptions
from pymq.client.options import PARTITIONS_MAX, REQUEST_S, check_range, sender_config
from pymq.client.producer.producer import Producer
from pymq.client.producer.sender import Sender
from pymq.client.producer_ids import ProducerIdentities
from pymq.client.router import Router
from pymq.core import message as msg
from pymq.core.batch.header import EPOCH_HALF
from pymq.core.block.idempotence import REMEMBERED
from pymq.core.observe.metrics import Metrics
from pymq.core.types import check_name
from pymq.errors import Closed, ConfigError, PymqError

if TYPE_CHECKING:
    from pymq.client.consumer.consumer import Consumer
    from pymq.client.consumer.options import ConsumerOptions
    from pymq.client.fetching.consumer_machine import ConsumerMachine
    from pymq.core.batch.record import Record
    from pymq.kafka.endpoint import KafkaEndpoint

__all__ = ["Client"]


_FORGET_MS = 1_000


class Client(Layers):
    """A connection to a queue in this process, in a folder or in a cluster; thread-safe."""

    def __init__(
        self,
        driver: ClientDriver,
        name: str,
        controllers: Sequence[str],
        wall_ms: Callable[[], int],
        on_close: Callable[[], None],
        random_bytes: Callable[[int], bytes] = os.urandom,
        trouble: Callable[[], str] = str,
        *,
        has_keys: bool = False,
    ) -> None:
        self.driver = driver
        self.name = name
        self._on_close = on_close
        self._random_bytes = random_bytes
        router = Router(name, controllers, lambda: driver.loop.touch(name), trouble)
        questions = Requests(name, router, driver)
        questions.identities = ProducerIdentities(questions.ask, random_bytes, has_keys=has_keys)
        super().__init__(questions, router, wall_ms)
        self._producers: dict[Producer, None] = {}
        # A weak reference, so that a consumer that the application drops is closed.
        self._consumers: weakref.WeakValueDictionary[str, Consumer] = weakref.WeakValueDictionary()
        self._intakes: dict[str, ConsumerMachine] = {}
        self._made = 0
        self._is_closed = False
        self.tally = Counters()
        # the brokers of this process, if the queue is embedded
        self.embedded_brokers: tuple[str, ...] = ()
        self._endpoints: list[KafkaEndpoint] = []
        # sources of metrics: the nodes in this process
        self.sources: list[Callable[[], Metrics]] = []
        with driver as loop:
            loop.add(name, self._router)

    def _lost(self, node: str, is_lost: bool) -> None:
        """Note that the connection to *node* was lost or is back; the caller holds the driver's
        lock.
        """
        self._router.lost(node, is_lost, self.driver.loop.clock())
        self.driver.loop.touch(self.name)

    # --- metrics --------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """The metrics of this client, and of the nodes in this process.

        ``metrics["pymq_messages_in_total"]`` is a total. ``metrics.value(name, topic="orders")`` is
        the value with a label. ``str(metrics)`` is the text that Prometheus reads.
        docs/monitoring.md lists the names. The brokers of a cluster serve their metrics at their
        own endpoints.
        """
        out = Metrics()
        with self.driver:
            for source in self.sources:
                out.merge(source())
            self.tally.collect(out)
            producers = list(self._producers)
            out.add("pymq_producer_buffered_bytes", sum(p._backlog.buffered for p in producers))
            out.add("pymq_producers", len(producers))
            out.add("pymq_consumers", len(self._consumers))
        return out

    # --- producers and consumers ----------------------------------------------------------------

    def producer(
        self,
        acks: Acks | None = None,
        linger_ms: int = 5,
        batch_bytes: int = 1 << 18,
        buffer_bytes: int = 64 << 20,
        compression: Compression | None = None,
        idempotent: bool = True,
        producer_id: str | int | None = None,
        delivery_timeout_s: float = 120.0,
        max_in_flight: int = REMEMBERED,
        **unknown: Never,
    ) -> Producer:
        """Make a producer.

        Args:
            acks: when the broker acknowledges a record; None: by the partition's mode. With
                ``"raft"`` on a partition of mode ``leader``, the broker acknowledges a record when
                all in-sync replicas have it, and refuses records while fewer than ``min_in_sync``
                replicas are in sync.
            linger_ms: how long a record may wait for other records, to be sent in one batch.
            batch_bytes: the size at which a batch is sent at once.
            buffer_bytes: the number of unacknowledged bytes at which ``send`` waits.
            compression: None, ``"lz4"`` or ``"zstd"``.
            idempotent: whether brokers recognise a batch that is sent twice, and write it once.
            producer_id: a name; a restarted producer of that name continues its sequences.
            delivery_timeout_s: the time after which an unacknowledged record fails.
            max_in_flight: the most unacknowledged batches of a partition.

        Raises:
            ConfigError: an option is unknown or out of its range.
        """
        config = sender_config(
            acks,
            linger_ms,
            batch_bytes,
            buffer_bytes,
            compression,
            idempotent,
            producer_id,
            delivery_timeout_s,
            max_in_flight,
            unknown,
        )
        if producer_id is not None:
            name = check_name(str(producer_id), "producer_id")
            config.producer_id, epoch = self.questions.identities.named(name)
            # The producer itself raises the lower half of the epoch.
            config.producer_epoch = epoch << EPOCH_HALF
        elif idempotent:
            config.producer_id = self.questions.identities.anonymous()
        config.grant = self.questions.identities.grant(config.producer_id)
        sender = Sender(self._next("p"), self._router, self.driver, config, self._wall_ms)
        sender.tally = self.tally
        producer = Producer(self, sender, config)
        self._add(producer, sender)
        return producer

    def consumer(
        self,
        topic: str,
        group: str | None = None,
        mode: ConsumerMode = "ptp",
        partition: str | int | None = None,
        offset: int | Literal["begin", "end"] | None = None,
        delivery: DeliveryMode = "pull",
        on_record: Callable[[Record], object] | None = None,
        credit: int = 1000,
        rack: str | None = None,
        **options: Unpack[GroupOptions],
    ) -> Consumer:
        """Make a consumer: a member of a group (mode ``"ptp"``, the default), or a reader
        (``"psb"``).

        A reader gets all records of one or all partitions, from ``offset`` on: an integer,
        ``"begin"`` (the default) or ``"end"``. The modes are also called ``"group"`` and
        ``"reader"``.

        In a group each record of the topic goes to one consumer. These options are for groups:

        * ``ack_wait_s`` (30): how long a record is leased to a consumer. A record that is not
          acknowledged by then is delivered again. ``auto_ack`` (False): each poll acknowledges the
          records of the previous poll.
        * ``max_deliver`` (5): after this many deliveries a record is moved to the topic
          ``dead_letter``, by default the topic's name with ``.dlq``. ``expired`` ("drop"): with
          ``"dead_letter"``, records that expire before the application gets them are moved there,
          too.
        * ``retry`` (None): a :class:`pymq.Backoff`, which says how long the group waits before it
          redelivers a record that a consumer has returned with ``nack`` without a delay; None:
          redelivery at once.
        * ``auto_offset_reset`` ("begin"): where a new group begins.
        * ``ordered`` (None): records with the same key are delivered in order, because one consumer
          at a time works on the keyed records of a partition. Records without a key go to any idle
          consumer. True keeps the order of all records of a partition, False keeps no order. The
          strictest setting in the group applies.
        * ``prefetch`` (None): how many records are leased at a time. By default this is the number
          of records that the application handles in about 20 ms, at most those that a poll may
          return.
        * ``max_poll_interval_s`` (300): a consumer that does not poll for this long leaves the
          group until its next poll. ``session_timeout_s`` (10): the group removes a consumer whose
          process sends nothing for this long.
        * ``assignor`` ("sticky"), ``on_assigned``, ``on_revoked``: how partitions are assigned, and
          callbacks for partitions that the consumer gets or loses.

        ``rack`` names where the consumer runs: the consumer prefers a replica in the same rack to a
        leader elsewhere (KIP-392). With ``delivery="push"`` a thread calls ``on_record`` with each
        record, and fetches up to ``credit`` records in advance; otherwise the application polls or
        iterates.

        Raises:
            UnknownTopic, UnknownPartition, InvalidName, ConfigError: as their names say.
        """
        # Imported here: many clients only produce, and a consumer's modules take 10 ms to load.
        from pymq.client.consumer.options import consumer_options

        return self._consume(
            consumer_options(
                *(topic, group, mode, partition, offset, delivery, on_record, credit, rack), options
            )
        )

    # --- Kafka's clients ------------------------------------------------------------------------

    def kafka(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        partitions: int = 1,
        auto_create: bool = True,
        batch_records_max: int = 100_000,
    ) -> KafkaEndpoint:
        """Listen for Kafka's clients, until the returned object or this client is closed.

        ``with mq.kafka() as kafka:`` has ``kafka.bootstrap`` for the clients' option
        ``bootstrap.servers``. The queue must be embedded: in memory, or in a folder.

        Args:
            host: the address to listen on; only loopback addresses are allowed.
            port: the port of the first broker; other brokers have the next ports. 0: any free
                ports.
            partitions: number of partitions of a topic that a client creates without one.
            auto_create: whether a client's request for an unknown topic creates the topic.
            batch_records_max: the largest number of records in a batch of a client.

        Raises:
            MissingExtra: the extra ``kafka`` is not installed.
            ConfigError: the queue is not embedded, or *host* is not a loopback address.
            OSError: the address is in use.
        """
        from pymq.core.batch.batch_validation import KAFKA_RECORDS_MAX
        from pymq.kafka.endpoint import open_endpoint  # lazy: few queues need it

        if not self.embedded_brokers:
            raise ConfigError("kafka() is for a queue in memory or in a folder, not for a cluster")
        check_range("port", port, 0, 65_535)
        check_range("partitions", partitions, 1, PARTITIONS_MAX)
        check_range("batch_records_max", batch_records_max, 1, KAFKA_RECORDS_MAX)
        endpoint = open_endpoint(
            self.driver,
            self._router.controllers.active,
            self.embedded_brokers,
            host,
            port,
            partitions=partitions,
            auto_create=auto_create,
            records_max=batch_records_max,
        )
        self._endpoints.append(endpoint)
        self.sources.append(endpoint.metrics)
        return endpoint

    # --- delayed records ------------------------------------------------------------------------

    def cancel(self, topic: str, partition: str | int, offset: int) -> bool:
        """Cancel a delayed record; returns False if the record was already due.

        *partition* and *offset* are those in the result of the record's ``send``. Cancelling a
        record twice does no harm.

        Raises:
            UnknownTopic, UnknownPartition: as their names say.
            InvalidRequest: the record at *offset* is not delayed.
        """
        check_range("offset", offset, 0, OFFSET_MAX)
        name = self.questions.partition_name(topic, partition)
        answer = self.questions.ask_leader(
            topic, name, lambda r: msg.CancelDelayed(r, topic, name, offset)
        )
        assert isinstance(answer, msg.Cancelled)
        return answer.is_cancelled

    def _consume(self, options: ConsumerOptions) -> Consumer:
        from pymq.client.consumer.consumer import Consumer
        from pymq.client.consumer.dead_letters import DeadLetters
        from pymq.client.consumer.options import CalledElsewhere, dead_letter_topic
        from pymq.client.consumer.reader import Reader
        from pymq.client.group.group_member import GroupConsumer

        topic, partition = options.topic, options.partition
        metadata = self.questions.topic_metadata(topic)
        letters = dead_letter_topic(options)
        name = self._next("c")
        intake: ConsumerMachine
        if options.group is None:
            names = [p.partition for p in metadata.partitions]
            if partition is not None:
                names = [self.questions.partition_name(topic, partition)]
            intake = Reader(
                name,
                topic,
                self._router,
                self.driver,
                names,
                options.offset,
                is_whole=partition is None,
                rack=options.rack,
                now=self.driver.loop.clock(),
            )
        else:
            machine = name, topic, self._router, self.driver, options.group, self._new_member
            clock, tally = self._wall_ms, self.tally
            intake = GroupConsumer(*machine, options.rack, wall_ms=clock, tally=tally)
        subscription = intake.group or name
        self.questions.ask(
            lambda r: msg.Subscribe(r, subscription, topic, options.mode, intake.group)
        )
        consumer = Consumer(
            self,
            intake,
            auto_ack=options.auto_ack,
            undertaker=DeadLetters(self, letters, intake.group),
            on_assigned=options.on_assigned,
            on_revoked=options.on_revoked,
            retry=options.retry,
        )
        self._add(consumer, intake)
        on_record, credit = options.on_record, options.credit
        with self.driver as loop:
            if isinstance(intake, Reader):
                if on_record is not None:
                    intake.limit(credit)
                intake.want(1, loop.clock())
            loop.touch(name)
        self.driver.wait(intake.started, REQUEST_S)
        consumer._polling.tell_changes()
        if on_record is not None and not isinstance(on_record, CalledElsewhere):
            consumer.start_push(on_record, credit)
        return consumer

    def _new_member(self) -> str:
        return self._random_bytes(8).hex()

    def _next(self, kind: str) -> str:
        if self._is_closed:
            raise Closed("the client was closed")
        self._made += 1
        return f"{self.name}.{kind}{self._made}"

    def _add(self, handle: Producer | Consumer, machine: Sender | ConsumerMachine) -> None:
        with self.driver as loop:
            loop.add(machine.name, machine, tells=not isinstance(machine, Sender))
            buried = [intake for intake in self._intakes.values() if intake.is_buried]
            for intake in buried:
                loop.remove(intake.name)
                del self._intakes[intake.name]
        for intake in buried:
            if intake.group is None:
                self._unsubscribe(intake.topic, intake.name)
        if isinstance(handle, Producer):
            self._producers[handle] = None
        elif not isinstance(machine, Sender):
            self._consumers[machine.name], self._intakes[machine.name] = handle, machine

    def _unsubscribe(self, topic: str, name: str) -> None:
        """Remove a subscription without waiting; the subscription may already be gone."""
        try:
            with self.driver as loop:
                self._router.call(
                    lambda r: msg.Unsubscribe(r, name, topic), loop.clock(), _FORGET_MS
                )
                loop.touch(self.name)
        except PymqError:
            pass  # The client is closed, and its subscriptions end with it.

    def forget(self, handle: Producer | Consumer) -> None:
        """Note that a producer or consumer was closed."""
        if isinstance(handle, Producer):
            self._producers.pop(handle, None)
        else:
            self._consumers.pop(handle.name, None)
            self._intakes.pop(handle.name, None)

    # --- leaving --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all producers and consumers, flush, and disconnect; closing twice is allowed."""
        if self._is_closed:
            return
        first: BaseException | None = None
        for endpoint in self._endpoints:
            endpoint.close()
        handles: list[Handle] = [
            *self._responders,
            *self._consumers.values(),
            *self._producers,
        ]
        for handle in handles:
            try:
                handle.close()
            except Exception as error:  # continue, to close the others
                first = first or error
        self._is_closed = True
        self.questions.close()
        self._on_close()
        if first is not None:
            raise first

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._is_closed

    def _forgo(self) -> None:
        for consumer in self._consumers.values():
            consumer._forgo()
