"""zkservers on a real coordinator and scripted brokers, in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pymq.controller.controller import Controller, ControllerConfig
from pymq.controller.state.image import Image, PartitionImage
from pymq.coord.memory import MemoryCoordinator, MemoryTree
from pymq.core.message import (
    Answer,
    BrokerHeartbeat,
    CreateTopic,
    LeaderAndIsr,
    LeaderAndIsrAnswer,
    Message,
    RegisterBroker,
    RollWanted,
    Seal,
    Sealed,
    SetPartitionState,
    Stopped,
    StopReplica,
)
from pymq.core.metadata.coordination import Commit, CoordRequest, Entry
from pymq.core.metadata.nodes import BlockNode, PartitionState
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import NotRegistered

M = TypeVar("M")
T0 = TopicPartition("t", "0")
SESSION_MS = 1_000


class Zk:
    """A process of a zkserver."""

    def __init__(self, cluster: Cluster, name: str, config: dict[str, Any]) -> None:
        self.name = name
        self.coordinator = MemoryCoordinator(cluster.tree, session=f"s-{name}-{cluster.count()}")
        self.machine = Controller(
            ControllerConfig(name, f"tcp://{name}", **config), cluster.new_id, cluster.now
        )
        self.is_up = True
        self.is_stopped = False  # the zkserver does not run, but its session lives
        self.commits: list[Commit] = []
        self.on_submit: Callable[[CoordRequest], bool] = lambda request: True
        self.effects = 0  # messages and requests that have left
        self.crash_before = 0  # the number of the effect before which the zkserver crashes

    def is_over(self) -> bool:
        """Count an effect; returns whether the process crashes before it."""
        self.effects += 1
        if self.effects == self.crash_before:
            self.is_up = False
        return not self.is_up


class Broker:
    """A broker that confirms all requests, unless a test changes that."""

    def __init__(self, name: str, incarnation: int = 1, storage: str = "") -> None:
        self.name = name
        self.incarnation = incarnation
        self.storage = storage or f"disk-{name}"
        self.is_up = True
        self.is_mute = False  # the zkserver receives messages, but sends none
        self.heard: list[Message] = []
        self.states: dict[TopicPartition, PartitionState] = {}
        self.ends: dict[TopicPartition, int] = {}  # the ends of the broker's copies of open blocks
        self.seals = True  # whether the broker answers Seal
        # the leader epochs that the broker reports in Sealed
        self.epochs: dict[TopicPartition, int] = {}
        self.holders: dict[TopicPartition, tuple[str, ...]] = {}
        self.unrolled: dict[TopicPartition, int] = {}  # blocks that this broker has sealed
        # the last epoch in the broker's copy of the block
        self.log_epochs: dict[TopicPartition, int] = {}

    def all(self, kind: type[M]) -> list[M]:
        return [m for m in self.heard if isinstance(m, kind)]

    def last(self, kind: type[M]) -> M:
        return self.all(kind)[-1]

    def registration(self) -> RegisterBroker:
        return RegisterBroker(
            0, self.name, f"tcp://{self.name}", None, 1, self.storage, self.incarnation
        )

    def react(self, m: Message) -> list[Message]:
        self.heard.append(m)
        if self.is_mute:
            return []
        match m:
            case LeaderAndIsr():
                self.states.update((TopicPartition(s.topic, s.partition), s) for s in m.partitions)
                for name in [TopicPartition(s.topic, s.partition) for s in m.partitions]:
                    if self.unrolled.get(name, 1 << 62) < self.states[name].blocks[-1].number:
                        del self.unrolled[name]
                errors = tuple((s.topic, s.partition, None) for s in m.partitions)
                return [LeaderAndIsrAnswer(m.id, self.name, errors)]
            case StopReplica():
                for name in list(self.states):
                    if self.states[name].topic_id == m.topic_id and m.partition in ("", name[1]):
                        del self.states[name]
                return [Stopped(m.id, self.name)]
            case Seal():
                return self.sealed(m) if self.seals else []
            case Answer(error=NotRegistered()):
                return [self.registration()]
            case _:
                return []

    def sealed(self, m: Seal) -> list[Message]:
        name = TopicPartition(m.topic, m.partition)
        state = self.states.get(name)
        if state is None or not (m.takeover or state.leader == self.name):
            return []
        if state.blocks[-1].number != m.block or not self.has_disk(state.blocks[-1]):
            return []
        self.unrolled[name] = m.block
        start = state.blocks[-1].start
        end = max(start, self.ends.get(name, start))
        holders = self.holders.get(name, state.blocks[-1].in_sync)
        return [
            Sealed(
                *name,
                m.block,
                m.epoch,
                self.name,
                end,
                10 * (end - start),
                end,
                () if m.takeover else holders,
                self.epochs.get(name, state.epoch),
                None,
                self.incarnation,
                epochs=((self.log_epochs.get(name, 0), start),),
                topic_id=state.topic_id,
            )
        ]

    def has_disk(self, block: BlockNode) -> bool:
        """Return whether the broker has the disk on which the block was created."""
        at = block.replicas.index(self.name)
        return not block.storages or block.storages[at] == self.storage


class Cluster:
    """All nodes, with a network that delivers in order and at once."""

    def __init__(self, brokers: int = 3, zks: int = 1, **config: Any) -> None:
        self.tree = MemoryTree()
        self._image: Image | None = None  # the image of the entries below
        self._entries: tuple[Entry, ...] = ()
        self.now = 0
        self.config = {"session_ms": SESSION_MS, **config}
        self.zks: dict[str, Zk] = {}
        self.brokers: dict[str, Broker] = {}
        self.wanted: tuple[str, ...] = ()  # the in-sync set that a test wants
        self.answers: dict[int, Answer] = {}
        self.refusals: list[tuple[str, Answer]] = []  # answers to brokers that contain errors
        self.dropped: Callable[[str, str, Message], bool] = lambda source, peer, message: False
        self._ids = self._counted = 0
        for index in range(zks):
            self.start_zk(f"zk-{index}")
        for index in range(brokers):
            self.start_broker(f"b{index}")
        self.pass_ms(SESSION_MS)  # from then on a silent broker counts as dead

    # --- what is there --------------------------------------------------------------------------

    def count(self) -> int:
        self._counted += 1
        return self._counted

    def new_id(self) -> str:
        return f"{self.count():032x}"

    def start_zk(self, name: str) -> Zk:
        zk = self.zks[name] = Zk(self, name, self.config)
        self.run()
        return zk

    def start_broker(self, name: str, incarnation: int = 1, storage: str = "") -> Broker:
        broker = Broker(name, incarnation, storage)
        old = self.brokers.get(name)
        if old is not None:
            broker.states, broker.ends = dict(old.states), dict(old.ends)
        self.brokers[name] = broker
        self.register(name)
        return broker

    def register(self, name: str) -> None:
        self.to_active(name, self.brokers[name].registration())

    def restart(self, name: str, storage: str = "") -> Broker:
        old = self.brokers[name]
        return self.start_broker(name, old.incarnation + 1, storage or old.storage)

    @property
    def active(self) -> Zk:
        (found,) = [zk for zk in self.zks.values() if zk.is_up and zk.machine.is_active]
        return found

    @property
    def image(self) -> Image:
        """The current tree, independent of any zkserver."""
        entries = self.tree.entries()
        if self._image is None or self._entries != entries:
            self._image, self._entries = Image.load(entries), entries
        return self._image

    def is_active(self, name: str) -> bool:
        return self.zks[name].machine.is_active

    def part(self, name: TopicPartition = T0) -> PartitionImage:
        return self.image.partition(*name)

    def open(self, name: TopicPartition = T0) -> BlockNode:
        return self.part(name).open_block

    # --- what happens ---------------------------------------------------------------------------

    def crash_zk(self, name: str) -> None:
        """End the process and its session."""
        zk = self.zks[name]
        zk.is_up = False
        zk.coordinator.suspend()
        self.tree.expire(zk.coordinator.session)
        self.run()

    def kill(self, name: str) -> None:
        """End a broker and its session."""
        self.brokers[name].is_up = False
        self.pass_ms(SESSION_MS + 1)

    def pass_ms(self, ms: int, step: int = 100) -> None:
        """Let time pass; brokers that are up send heartbeats."""
        until = self.now + ms
        while self.now < until:
            self.now = min(until, self.now + step)
            for broker in self.brokers.values():
                if broker.is_up and not broker.is_mute:
                    self._beat(broker)
            for zk in self.zks.values():
                if zk.is_up and not zk.is_stopped and zk.machine.deadline <= self.now:
                    zk.machine.tick(self.now)
            self.run()

    def _beat(self, broker: Broker) -> None:
        said: list[Message] = [BrokerHeartbeat(broker.name, broker.incarnation)]
        if self.now % 1_000 == 0:
            said += [RollWanted(*n, b, 0, "sealed") for n, b in broker.unrolled.items()]
        for zk in self.zks.values():
            if zk.is_up and zk.machine.is_active:
                for message in said:
                    zk.machine.step(broker.name, message, self.now)

    def run(self) -> None:
        """Run until no machine has work."""
        is_busy = True
        while is_busy:
            is_busy = False
            for zk in list(self.zks.values()):
                is_busy = self._turn(zk) or is_busy
            is_busy = is_busy or self._next_turn()

    def _next_turn(self) -> bool:
        """Continue work that exceeds one turn, a millisecond later.

        Returns whether any work is left.
        """
        zks = [zk for zk in self.zks.values() if zk.is_up and not zk.is_stopped]
        due = [zk for zk in zks if zk.machine.deadline == self.now + 1]
        self.now += bool(due)
        for zk in due:
            zk.machine.tick(self.now)
        return bool(due)

    def _turn(self, zk: Zk) -> bool:
        if not zk.is_up or zk.is_stopped:
            return False
        events = zk.coordinator.poll()
        for event in events:
            zk.machine.decided(event, self.now)
        ready = zk.machine.ready(self.now)
        if ready is None:
            return bool(events)
        for peer, message in ready.send:
            if zk.is_over():
                return True
            self._deliver(zk, peer, message)
        for request in ready.meta:
            if zk.is_over():
                return True
            if isinstance(request, Commit):
                zk.commits.append(request)
            if zk.on_submit(request):
                zk.coordinator.submit(request)
        zk.machine.advance(ready, self.now)
        return True

    def _deliver(self, zk: Zk, peer: str, message: Message) -> None:
        if self.dropped(zk.name, peer, message):
            return
        if peer in self.brokers:
            if isinstance(message, Answer):
                self.refusals.append((peer, message))
            broker = self.brokers[peer]
            if not broker.is_up:
                return
            for answer in broker.react(message):
                if not self.dropped(peer, zk.name, answer) and zk.is_up:
                    zk.machine.step(peer, answer, self.now)
        elif isinstance(message, Answer):
            self.answers[message.id] = message

    def to_active(self, source: str, message: Message) -> None:
        for zk in self.zks.values():
            if zk.is_up and zk.machine.is_active:
                zk.machine.step(source, message, self.now)
        self.run()

    def send(self, make: Callable[[int], Message], zk: str | None = None) -> int:
        """Send a request without waiting for the answer."""
        self._ids += 1
        machine = (self.zks[zk] if zk else self.active).machine
        machine.step("client", make(self._ids), self.now)
        self.run()
        return self._ids

    def ask(self, make: Callable[[int], Message]) -> Any:
        """Send a request; returns its result or raises its error."""
        answer = self.answers[self.send(make)]
        if answer.error is not None:
            raise answer.error
        return answer.result

    # --- shorthands -----------------------------------------------------------------------------

    def topic(
        self,
        acks: AckMode = AckMode.LEADER,
        replicas: int = 3,
        partitions: int = 1,
        name: str = "t",
        **config: Any,
    ) -> None:
        names = tuple(str(index) for index in range(partitions))
        self.ask(lambda i: CreateTopic(i, name, names, replicas, acks, config))

    def set_state(self, acks: AckMode, replicas: int | None = None) -> Any:
        return self.ask(lambda i: SetPartitionState(i, *T0, acks, replicas))

    def leader(self, name: TopicPartition = T0) -> str:
        leader = self.open(name).leader
        assert leader is not None
        return leader

    def followers(self, name: TopicPartition = T0) -> list[str]:
        return [b for b in self.open(name).replicas if b != self.leader(name)]

    def write(self, end: int, *brokers: str, name: TopicPartition = T0) -> None:
        """Set the ends of copies of the open block to *end*: all copies, or those of *brokers*."""
        for broker in brokers or self.open(name).replicas:
            self.brokers[broker].ends[name] = end


def crashes(
    start: Callable[[Cluster], Callable[[int], Message]],
) -> Iterator[tuple[Cluster, Callable[[int], Message], int]]:
    """Run the request of *start* on a zkserver, and crash before each of its effects in turn.

    Yields the cluster of each run, the request and the number of the effect. In the last run all
    effects happen, so its zkserver is up.
    """
    for point in itertools.count(1):
        cluster = Cluster(brokers=4, zks=2)
        make = start(cluster)
        zk = cluster.zks["zk-0"]
        zk.crash_before = zk.effects + point
        request = cluster.send(make)
        cluster.pass_ms(100)
        is_over = zk.is_up
        yield cluster, make, request
        if is_over:
            return
