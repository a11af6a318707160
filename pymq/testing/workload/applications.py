"""Simulated applications: they send, consume, administrate, and record the outcomes.

The applications use the machines of the real client, not its handles, because code inside the
simulation must not wait. Each sent value is unique, and contains its number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pymq.client.consumer.reader import Reader
from pymq.client.group.group_member import GroupConsumer, WorkerConfig
from pymq.client.producer.delivery import RECORD_BYTES, Delivery
from pymq.client.producer.sender import PartitionQueue, Sender, SenderConfig
from pymq.client.router import Call, Router
from pymq.core import message as msg
from pymq.core.batch.columns import Headers
from pymq.core.batch.header import EPOCH_HALF, NO_PRODUCER
from pymq.core.batch.priority import PRIORITY
from pymq.core.batch.record import Record
from pymq.core.delay.record_times import DELIVER_AT, EXPIRES_AT
from pymq.core.message import BEGIN, Message
from pymq.core.types import AckMode
from pymq.core.values import Factory, define
from pymq.errors import PymqError
from pymq.testing.cluster import Cluster
from pymq.testing.faults.kinds import Step
from pymq.testing.simulation.driver import SimDriver
from pymq.testing.simulation.nodes import ClientHost
from pymq.testing.simulation.world import WALL_MS, mix
from pymq.testing.workload.consuming import ReadingApp, WorkingApp, value_of
from pymq.testing.workload.queues.letters import LetterHistory, letter_headers
from pymq.testing.workload.queues.routes import RouteFollower, RouteHistory
from pymq.testing.workload.service import Service

KEYS = 7  # number of keys in a compacted topic
ADMIN_MS = 8_000  # timeout of an administrator's request


@define
class Sent:
    """A record that an application has sent, and its outcome."""

    number: int
    app: str
    topic: str
    partition: str
    acks: AckMode | None
    is_idempotent: bool
    at: int
    done_at: int = -1
    offset: int = -1
    error: PymqError | None = None
    due_ms: int = 0  # earliest time at which groups may get the record; 0: at once
    expires_ms: int = 0  # latest time at which groups may get the record; 0: no limit
    home: str = ""  # of a dead letter: the partition that a redrive sends it back to
    cancel: str = ""  # whether the record's delay was cancelled, see :mod:`.queues.cancels`

    @property
    def is_acked(self) -> bool:
        """Whether the application got an acknowledgement with the offset."""
        return self.offset >= 0


@define
class WorkloadHistory:
    """The requests of all applications, and their outcomes."""

    sent: list[Sent] = Factory(list)
    reads: int = 0
    # time of processing by (group, topic, partition, offset)
    processed: dict[tuple[str, str, str, int], int] = Factory(dict)
    # offset of the copy of each delayed record that a group got, by group, number and id
    copies: dict[tuple[str, int, int], int] = Factory(dict)
    admin: list[tuple[int, str, str]] = Factory(list)  # (time, request, outcome)
    letters: LetterHistory = Factory(LetterHistory)
    routes: RouteHistory = Factory(RouteHistory)

    @property
    def pending(self) -> int:
        """The number of sent records without an outcome."""
        return sum(1 for sent in self.sent if sent.done_at < 0)


class Application:
    """One process of an application."""

    def __init__(
        self,
        cluster: Cluster,
        host: ClientHost,
        history: WorkloadHistory,
        config: dict[str, Any],
        fail: Callable[[str, str], None],
        service: Service,
    ) -> None:
        self.cluster = cluster
        self.host = host
        self.name = host.name
        self.history = history
        self.config = config
        self.world = cluster.world
        self.readers: list[ReadingApp] = []
        self.workers: list[WorkingApp] = []
        self.fail = fail
        self.service = service
        self.rng = self.world.rng("app", host.name, host.incarnation)
        self.driver = SimDriver(host, 0.0)
        self.loop = self.driver.loop
        # Each process has a new address, so it gets no answers to requests of an earlier one.
        self.address = f"{self.name}.{host.incarnation}"
        self.router = Router(
            self.address, list(cluster.zkservers), lambda: self.loop.touch(self.address)
        )
        self._queues: dict[tuple[str, str], PartitionQueue] = {}
        self._made = 0
        self.is_idempotent = bool(config.get("idempotent", True))
        acks = config.get("acks")
        self.acks = None if acks is None else AckMode.of(acks)
        self.sender = Sender(
            f"{self.address}.p", self.router, self.driver, self._sender_config(), self.wall_ms
        )
        self._routes = RouteFollower(history.routes, self.router, self.sender.config.producer_id)
        with self.driver as loop:
            loop.add(self.address, self.router)
            loop.add(self.sender.name, self.sender)

    def wall_ms(self) -> int:
        """The wall clock, in milliseconds."""
        return WALL_MS + self.world.now // 1000

    def _sender_config(self) -> SenderConfig:
        c = self.config
        producer, epoch = self.rng.getrandbits(62) if self.is_idempotent else NO_PRODUCER, 0
        is_named = self.is_idempotent and bool(c.get("named", False))
        if is_named:  # each process of the application fences earlier processes
            producer = mix(self.world.seed, "producer", self.name) >> 2
            epoch = self.host.incarnation << EPOCH_HALF
        return SenderConfig(
            self.acks,
            c.get("linger_ms", 5),
            c.get("batch_bytes", 1 << 18),
            64 << 20,
            0,
            producer,
            epoch,
            c.get("delivery_timeout_ms", 20_000),
            c.get("max_in_flight", 5),
            is_named,
        )

    @property
    def is_up(self) -> bool:
        """Whether the process that made this application still runs."""
        return self.host.loop is self.loop

    # --- sending --------------------------------------------------------------------------------

    def send(self, topic: str, partition: str, count: int, size: int, home: str = "") -> None:
        """Send some records; with a *home*, dead letters of that partition."""
        name = (topic, partition)
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = PartitionQueue(self.sender, topic, partition)
        if topic in self.history.routes.topics:
            self._routes.follow(topic, self._queues)
        for _ in range(count):
            number = len(self.history.sent)
            sent = Sent(
                number, self.name, topic, partition, self.acks, self.is_idempotent, self.world.now
            )
            self.history.sent.append(sent)
            key = b"%d" % (number % KEYS) if self._is_compacted(topic) else None
            if key is None and number % 10 < 10 * self.config.get("keyed", 0.0):
                key = b"%d" % (number % KEYS)
                queue.has_keys = True
            sent.home = home
            headers = self._times(sent) if self._may_delay(topic) and not home else ()
            headers += self._priority(number)
            headers += letter_headers(sent) + self._routes.note(sent, key)
            delivery = Delivery()
            if headers:
                queue.has_extras = self.sender.backlog.has_times = True
                self.sender.backlog.has_priorities = True
                delivery.row = (value_of(number, size), key, headers, None)
            else:
                delivery.row = (value_of(number, size), key)
            delivery.owner = queue.add(delivery.row)
            queue.bytes += size + RECORD_BYTES
            self.sender.backlog.buffered += size + RECORD_BYTES
            self.sender.backlog.on_done(delivery, partial(self._answered, delivery, sent))
        if not queue.is_armed:
            queue.is_armed = True
            due = self.loop.clock() + self.config.get("linger_ms", 5)
            self.sender.backlog.armed.append((due, queue))
        if queue.bytes >= self.config.get("batch_bytes", 1 << 18):
            self.sender.backlog.full.append(queue)
        self.driver.push(self.sender.name)
        self.driver.arm(0)

    def has_lost(self, record: Record) -> bool:
        """Whether a partition has lost records, as weak settings allow."""
        watch = self.cluster.watch
        history = watch.history_of(record.topic, record.partition) if watch is not None else None
        return history is not None and history.losses > 0

    def _times(self, sent: Sent) -> Headers:
        """Draw a delay and an expiry for some records."""
        if not (share := self.config.get("delayed", 0.0)) or self.rng.random() >= share:
            return ()
        dice, wall, headers = self.rng.random(), self.wall_ms(), list[tuple[str, bytes]]()
        if dice < 0.8:
            sent.due_ms = wall + self.rng.choice([1, 50, 500, 2_000])
            headers.append((DELIVER_AT, str(sent.due_ms).encode()))
        if dice > 0.6:
            sent.expires_ms = (sent.due_ms or wall) + self.rng.choice([0, 10, 1_000])
            headers.append((EXPIRES_AT, str(sent.expires_ms).encode()))
        return tuple(headers)

    def _priority(self, number: int) -> Headers:
        """Give some records a priority."""
        if not (share := self.config.get("urgent", 0.0)):
            return ()
        dice = mix(self.world.seed, "priority", number)
        if dice % 100 >= 100 * share:
            return ()
        return ((PRIORITY, b"%d" % (1 + dice % 9)),)

    def _may_delay(self, topic: str) -> bool:
        """Whether the topic is known and not compacted: compacted topics have no delays."""
        return topic in self.router.metadata.topics and not self._is_compacted(topic)

    def _is_compacted(self, topic: str) -> bool:
        known = self.router.metadata.topics.get(topic)
        return known is not None and known.config.cleanup_policy == "compact"

    def _answered(self, delivery: Delivery, sent: Sent) -> None:
        sent.done_at = self.world.now
        sent.error = delivery.exception()
        self.service.told(sent.error, sent.topic, sent.partition)
        if sent.error is None:
            sent.offset = delivery.result().offset

    # --- consuming ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to consume the topics of the application's plan."""
        for topic in self.config.get("readers", ()):
            self.read(topic)
        for topic, group in self.config.get("groups", ()):
            self.work(topic, group)

    def read(self, topic: str, then: Callable[[], None] | None = None) -> None:
        """Read all of a topic's partitions from the beginning."""

        def begin() -> None:
            known = self.router.metadata.topics.get(topic)
            if known is not None and self.is_up:
                names = [p.partition for p in known.partitions]
                self.readers.append(ReadingApp(self, self._reader(topic, names)))

        self.meet(topic, begin)

    def _reader(self, topic: str, names: list[str]) -> Reader:
        name, rack = self._next("r"), self.config.get("rack")
        return Reader(name, topic, self.router, self.driver, names, BEGIN, rack=rack)

    def work(self, topic: str, group: str) -> None:
        """Join a group as a member."""
        patience, limit = self.config.get("ack_wait_ms", 30_000), self.config.get("max_deliver", 0)
        config = WorkerConfig(group, "sticky", patience, limit, BEGIN)

        def begin() -> None:
            if self.is_up:
                name = self._next("w")
                router, rack = self.router, self.config.get("rack")
                worker = GroupConsumer(
                    name,
                    topic,
                    router,
                    self.driver,
                    config,
                    self._member,
                    rack,
                    wall_ms=self.wall_ms,
                )
                self.workers.append(WorkingApp(self, worker))

        self.ask(lambda r: msg.Subscribe(r, group, topic, "ptp", group), lambda call: None)
        self.meet(topic, begin)

    def do(self, step: Step) -> None:
        """Carry out one of the plan's operations for applications."""
        _, kind, _, *args = step
        if kind == "rejoin" and self.workers:
            working = self.workers.pop(0)
            working.leave()
            self.work(working.topic, working.worker.config.group)
        for reading in self.readers:
            if reading.is_up and kind == "seek":
                reading.seek(args[0])
            elif reading.is_up and kind == "find":
                reading.find(self.wall_ms() - args[0])

    def _member(self) -> str:
        return self.rng.randbytes(8).hex()

    def _next(self, kind: str) -> str:
        self._made += 1
        return f"{self.address}.{kind}{self._made}"

    def meet(self, topic: str, then: Callable[[], None]) -> None:
        """Request a topic's partitions until they are known, then call *then*."""

        def found(call: Call) -> None:
            if call.error is None:
                self.world.after(0, lambda a, b: then())
            else:
                self.world.after(200_000, lambda a, b: self.meet(topic, then))

        if self.is_up:
            self.ask(lambda r: msg.GetMetadata(r, topic), found)

    # --- administrating -------------------------------------------------------------------------

    def ask(self, make: Callable[[int], Message], then: Callable[[Call], None]) -> None:
        """Send a request to the active zkserver, and call *then* with the result."""
        with self.driver as loop:
            call = self.router.call(make, loop.clock(), ADMIN_MS)
            loop.touch(self.address)
        call.then(lambda: then(call))

    def admin(self, what: str, make: Callable[[int], Message]) -> None:
        """Request a change, and record the outcome."""

        def then(call: Call) -> None:
            outcome = type(call.error).__name__ if call.error is not None else "done"
            self.history.admin.append((self.world.now, what, outcome))

        self.ask(make, then)

    def administrate(self, step: Step) -> None:
        """Carry out one of the plan's operations for administrators."""
        _, kind, *args = step
        topic = args[0]
        make: Callable[[int], Message]
        if kind == "set_state":
            _, partition, acks, replicas = args
            mode = AckMode.of(acks)
            make = partial(
                msg.SetPartitionState,
                topic=topic,
                partition=partition,
                acks=mode,
                replicas=replicas,
            )
        elif kind == "create_partition":
            make = partial(msg.CreatePartition, topic=topic, partition=args[1])
        elif kind == "alter":
            make = partial(msg.AlterTopic, name=topic, config=args[1])
        elif kind == "reassign":
            make = partial(msg.Reassign, topic=topic, partition=args[1], replicas=tuple(args[2]))
        elif kind == "decommission":
            make = partial(msg.Decommission, broker=topic)
        elif kind == "describe":
            make = partial(msg.DescribeTopic, name=topic)
        elif kind == "create":
            _, acks, replicas = args
            make = partial(
                msg.CreateTopic,
                name=topic,
                partitions=("0",),
                replicas=replicas,
                acks=AckMode.of(acks),
                config={},
                exist_ok=True,
            )
        elif kind == "delete":
            make = partial(msg.DeleteTopic, name=topic)
        else:
            raise ValueError(f"no operation {kind!r}")
        self.admin(" ".join(map(str, step[1:])), make)
