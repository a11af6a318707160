"""The broker: hosts partitions and coordinates groups; a machine like the ones inside it.

It never looks at all of its partitions, only at those with something to do (:mod:`~.schedule`); all
that have something to write share one write a turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pymq.core.journal import Journal
from pymq.core.marks import mark
from pymq.core.membership import Assignors
from pymq.core.message import (
    Acquire,
    Answer,
    CommitOffset,
    DescribePartitions,
    Fetch,
    Fetched,
    FindOffset,
    GetGroup,
    GetLeases,
    GetSequence,
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
    ReplicaFetch,
    ReplicaFetched,
    Replication,
    RetireBlocks,
    Seal,
    Sequence,
    Settle,
    Stopped,
    StopReplica,
)
from pymq.core.metadata import PartitionState
from pymq.core.partition import Partition
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
from pymq.core.replicator import ReplicatorFactory
from pymq.core.types import NEVER, OFFSETS_TOPIC, BlockId, Rng, TopicPartition
from pymq.errors import (
    InvalidRequest,
    NotController,
    NotLeader,
    NotRegistered,
    PymqError,
    StaleControllerEpoch,
    StaleEpoch,
    StoreError,
    UnknownPartition,
)
from pymq.node.coordinators import Coordinators
from pymq.node.departure import Departure, hand_over
from pymq.node.orders import Orders
from pymq.node.peers import Peers
from pymq.node.registration import BrokerConfig, Registration
from pymq.node.schedule import Schedule


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
        journal: Journal | None = None,
    ) -> None:
        self.me = config.name
        self.journal = journal or Journal()
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
        self._registration = Registration(config)
        self._departure = Departure(config.name, config.incarnation)
        self._partitions: dict[tuple[str, str], Partition] = {}  # by topic and partition
        self._by_index: dict[tuple[str, int], Partition] = {}  # by topic id and index
        self._led: dict[TopicPartition, None] = {}
        self._coordinators = Coordinators(self.me, self, assignors)
        self._schedule = Schedule()
        self._orders = Orders()
        self._flushed: list[Partition] = []
        self._tokens = 0
        self._searches: dict[int, Partition] = {}
        self._is_busy = False
        self._registration.register(self.out, now)

    # --- what others look at --------------------------------------------------------------------

    @property
    def partitions(self) -> Mapping[tuple[str, str], Partition]:
        """What it hosts, by topic and partition."""
        return self._partitions

    @property
    def coordinators(self) -> Coordinators:
        """The groups that it coordinates."""
        return self._coordinators

    # --- host of partitions and coordinators ----------------------------------------------------

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        return now + self._config.wall_offset_ms

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer, to another machine or to a group coordinator of this broker."""
        if source.startswith("#"):
            self._coordinators.answered(int(source[1:]), message, now)
        else:
            self.out.send.append((source, message))

    def tell_controller(self, message: Message) -> None:
        """Send something to the active zkserver."""
        self.out.send.append((self._registration.controller, message))

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
        self._note_unable(partition)
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
        self._note_role(partition)
        self._note_unable(partition)
        if partition.name.topic == OFFSETS_TOPIC:
            self._coordinators.leadership_changed(partition, now)

    def _note_role(self, partition: Partition) -> None:
        """Let people know whether it is led here, and whether it can be."""
        name = partition.name
        if partition.leads != (name in self._led):
            if partition.leads:
                self._led[name] = None
                self.journal.note("partition_led", **name._asdict(), epoch=partition.epoch)
            else:
                del self._led[name]
                self.journal.note("partition_not_led", **name._asdict())
        if isinstance(partition.problem, StoreError):
            self.journal.note("partition_failed", **name._asdict(), why=str(partition.problem))

    def _note_unable(self, partition: Partition) -> None:
        """Let the other replicas know whether this broker can act on the open block."""
        key, block = (partition.state.topic_id, partition.state.index), partition.unable
        if block is not None:
            self._peers.failed[key] = block
        else:
            self._peers.failed.pop(key, None)

    def offsets_step(
        self, index: int, message: Produce | Fetch, now: int, holder: str | None = None
    ) -> None:
        """Hand a coordinator's request to its partition, or send it to another broker's."""
        if holder is not None:
            self.send(holder, message)
            return
        partition = self._partitions[OFFSETS_TOPIC, str(index)]
        if isinstance(message, Produce):
            partition.produce(f"#{index}", message, now)
        else:
            partition.fetch(f"#{index}", message, now)
        self._schedule.touch(partition)

    def offsets_end(self, index: int) -> int:
        """Where the log of a coordinator's partition ends."""
        return self._partitions[OFFSETS_TOPIC, str(index)].opened.end

    def offsets_since(self, index: int, offset: int) -> None:
        """All that counts of a coordinator's partition is at *offset* and behind it."""
        state = self._partitions[OFFSETS_TOPIC, str(index)].state
        kept = max(block.number for block in state.blocks if block.start <= offset)
        if kept > state.blocks[0].number:
            self.tell_controller(RetireBlocks(state.topic, state.partition, state.epoch, kept))

    # --- the four verbs -------------------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in one message."""
        match message:  # in the order of how many there are: each case is looked at in turn
            case Produce() | Fetch() | GetSequence() | FindOffset():
                self._on_partition(source, message, now)
            case Ping():
                self._pinged(source, message, now)
            case (
                RaftAppend()
                | RaftAppended()
                | ReplicaFetch()
                | ReplicaFetched()
                | RaftVote()
                | RaftVoted()
                | RaftTimeout()
                | RaftSnapshot()
            ):
                self._replicate(source, message, now)
            case (
                Acquire()
                | Settle()
                | Heartbeat()
                | Join()
                | Leave()
                | CommitOffset()
                | GetGroup()
                | GetLeases()
            ):
                self._coordinators.step(source, message, now)
            case Fetched():  # asked for by a coordinator of this broker
                self._coordinators.answered(int(message.partition), message, now)
            case LeaderAndIsr():
                self._leader_and_isr(source, message, now)
            case Seal():
                self._seal(message, now)
            case StopReplica():
                self._stop_replica(source, message, now)
            case ListGroups():
                self.reply(source, self._coordinators.list(message), now)
            case DescribePartitions():
                found = [self._partitions.get(TopicPartition(*n)) for n in message.partitions]
                reports = tuple(partition.report() for partition in found if partition)
                self.reply(source, PartitionReports(message.id, reports), now)
            case Answer(error=NotController() as error):
                self._registration.other(source, error, self.out, now)
            case Answer(error=NotRegistered()):
                self._registration.unknown(source, self.out, now)
            case Answer():
                self._departure.answered(message)
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
            partition = self._partitions.get((event.topic, event.partition))
            if partition is not None:
                partition.compacted(event, now)
        else:
            partition = self._find(event.block)
            if partition is not None:
                self._block_event(partition, event, now)
        if partition is not None:
            self._schedule.touch(partition)
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
        for partition in self._schedule.due(now):
            if partition.deadline <= now:
                partition.tick(now)
            self._schedule.touch(partition)
        self._coordinators.tick(now)
        if now >= self._registration.deadline:
            self._registration.beat(self.out, now)
        if now >= self._departure.deadline:
            self._hand_over(now)
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
        if self._coordinators.by_index:
            self._coordinators.flush(now)
        if dirty := self._schedule.dirty:
            for partition in dirty:
                if partition.is_dirty:
                    partition.flush(self.out, now)
                    self._flushed.append(partition)
                    self._schedule.arm(partition)
            dirty.clear()
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
            self._schedule.touch(partition)
        self._rearm()

    def _rearm(self) -> None:
        due = min(
            self._schedule.deadline,
            self._registration.deadline,
            self._peers.deadline,
            self._departure.deadline,
        )
        if self._coordinators.by_index:
            due = min(due, self._coordinators.deadline)
        self.deadline = due

    # --- clients --------------------------------------------------------------------------------

    def _on_partition(
        self, source: str, m: Produce | Fetch | GetSequence | FindOffset, now: int
    ) -> None:
        partition = self._partitions.get((m.topic, m.partition))
        if partition is None:
            self._unknown(source, m, now)
            return
        if isinstance(m, Produce):
            if m.topic == OFFSETS_TOPIC:
                error = InvalidRequest("only coordinators write the offsets of groups")
                self.reply(source, Produced(m.id, error=error), now)
            else:
                partition.produce(source, m, now)
        elif isinstance(m, Fetch):
            partition.fetch(source, m, now)
        elif isinstance(m, GetSequence):
            partition.sequence(source, m, now)
        else:
            self._tokens += 1
            self._searches[self._tokens] = partition
            partition.find(source, m, now, self._tokens)
        self._schedule.touch(partition)

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

    # --- other brokers --------------------------------------------------------------------------

    def _replicate(self, source: str, m: Replication, now: int) -> None:
        partition = self._find(m.block)
        if partition is not None:
            partition.replicate(source, m, now)
            self._schedule.touch(partition)

    def _pinged(self, source: str, m: Ping, now: int) -> None:
        if self._peers.heard(source, m, now):
            self._peer_changed(source, now)

    def _peer_changed(self, peer: str, now: int) -> None:
        for partition in list(self._sharing.get(peer, ())):
            partition.peer_changed(peer, now)
            self._schedule.touch(partition)

    # --- the zkserver ---------------------------------------------------------------------------

    def _leader_and_isr(self, source: str, m: LeaderAndIsr, now: int) -> None:
        if m.incarnation != self._config.incarnation:
            return  # It was meant for the one that ran here before.
        if m.controller_epoch < self._registration.epoch:
            error = StaleControllerEpoch(
                f"controller epoch {m.controller_epoch} was replaced by {self._registration.epoch}"
            )
            self.reply(source, LeaderAndIsrAnswer(m.id, self.me, error=error), now)
            return
        if m.controller_epoch > self._registration.epoch:
            self._orders.forget()
        self._registration.heard(m)
        errors = [(s.topic, s.partition, self._adopt(m.id, s, now)) for s in m.partitions]
        self.reply(source, LeaderAndIsrAnswer(m.id, self.me, tuple(errors)), now)
        self._registration.beat(self.out, now)

    def _adopt(self, request: int, state: PartitionState, now: int) -> PymqError | None:
        name = TopicPartition(state.topic, state.partition)
        if self._orders.is_late(request, state.topic_id, name):
            mark("broker.late_state")
            return StaleEpoch(f"{name} was given up, or is at a later state")
        if not any(self.me in block.replicas for block in state.blocks):
            return UnknownPartition(f"{self.me} is no replica of {name}")
        self._orders.heed(request, name)
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
            partition.adopt(state, self._registration.epoch, now)
        self._schedule.touch(partition)
        return None

    def _seal(self, m: Seal, now: int) -> None:
        partition = self._partitions.get((m.topic, m.partition))
        if partition is not None and m.controller_epoch >= self._registration.epoch:
            partition.seal(m, now)
            self._schedule.touch(partition)

    def _stop_replica(self, source: str, m: StopReplica, now: int) -> None:
        """Give up a partition, or all that is left of a topic, and say so once it is durable."""
        if m.controller_epoch < self._registration.epoch:
            return
        if m.partition:
            found = self._by_index.get((m.topic_id, m.index))
            stopped = [found] if found is not None and found.state.epoch <= m.epoch else []
            if found is not None and not stopped:
                return  # It was given to this broker again since.
            self._orders.heed(m.id, TopicPartition(m.topic, m.partition))
        else:
            if self._orders.heed(m.id, m.topic_id):
                # When it is said again, there may be another topic of that name.
                self._coordinators.forget_topic(m.topic, now)
            stopped = [p for (topic, _), p in self._by_index.items() if topic == m.topic_id]
        for partition in stopped:
            error = NotLeader(f"{partition.name} is no longer here", leader=None)
            self._drop(partition, error, m.delete, now)
        if m.delete:
            left = [key for key in self._left if key[0] == m.topic_id]
            for key in left if not m.partition else [(m.topic_id, m.index)]:
                for number in self._left.pop(key, ()):
                    self.out.write.append(RemoveBlock(BlockId(*key, number)))
        self.out.after.append((source, Stopped(m.id, self.me)))

    def _drop(self, partition: Partition, error: PymqError, delete: bool, now: int) -> None:
        partition.remove(error, delete, now)
        state = partition.state
        self.shares(partition, now)  # with nobody any more
        self._shared_with.pop(partition, None)
        # Nobody asks after it any more.
        self._peers.failed.pop((state.topic_id, state.index), None)
        if state.topic == OFFSETS_TOPIC:
            self._coordinators.leadership_changed(partition, now)
        self._partitions.pop(partition.name, None)
        self._by_index.pop((state.topic_id, state.index), None)
        self._schedule.drop(partition)

    def _find(self, block: BlockId) -> Partition | None:
        return self._by_index.get((block.topic_id, block.partition))

    # --- leaving --------------------------------------------------------------------------------

    def leave(self, now: int, within_ms: int) -> None:
        """Hand over what is led here, as far as that goes *within_ms*; see :attr:`has_left`."""
        is_needed = any(partition.peers for partition in self._partitions.values())
        self._departure.begin(now, within_ms if is_needed else 0)
        self._rearm()

    @property
    def has_left(self) -> bool:
        """Whether nothing is left to be handed over, or there is no more time for it."""
        return self._departure.is_over

    def _hand_over(self, now: int) -> None:
        ask = self._departure.ask(now)
        if ask is not None:
            self.tell_controller(ask)
            for partition in hand_over(self._partitions.values(), now):
                self._schedule.touch(partition)

    def shut_down(self, now: int) -> None:
        """Keep what spares the next start work; the last Ready holds it."""
        for partition in self._partitions.values():
            partition.checkpoint()
