"""What simulated applications do: send, read, consume in groups, administrate; and what came of it.

They use the machines of the real client, not its handles, since nobody may wait inside of the
simulation. Each value that is sent is of its own and can be told from its number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pymq.client.delivery import RECORD_BYTES, Delivery
from pymq.client.intake import Intake
from pymq.client.reader import Reader
from pymq.client.router import Call, Router
from pymq.client.sender import Queue, Sender, SenderConfig
from pymq.client.worker import Worker, WorkerConfig
from pymq.core import message as msg
from pymq.core.header import NO_PRODUCER
from pymq.core.message import BEGIN, Message
from pymq.core.record import Record
from pymq.core.types import AckMode
from pymq.core.values import Factory, define
from pymq.errors import OffsetOutOfRange, PymqError
from pymq.testing.cluster import Cluster
from pymq.testing.driver import SimDriver
from pymq.testing.nodes import ClientHost
from pymq.testing.plan import Step
from pymq.testing.world import WALL_MS

_PATTERN = bytes(range(256)) * 16
ADMIN_MS = 8_000  # how long an application waits for the answer to an administrator's request


def value_of(number: int, size: int) -> bytes:
    """The value that stands for a number: nobody else sends it, and damage to it shows."""
    head = b"%d:" % number
    first = number * 31 & 0xFF
    if first + size > len(_PATTERN):
        return head + (_PATTERN[first:] * (size // 256 + 1))[:size]
    return head + _PATTERN[first : first + size]


def number_of(value: bytes) -> int | None:
    """The number that a value stands for; None if it is not one of ours, or damaged."""
    head, _, rest = value.partition(b":")
    if not head.isdigit() or value_of(int(head), len(rest)) != value:
        return None
    return int(head)


@define
class Sent:
    """A record that an application has sent, and what became of it."""

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

    @property
    def is_acked(self) -> bool:
        """Whether its application was told where it is."""
        return self.offset >= 0


@define
class History:
    """What applications have done and seen."""

    sent: list[Sent] = Factory(list)
    reads: int = 0
    processed: dict[tuple[str, str, str, int], int] = Factory(dict)  # group, topic, partition, at
    admin: list[tuple[int, str, str]] = Factory(list)  # (when, what, outcome)

    @property
    def pending(self) -> int:
        """Records of which their application has not heard yet."""
        return sum(1 for sent in self.sent if sent.done_at < 0)


class App:
    """One process of an application."""

    def __init__(
        self,
        cluster: Cluster,
        host: ClientHost,
        history: History,
        config: dict[str, Any],
        fail: Callable[[str, str], None],
    ) -> None:
        self.cluster = cluster
        self.host = host
        self.name = host.name
        self.history = history
        self.config = config
        self.world = cluster.world
        self.readers: list[Reading] = []
        self.workers: list[Working] = []
        self.fail = fail
        self.rng = self.world.rng("app", host.name, host.incarnation)
        self.driver = SimDriver(host, 0.0)
        self.loop = self.driver.loop
        # No process is ever answered what one before it has asked: real ones have addresses anew.
        self.address = f"{self.name}.{host.incarnation}"
        self.router = Router(
            self.address, list(cluster.zkservers), lambda: self.loop.touch(self.address)
        )
        self._queues: dict[tuple[str, str], Queue] = {}
        self._made = 0
        self.is_idempotent = bool(config.get("idempotent", True))
        acks = config.get("acks")
        self.acks = None if acks is None else AckMode.of(acks)
        self.sender = Sender(
            f"{self.address}.p", self.router, self.driver, self._sender_config(), self._wall_ms
        )
        with self.driver as loop:
            loop.add(self.address, self.router)
            loop.add(self.sender.name, self.sender)

    def _wall_ms(self) -> int:
        return WALL_MS + self.world.now // 1000

    def _sender_config(self) -> SenderConfig:
        c = self.config
        producer = self.rng.getrandbits(62) if self.is_idempotent else NO_PRODUCER
        return SenderConfig(
            self.acks,
            c.get("linger_ms", 5),
            c.get("batch_bytes", 1 << 18),
            64 << 20,
            0,
            producer,
            0,
            c.get("delivery_timeout_ms", 20_000),
            c.get("max_in_flight", 5),
        )

    @property
    def is_up(self) -> bool:
        """Whether its process is this one still."""
        return self.host.loop is self.loop

    # --- sending --------------------------------------------------------------------------------

    def send(self, topic: str, partition: str, count: int, size: int) -> None:
        """Send some records."""
        name = (topic, partition)
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = Queue(self.sender, topic, partition)
        for _ in range(count):
            number = len(self.history.sent)
            sent = Sent(
                number, self.name, topic, partition, self.acks, self.is_idempotent, self.world.now
            )
            self.history.sent.append(sent)
            delivery = Delivery(queue, value_of(number, size), None)
            queue.items.append(delivery)
            queue.bytes += size + RECORD_BYTES
            self.sender.buffered += size + RECORD_BYTES
            self.sender.on_done(delivery, partial(self._answered, delivery, sent))
        if not queue.is_armed:
            queue.is_armed = True
            self.sender.armed.append((self.loop.clock() + self.config.get("linger_ms", 5), queue))
        if queue.bytes >= self.config.get("batch_bytes", 1 << 18):
            self.sender.full.append(queue)
        self.driver.push(self.sender.name)
        self.driver.arm(0)

    def _answered(self, delivery: Delivery, sent: Sent) -> None:
        sent.done_at = self.world.now
        sent.error = delivery.exception()
        if sent.error is None:
            sent.offset = delivery.result().offset

    # --- consuming ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to consume what it is to consume."""
        for topic in self.config.get("readers", ()):
            self.read(topic)
        for topic, group in self.config.get("groups", ()):
            self.work(topic, group)

    def read(self, topic: str, then: Callable[[], None] | None = None) -> None:
        """Read all of a topic's partitions from the beginning."""

        def begin() -> None:
            known = self.router.topics.get(topic)
            if known is not None and self.is_up:
                names = [p.partition for p in known.partitions]
                self.readers.append(Reading(self, self._reader(topic, names)))

        self.meet(topic, begin)

    def _reader(self, topic: str, names: list[str]) -> Reader:
        return Reader(self._next("r"), topic, self.router, self.driver, names, BEGIN)

    def work(self, topic: str, group: str) -> None:
        """Be a member of a group."""
        config = WorkerConfig(group, "sticky", self.config.get("ack_wait_ms", 30_000), 0, BEGIN)

        def begin() -> None:
            if self.is_up:
                name = self._next("w")
                worker = Worker(name, topic, self.router, self.driver, config, self._member)
                self.workers.append(Working(self, worker))

        self.ask(lambda r: msg.Subscribe(r, group, topic, "ptp", group), lambda call: None)
        self.meet(topic, begin)

    def _member(self) -> str:
        return self.rng.randbytes(8).hex()

    def _next(self, kind: str) -> str:
        self._made += 1
        return f"{self.address}.{kind}{self._made}"

    def meet(self, topic: str, then: Callable[[], None]) -> None:
        """Find out what partitions a topic has, then go on; tried until it is known."""

        def found(call: Call) -> None:
            if call.error is None:
                self.world.after(0, lambda a, b: then())
            else:
                self.world.after(200_000, lambda a, b: self.meet(topic, then))

        if self.is_up:
            self.ask(lambda r: msg.GetMetadata(r, topic), found)

    # --- administrating -------------------------------------------------------------------------

    def ask(self, make: Callable[[int], Message], then: Callable[[Call], None]) -> None:
        """Ask the active zkserver, and go on with what came of it."""
        with self.driver as loop:
            call = self.router.call(make, loop.clock(), ADMIN_MS)
            loop.touch(self.address)
        call.then(lambda: then(call))

    def admin(self, what: str, make: Callable[[int], Message]) -> None:
        """Ask for a change; what comes of it is written down."""

        def then(call: Call) -> None:
            outcome = type(call.error).__name__ if call.error is not None else "done"
            self.history.admin.append((self.world.now, what, outcome))

        self.ask(make, then)

    def do(self, step: Step) -> None:
        """Do one operation of a plan that is an administrator's."""
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
        else:
            raise ValueError(f"no operation {kind!r}")
        self.admin(" ".join(map(str, step[1:])), make)


class Consuming:
    """A consumer of an application: it takes what there is as soon as there is something."""

    def __init__(self, app: App, intake: Intake) -> None:
        self.app = app
        self.intake = intake
        self.topic = intake.topic
        with app.driver as loop:
            loop.add(intake.name, intake)
            intake.want(100, loop.clock())
            loop.touch(intake.name)
        self._wait()

    @property
    def is_up(self) -> bool:
        """Whether it still runs."""
        return self.app.is_up and self.intake.name in self.app.loop.machines

    def _wait(self) -> None:
        arrival = self.intake.arrival()
        arrival.then(lambda: self.app.world.after(self._pause(), self._poll))

    def _pause(self) -> int:
        return 100

    def _poll(self, _: object, __: object) -> None:
        if not self.is_up:
            return
        intake, records = self.intake, []
        if not intake.chunks and (problem := intake.take_problem()) is not None:
            self.trouble(problem)
        while intake.chunks:
            view = intake.chunks.popleft()
            intake.handed_out(view)
            records += view.records()
        self.take(records)
        with self.app.driver as loop:
            intake.want(100, loop.clock())
            loop.touch(intake.name)
        self._wait()

    def take(self, records: Sequence[Record]) -> None:
        """Here they are."""
        raise NotImplementedError

    def trouble(self, problem: PymqError) -> None:
        """This stands in the way."""

    def check(self, record: Record) -> int:
        """A record's number; it must be one that was sent there."""
        number = number_of(record.value)
        place = f"{record.topic}/{record.partition} at {record.offset}"
        sent = self.app.history.sent
        if number is None or number >= len(sent):
            self.app.fail("no-silent-corruption", f"{place} holds {record.value[:40]!r}")
            return -1
        if (sent[number].topic, sent[number].partition) != (record.topic, record.partition):
            self.app.fail("no-invention", f"{place} holds what was sent elsewhere")
        return number

    def stop(self) -> None:
        """End it without a word, as when it crashes."""
        if self.is_up:
            with self.app.driver as loop:
                loop.remove(self.intake.name)


class Reading(Consuming):
    """A reader of its own (PSB): it must see everything, in order, once."""

    def __init__(self, app: App, reader: Reader) -> None:
        self.next: dict[str, int] = {}  # the offset after the last record seen
        self.seen: dict[tuple[str, int], int] = {}  # numbers, by partition and offset
        self.reader = reader
        super().__init__(app, reader)

    def take(self, records: Sequence[Record]) -> None:
        for record in records:
            number = self.check(record)
            self.app.history.reads += 1
            following = self.next.get(record.partition, -1)
            if record.offset < following:
                place = f"{record.topic}/{record.partition}"
                self.app.fail(
                    "reads-in-order", f"{place}: {record.offset} came after {following - 1}"
                )
            self.next[record.partition] = record.offset + 1
            self.seen[record.partition, record.offset] = number

    def trouble(self, problem: PymqError) -> None:
        """Retention has overtaken it, or what it had read was lost: it begins anew."""
        if isinstance(problem, OffsetOutOfRange):
            for name in self.reader.cursors:
                self.reader.seek(name, BEGIN)
                self.reader.cursors[name].handed = -1
            self.next.clear()
            self.seen.clear()


class Working(Consuming):
    """A member of a group (PTP): it works on records for a while, then acknowledges them."""

    def __init__(self, app: App, worker: Worker) -> None:
        self.worker = worker
        super().__init__(app, worker)

    def _pause(self) -> int:
        return 50 + int(self.app.config.get("work_us", 1_000) * self.app.rng.random())

    def take(self, records: Sequence[Record]) -> None:
        config, rng = self.app.config, self.app.rng
        worker, group = self.worker, self.worker.config.group
        while worker.dead:
            view = worker.dead.popleft()
            self._ack(view.partition, (view.base_offset, view.end_offset))
        for record in records:
            self.check(record)
            dice = rng.random()
            if dice < config.get("forget", 0.0):
                continue
            if dice < config.get("forget", 0.0) + config.get("nack", 0.0):
                span = (record.offset, record.offset + 1)
                worker.settler.nacks.append((record.partition, span, rng.randrange(500)))
            else:
                key = (group, record.topic, record.partition, record.offset)
                processed = self.app.history.processed
                processed[key] = processed.get(key, 0) + 1
                self._ack(record.partition, record.offset)
        if not worker.settler.is_armed:
            worker.settler.arm(self.app.loop.clock())

    def _ack(self, partition: str, item: int | tuple[int, int]) -> None:
        self.worker.settler.acks.setdefault(partition, deque()).append(item)
