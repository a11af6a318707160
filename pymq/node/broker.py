"""The broker: hosts partitions and coordinates groups; a machine like the ones inside it.

It never looks at all of its partitions. Those with something to write are in a set of dirty ones;
those with something to do later are in a heap of deadlines. So an idle partition costs nothing, and
all dirty ones of a turn share one write.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from pymq.core.group import GroupCoordinator, refusal
from pymq.core.membership import Assignors
from pymq.core.message import (
    Acquire,
    Answer,
    BrokerHeartbeat,
    CommitOffset,
    DescribePartitions,
    Fetch,
    Fetched,
    FindOffset,
    GetGroup,
    GetSequence,
    GroupNames,
    Heartbeat,
    Join,
    LeaderAndIsr,
    LeaderAndIsrAnswer,
    Leave,
    ListGroups,
    Message,
    OffsetFound,
    PartitionReports,
    Ping,
    Produce,
    Produced,
    RaftAppend,
    RaftAppended,
    RaftSnapshot,
    RaftTimeout,
    RaftVote,
    RaftVoted,
    RegisterBroker,
    ReplicaFetch,
    ReplicaFetched,
    Replication,
    Seal,
    Sequence,
    Settle,
    Stopped,
    StopReplica,
)
from pymq.core.metadata import PartitionState
from pymq.core.partition import NEVER, Partition
from pymq.core.ready import (
    Compacted,
    Ready,
    Recovered,
    RecoverFailed,
    RemoveBlock,
    StoreEvent,
    TimeFound,
    WriteFailed,
)
from pymq.core.replicator import ReplicationConfig, ReplicatorFactory
from pymq.core.types import OFFSETS_TOPIC, BlockId, Rng, TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import (
    NotController,
    NotLeader,
    NotRegistered,
    PymqError,
    StaleControllerEpoch,
    StaleEpoch,
    UnknownPartition,
)
from pymq.hash.partitioner import key_partition
from pymq.node.peers import Peers

REGISTER_RETRY_MS = 1_000
CONTROLLER_RETRY_MS = 50


@define
class BrokerConfig:
    """Who a broker is, and how it keeps in touch with its zkserver."""

    name: str
    controllers: tuple[str, ...]  # the zkservers, of which one is active
    endpoint: str = ""
    rack: str | None = None
    weight: int = 1
    storage_id: str = ""
    incarnation: int = 0  # rises with each start
    heartbeat_ms: int = 0  # 0: the zkserver lives in this very process
    wall_offset_ms: int = 0  # wall clock minus monotonic clock
    replication: ReplicationConfig = Factory(ReplicationConfig)


class Broker:
    """One broker, as a machine."""

    def __init__(
        self,
        config: BrokerConfig,
        make_replicator: ReplicatorFactory,
        assignors: Assignors,
        rng: Rng,
        found: Iterable[BlockId],
        unsealed: Iterable[BlockId],
        now: int,
    ) -> None:
        self.me = config.name
        self.storage_id = config.storage_id
        self.incarnation = config.incarnation
        self.rng = rng
        self.replication = config.replication
        self.out = Ready()
        self.deadline = NEVER
        self._peers = Peers(config.incarnation, config.replication, rng)
        self._sharing: dict[str, dict[Partition, None]] = {}  # by peer
        self._shared_with: dict[Partition, tuple[str, ...]] = {}
        # The blocks that were there at the start, by topic id and index, until they are taken up.
        self._left: dict[tuple[str, int], list[int]] = {}
        for block in found:
            self._left.setdefault((block.topic_id, block.partition), []).append(block.number)
        self._unsealed = frozenset(unsealed)
        self._config = config
        self._make_replicator = make_replicator
        self._assignors = assignors
        self._controller = config.controllers[0]
        self._controller_epoch = -1
        self._partitions: dict[TopicPartition, Partition] = {}
        self._by_index: dict[tuple[str, int], Partition] = {}  # by topic id and index
        self._coordinators: dict[int, GroupCoordinator] = {}
        self._offsets_partitions = 1
        self._dirty: dict[Partition, None] = {}
        self._flushed: list[Partition] = []
        self._due: list[tuple[int, int, Partition]] = []  # deadlines, perhaps out of date
        self._armed: dict[Partition, int] = {}  # the earliest of each in the heap
        self._armings = 0
        self._tokens = 0
        self._searches: dict[int, Partition] = {}
        self._is_busy = False
        self._heartbeat_at = NEVER
        self._is_registered = False
        self._register(now)

    # --- host of partitions and coordinators ----------------------------------------------------

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        return now + self._config.wall_offset_ms

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer, to another machine or to a group coordinator of this broker."""
        if source.startswith("#"):
            self._to_coordinator(int(source[1:]), message, now)
        else:
            self.out.send.append((source, message))

    def tell_controller(self, message: Message) -> None:
        """Send something to the active zkserver."""
        self.out.send.append((self._controller, message))

    def send(self, peer: str, message: Message) -> None:
        """Send something to another broker."""
        self.out.send.append((peer, message))

    def is_alive(self, peer: str) -> bool:
        """Whether another broker has been heard of lately."""
        return self._peers.is_alive(peer)

    def has_failed(self, peer: str, block: BlockId) -> bool:
        """Whether another broker says that it cannot act on an open block."""
        return self._peers.has_failed(peer, block)

    def shares(self, partition: Partition, now: int) -> None:
        """The open block of *partition* may be shared with other brokers than before."""
        before, after = self._shared_with.get(partition, ()), partition.peers
        if before == after:
            return
        self._shared_with[partition] = after
        for peer in before:
            self._sharing[peer].pop(partition, None)
        for peer in after:
            self._sharing.setdefault(peer, {})[partition] = None
        self._peers.share(before, after, now)

    def role_changed(self, partition: Partition, now: int) -> None:
        """The replica here has begun or ceased to lead: groups are taken over or handed over."""
        log = partition.log
        if log is not None:
            if partition.problem is not None:
                self._peers.failed[log.name] = None
            else:
                self._peers.failed.pop(log.name, None)
        if partition.name.topic == OFFSETS_TOPIC:
            self._offsets_partitions = partition.state.siblings
            self._leadership_changed(partition, now)

    def offsets_step(self, index: int, message: Produce | Fetch, now: int) -> None:
        """Hand a coordinator's request to its partition."""
        partition = self._partitions[TopicPartition(OFFSETS_TOPIC, str(index))]
        if isinstance(message, Produce):
            partition.produce(f"#{index}", message, now)
        else:
            partition.fetch(f"#{index}", message, now)
        self._touch(partition)

    def _to_coordinator(self, index: int, message: Message, now: int) -> None:
        coordinator = self._coordinators.get(index)
        if coordinator is not None and isinstance(message, (Fetched, Produced)):
            coordinator.step("", message, now)

    def _touch(self, partition: Partition) -> None:
        if partition.is_dirty:
            self._dirty[partition] = None
        self._arm(partition)

    def _arm(self, partition: Partition) -> None:
        due = partition.deadline
        if due < self._armed.get(partition, NEVER):
            self._armed[partition] = due
            self._armings += 1
            heappush(self._due, (due, self._armings, partition))
            self.deadline = min(self.deadline, due)

    # --- the four verbs -------------------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in one message."""
        match message:
            case Produce() | Fetch() | GetSequence() | FindOffset():
                self._on_partition(source, message, now)
            case (
                Acquire() | Settle() | Heartbeat() | Join() | Leave() | CommitOffset() | GetGroup()
            ):
                self._on_group(source, message, now)
            case Fetched():  # asked for by a coordinator of this broker
                self._to_coordinator(int(message.partition), message, now)
            case (
                RaftAppend()
                | RaftAppended()
                | RaftVote()
                | RaftVoted()
                | RaftTimeout()
                | RaftSnapshot()
                | ReplicaFetch()
                | ReplicaFetched()
            ):
                self._replicate(source, message, now)
            case Ping():
                self._pinged(source, message, now)
            case LeaderAndIsr():
                self._leader_and_isr(source, message, now)
            case Seal():
                self._seal(message, now)
            case StopReplica():
                self._stop_replica(source, message, now)
            case ListGroups():
                names = sorted(name for c in self._coordinators.values() for name in c.groups)
                self.reply(source, GroupNames(message.id, tuple(names)), now)
            case DescribePartitions():
                found = [self._partitions.get(TopicPartition(*n)) for n in message.partitions]
                reports = tuple(partition.report() for partition in found if partition)
                self.reply(source, PartitionReports(message.id, reports), now)
            case Answer(error=NotController() as error):
                self._other_controller(source, error, now)
            case Answer(error=NotRegistered()):
                self._controller, self._is_registered = source, False
                self._register(now)
            case _:
                return  # Not a broker's to answer; a peer that sends it is of another version.
        self._rearm()

    def stored(self, event: StoreEvent, now: int) -> None:
        """Take in what the store has to say."""
        if isinstance(event, TimeFound):
            partition = self._searches.pop(event.token, None)
            if partition is not None:
                partition.found(event, now)
        elif isinstance(event, Compacted):
            partition = self._partitions.get(TopicPartition(event.topic, event.partition))
            if partition is not None:
                partition.compacted(event, now)
        else:
            partition = self._find(event.block)
            if partition is not None:
                self._block_event(partition, event, now)
        if partition is not None:
            self._touch(partition)
        self._rearm()

    def _block_event(
        self, partition: Partition, event: Recovered | RecoverFailed | WriteFailed, now: int
    ) -> None:
        if isinstance(event, Recovered):
            partition.recovered(event, now)
        elif isinstance(event, RecoverFailed):
            partition.recover_failed(event, now)
        else:
            partition.write_failed(event, now)

    def tick(self, now: int) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= now:
            due, _, partition = heappop(self._due)
            if self._armed.get(partition) != due:
                continue  # An earlier deadline took its place.
            del self._armed[partition]
            if partition.deadline <= now:
                partition.tick(now)
            self._touch(partition)
        for coordinator in self._coordinators.values():
            if coordinator.deadline <= now:
                coordinator.tick(now)
        if now >= self._heartbeat_at:
            self._beat(now)
        if now >= self._peers.deadline:
            pings, gone = self._peers.tick(now)
            self.out.send += pings
            for peer in gone:
                self._peer_changed(peer, now)
        self._rearm()

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work, merged; only one Ready is out at a time."""
        if self._is_busy:
            return None
        if self._coordinators:
            for coordinator in self._coordinators.values():
                if coordinator.is_dirty:
                    coordinator.flush(now)
        if self._dirty:
            for partition in self._dirty:
                if partition.is_dirty:
                    partition.flush(self.out, now)
                    self._flushed.append(partition)
                    self._arm(partition)
            self._dirty.clear()
        if not self.out:
            return None
        out, self.out, self._is_busy = self.out, Ready(), True
        return out

    def advance(self, ready: Ready, now: int) -> None:
        """The Ready is done: what it wrote is durable, but for what has failed before."""
        self._is_busy = False
        flushed, self._flushed = self._flushed, []
        for partition in flushed:
            partition.advance(now)
            self._touch(partition)
        self._rearm()

    def _rearm(self) -> None:
        due = self._due[0][0] if self._due else NEVER
        for coordinator in self._coordinators.values():
            due = min(due, coordinator.deadline)
        self.deadline = min(due, self._heartbeat_at, self._peers.deadline)

    # --- clients --------------------------------------------------------------------------------

    def _on_partition(
        self, source: str, m: Produce | Fetch | GetSequence | FindOffset, now: int
    ) -> None:
        partition = self._partitions.get(TopicPartition(m.topic, m.partition))
        if partition is None:
            self._unknown(source, m, now)
            return
        if isinstance(m, Produce):
            partition.produce(source, m, now)
        elif isinstance(m, Fetch):
            partition.fetch(source, m, now)
        elif isinstance(m, GetSequence):
            partition.sequence(source, m, now)
        else:
            self._tokens += 1
            self._searches[self._tokens] = partition
            partition.find(source, m, now, self._tokens)
        self._touch(partition)

    def _unknown(
        self, source: str, m: Produce | Fetch | GetSequence | FindOffset, now: int
    ) -> None:
        error = NotLeader(f"{self.me} does not host {m.topic}/{m.partition}", leader=None)
        if isinstance(m, Produce):
            self.reply(source, Produced(m.id, error=error), now)
        elif isinstance(m, Fetch):
            answer = Fetched(m.id, m.topic, m.partition, m.offset, 0, 0, b"", error)
            self.reply(source, answer, now)
        elif isinstance(m, GetSequence):
            self.reply(source, Sequence(m.id, error=error), now)
        else:
            self.reply(source, OffsetFound(m.id, error=error), now)

    def _on_group(
        self,
        source: str,
        m: Acquire | Settle | Heartbeat | Join | Leave | CommitOffset | GetGroup,
        now: int,
    ) -> None:
        index = key_partition(m.group.encode(), self._offsets_partitions)
        coordinator = self._coordinators.get(index)
        if coordinator is None:
            error = NotLeader(f"{self.me} does not coordinate group {m.group!r}", leader=None)
            self.reply(source, refusal(m, error), now)
            return
        coordinator.step(source, m, now)

    # --- other brokers --------------------------------------------------------------------------

    def _replicate(self, source: str, m: Replication, now: int) -> None:
        partition = self._find(m.block)
        if partition is not None:
            partition.replicate(source, m, now)
            self._touch(partition)

    def _pinged(self, source: str, m: Ping, now: int) -> None:
        if self._peers.heard(source, m, now):
            self._peer_changed(source, now)

    def _peer_changed(self, peer: str, now: int) -> None:
        for partition in list(self._sharing.get(peer, ())):
            partition.peer_changed(peer, now)
            self._touch(partition)

    # --- the zkserver ---------------------------------------------------------------------------

    def _other_controller(self, source: str, error: NotController, now: int) -> None:
        """*source* is not the active zkserver; it may know who is."""
        active = error.details.get("controller")
        if isinstance(active, str) and active != self._controller:
            self._controller, self._is_registered = active, False
            self._register(now)
        elif source == self._controller and not self._is_registered:
            names = self._config.controllers
            index = names.index(source) if source in names else -1
            self._controller = names[(index + 1) % len(names)]
            self._heartbeat_at = min(self._heartbeat_at, now + CONTROLLER_RETRY_MS)

    def _register(self, now: int) -> None:
        c = self._config
        register = RegisterBroker(
            0, c.name, c.endpoint, c.rack, c.weight, c.storage_id, c.incarnation
        )
        self.tell_controller(register)
        # Until the zkserver answers, try again; afterwards only say that we are alive.
        self._heartbeat_at = now + REGISTER_RETRY_MS

    def _beat(self, now: int) -> None:
        if not self._is_registered:
            names = self._config.controllers
            index = names.index(self._controller) if self._controller in names else -1
            self._controller = names[(index + 1) % len(names)]  # Who was asked last is silent.
            self._register(now)
        elif self._config.heartbeat_ms:
            # Heard by all: should the active one be gone, another says so.
            beat = BrokerHeartbeat(self.me, self._config.incarnation)
            self.out.send += [(name, beat) for name in self._config.controllers]
            self._heartbeat_at = now + self._config.heartbeat_ms
        else:
            self._heartbeat_at = NEVER

    def _leader_and_isr(self, source: str, m: LeaderAndIsr, now: int) -> None:
        if m.incarnation != self._config.incarnation:
            return  # It was meant for the one that ran here before.
        if m.controller_epoch < self._controller_epoch:
            error = StaleControllerEpoch(
                f"controller epoch {m.controller_epoch} was replaced by {self._controller_epoch}"
            )
            self.reply(source, LeaderAndIsrAnswer(m.id, self.me, error=error), now)
            return
        self._controller, self._controller_epoch = m.controller, m.controller_epoch
        self._is_registered = True
        errors = [(s.topic, s.partition, self._adopt(s, now)) for s in m.partitions]
        self.reply(source, LeaderAndIsrAnswer(m.id, self.me, tuple(errors)), now)
        self._beat(now)

    def _adopt(self, state: PartitionState, now: int) -> PymqError | None:
        name = TopicPartition(state.topic, state.partition)
        if not any(self.me in block.replicas for block in state.blocks):
            return UnknownPartition(f"{self.me} is no replica of {name}")
        partition = self._partitions.get(name)
        if partition is not None and partition.state.topic_id != state.topic_id:
            self._drop(partition, NotLeader(f"{name} was made anew", leader=None), True, now)
            partition = None
        if partition is None:
            key = state.topic_id, state.index
            left = self._left.pop(key, [])
            unsealed = frozenset(n for n in left if BlockId(*key, n) in self._unsealed)
            partition = Partition(state, self, self._make_replicator, unsealed, now)
            self._partitions[name] = partition
            self._by_index[state.topic_id, state.index] = partition
            self.shares(partition, now)
        elif (state.epoch, state.version) < (partition.state.epoch, partition.state.version):
            return StaleEpoch(f"{name} is at epoch {partition.state.epoch}")
        else:
            partition.adopt(state, self._controller_epoch, now)
        self._touch(partition)
        return None

    def _leadership_changed(self, partition: Partition, now: int) -> None:
        """Take over or hand over the groups of an offsets partition."""
        state, leads = partition.state, partition.leads
        coordinator = self._coordinators.get(state.index)
        if leads and coordinator is None:
            self._tokens += 1
            coordinator = GroupCoordinator(
                state.index, self, self._assignors, now, self._tokens << 32
            )
            self._coordinators[state.index] = coordinator
            coordinator.begin(now)
        elif not leads and coordinator is not None:
            del self._coordinators[state.index]
            coordinator.resign(NotLeader("the coordinator has moved", leader=partition.leader), now)

    def _seal(self, m: Seal, now: int) -> None:
        partition = self._partitions.get(TopicPartition(m.topic, m.partition))
        if partition is not None and m.controller_epoch >= self._controller_epoch:
            partition.seal(m, now)
            self._touch(partition)

    def _stop_replica(self, source: str, m: StopReplica, now: int) -> None:
        """Give up a partition, or all that is left of a topic, and say so once it is durable."""
        if m.controller_epoch < self._controller_epoch:
            return
        if m.partition:
            found = self._by_index.get((m.topic_id, m.index))
            stopped = [found] if found is not None and found.state.epoch <= m.epoch else []
            if found is not None and not stopped:
                return  # It was given to this broker again since.
        else:
            stopped = [p for (topic, _), p in self._by_index.items() if topic == m.topic_id]
        for partition in stopped:
            error = NotLeader(f"{partition.name} is no longer here", leader=None)
            self._drop(partition, error, m.delete, now)
        if m.delete:
            left = [key for key in self._left if key[0] == m.topic_id]
            for key in left if not m.partition else [(m.topic_id, m.index)]:
                for number in self._left.pop(key, ()):
                    self.out.write.append(RemoveBlock(BlockId(*key, number)))
            if not m.partition:  # Else it has only gone to other brokers.
                for coordinator in self._coordinators.values():
                    coordinator.forget_topic(m.topic, now)
        self.out.after.append((source, Stopped(m.id, self.me)))

    def _drop(self, partition: Partition, error: PymqError, delete: bool, now: int) -> None:
        partition.remove(error, delete, now)
        state = partition.state
        self.shares(partition, now)  # with nobody any more
        self._shared_with.pop(partition, None)
        if state.topic == OFFSETS_TOPIC:
            self._leadership_changed(partition, now)
        self._partitions.pop(partition.name, None)
        self._by_index.pop((state.topic_id, state.index), None)
        self._dirty.pop(partition, None)
        self._armed.pop(partition, None)

    def _find(self, block: BlockId) -> Partition | None:
        return self._by_index.get((block.topic_id, block.partition))

    # --- leaving --------------------------------------------------------------------------------

    def shut_down(self, now: int) -> None:
        """Keep what spares the next start work; the last Ready holds it."""
        for partition in self._partitions.values():
            partition.checkpoint()
