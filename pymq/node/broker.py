"""The broker: hosts partitions and coordinates groups; a machine like the ones inside it.

It never looks at all of its partitions. Those with something to write are in a set of dirty ones;
those with something to do later are in a heap of deadlines. So an idle partition costs nothing, and
all dirty ones of a turn share one write.
"""

from __future__ import annotations

from heapq import heappop, heappush

from pymq.core.group import Assignors, GroupCoordinator, refusal
from pymq.core.message import (
    Acquire,
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
    Produce,
    Produced,
    RegisterBroker,
    Seal,
    Sequence,
    Settle,
    StopReplica,
)
from pymq.core.metadata import PartitionState
from pymq.core.partition import NEVER, Partition
from pymq.core.ready import (
    Compacted,
    Ready,
    Recovered,
    RecoverFailed,
    StoreEvent,
    TimeFound,
    WriteFailed,
)
from pymq.core.replicator import ReplicatorFactory
from pymq.core.types import OFFSETS_TOPIC, BlockId, TopicPartition
from pymq.core.values import define
from pymq.errors import (
    NotLeader,
    PymqError,
    StaleControllerEpoch,
    StaleEpoch,
    UnknownPartition,
)
from pymq.hash.partitioner import key_partition

REGISTER_RETRY_MS = 1_000


@define
class BrokerConfig:
    """Who a broker is, and how it keeps in touch with its zkserver."""

    name: str
    controller: str  # address of a zkserver
    endpoint: str = ""
    rack: str | None = None
    weight: int = 1
    storage_id: str = ""
    incarnation: int = 0  # rises with each start
    heartbeat_ms: int = 0  # 0: the zkserver lives in this very process
    wall_offset_ms: int = 0  # wall clock minus monotonic clock


class Broker:
    """One broker, as a machine."""

    def __init__(
        self,
        config: BrokerConfig,
        make_replicator: ReplicatorFactory,
        assignors: Assignors,
        now: int,
    ) -> None:
        self.me = config.name
        self.out = Ready()
        self.deadline = NEVER
        self._config = config
        self._make_replicator = make_replicator
        self._assignors = assignors
        self._controller = config.controller
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
            case LeaderAndIsr():
                self._leader_and_isr(source, message, now)
            case Seal():
                self._seal(message, now)
            case StopReplica():
                self._stop_replica(message, now)
            case ListGroups():
                names = sorted(name for c in self._coordinators.values() for name in c.groups)
                self.reply(source, GroupNames(message.id, tuple(names)), now)
            case DescribePartitions():
                found = [self._partitions.get(TopicPartition(*n)) for n in message.partitions]
                reports = tuple(partition.report() for partition in found if partition)
                self.reply(source, PartitionReports(message.id, reports), now)
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
        self.deadline = min(due, self._heartbeat_at)

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

    # --- the zkserver ---------------------------------------------------------------------------

    def _register(self, now: int) -> None:
        c = self._config
        register = RegisterBroker(
            0, c.name, c.endpoint, c.rack, c.weight, c.storage_id, c.incarnation
        )
        self.tell_controller(register)
        # Until the zkserver answers, try again; afterwards only say that we are alive.
        self._heartbeat_at = now + REGISTER_RETRY_MS

    def _beat(self, now: int) -> None:
        if self._controller_epoch < 0:
            self._register(now)
        elif self._config.heartbeat_ms:
            self.tell_controller(BrokerHeartbeat(self.me, self._config.incarnation))
            self._heartbeat_at = now + self._config.heartbeat_ms
        else:
            self._heartbeat_at = NEVER

    def _leader_and_isr(self, source: str, m: LeaderAndIsr, now: int) -> None:
        if m.controller_epoch < self._controller_epoch:
            error = StaleControllerEpoch(
                f"controller epoch {m.controller_epoch} was replaced by {self._controller_epoch}"
            )
            self.reply(source, LeaderAndIsrAnswer(m.id, self.me, error=error), now)
            return
        self._controller, self._controller_epoch = m.controller, m.controller_epoch
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
            partition = Partition(state, self, self._make_replicator, now)
            self._partitions[name] = partition
            self._by_index[state.topic_id, state.index] = partition
        elif state.epoch < partition.state.epoch:
            return StaleEpoch(f"{name} is at epoch {partition.state.epoch}")
        else:
            partition.adopt(state, now)
        self._touch(partition)
        if state.topic == OFFSETS_TOPIC:
            self._offsets_partitions = state.siblings
            self._leadership_changed(state, now)
        return None

    def _leadership_changed(self, state: PartitionState, now: int) -> None:
        """Take over or hand over the groups of an offsets partition."""
        leads = state.leader == self.me
        coordinator = self._coordinators.get(state.index)
        if leads and coordinator is None:
            self._coordinators[state.index] = GroupCoordinator(
                state.index, self, self._assignors, now
            )
        elif not leads and coordinator is not None:
            del self._coordinators[state.index]
            coordinator.resign(NotLeader("the coordinator has moved", leader=state.leader), now)

    def _seal(self, m: Seal, now: int) -> None:
        partition = self._partitions.get(TopicPartition(m.topic, m.partition))
        if partition is not None and m.controller_epoch >= self._controller_epoch:
            partition.seal(m, now)
            self._touch(partition)

    def _stop_replica(self, m: StopReplica, now: int) -> None:
        partition = self._partitions.get(TopicPartition(m.topic, m.partition))
        if (
            partition is None
            or m.controller_epoch < self._controller_epoch
            or partition.state.topic_id != m.topic_id
            or partition.state.epoch > m.epoch
        ):
            return  # A late request must not touch what was made since.
        error = NotLeader(f"{partition.name} is no longer here", leader=None)
        self._drop(partition, error, m.delete, now)
        if m.delete:
            for coordinator in self._coordinators.values():
                coordinator.forget_topic(m.topic, now)

    def _drop(self, partition: Partition, error: PymqError, delete: bool, now: int) -> None:
        partition.remove(error, delete, now)
        state = partition.state
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
