"""The client that :func:`pymq.open` returns."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from pymq.client import groups
from pymq.client.base import Driver, Handle
from pymq.client.consumer import Consumer
from pymq.client.groups import GroupDescription, LeasesDescription
from pymq.client.intake import Intake
from pymq.client.options import (
    PARTITIONS_MAX,
    REPLICAS_MAX,
    REQUEST_S,
    check_consumer,
    check_range,
    check_topic,
    parse_offset,
    producer_number,
    sender_config,
    worker_config,
)
from pymq.client.producer import Producer
from pymq.client.questions import Questions, raise_it
from pymq.client.reader import Reader
from pymq.client.router import Router
from pymq.client.sender import Sender
from pymq.client.tally import Tally
from pymq.client.undertaker import Undertaker
from pymq.client.worker import Worker
from pymq.core import message as msg
from pymq.core.config import TopicConfig
from pymq.core.header import EPOCH_HALF
from pymq.core.metadata import ClusterDescription, Loss, TopicDescription
from pymq.core.metrics import Metrics
from pymq.core.producers import REMEMBERED
from pymq.core.record import Record
from pymq.core.types import INTERNAL_PREFIX, AckMode, check_name
from pymq.errors import (
    Closed,
    ConfigError,
    InvalidName,
    InvalidRequest,
    PartitionExists,
    PymqError,
    TopicExists,
    UnknownTopic,
)

__all__ = ["Client", "GroupDescription"]

OFFSET_MAX = (1 << 62) - 1
_FORGET_MS = 1_000


class Client(Handle):
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
    ) -> None:
        self.driver = driver
        self.name = name
        self._wall_ms = wall_ms
        self._on_close = on_close
        self._random_bytes = random_bytes
        self._router = Router(name, controllers, lambda: driver.loop.touch(name), trouble)
        self._producers: dict[Producer, None] = {}
        # A consumer that nobody holds any more is given up, so it must not be held here.
        self._consumers: weakref.WeakValueDictionary[str, Consumer] = weakref.WeakValueDictionary()
        self._intakes: dict[str, Intake] = {}
        self._made = 0
        self._is_closed = False
        self.questions = Questions(name, self._router, driver)
        self.tally = Tally()
        self.sources: list[Callable[[], Metrics]] = []  # of metrics, of nodes in this process
        with driver as loop:
            loop.add(name, self._router)

    def _lost(self, node: str, is_lost: bool) -> None:
        """A transport has lost the connection to *node*, or has it again; the driver is held."""
        self._router.lost(node, is_lost, self.driver.loop.clock())
        self.driver.loop.touch(self.name)

    # --- topics ---------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | Iterable[str] = 1,
        replicas: int = 1,
        acks: AckMode | int | str = "leader",
        *,
        exist_ok: bool = False,
        **config: Any,
    ) -> None:
        """Make a topic.

        Args:
            name: 1 to 249 of ``[A-Za-z0-9._-]``.
            partitions: how many, named ``"0"`` and so on, or their names.
            replicas: on how many brokers each partition is kept.
            acks: the partitions' ack mode: ``"leader"``, ``"raft"``, ``"none"`` or ``"unset"``.
            exist_ok: do nothing when there is a topic of this name.
            config: options of :class:`pymq.TopicConfig`, as ``retention_bytes=...``.

        Raises:
            InvalidName, TopicExists, ConfigError, NotEnoughBrokers: as they say.
        """
        check_name(name, "topic name")
        if name.startswith(INTERNAL_PREFIX):
            raise InvalidName(f"topic name {name!r}: names with {INTERNAL_PREFIX!r} are pymq's own")
        if isinstance(partitions, int) and not isinstance(partitions, bool):
            check_range("partitions", partitions, 1, PARTITIONS_MAX)
            names = tuple(str(index) for index in range(partitions))
        elif isinstance(partitions, Iterable) and not isinstance(partitions, (str, bytes)):
            names = tuple(check_name(part, "partition name") for part in partitions)
        else:
            raise ConfigError(f"partitions={partitions!r} must be a number or a list of names")
        TopicConfig.of(config)
        mode = AckMode.of(acks)
        check_range("replicas", replicas, 1, REPLICAS_MAX)
        made = self.questions.call(
            lambda r: msg.CreateTopic(r, name, names, replicas, mode, config, exist_ok)
        )
        # It may be ours: the first try was carried out, and its answer was lost.
        is_ours = made.is_repeated and isinstance(made.error, TopicExists)
        if not is_ours or not self._is_made(name, names, replicas, mode, config):
            raise_it(made.error)

    def _is_made(
        self,
        name: str,
        names: tuple[str, ...],
        replicas: int,
        acks: AckMode,
        config: dict[str, Any],
    ) -> bool:
        """Whether there is a topic of exactly this definition."""
        try:
            found = self.describe_topic(name)
        except UnknownTopic:
            return False
        if found.config != TopicConfig.of(config):
            return False
        return tuple(p.name for p in found.partitions) == names and all(
            p.acks is acks and len(p.replicas) == (0 if acks is AckMode.UNSET else replicas)
            for p in found.partitions
        )

    def create_partition(self, topic: str, partition: str) -> None:
        """Add a partition to a topic. Keys are hashed over one more from then on."""
        check_topic(topic)
        check_name(partition, "partition name")
        self.questions.ask(lambda r: msg.CreatePartition(r, topic, partition), done=PartitionExists)
        self.questions.topic_metadata(topic)  # Those who use the topic here hear of it at once.

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records.

        Raises:
            UnknownTopic: there is none of that name.
        """
        check_topic(topic)
        self.questions.ask(lambda r: msg.DeleteTopic(r, topic), done=UnknownTopic)
        self._router.topics.pop(topic, None)

    def alter_topic(self, topic: str, **config: Any) -> None:
        """Change options of a topic.

        Raises:
            UnknownTopic, ConfigError: as they say.
        """
        check_topic(topic)
        TopicConfig.of(config)
        self.questions.ask(lambda r: msg.AlterTopic(r, topic, config))

    def set_partition_state(
        self,
        topic: str,
        partition: str | int,
        acks: AckMode | int | str,
        replicas: int | None = None,
    ) -> bool:
        """Change how a partition is replicated, while it is used; returns whether it changed.

        Raises:
            UnknownTopic, UnknownPartition, ConfigError, NotEnoughBrokers: as they say, and then
                nothing is changed.
        """
        mode = AckMode.of(acks)
        if replicas is not None:
            check_range("replicas", replicas, 1, REPLICAS_MAX)
        name = self.questions.partition_name(topic, partition)
        changed = self.questions.ask(
            lambda r: msg.SetPartitionState(r, topic, name, mode, replicas)
        )
        self._router.topics.pop(topic, None)
        return bool(changed)

    def topics(self) -> list[str]:
        """The names of all topics but pymq's own."""
        return list(self.questions.ask(msg.ListTopics))

    def describe_topic(self, topic: str) -> TopicDescription:
        """All about a topic: its options, partitions and blocks.

        Raises:
            UnknownTopic: there is none of that name.
        """
        check_topic(topic)
        return cast(TopicDescription, self.questions.ask(lambda r: msg.DescribeTopic(r, topic)))

    # --- groups ---------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """The names of all consumer groups."""
        return groups.names(self.questions)

    def describe_group(self, group: str) -> GroupDescription:
        """A group's members, assignment, offsets and lag.

        Raises:
            UnknownGroup: there is none of that name.
        """
        return groups.describe(self.questions, group)

    def describe_leases(
        self, group: str, topic: str, partition: str | int, offset: int = 0, limit: int = 100
    ) -> LeasesDescription:
        """What a group does with the records of a partition, from *offset* on.

        At most *limit* runs of records that have the same fate; there are up to 1,000 in one
        answer.

        Raises:
            UnknownGroup, UnknownTopic, UnknownPartition: as they say.
        """
        check_range("offset", offset, 0, OFFSET_MAX)
        check_range("limit", limit, 1, 1_000)
        name = self.questions.partition_name(topic, partition)
        place = (check_name(group, "group name"), topic, name)
        return groups.describe_leases(self.questions, *place, offset, limit, self._wall_ms())

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[str, int]:
        """Of each partition the first offset whose record is not older than a time, or its end."""
        check_range("timestamp_ms", timestamp_ms, 0, OFFSET_MAX)
        partitions = [p.partition for p in self.questions.topic_metadata(topic).partitions]
        found = self.questions.ask_leaders(
            topic, partitions, lambda r, name: msg.FindOffset(r, topic, name, timestamp_ms)
        )
        return {
            name: answer.offset
            for name, answer in found.items()
            if isinstance(answer, msg.OffsetFound)
        }

    def reset_group(
        self, group: str, topic: str, offset: int | str | Mapping[str, int | str] = "begin"
    ) -> None:
        """Let a group without members begin anew at an offset of each partition of a topic.

        *offset* is one for all, ``"begin"``, ``"end"``, or a dictionary with those of some
        partitions. What lies outside of a partition becomes its begin or its end.

        Raises:
            InvalidRequest: the group has members; close them first.
        """
        groups.reset(self.questions, check_name(group, "group name"), topic, offset)

    # --- cluster --------------------------------------------------------------------------------

    def reassign(self, topic: str, partition: str | int, replicas: Sequence[str]) -> bool:
        """Put a partition's next records onto other brokers; no data moves.

        Returns whether anything changed, once the new block is open.
        """
        brokers = tuple(check_name(broker, "broker name") for broker in replicas)
        if len(set(brokers)) < len(brokers):
            raise InvalidRequest(f"replicas={brokers!r} names a broker twice")
        name = self.questions.partition_name(topic, partition)
        return bool(self.questions.ask(lambda r: msg.Reassign(r, topic, name, brokers)))

    def decommission(self, broker: str) -> int:
        """Let a broker lead and take nothing more; returns how many partitions that concerns."""
        check_name(broker, "broker name")
        return int(self.questions.ask(lambda r: msg.Decommission(r, broker)))

    def recommission(self, broker: str) -> bool:
        """Take a decommission back: new blocks may go to the broker again; whether that is new."""
        check_name(broker, "broker name")
        return bool(self.questions.ask(lambda r: msg.Recommission(r, broker)))

    def recover_partition(self, topic: str, partition: str | int) -> Loss | None:
        """Let a partition that nobody can lead go on with what is left of it.

        ``describe_topic`` tells why nobody leads it, and whom to wait for instead. What is missing
        of its open block may have been acknowledged, and is lost; the answer says from which offset
        on, and so does ``describe_topic`` from then on. New records get those offsets again. None
        if nothing is lost, because somebody leads it or soon will.
        """
        name = self.questions.partition_name(topic, partition)
        return cast(Loss | None, self.questions.ask(lambda r: msg.RecoverPartition(r, topic, name)))

    def cluster(self) -> ClusterDescription:
        """The controller and the brokers."""
        return cast(ClusterDescription, self.questions.ask(msg.DescribeCluster))

    def metrics(self) -> Metrics:
        """What there is to measure: of this client, and of the broker if that is in this process.

        ``metrics["pymq_messages_in_total"]`` is a figure, ``metrics.value(name, topic="orders")`` a
        part of it, ``str(metrics)`` the text that Prometheus reads. docs/monitoring.md has the
        names. Brokers of a cluster tell of themselves, at their own endpoints.
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
            acks: wait for something else than the partition's mode has it; None is that mode. With
                ``"raft"`` on a partition of mode ``leader`` a record is answered when all in sync
                have it, and refused while they are fewer than ``min_in_sync``.
            linger_ms: how long a record may wait for others to share its batch.
            batch_bytes: how large a batch grows before it is sent.
            buffer_bytes: how much may be unanswered before ``send`` waits.
            compression: None, ``"lz4"`` or ``"zstd"``.
            idempotent: a batch that is sent twice is written once.
            producer_id: a name under which sequences go on after a restart of the producer.
            delivery_timeout_s: when a record that nobody answers for has failed.
            max_in_flight: batches a partition that may be unanswered.

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
            config.producer_id = producer_number(name)
            # The low half is for epochs that the producer raises by itself.
            init = partial(msg.InitProducer, name=name)
            config.producer_epoch = int(self.questions.ask(init)) << EPOCH_HALF
        elif idempotent:
            config.producer_id = int.from_bytes(self._random_bytes(8), "big") >> 1
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
        offset: int | str = "begin",
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
        **unknown: object,
    ) -> Consumer:
        """Make a consumer.

        In mode ``"ptp"`` each record of the topic goes to one consumer of the group, is leased to
        it for ``ack_wait_s`` and delivered again, at most ``max_deliver`` times, until it is
        acknowledged; then it goes to the topic ``dead_letter``, by default the topic's name with
        ``.dlq``. A group that is new begins at ``auto_offset_reset``.

        A consumer of a group that has asked for nothing for ``max_poll_interval_s`` is taken to
        hang: it leaves the group, and joins again when it asks. What it had got and had not
        acknowledged is delivered again, to others perhaps.

        In mode ``"psb"`` the consumer reads on its own: one partition or all, from ``offset`` on.

        With ``delivery="push"`` a thread calls ``on_record`` with each record, ``credit`` of them
        at a time; else the application polls or iterates.

        Raises:
            UnknownTopic, UnknownPartition, InvalidName, ConfigError: as they say.
        """
        check_consumer(group, mode, partition, delivery, on_record, credit, unknown)
        worker = worker_config(
            group, assignor, ack_wait_s, max_deliver, auto_offset_reset, max_poll_interval_s
        )
        metadata = self.questions.topic_metadata(topic)
        name = self._next("c")
        intake: Intake
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
                parse_offset(offset),
                is_whole=partition is None,
                now=self.driver.loop.clock(),
            )
        else:
            intake = Worker(name, topic, self._router, self.driver, worker, self._new_member)
        subscription = intake.group or name
        self.questions.ask(lambda r: msg.Subscribe(r, subscription, topic, mode, intake.group))
        letters = (dead_letter or f"{topic}.dlq") if mode == "ptp" and max_deliver else None
        consumer = Consumer(
            self,
            intake,
            auto_ack=auto_ack,
            undertaker=Undertaker(self, letters, intake.group),
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )
        self._add(consumer, intake)
        with self.driver as loop:
            if mode == "psb":
                intake.want(1, loop.clock())
            loop.touch(name)
        self.driver.wait(intake.started, REQUEST_S)
        consumer._tell_changes()
        if on_record is not None:
            consumer.start_push(on_record, credit)
        return consumer

    def _new_member(self) -> str:
        return self._random_bytes(8).hex()

    def _next(self, kind: str) -> str:
        if self._is_closed:
            raise Closed("the client was closed")
        self._made += 1
        return f"{self.name}.{kind}{self._made}"

    def _add(self, handle: Producer | Consumer, machine: Sender | Intake) -> None:
        with self.driver as loop:
            loop.add(machine.name, machine)
            buried = [intake for intake in self._intakes.values() if intake.is_buried]
            for intake in buried:
                loop.remove(intake.name)
                del self._intakes[intake.name]
        for intake in buried:
            if intake.group is None:
                self._unsubscribe(intake.topic, intake.name)
        if isinstance(handle, Producer):
            self._producers[handle] = None
        elif isinstance(machine, Intake):
            self._consumers[machine.name], self._intakes[machine.name] = handle, machine

    def _unsubscribe(self, topic: str, name: str) -> None:
        """Forget a subscription; nobody waits for it, and it may be gone already."""
        try:
            with self.driver as loop:
                self._router.call(
                    lambda r: msg.Unsubscribe(r, name, topic), loop.clock(), _FORGET_MS
                )
                loop.touch(self.name)
        except PymqError:
            pass  # The client is closed, and with it its subscriptions mean nothing.

    def forget(self, handle: Producer | Consumer) -> None:
        """The handle was closed."""
        if isinstance(handle, Producer):
            self._producers.pop(handle, None)
        else:
            self._consumers.pop(handle.name, None)
            self._intakes.pop(handle.name, None)

    # --- leaving --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all producers and consumers, flush, and let go; closing twice is allowed."""
        if self._is_closed:
            return
        first: BaseException | None = None
        handles: list[Producer | Consumer] = [*self._consumers.values(), *self._producers]
        for handle in handles:
            try:
                handle.close()
            except Exception as error:  # the others are to be closed all the same
                first = first or error
        self._is_closed = True
        self.questions.close()
        self._on_close()
        if first is not None:
            raise first

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def _forgo(self) -> None:
        for consumer in self._consumers.values():
            consumer._forgo()
