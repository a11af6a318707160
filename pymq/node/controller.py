"""The zkserver: owns topics, partitions and blocks; a machine like the broker.

It knows the tree as an :class:`~pymq.node.image.Image`, and changes it by one conditional commit at
a time: plan on the image, commit, adopt. A commit that loses a race is planned again on what the
tree has become. Nothing that matters is kept outside the tree, so any zkserver can go on where
another stopped.

Every change of a partition is a roll: seal the open block, commit its end together with the next
block, tell the brokers. See :class:`Roll`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from enum import Enum

import attrs

from pymq.coord import paths
from pymq.core.coordination import (
    Changed,
    Committed,
    Conflicted,
    CoordEvent,
    Load,
    Loaded,
    SessionExpired,
    Uncertain,
)
from pymq.core.message import (
    AlterTopic,
    Answer,
    BlockSizes,
    BrokerHeartbeat,
    CreatePartition,
    CreateTopic,
    Decommission,
    DeleteTopic,
    DescribeCluster,
    DescribePartitions,
    DescribeTopic,
    GetMetadata,
    InitProducer,
    LeaderAndIsr,
    LeaderAndIsrAnswer,
    ListTopics,
    Locate,
    Message,
    PartitionReport,
    PartitionReports,
    Progress,
    Reassign,
    RegisterBroker,
    Result,
    RetireBlocks,
    RollWanted,
    Seal,
    Sealed,
    SetPartitionState,
    StopReplica,
    Subscribe,
    Unsubscribe,
)
from pymq.core.metadata import (
    BlockDescription,
    BrokerDescription,
    BrokerNode,
    ClusterDescription,
    ControllerEpoch,
    ControllerNode,
    PartitionDescription,
    PartitionState,
    TopicDescription,
)
from pymq.core.ready import Ready
from pymq.core.types import OFFSETS_TOPIC, AckMode, TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import (
    InvalidRequest,
    NotController,
    NotEnoughBrokers,
    PymqError,
    StaleEpoch,
    UnknownTopic,
)
from pymq.node import plans
from pymq.node.image import Draft, Image, TopicImage
from pymq.node.plans import Wanted

NEVER = 1 << 62
SEAL_RETRY_MS = 500
DESCRIBE_WAIT_MS = 2_000


@define
class ControllerConfig:
    """Who a zkserver is, and how it treats brokers."""

    name: str
    endpoint: str = ""
    session_ms: int = 0  # a broker is dead when silent for longer; 0: it lives in this process
    offsets_partitions: int = 8
    offsets_replicas: int = 1
    wall_offset_ms: int = 0


@define
class Live:
    """A broker that is registered and alive."""

    incarnation: int
    until: int


@define
class Roll:
    """A roll under way: the open block is being sealed for what is *wanted* next.

    It is asked for again until the leader answers, and every step of it can be repeated by another
    zkserver: sealing twice does nothing, and the commit holds once.
    """

    topic: str
    partition: str
    block: int
    epoch: int
    leader: str
    wanted: Wanted
    replicas: int
    retry_at: int
    waiting: list[tuple[str, int]] = Factory(list)  # who asked for it


@define
class Describing:
    """A description that waits for what only the leaders know."""

    source: str
    request: int
    topic: str
    missing: set[str]
    until: int
    reports: dict[str, PartitionReport] = Factory(dict)


class Later(Enum):
    """What a plan returns when its answer comes later."""

    ANSWER = 0


@define
class Task:
    """Something to be planned; planned again when its commit loses a race."""

    source: str
    request: int
    plan: Callable[[Draft], Result | Later]
    then: Callable[[], None] | None = None  # once it is committed


class Controller:
    """One zkserver, as a machine. *new_id* gives a fresh topic id of 32 hex digits at each call."""

    def __init__(self, config: ControllerConfig, new_id: Callable[[], str], now: int) -> None:
        self.me = config.name
        self.out = Ready()
        self.deadline = NEVER
        self.is_active = False
        self.image = Image()
        self._config = config
        self._new_id = new_id
        self._live: dict[str, Live] = {}
        self._tasks: deque[Task] = deque()
        self._committing: tuple[int, Task, Draft, Result | Later] | None = None
        self._rolls: dict[TopicPartition, Roll] = {}
        self._describing: dict[int, Describing] = {}
        self._parked: list[tuple[str, Message]] = []  # until the image is loaded
        self._tag = 0
        self._requests = 0
        self._loading = True
        self._is_busy = False
        self._load()

    # --- the four verbs -------------------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in one message."""
        if not self.is_active:
            if self._loading:
                self._parked.append((source, message))
            else:
                self._refuse(source, message)
            return
        self._step(source, message, now)
        self._pump(now)
        self._rearm()

    def decided(self, event: CoordEvent, now: int) -> None:
        """Take in what the coordinator has to say."""
        match event:
            case Loaded():
                self._loaded(event, now)
            case Committed() | Conflicted() | Uncertain():
                self._settle(event, now)
            case SessionExpired():
                self._resign()
            case Changed(path=path) if path == paths.controller() and not self.is_active:
                self._load()
            case _:
                pass  # Changes of our own come back as hints.
        self._pump(now)
        self._rearm()

    def tick(self, now: int) -> None:
        """Do what is due."""
        for roll in self._rolls.values():
            if roll.retry_at <= now:
                self._send_seal(roll, now)
        for key, describing in list(self._describing.items()):
            if describing.until <= now:
                self._described(key, describing)
        for name in [name for name, live in self._live.items() if live.until <= now]:
            del self._live[name]
        self._pump(now)
        self._rearm()

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work; only one Ready is out at a time."""
        if self._is_busy or not self.out:
            return None
        out, self.out, self._is_busy = self.out, Ready(), True
        return out

    def advance(self, ready: Ready, now: int) -> None:
        """The Ready is done."""
        self._is_busy = False

    def _rearm(self) -> None:
        due = NEVER
        for roll in self._rolls.values():
            due = min(due, roll.retry_at)
        for describing in self._describing.values():
            due = min(due, describing.until)
        for live in self._live.values():
            due = min(due, live.until)
        self.deadline = due

    # --- taking over ----------------------------------------------------------------------------

    def _load(self) -> None:
        self._loading = True
        self._tag += 1
        self.out.meta.append(Load(self._tag, "/"))

    def _loaded(self, event: Loaded, now: int) -> None:
        if event.tag != self._tag:
            return
        self._loading = False
        self.image = Image.load(event.entries)
        if self.is_active:
            self._pump(now)
        elif self.image.controller is None:
            self._tasks.appendleft(Task("", 0, self._take_over, lambda: self._active(now)))
        else:
            self._refuse_parked()

    def _take_over(self, draft: Draft) -> Result:
        """Become the active zkserver, at the next controller epoch, or find that another has."""
        plans.folders(draft)
        config, epoch = self._config, draft.image.controller_epoch + 1
        draft.create(
            paths.controller(), ControllerNode(config.name, config.endpoint), ephemeral=True
        )
        path = paths.controller_epoch()
        if path in draft.image.versions:
            draft.put(path, ControllerEpoch(epoch))
        else:
            draft.create(path, ControllerEpoch(epoch))
        return None

    def _active(self, now: int) -> None:
        self.is_active = True
        parked, self._parked = self._parked, []
        for source, message in parked:
            self._step(source, message, now)

    def _resign(self) -> None:
        """The session is gone, and with it the right to decide anything."""
        self.is_active = False
        self._rolls.clear()
        self._tasks.clear()
        self._committing = None
        self._load()

    def _refuse_parked(self) -> None:
        parked, self._parked = self._parked, []
        for source, message in parked:
            self._refuse(source, message)

    def _refuse(self, source: str, message: Message) -> None:
        active = self.image.controller
        error = NotController(
            f"{self.me} is not the active zkserver", endpoint=active.endpoint if active else None
        )
        request = getattr(message, "id", 0)
        if request:
            self.out.send.append((source, Answer(request, error=error)))

    # --- tasks: plan, commit, adopt -------------------------------------------------------------

    def _pump(self, now: int) -> None:
        """Plan the next task; there is one commit at a time."""
        while self._tasks and self._committing is None and not self._loading:
            task = self._tasks.popleft()
            draft = Draft(self.image)
            try:
                result = task.plan(draft)
            except PymqError as error:
                self._answer(task, None, error)
                continue
            if not draft.ops:
                self._done(task, result)
                continue
            self._tag += 1
            self._committing = (self._tag, task, draft, result)
            self.out.meta.append(draft.commit(self._tag))

    def _settle(self, event: Committed | Conflicted | Uncertain, now: int) -> None:
        if self._committing is None or self._committing[0] != event.tag:
            return
        _, task, draft, result = self._committing
        self._committing = None
        if isinstance(event, Committed):
            draft.adopt(event.versions)
            self._done(task, result)
        else:
            # Another zkserver has changed the tree, or nobody knows: plan on what it is now.
            self._tasks.appendleft(task)
            self._load()

    def commit_failed(self, tag: int, error: PymqError, now: int) -> None:
        """The backend could not carry the commit out, and nothing is changed."""
        if self._committing is not None and self._committing[0] == tag:
            task, self._committing = self._committing[1], None
            self._answer(task, None, error)
        self._pump(now)
        self._rearm()

    def _done(self, task: Task, result: Result | Later) -> None:
        if task.then is not None:
            task.then()
        if not isinstance(result, Later):
            self._answer(task, result, None)

    def _answer(self, task: Task, result: Result, error: PymqError | None) -> None:
        if task.request:
            self.out.send.append((task.source, Answer(task.request, result, error)))

    def _do(
        self,
        source: str,
        request: int,
        plan: Callable[[Draft], Result | Later],
        then: Callable[[], None] | None = None,
    ) -> None:
        self._tasks.append(Task(source, request, plan, then))

    # --- requests -------------------------------------------------------------------------------

    def _step(self, source: str, m: Message, now: int) -> None:
        match m:
            case GetMetadata():
                self._metadata(source, m, now)
            case RollWanted():
                self._roll_wanted(m, now)
            case Sealed():
                self._on_sealed(m, now)
            case RegisterBroker():
                self._register(source, m, now)
            case BrokerHeartbeat():
                self._heartbeat(m, now)
            case RetireBlocks():
                self._do(
                    "", 0, lambda d: plans.retire(d, m), lambda: self._tell(m.topic, m.partition)
                )
            case BlockSizes():
                self._do(
                    "", 0, lambda d: plans.resize(d, m), lambda: self._tell(m.topic, m.partition)
                )
            case PartitionReports():
                self._on_reports(source, m)
            case LeaderAndIsrAnswer() | Progress():
                pass  # Ends are committed when a block is sealed; until then the leader knows them.
            case _:
                self._step_admin(source, m, now)

    def _step_admin(self, source: str, m: Message, now: int) -> None:
        match m:
            case CreateTopic():
                self._create_topic(source, m, now)
            case CreatePartition():
                self._do(
                    source,
                    m.id,
                    lambda d: plans.create_partition(d, m, self._live, self._wall(now)),
                    lambda: self._tell(m.topic, m.partition),
                )
            case DeleteTopic():
                self._delete_topic(source, m)
            case AlterTopic():
                self._do(
                    source, m.id, lambda d: plans.alter_topic(d, m), lambda: self._tell(m.name)
                )
            case SetPartitionState():
                self._set_state(source, m, now)
            case Reassign():
                self._reassign(source, m, now)
            case Decommission():
                self._decommission(source, m, now)
            case DescribeTopic():
                self._do(source, m.id, lambda d: self._describe(d, source, m, now))
            case ListTopics():
                self._do(source, m.id, self._list)
            case DescribeCluster():
                self._do(source, m.id, self._cluster)
            case Subscribe():
                self._do(source, m.id, lambda d: plans.subscribe(d, m))
            case Unsubscribe():
                path = paths.subscription(m.topic, m.name)
                self._do(source, m.id, lambda d: d.delete(path))
            case Locate():
                self._do(source, m.id, lambda d: plans.locate(d.image, m, self._live))
            case InitProducer():
                self._do(source, m.id, lambda d: plans.next_producer_epoch(d, m.name))
            case _:
                pass  # Not a zkserver's to answer.

    def _wall(self, now: int) -> int:
        return now + self._config.wall_offset_ms

    # --- topics ---------------------------------------------------------------------------------

    def _metadata(self, source: str, m: GetMetadata, now: int) -> None:
        if m.topic == OFFSETS_TOPIC and OFFSETS_TOPIC not in self.image.topics:
            # The internal topic is made when the first group needs it, as in Kafka.
            c = self._config
            replicas = min(c.offsets_replicas, max(1, len(self._live)))
            self._create_topic("", plans.offsets_topic(0, c.offsets_partitions, replicas), now)
        self._do(source, m.id, lambda d: plans.metadata(d.image, m.topic, self._live))

    def _create_topic(self, source: str, m: CreateTopic, now: int) -> None:
        topic_id, wall_ms = self._new_id(), self._wall(now)
        made: list[bool] = []

        def plan(draft: Draft) -> Result:
            if m.exist_ok and m.name in draft.image.topics:
                return False
            plans.create_topic(draft, m, self._live, topic_id, wall_ms)
            made.append(True)
            return True

        self._do(source, m.id, plan, lambda: self._tell(m.name) if made else None)

    def _delete_topic(self, source: str, m: DeleteTopic) -> None:
        deleted: list[TopicImage] = []

        def plan(draft: Draft) -> Result:
            if plans.is_internal(m.name):
                raise InvalidRequest(f"topic {m.name!r} is pymq's own and cannot be deleted")
            topic = draft.image.topic(m.name)
            # What is to be told to the brokers, as it was before the commit takes it away.
            partitions = {
                name: attrs.evolve(image, blocks=dict(image.blocks), replicas=dict(image.replicas))
                for name, image in topic.partitions.items()
            }
            deleted[:] = [attrs.evolve(topic, partitions=partitions)]
            plans.delete_topic(draft, topic)
            return None

        self._do(source, m.id, plan, lambda: self._stop(deleted[0]))

    def _stop(self, topic: TopicImage) -> None:
        for partition in topic.partitions.values():
            name = TopicPartition(topic.node.name, partition.node.name)
            self._rolls.pop(name, None)
            brokers = {broker for _, broker in partition.replicas}
            hosts = brokers | {b for block in partition.blocks.values() for b in block.replicas}
            for broker in sorted(hosts):
                stop = StopReplica(
                    self._request(),
                    self.image.controller_epoch,
                    name.topic,
                    topic.node.id,
                    name.partition,
                    partition.node.epoch,
                    True,
                )
                self.out.send.append((broker, stop))

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def _list(self, draft: Draft) -> Result:
        return tuple(sorted(name for name in draft.image.topics if not plans.is_internal(name)))

    def _cluster(self, draft: Draft) -> Result:
        image = draft.image
        leads = Counter(
            partition.open_block.leader
            for topic in image.topics.values()
            for partition in topic.partitions.values()
        )
        brokers = tuple(
            BrokerDescription(b.name, b.endpoint, b.rack, b.name in self._live, leads[b.name])
            for _, b in sorted(image.brokers.items())
        )
        shown = [t for name, t in image.topics.items() if not plans.is_internal(name)]
        partitions = sum(len(topic.partitions) for topic in shown)
        return ClusterDescription(self.me, image.controller_epoch, brokers, len(shown), partitions)

    # --- describing -----------------------------------------------------------------------------

    def _describe(self, draft: Draft, source: str, m: DescribeTopic, now: int) -> Later:
        """Collect what only the leaders know, then answer."""
        topic = draft.image.topic(m.name)
        by_leader: dict[str, list[tuple[str, str]]] = {}
        for name, partition in topic.partitions.items():
            leader = partition.open_block.leader
            if leader is not None and leader in self._live:
                by_leader.setdefault(leader, []).append((m.name, name))
        key = self._request()
        describing = Describing(source, m.id, m.name, set(by_leader), now + DESCRIBE_WAIT_MS)
        self._describing[key] = describing
        for leader, names in by_leader.items():
            self.out.send.append((leader, DescribePartitions(key, tuple(names))))
        if not by_leader:
            self._described(key, describing)
        return Later.ANSWER

    def _on_reports(self, source: str, m: PartitionReports) -> None:
        describing = self._describing.get(m.id)
        if describing is None:
            return
        describing.missing.discard(source)
        describing.reports.update((report.partition, report) for report in m.reports)
        if not describing.missing:
            self._described(m.id, describing)

    def _described(self, key: int, describing: Describing) -> None:
        del self._describing[key]
        topic = self.image.topics.get(describing.topic)
        if topic is None:
            gone = UnknownTopic(f"topic {describing.topic!r} was deleted")
            self.out.send.append((describing.source, Answer(describing.request, error=gone)))
            return
        partitions = tuple(
            _description(topic.state(name), describing.reports.get(name))
            for name in topic.partitions
        )
        description = TopicDescription(describing.topic, topic.node.config, partitions)
        self.out.send.append((describing.source, Answer(describing.request, description)))

    # --- brokers --------------------------------------------------------------------------------

    def _register(self, source: str, m: RegisterBroker, now: int) -> None:
        node = BrokerNode(m.name, m.endpoint, m.rack, m.weight, m.storage_id)

        def plan(draft: Draft) -> Result:
            path, known = paths.broker(m.name), draft.image.brokers.get(m.name)
            if known is None:
                draft.create(path, node)
            elif known != node:
                draft.put(path, node)
            return None

        self._do("", 0, plan, lambda: self._registered(m, now))

    def _registered(self, m: RegisterBroker, now: int) -> None:
        session = self._config.session_ms
        self._live[m.name] = Live(m.incarnation, now + session if session else NEVER)
        states = tuple(
            topic.state(name)
            for topic in self.image.topics.values()
            for name, partition in topic.partitions.items()
            if any(m.name in block.replicas for block in partition.blocks.values())
        )
        self._send_states(m.name, states, full=True)

    def _heartbeat(self, m: BrokerHeartbeat, now: int) -> None:
        live = self._live.get(m.name)
        if live is not None and live.incarnation == m.incarnation and self._config.session_ms:
            live.until = now + self._config.session_ms

    def _send_states(
        self, broker: str, states: tuple[PartitionState, ...], *, full: bool = False
    ) -> None:
        epoch = self.image.controller_epoch
        message = LeaderAndIsr(self._request(), self.me, epoch, states, full)
        self.out.send.append((broker, message))

    def _tell(self, topic: str, partition: str | None = None) -> None:
        """Tell the brokers of a topic, or of one partition, what they are to host now."""
        image = self.image.topics.get(topic)
        if image is None:
            return
        by_broker: dict[str, list[PartitionState]] = {}
        for name in image.partitions if partition is None else (partition,):
            state = image.state(name)
            hosts = {broker for block in state.blocks for broker in block.replicas}
            for broker in sorted(hosts):
                by_broker.setdefault(broker, []).append(state)
        for broker, states in by_broker.items():
            self._send_states(broker, tuple(states))

    # --- rolls ----------------------------------------------------------------------------------

    def _set_state(self, source: str, m: SetPartitionState, now: int) -> None:
        def plan(draft: Draft) -> Result | Later:
            plans.check_mode(m.acks)
            image = draft.image.partition(m.topic, m.partition)
            node, block = image.node, image.open_block
            replicas = m.replicas or node.replicas
            same_size = m.replicas is None or m.replicas == len(block.replicas)
            if node.acks is m.acks and same_size:
                return False
            if node.acks is AckMode.UNSET:
                wanted = self._choose(draft, m.topic, m.partition, m.acks, replicas)
                plans.open_first(draft, m.topic, m.partition, wanted, replicas, self._wall(now))
                return True
            if AckMode.RAFT not in (node.acks, m.acks) and same_size:
                plans.change_acks(draft, m.topic, m.partition, m.acks)
                return True
            wanted = Wanted(m.acks, block.replicas)
            if not same_size:
                wanted = self._choose(draft, m.topic, m.partition, m.acks, replicas)
            return self._start_roll(m.topic, m.partition, wanted, replicas, now, (source, m.id))

        self._do(source, m.id, plan, lambda: self._tell(m.topic, m.partition))

    def _choose(
        self, draft: Draft, topic: str, partition: str, acks: AckMode, replicas: int
    ) -> Wanted:
        load = plans.Load(draft.image, self._live)
        chosen = plans.choose(draft.image, self._live, load, topic, partition, replicas)
        return Wanted(acks, chosen)

    def _reassign(self, source: str, m: Reassign, now: int) -> None:
        def plan(draft: Draft) -> Result | Later:
            image = draft.image.partition(m.topic, m.partition)
            away = [name for name in m.replicas if name not in self._live]
            if away or not m.replicas:
                raise NotEnoughBrokers(f"not alive: {', '.join(away) or 'no broker was named'}")
            if image.open_block.replicas == m.replicas:
                return False
            wanted, count = Wanted(image.node.acks, m.replicas), len(m.replicas)
            return self._start_roll(m.topic, m.partition, wanted, count, now, (source, m.id))

        self._do(source, m.id, plan)

    def _decommission(self, source: str, m: Decommission, now: int) -> None:
        def plan(draft: Draft) -> Result:
            if m.broker not in draft.image.brokers:
                raise InvalidRequest(f"there is no broker {m.broker!r}")
            rest = {name: live for name, live in self._live.items() if name != m.broker}
            load, wanted = plans.Load(draft.image, rest), []
            for topic in draft.image.topics.values():
                for name, image in topic.partitions.items():
                    if m.broker in image.open_block.replicas:
                        count = len(image.open_block.replicas)
                        chosen = plans.choose(draft.image, rest, load, topic.node.name, name, count)
                        wanted.append((topic.node.name, name, Wanted(image.node.acks, chosen)))
            for topic_name, name, want in wanted:  # only now: nothing starts unless all can
                self._start_roll(topic_name, name, want, len(want.replicas), now, None)
            return len(wanted)

        self._do(source, m.id, plan)

    def _roll_wanted(self, m: RollWanted, now: int) -> None:
        def plan(draft: Draft) -> Result:
            topic = draft.image.topics.get(m.topic)
            image = topic.partitions.get(m.partition) if topic else None
            if image is None or image.open_block.number != m.block or image.node.epoch != m.epoch:
                return None
            wanted = Wanted(image.node.acks, image.open_block.replicas)
            self._start_roll(m.topic, m.partition, wanted, image.node.replicas, now, None)
            return None

        self._do("", 0, plan)

    def _start_roll(
        self,
        topic: str,
        partition: str,
        wanted: Wanted,
        replicas: int,
        now: int,
        caller: tuple[str, int] | None,
    ) -> Later:
        image = self.image.partition(topic, partition)
        name, block = TopicPartition(topic, partition), image.open_block
        roll = self._rolls.get(name)
        if roll is None:
            assert block.leader is not None, f"{name} has an ack mode and no leader"
            roll = Roll(
                topic,
                partition,
                block.number,
                image.node.epoch + 1,
                block.leader,
                wanted,
                replicas,
                now,
            )
            self._rolls[name] = roll
            self._send_seal(roll, now)
        elif caller is not None:
            # What an administrator wants goes before a roll by size or age that is under way.
            roll.wanted, roll.replicas = wanted, replicas
        if caller is not None:
            roll.waiting.append(caller)
        return Later.ANSWER

    def _send_seal(self, roll: Roll, now: int) -> None:
        epoch = self.image.controller_epoch
        seal = Seal(epoch, roll.topic, roll.partition, roll.block, roll.epoch)
        self.out.send.append((roll.leader, seal))
        roll.retry_at = now + SEAL_RETRY_MS

    def _on_sealed(self, m: Sealed, now: int) -> None:
        name = TopicPartition(m.topic, m.partition)
        roll = self._rolls.get(name)
        if roll is None or (roll.block, roll.epoch) != (m.block, m.epoch):
            return
        if m.error is not None:
            self._end_roll(name, m.error)
            return
        roll.retry_at = NEVER  # From here on it is the commit that is waited for.

        def plan(draft: Draft) -> Result:
            try:
                plans.roll(draft, m, roll.wanted, roll.replicas, self._wall(now))
            except (StaleEpoch, UnknownTopic) as error:
                self._end_roll(name, error)
            return None

        def then() -> None:
            self._tell(m.topic, m.partition)
            self._end_roll(name, None)

        self._do("", 0, plan, then)

    def _end_roll(self, name: TopicPartition, error: PymqError | None) -> None:
        roll = self._rolls.pop(name, None)
        for source, request in roll.waiting if roll is not None else ():
            self.out.send.append((source, Answer(request, None if error else True, error)))


def _description(state: PartitionState, report: PartitionReport | None) -> PartitionDescription:
    blocks = tuple(
        BlockDescription(
            block.name,
            block.start,
            block.end,
            block.epoch,
            block.acks,
            block.leader,
            block.replicas,
            block.size if block.end is not None or report is None else report.size,
        )
        for block in state.blocks
    )
    last = state.blocks[-1]
    end = report.end if report is not None else last.start
    return PartitionDescription(
        state.partition,
        state.index,
        state.acks,
        state.leader,
        state.epoch,
        last.replicas,
        report.in_sync if report is not None and report.in_sync else last.in_sync,
        state.blocks[0].start,
        end,
        report.high_watermark if report is not None else end,
        blocks,
    )
