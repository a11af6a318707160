"""The client that :func:`pymq.open` returns."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self, cast

from pymq.client.base import Driver
from pymq.client.consumer import REQUEST_S, Consumer, parse_offset
from pymq.client.intake import Intake, Reader
from pymq.client.producer import Producer
from pymq.client.route import Route
from pymq.client.router import Call, Router
from pymq.client.sender import Sender, SenderConfig
from pymq.client.worker import Worker, WorkerConfig
from pymq.core import message as msg
from pymq.core.compression import codec_number
from pymq.core.config import TopicConfig, check_options
from pymq.core.header import EPOCH_HALF, NO_PRODUCER
from pymq.core.message import BEGIN, END, Fetch, Fetched, GroupState, Message
from pymq.core.metadata import ClusterDescription, Loss, TopicDescription, TopicMetadata
from pymq.core.producers import REMEMBERED
from pymq.core.record import Record
from pymq.core.types import INTERNAL_PREFIX, OFFSETS_TOPIC, AckMode, check_name
from pymq.core.values import value
from pymq.errors import (
    Closed,
    ConfigError,
    InvalidName,
    InvalidRequest,
    NoBrokers,
    NotLeader,
    PartitionExists,
    PymqError,
    RequestTimeout,
    TopicExists,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from pymq.hash.assign import names as assignor_names

DEFAULT_GROUP = "ptp"
RETRY_PAUSE_S = 0.02  # before brokers are asked again, the first time; then twice as long, up to
RETRY_PAUSE_MAX_S = 0.25
TRY_S = 0.5  # how long a broker has to answer, the first time; then twice as long, up to ...
TRY_MAX_S = 4.0
_FORGET_MS = 1_000
PARTITIONS_MAX = 100_000
REPLICAS_MAX = 1_000


@value
class GroupDescription:
    """What ``describe_group`` returns; offsets and lag are by (topic, partition)."""

    name: str
    generation: int
    members: tuple[str, ...]
    assignment: dict[str, tuple[tuple[str, str], ...]]  # by member
    committed: dict[tuple[str, str], int]
    lag: dict[tuple[str, str], int]
    in_flight: dict[tuple[str, str], int]


class Client:
    """A connection to pymq, wherever it runs. Any thread may use it."""

    def __init__(
        self,
        driver: Driver,
        name: str,
        controllers: Sequence[str],
        wall_ms: Callable[[], int],
        on_close: Callable[[], None],
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.driver = driver
        self.name = name
        self._wall_ms = wall_ms
        self._on_close = on_close
        self._random_bytes = random_bytes
        self._router = Router(name, controllers, lambda: driver.loop.touch(name))
        self._producers: dict[Producer, None] = {}
        # A consumer that nobody holds any more is given up, so it must not be held here.
        self._consumers: weakref.WeakValueDictionary[str, Consumer] = weakref.WeakValueDictionary()
        self._intakes: dict[str, Intake] = {}
        self._made = 0
        self._is_closed = False
        with driver as loop:
            loop.add(name, self._router)

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
            _check_range("partitions", partitions, 1, PARTITIONS_MAX)
            names = tuple(str(index) for index in range(partitions))
        elif isinstance(partitions, Iterable) and not isinstance(partitions, (str, bytes)):
            names = tuple(check_name(part, "partition name") for part in partitions)
        else:
            raise ConfigError(f"partitions={partitions!r} must be a number or a list of names")
        TopicConfig.of(config)
        mode = AckMode.of(acks)
        _check_range("replicas", replicas, 1, REPLICAS_MAX)
        made = self._call(
            lambda r: msg.CreateTopic(r, name, names, replicas, mode, config, exist_ok)
        )
        # It may be ours: the first try was carried out, and its answer was lost.
        is_ours = made.is_repeated and isinstance(made.error, TopicExists)
        if not is_ours or not self._is_made(name, names, replicas, mode, config):
            _raise(made.error)

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
        _check_topic(topic)
        check_name(partition, "partition name")
        self._ask(lambda r: msg.CreatePartition(r, topic, partition), done=PartitionExists)
        self.topic_metadata(topic)  # Those who use the topic here hear of it at once.

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records.

        Raises:
            UnknownTopic: there is none of that name.
        """
        _check_topic(topic)
        self._ask(lambda r: msg.DeleteTopic(r, topic), done=UnknownTopic)
        self._router.topics.pop(topic, None)

    def alter_topic(self, topic: str, **config: Any) -> None:
        """Change options of a topic.

        Raises:
            UnknownTopic, ConfigError: as they say.
        """
        _check_topic(topic)
        TopicConfig.of(config)
        self._ask(lambda r: msg.AlterTopic(r, topic, config))

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
            _check_range("replicas", replicas, 1, REPLICAS_MAX)
        name = self.partition_name(topic, partition)
        changed = self._ask(lambda r: msg.SetPartitionState(r, topic, name, mode, replicas))
        self._router.topics.pop(topic, None)
        return bool(changed)

    def topics(self) -> list[str]:
        """The names of all topics but pymq's own."""
        return list(self._ask(msg.ListTopics))

    def describe_topic(self, topic: str) -> TopicDescription:
        """All about a topic: its options, partitions and blocks.

        Raises:
            UnknownTopic: there is none of that name.
        """
        _check_topic(topic)
        return cast(TopicDescription, self._ask(lambda r: msg.DescribeTopic(r, topic)))

    # --- groups ---------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """The names of all consumer groups."""
        if OFFSETS_TOPIC not in self._internal_topics():
            return []
        partitions = [p.partition for p in self.topic_metadata(OFFSETS_TOPIC).partitions]
        # Whoever leads one of them tells the groups of all that it leads.
        found = self.ask_leaders(OFFSETS_TOPIC, partitions, lambda r, _: msg.ListGroups(r))
        answers = [answer for answer in found.values() if isinstance(answer, msg.GroupNames)]
        return sorted({name for answer in answers for name in answer.groups})

    def _internal_topics(self) -> list[str]:
        # Asking for its metadata would make the topic; the cluster's description does not.
        return [OFFSETS_TOPIC] if self._router.topics.get(OFFSETS_TOPIC) else self._probe_offsets()

    def _probe_offsets(self) -> list[str]:
        try:
            self._ask(lambda r: msg.DescribeTopic(r, OFFSETS_TOPIC))
        except UnknownTopic:
            return []
        return [OFFSETS_TOPIC]

    def describe_group(self, group: str) -> GroupDescription:
        """A group's members, assignment, offsets and lag.

        Raises:
            UnknownGroup: there is none of that name.
        """
        if not self._internal_topics():
            raise UnknownGroup(f"there is no group {group!r}")
        state = self.group_state(group)
        by_topic: dict[str, list[str]] = {}
        for offset in state.offsets:
            by_topic.setdefault(offset.topic, []).append(offset.partition)
        ends = {
            (topic, partition): end
            for topic, partitions in by_topic.items()
            for partition, (_, end) in self.all_bounds(topic, partitions).items()
        }
        return GroupDescription(
            group,
            state.generation,
            tuple(member.member for member in state.members),
            {m.member: tuple((m.topic, p) for p in m.partitions) for m in state.members},
            {(o.topic, o.partition): o.committed for o in state.offsets},
            {
                (o.topic, o.partition): ends[o.topic, o.partition] - o.committed
                for o in state.offsets
            },
            {(o.topic, o.partition): o.in_flight for o in state.offsets},
        )

    def reset_group(self, group: str, topic: str, offset: int | str = "begin") -> None:
        """Let a group without members begin anew at an offset of each partition of a topic.

        Raises:
            InvalidRequest: the group has members; close them first.
        """
        check_name(group, "group name")
        wanted = parse_offset(offset)
        names = [p.partition for p in self.topic_metadata(topic).partitions]
        for name, (start, end) in self.all_bounds(topic, names).items():
            at = {BEGIN: start, END: end}.get(wanted, min(max(wanted, start), end))
            commit = partial(msg.CommitOffset, group=group, topic=topic, partition=name, offset=at)
            self._ask_group(group, commit)

    # --- cluster --------------------------------------------------------------------------------

    def reassign(self, topic: str, partition: str | int, replicas: Sequence[str]) -> bool:
        """Put a partition's next records onto other brokers; no data moves.

        Returns whether anything changed, once the new block is open.
        """
        brokers = tuple(check_name(broker, "broker name") for broker in replicas)
        if len(set(brokers)) < len(brokers):
            raise InvalidRequest(f"replicas={brokers!r} names a broker twice")
        name = self.partition_name(topic, partition)
        return bool(self._ask(lambda r: msg.Reassign(r, topic, name, brokers)))

    def decommission(self, broker: str) -> int:
        """Let a broker lead and take nothing more; returns how many partitions that concerns."""
        check_name(broker, "broker name")
        return int(self._ask(lambda r: msg.Decommission(r, broker)))

    def recommission(self, broker: str) -> bool:
        """Take a decommission back: new blocks may go to the broker again; whether that is new."""
        check_name(broker, "broker name")
        return bool(self._ask(lambda r: msg.Recommission(r, broker)))

    def recover_partition(self, topic: str, partition: str | int) -> Loss | None:
        """Let a partition that nobody can lead go on with what is left of it.

        ``describe_topic`` tells why nobody leads it, and whom to wait for instead. What is missing
        of its open block may have been acknowledged, and is lost; the answer says from which offset
        on, and so does ``describe_topic`` from then on. New records get those offsets again. None
        if nothing is lost, because somebody leads it or soon will.
        """
        name = self.partition_name(topic, partition)
        return cast(Loss | None, self._ask(lambda r: msg.RecoverPartition(r, topic, name)))

    def cluster(self) -> ClusterDescription:
        """The controller and the brokers."""
        return cast(ClusterDescription, self._ask(msg.DescribeCluster))

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
            acks: wait for less than the partition's mode gives; None takes the partition's mode.
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
        check_options(unknown, _PRODUCER_OPTIONS)
        for name, found, low, high in (
            ("linger_ms", linger_ms, 0, 600_000),
            ("batch_bytes", batch_bytes, 1, 8 << 20),
            ("buffer_bytes", buffer_bytes, 1, 1 << 40),
            ("max_in_flight", max_in_flight, 1, REMEMBERED if idempotent else 1000),
        ):
            _check_range(name, found, low, high)
        _check_seconds("delivery_timeout_s", delivery_timeout_s)
        if producer_id is not None and not idempotent:
            raise ConfigError("producer_id needs idempotent=True")
        mode = None if acks is None else AckMode.of(acks)
        if mode is AckMode.UNSET:
            raise ConfigError("acks='unset' is for partitions; leave it out to take theirs")
        config = SenderConfig(
            mode,
            linger_ms,
            batch_bytes,
            buffer_bytes,
            codec_number(compression),
            NO_PRODUCER,
            0,
            round(delivery_timeout_s * 1000),
            max_in_flight,
            producer_id is not None,
        )
        if producer_id is not None:
            name = check_name(str(producer_id), "producer_id")
            config.producer_id = _number(name)
            # The low half is for epochs that the producer raises by itself.
            init = partial(msg.InitProducer, name=name)
            config.producer_epoch = int(self._ask(init)) << EPOCH_HALF
        elif idempotent:
            config.producer_id = int.from_bytes(self._random_bytes(8), "big") >> 1
        sender = Sender(self._next("p"), self._router, self.driver, config, self._wall_ms)
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
        **unknown: object,
    ) -> Consumer:
        """Make a consumer.

        In mode ``"ptp"`` each record of the topic goes to one consumer of the group, is leased to
        it for ``ack_wait_s`` and delivered again, at most ``max_deliver`` times, until it is
        acknowledged; then it goes to the topic ``dead_letter``, by default the topic's name with
        ``.dlq``. A group that is new begins at ``auto_offset_reset``.

        In mode ``"psb"`` the consumer reads on its own: one partition or all, from ``offset`` on.

        With ``delivery="push"`` a thread calls ``on_record`` with each record, ``credit`` of them
        at a time; else the application polls or iterates.

        Raises:
            UnknownTopic, UnknownPartition, InvalidName, ConfigError: as they say.
        """
        check_options(unknown, _CONSUMER_OPTIONS)
        _check_choice("mode", mode, ("ptp", "psb"))
        _check_choice("delivery", delivery, ("pull", "push"))
        _check_choice("assignor", assignor, assignor_names())
        _check_choice("auto_offset_reset", auto_offset_reset, ("begin", "end"))
        _check_seconds("ack_wait_s", ack_wait_s)
        _check_range("max_deliver", max_deliver, 0, 1 << 30)
        _check_range("credit", credit, 1, 1 << 20)
        if (delivery == "push") != (on_record is not None):
            raise ConfigError("on_record goes with delivery='push', and the other way round")
        if mode == "psb" and group is not None:
            raise ConfigError("a psb consumer reads on its own: it has no group")
        if mode == "ptp" and partition is not None:
            raise ConfigError("a ptp consumer's partitions are assigned; use mode='psb' to choose")
        metadata = self.topic_metadata(topic)
        name = self._next("c")
        intake: Intake
        if mode == "psb":
            names = [p.partition for p in metadata.partitions]
            if partition is not None:
                names = [self.partition_name(topic, partition)]
            start = parse_offset(offset)
            intake = Reader(
                name,
                topic,
                self._router,
                self.driver,
                names,
                start,
                is_whole=partition is None,
                now=self.driver.loop.clock(),
            )
        else:
            group = check_name(group if group is not None else DEFAULT_GROUP, "group name")
            worker = WorkerConfig(
                group,
                assignor,
                max(1, round(ack_wait_s * 1000)),
                max_deliver,
                BEGIN if auto_offset_reset == "begin" else END,
            )
            intake = Worker(name, topic, self._router, self.driver, worker, self._new_member)
        subscription = cast(str, group) if mode == "ptp" else name
        self._ask(lambda r: msg.Subscribe(r, subscription, topic, mode, group))
        letters = (dead_letter or f"{topic}.dlq") if mode == "ptp" and max_deliver else None
        consumer = Consumer(
            self,
            intake,
            auto_ack=auto_ack,
            dead_letter=letters,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )
        self._add(consumer, intake)
        with self.driver as loop:
            intake.want(1, loop.clock()) if mode == "psb" else loop.touch(name)
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

    # --- for handles ----------------------------------------------------------------------------

    def topic_metadata(self, topic: str, timeout: float = REQUEST_S) -> TopicMetadata:
        """Where a topic's partitions are led, asked anew.

        Raises:
            UnknownTopic: there is none of that name.
        """
        _check_topic(topic)
        ask = self._ask(lambda r: msg.GetMetadata(r, topic), timeout=timeout)
        return cast(TopicMetadata, ask)

    def partition_name(self, topic: str, partition: str | int) -> str:
        """A partition's name, from its name or its index.

        Raises:
            UnknownTopic, UnknownPartition: as they say.
        """
        names = [p.partition for p in self.topic_metadata(topic).partitions]
        if partition in names:
            return str(partition)
        if isinstance(partition, int) and 0 <= partition < len(names):
            return names[partition]
        raise UnknownPartition(
            f"topic {topic!r} has no partition {partition!r}; it has {', '.join(names[:8])}"
        )

    def bounds(self, topic: str, partition: str) -> tuple[int, int]:
        """Where a partition's log starts and ends now."""
        return self.all_bounds(topic, [partition])[partition]

    def all_bounds(
        self, topic: str, partitions: Iterable[str], timeout: float = REQUEST_S
    ) -> dict[str, tuple[int, int]]:
        """Where the logs of some partitions start and end now."""
        found = self.ask_leaders(
            topic, partitions, lambda r, partition: Fetch(r, topic, partition, END, 0, 0), timeout
        )
        return {
            partition: (answer.log_start, answer.high_watermark)
            for partition, answer in found.items()
            if isinstance(answer, Fetched)
        }

    def ask_leader(self, topic: str, partition: str, make: Callable[[int], Message]) -> Message:
        """Ask a partition's leader, and the next one if it has moved."""
        return self.ask_leaders(topic, [partition], lambda r, _: make(r))[partition]

    def ask_leaders(
        self,
        topic: str,
        partitions: Iterable[str],
        make: Callable[[int, str], Message],
        timeout: float = REQUEST_S,
    ) -> dict[str, Message]:
        """Ask the leaders of some partitions, all at a time, and the next ones if they have moved.

        What lies on other brokers than the leader is asked for there.

        Raises:
            UnknownTopic, UnknownPartition: as they say.
            RequestTimeout: somebody did not answer; the message names him.
        """
        until = self.driver.monotonic() + timeout
        missing = {partition: Route(topic, partition) for partition in partitions}
        found: dict[str, Message] = {}
        tries = 0
        while missing:
            left = max(TRY_S, until - self.driver.monotonic())
            self._check_partitions(self.topic_metadata(topic, left), missing)
            patience = round(min(TRY_S * 2 ** min(tries, 10), TRY_MAX_S, left) * 1000)
            calls: dict[str, Call] = {}
            with self.driver as loop:
                for name, route in missing.items():
                    if (peer := route.find(self._router)) is not None:
                        ask = partial(_make_for, make, name)
                        calls[name] = self._router.call(ask, loop.clock(), patience, peer)
                loop.touch(self.name)
            self._await(calls, patience / 1000 + 1)
            pause = min(RETRY_PAUSE_S * 2 ** min(tries, 10), RETRY_PAUSE_MAX_S)
            for name, call in calls.items():
                if call.error is None:
                    found[name] = call.result
                    del missing[name]
                elif self._try_route(missing[name], call.error):
                    pause = 0.0
            if missing and self.driver.monotonic() > until:
                raise RequestTimeout(self._missing(missing, timeout))
            if missing and pause:
                self.driver.pause(pause)
            tries += 1
        return found

    def _check_partitions(self, metadata: TopicMetadata, wanted: Iterable[str]) -> None:
        names = {found.partition for found in metadata.partitions}
        for partition in wanted:
            if partition not in names:
                raise UnknownPartition(f"topic {metadata.topic!r} has no partition {partition!r}")

    def _await(self, calls: dict[str, Call], timeout: float) -> None:
        for call in calls.values():
            if not self.driver.wait(call, timeout):
                call.error = RequestTimeout(f"{call.peer} did not answer")

    def _try_route(self, route: Route, error: PymqError) -> bool:
        """Whether to try another broker at once.

        Raises:
            PymqError: it is of no use.
        """
        if isinstance(error, RequestTimeout):
            with self.driver:
                route.silent(self._router)
            return False
        with self.driver:
            pause = route.refused(self._router, error)
        if pause is None:
            _raise(error)
        return pause == 0

    def _missing(self, missing: dict[str, Route], timeout: float) -> str:
        whys = [
            route.why(self._router) or f"{route.asked} did not answer" for route in missing.values()
        ]
        more = f", and {len(whys) - 1} partitions more" if len(whys) > 1 else ""
        return f"not within {timeout:g} s: {whys[0]}{more}"

    def group_state(self, group: str, timeout: float = REQUEST_S) -> GroupState:
        """A group's state, from its coordinator."""
        return cast(GroupState, self._ask_group(group, lambda r: msg.GetGroup(r, group), timeout))

    def _ask_group(
        self, group: str, make: Callable[[int], Message], timeout: float = REQUEST_S
    ) -> Message:
        until = self.driver.monotonic() + timeout
        pause, patience, left = RETRY_PAUSE_S, TRY_S, timeout
        while True:
            coordinator: str | None = None
            try:
                self.topic_metadata(OFFSETS_TOPIC, left)
                coordinator = self._router.coordinator(group)
                if coordinator is None:
                    raise NoBrokers(
                        f"it has no leader: {self._router.why_no_leader(OFFSETS_TOPIC)}"
                    )
                return cast(Message, self._ask(make, peer=coordinator, timeout=min(patience, left)))
            except PymqError as error:
                if not error.retriable:
                    raise
                left = until - self.driver.monotonic()
                if left <= 0:
                    raise RequestTimeout(
                        f"the coordinator of group {group!r}, not within {timeout:g} s: {error}"
                    ) from error
                self._distrust(group, coordinator, error)
            self.driver.pause(pause)
            pause = min(2 * pause, RETRY_PAUSE_MAX_S)
            patience = min(2 * patience, TRY_MAX_S)

    def _distrust(self, group: str, coordinator: str | None, error: PymqError) -> None:
        place = self._router.coordinator_of(group)
        if place is None or coordinator is None:
            return
        with self.driver:
            if isinstance(error, NotLeader):
                self._router.refused(*place, coordinator, error)
            else:
                self._router.distrust(*place)

    def _ask(
        self,
        make: Callable[[int], Message],
        *,
        peer: str | None = None,
        timeout: float = REQUEST_S,
        done: type[PymqError] | None = None,
    ) -> Any:
        """Ask *peer*, or the active zkserver.

        *done* is the error that says that it was done before: an earlier try of ours may have been.
        """
        call = self._call(make, peer, timeout)
        if done is None or not call.is_repeated or not isinstance(call.error, done):
            _raise(call.error)
        return call.result

    def _call(
        self,
        make: Callable[[int], Message],
        peer: str | None = None,
        timeout: float = REQUEST_S,
    ) -> Call:
        if self._is_closed:
            raise Closed("the client was closed")
        with self.driver as loop:
            call: Call = self._router.call(make, loop.clock(), round(timeout * 1000), peer)
            loop.touch(self.name)
        if not self.driver.wait(call, timeout + 1):
            raise RequestTimeout(f"{call.peer} did not answer within {timeout:g} s")
        return call

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
        self._on_close()
        if first is not None:
            raise first

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            for consumer in self._consumers.values():
                consumer._forgo()
        try:
            self.close()
        except PymqError as second:
            if error is None:
                raise
            error.add_note(f"and on closing the client: {second}")


_PRODUCER_OPTIONS = (
    "acks",
    "linger_ms",
    "batch_bytes",
    "buffer_bytes",
    "compression",
    "idempotent",
    "producer_id",
    "delivery_timeout_s",
    "max_in_flight",
)
_CONSUMER_OPTIONS = (
    "topic",
    "group",
    "mode",
    "partition",
    "offset",
    "delivery",
    "on_record",
    "credit",
    "auto_ack",
    "ack_wait_s",
    "max_deliver",
    "dead_letter",
    "auto_offset_reset",
    "assignor",
    "on_assigned",
    "on_revoked",
)


def _make_for(make: Callable[[int, str], Message], partition: str, request: int) -> Message:
    return make(request, partition)


def _raise(error: PymqError | None) -> None:
    if error is not None:
        # The traceback is the caller's; the error object is not shared with anybody.
        raise error.with_traceback(None)


def _number(name: str) -> int:
    """A producer's number, from its name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def _check_topic(name: object) -> None:
    """Only a string can be found or not found."""
    if not isinstance(name, str):
        raise InvalidName(f"a topic's name must be str, not {type(name).__name__}")


def _check_range(name: str, found: object, low: int, high: int) -> None:
    if type(found) is not int or not low <= found <= high:
        raise ConfigError(f"{name}={found!r} must be an integer from {low} to {high}")


def _check_seconds(name: str, found: object) -> None:
    if type(found) not in (int, float) or not 0 < cast(float, found) < 1e9:
        raise ConfigError(f"{name}={found!r} must be a positive number of seconds")


def _check_choice(name: str, found: object, allowed: Sequence[str]) -> None:
    if found not in allowed:
        raise ConfigError(f"{name}={found!r} must be one of {', '.join(map(repr, allowed))}")
