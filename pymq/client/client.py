"""The client that :func:`pymq.open` returns."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pymq.client.admin.admin import Admin
from pymq.client.admin.requests import Requests
from pymq.client.base import Driver
from pymq.client.counters import Counters
from pymq.client.options import (
    REQUEST_S,
    check_callback,
    check_flag,
    parse_offset,
    sender_config,
)
from pymq.client.producer.producer import Producer
from pymq.client.producer.sender import Sender
from pymq.client.producer_ids import ProducerIdentities
from pymq.client.router import Router
from pymq.core import message as msg
from pymq.core.batch.header import EPOCH_HALF
from pymq.core.block.idempotence import REMEMBERED
from pymq.core.observe.metrics import Metrics
from pymq.core.types import AckMode, check_name
from pymq.errors import (
    Closed,
    PymqError,
)

if TYPE_CHECKING:
    from pymq.client.consumer.consumer import Consumer
    from pymq.client.fetching.consumer_machine import ConsumerMachine
    from pymq.core.batch.record import Record

__all__ = ["Client"]

_FORGET_MS = 1_000


class Client(Admin):
    """A connection to pymq, wherever it runs. Any thread may use it."""

    def __init__(
        self,
        driver: Driver,
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
        # A weak reference: a consumer that the application drops is closed.
        self._consumers: weakref.WeakValueDictionary[str, Consumer] = weakref.WeakValueDictionary()
        self._intakes: dict[str, ConsumerMachine] = {}
        self._made = 0
        self._is_closed = False
        self.tally = Counters()
        # sources of metrics: the nodes in this process
        self.sources: list[Callable[[], Metrics]] = []
        with driver as loop:
            loop.add(name, self._router)

    def _lost(self, node: str, is_lost: bool) -> None:
        """Take in that the connection to *node* was lost or is back; the driver's lock is held."""
        self._router.lost(node, is_lost, self.driver.loop.clock())
        self.driver.loop.touch(self.name)

    # --- metrics --------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """The metrics of this client, and of the nodes in this process.

        ``metrics["pymq_messages_in_total"]`` is a total, ``metrics.value(name, topic="orders")``
        the value with a label, ``str(metrics)`` the text that Prometheus reads. docs/monitoring.md
        has the names. Brokers of a cluster serve their own metrics at their own endpoints.
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
        acks: AckMode | int | str | None = None,
        linger_ms: int = 5,
        batch_bytes: int = 1 << 18,
        buffer_bytes: int = 64 << 20,
        compression: str | None = None,
        idempotent: bool = True,
        producer_id: str | int | None = None,
        delivery_timeout_s: float = 120.0,
        max_in_flight: int = REMEMBERED,
        **unknown: object,
    ) -> Producer:
        """Make a producer.

        Args:
            acks: what an answer waits for; None is the partition's mode. With ``"raft"`` on a
                partition of mode ``leader`` a record is answered when all in-sync replicas have it,
                and refused while they are fewer than ``min_in_sync``.
            linger_ms: how long a record may wait for others to share its batch.
            batch_bytes: how large a batch grows before it is sent.
            buffer_bytes: how many bytes may be unanswered before ``send`` waits.
            compression: None, ``"lz4"`` or ``"zstd"``.
            idempotent: a batch that is sent twice is written once.
            producer_id: a name under which sequences go on after a restart of the producer.
            delivery_timeout_s: after which an unanswered record fails.
            max_in_flight: unanswered batches of a partition.

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
            # The low half is for epochs that the producer raises by itself.
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
        mode: str = "ptp",
        partition: str | int | None = None,
        offset: int | str | None = None,
        delivery: str = "pull",
        on_record: Callable[[Record], object] | None = None,
        credit: int = 1000,
        auto_ack: bool = False,
        ack_wait_s: float = 30.0,
        max_deliver: int = 5,
        dead_letter: str | None = None,
        auto_offset_reset: str = "begin",
        assignor: str = "sticky",
        on_assigned: Callable[[tuple[str, ...]], object] | None = None,
        on_revoked: Callable[[tuple[str, ...]], object] | None = None,
        max_poll_interval_s: float = 300.0,
        rack: str | None = None,
        ordered: bool | None = None,
        prefetch: int | None = None,
        session_timeout_s: float = 10.0,
        **unknown: object,
    ) -> Consumer:
        """Make a consumer.

        In mode ``"ptp"`` each record of the topic goes to one consumer of the group, is leased to
        it for ``ack_wait_s`` and delivered again, at most ``max_deliver`` times, until it is
        acknowledged; then it goes to the topic ``dead_letter``, by default the topic's name with
        ``.dlq``. A group that is new begins at ``auto_offset_reset``.

        A consumer of a group that does not poll for ``max_poll_interval_s`` leaves the group, and
        joins again when it polls. Its unacknowledged records are delivered again, to any consumer
        of the group. The group removes a consumer whose process is silent for
        ``session_timeout_s``.

        Records without a key have no order to keep: any idle consumer of the group gets them, from
        any partition. Records with a key keep the order of their key: one consumer at a time works
        on those of a partition. ``ordered=True`` extends that to all records, ``ordered=False`` to
        none. If consumers of a group differ, the strictest setting holds.

        A consumer leases as many records at a time as its application handles in about 20 ms, or
        ``prefetch`` of them.

        In mode ``"psb"`` the consumer reads on its own: one partition or all, from ``offset`` on,
        an integer, ``"begin"`` (the default) or ``"end"``.

        ``rack`` names where the consumer runs, as for brokers: the consumer prefers a replica there
        to a leader elsewhere (KIP-392). It reads old records from any replica.

        With ``delivery="push"`` a thread calls ``on_record`` with each record, ``credit`` of them
        at a time; else the application polls or iterates.

        Raises:
            UnknownTopic, UnknownPartition, InvalidName, ConfigError: as their names say.
        """
        # Imported here: many clients only produce, and a consumer's modules take 10 ms to load.
        from pymq.client.consumer.consumer import Consumer
        from pymq.client.consumer.dead_letters import DeadLetters
        from pymq.client.consumer.options import (
            CalledElsewhere,
            check_consumer,
            check_rack,
            check_reader,
            dead_letter_topic,
            worker_config,
        )
        from pymq.client.consumer.reader import Reader
        from pymq.client.group.group_member import GroupConsumer

        check_consumer(group, mode, partition, delivery, on_record, credit, offset, unknown)
        check_rack(rack)
        check_flag("auto_ack", auto_ack)
        check_callback("on_assigned", on_assigned)
        check_callback("on_revoked", on_revoked)
        if mode == "psb":
            check_reader(
                {
                    "auto_ack": auto_ack,
                    "ack_wait_s": ack_wait_s,
                    "max_deliver": max_deliver,
                    "dead_letter": dead_letter,
                    "auto_offset_reset": auto_offset_reset,
                    "assignor": assignor,
                    "on_assigned": on_assigned,
                    "on_revoked": on_revoked,
                    "max_poll_interval_s": max_poll_interval_s,
                    "ordered": ordered,
                    "prefetch": prefetch,
                    "session_timeout_s": session_timeout_s,
                }
            )
        worker = worker_config(
            group,
            assignor,
            ack_wait_s,
            max_deliver,
            auto_offset_reset,
            max_poll_interval_s,
            ordered,
            prefetch,
            session_timeout_s,
        )
        metadata = self.questions.topic_metadata(topic)
        letters = dead_letter_topic(topic, dead_letter, mode, max_deliver)
        name = self._next("c")
        intake: ConsumerMachine
        if mode == "psb":
            names = [p.partition for p in metadata.partitions]
            if partition is not None:
                names = [self.questions.partition_name(topic, partition)]
            intake = Reader(
                name,
                topic,
                self._router,
                self.driver,
                names,
                parse_offset("begin" if offset is None else offset),
                is_whole=partition is None,
                rack=rack,
                now=self.driver.loop.clock(),
            )
        else:
            intake = GroupConsumer(
                name, topic, self._router, self.driver, worker, self._new_member, rack
            )
        subscription = intake.group or name
        self.questions.ask(lambda r: msg.Subscribe(r, subscription, topic, mode, intake.group))
        consumer = Consumer(
            self,
            intake,
            auto_ack=auto_ack,
            undertaker=DeadLetters(self, letters, intake.group),
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )
        self._add(consumer, intake)
        with self.driver as loop:
            if isinstance(intake, Reader):
                if on_record is not None:
                    consumer._limit(credit)
                intake.want(1, loop.clock())
            loop.touch(name)
        self.driver.wait(intake.started, REQUEST_S)
        consumer._tell_changes()
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
        """Remove a subscription without waiting; it may be gone already."""
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
        handles: list[Producer | Consumer] = [*self._consumers.values(), *self._producers]
        for handle in handles:
            try:
                handle.close()
            except Exception as error:  # close the others all the same
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
