"""The broker's machine: hosts partitions and coordinates groups.

It handles only the partitions that have something to do (:mod:`~pymq.broker.hosting.schedule`). All
partitions that write share one write a turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from pymq.access.node_refusals import Refusals
from pymq.broker.batch_copies import COPIES, BatchCopies
from pymq.broker.end_reports import EndReports
from pymq.broker.group_coordinators import GroupCoordinators
from pymq.broker.hosting.disk_troubles import DiskTroubles
from pymq.broker.hosting.hosting import HostedPartitions, Leftovers
from pymq.broker.hosting.schedule import PartitionSchedule
from pymq.broker.peer_liveness import PeerLiveness
from pymq.broker.registration import BrokerConfig, Registration
from pymq.broker.shared_blocks import SharedBlocks
from pymq.broker.shutdown import ShutdownHandover, hand_over
from pymq.core.block.replicator import ReplicatorFactory
from pymq.core.group.membership import Assignors
from pymq.core.message import (
    Acquire,
    Answer,
    CommitOffset,
    Copy,
    DeleteGroup,
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
    StopReplica,
    TransferLeader,
    Unsubscribe,
)
from pymq.core.observe.events import EventLog
from pymq.core.partition.fetch_limits import AGAIN_MS, Boundless, Fetches, FetchOutbox
from pymq.core.partition.partition import Partition
from pymq.core.partition.pending_fetches import WaitingRoom
from pymq.core.ready import (
    Compacted,
    Ready,
    Recovered,
    RecoverFailed,
    StoreEvent,
    TimeFound,
    WriteFailed,
)
from pymq.core.repair.repair_scheduler import RepairScheduler
from pymq.core.repair.repair_throttle import RepairThrottle
from pymq.core.types import NEVER, OFFSETS_TOPIC, BlockId, Rng, TopicPartition
from pymq.errors import (
    InvalidRequest,
    NotController,
    NotLeader,
    NotRegistered,
    PymqError,
    QuotaExceeded,
    ReplicaNotAvailable,
    StoreError,
    not_written,
)


class BrokerMachine:
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
        journal: EventLog | None = None,
        outbox: FetchOutbox | None = None,
    ) -> None:
        self.me = config.name
        self.journal = journal or EventLog()
        self.storage_id = config.storage_id
        self.incarnation = config.incarnation
        self.rng = rng
        self.replication = config.replication
        self.out = Ready()
        self.slots = RepairScheduler(config.replication)
        self.lending = RepairThrottle(config.replication.lend_bytes)
        self.outbox = outbox or Boundless()
        self.fetches = Fetches(config.fetches, self.outbox)
        self.waiting = WaitingRoom()
        self._granted = 0  # bytes granted to the fetch that is being served
        self.deadline = NEVER
        self._peers = PeerLiveness(config.incarnation, config.replication, rng)
        self._sharing = SharedBlocks(self._peers)
        self._troubles = DiskTroubles(
            config.name, config.incarnation, repeats=config.heartbeat_ms > 0
        )
        self._wall_offset_ms = config.wall_offset_ms
        self._registration = Registration(config)
        self._refusals = Refusals(self.journal)
        self._departure = ShutdownHandover(config.name, config.incarnation)
        self._led: dict[TopicPartition, None] = {}
        self._coordinators = GroupCoordinators(
            self.me, self, assignors, config.incarnation, config.groups
        )
        self._copies = BatchCopies(self)
        self._schedule = PartitionSchedule()
        self._hosting = HostedPartitions(
            self,
            make_replicator,
            Leftovers(found, unsealed),
            self._registration,
            self._sharing,
            self._schedule,
            self._coordinators,
            self._troubles,
        )
        self._partitions: Mapping[tuple[str, str], Partition] = self._hosting.by_name
        self._by_index: Mapping[tuple[str, int], Partition] = self._hosting.by_index
        self._ends = EndReports(config.name, config.incarnation)
        self._flushed: list[Partition] = []
        self._tokens = 0
        self._searches: dict[int, Partition] = {}
        self._is_busy = False
        self._registration.register(self.out, now)

    # --- state for other machines and metrics ---------------------------------------------------

    @property
    def partitions(self) -> Mapping[tuple[str, str], Partition]:
        """The hosted partitions, by topic and partition."""
        return self._partitions

    @property
    def secret(self) -> bytes:
        """The secret of producer-id grants; empty until a zkserver has sent it."""
        return self._registration.secret

    @property
    def coordinators(self) -> GroupCoordinators:
        """The group coordinators of this broker."""
        return self._coordinators

    # --- host of partitions and coordinators ----------------------------------------------------

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        return now + self._wall_offset_ms

    def set_wall_offset(self, offset_ms: int) -> None:
        """Set the wall clock minus the loop's clock, in milliseconds."""
        self._wall_offset_ms = offset_ms

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer to another machine, or to a part of this broker."""
        if source == COPIES:
            self._copies.answered(message, now)
        elif source.startswith("#"):
            self._coordinators.answered(int(source[1:]), message, now)
        else:
            self.out.send.append((source, message))

    def admit(self, source: str, m: Fetch, now: int) -> int:
        """Return the bytes that may be read for a fetch now; 0 if it waits or was refused."""
        if self._granted:
            return self._granted
        if source == COPIES or source.startswith("#"):
            return m.max_bytes  # Internal readers fetch the next part only after the one before.
        most = self.fetches.admit(source, m, now)
        if most is None:
            why = "too many fetches of this connection, its principal or all clients wait for room"
            error = QuotaExceeded(why, retry_ms=AGAIN_MS)
            self._answer_fetch(source, m, now, error)
            return 0
        return most

    def owner(self, source: str) -> tuple[str, str]:
        """The account and the connection of the machine *source*.

        A part of this broker is its own account and connection.
        """
        if source == COPIES or source.startswith("#"):
            return source, source
        return self.outbox.owner(source)

    def tell_controller(self, message: Message) -> None:
        """Send a message to the active zkserver."""
        self.out.send.append((self._registration.controller, message))

    def send(self, peer: str, message: Message) -> None:
        """Send a message to another broker."""
        self.out.send.append((peer, message))

    def is_alive(self, peer: str) -> bool:
        """Whether another broker seems alive."""
        return self._peers.is_alive(peer)

    def has_failed(self, peer: str, block: BlockId) -> bool:
        """Whether another broker reports that it cannot act on an open block."""
        return self._peers.has_failed(peer, block)

    def shares(self, partition: Partition, now: int) -> None:
        """Take in that the replicas of *partition*'s open block may have changed."""
        self._sharing.look(partition, now)
        self._troubles.note(partition, now)

    def role_changed(self, partition: Partition, now: int) -> None:
        """Take in that a replica has begun or ceased to lead: move group coordinators."""
        self._note_role(partition)
        self._sharing.note_unable(partition)
        self._troubles.note(partition, now)
        if partition.name.topic == OFFSETS_TOPIC:
            self._coordinators.leadership_changed(partition, now)

    def _note_role(self, partition: Partition) -> None:
        """Log whether this broker leads the partition, and whether its replica is offline."""
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

    def offsets_step(
        self, index: int, message: Produce | Fetch, now: int, holder: str | None = None
    ) -> None:
        """Pass a group coordinator's request to its partition here, or to another broker's."""
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
        """The end offset of a coordinator's partition."""
        return self._partitions[OFFSETS_TOPIC, str(index)].opened.end

    def offsets_since(self, index: int, offset: int) -> None:
        """Allow a group coordinator's partition to retire all blocks before *offset*."""
        state = self._partitions[OFFSETS_TOPIC, str(index)].state
        kept = max(block.number for block in state.blocks if block.start <= offset)
        if kept > state.blocks[0].number:
            name = TopicPartition(state.topic, state.partition)
            self.tell_controller(RetireBlocks(*name, state.epoch, kept, state.topic_id))

    # --- the four verbs -------------------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in one message."""
        match message:  # the most frequent messages first: cases are tried in order
            case Produce() | Fetch() | GetSequence() | FindOffset():
                self.on_partition(source, message, now)
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
                | DeleteGroup()
                | GetGroup()
                | GetLeases()
                | Unsubscribe()
            ):
                self._coordinators.step(source, message, now)
            case Copy():
                self._copies.begin(source, message, now)
            case Fetched(topic=topic, partition=index):  # fetched by this broker itself
                if topic != OFFSETS_TOPIC:
                    if source == self.me:
                        self._copies.answered(message, now)
                elif self._holds(source, topic, index):
                    self._coordinators.answered(int(index), message, now)
            case (
                LeaderAndIsr() | Seal() | StopReplica() | TransferLeader() | DescribePartitions()
            ) as order if not self._registration.is_controller(source):
                if (answer := self._refusals.refuse(self.me, source, order, now)) is not None:
                    self.reply(source, answer, now)
            case LeaderAndIsr():
                self._hosting.leader_and_isr(source, message, now)
                self._ends.renew(self._registration.epoch, self._partitions.values(), now)
            case Seal():
                self._hosting.seal(message, now)
            case StopReplica():
                self._hosting.stop_replica(source, message, now)
            case TransferLeader():
                self._hosting.transfer(message, now)
            case ListGroups():
                self.reply(source, self._coordinators.list(message), now)
            case DescribePartitions():
                found = [self._partitions.get(TopicPartition(*n)) for n in message.partitions]
                reports = tuple(partition.report() for partition in found if partition)
                self.reply(source, PartitionReports(message.id, reports), now)
            case Answer() if not self._registration.is_controller(source):
                return  # This broker sends requests with such answers to zkservers only.
            case Answer(error=NotController() as error):
                self._registration.other(source, error, self.out, now)
            case Answer(error=NotRegistered()):
                self._registration.unknown(source, self.out, now)
            case Answer(id=0, error=PymqError() as error):
                why = self._registration.refused(error)
                if why:
                    self.journal.note("registration_refused", why=why)
            case Answer():
                self._departure.answered(message)
            case _:
                return  # Not a broker's message; the peer may run another version.
        self._rearm()

    def stored(self, event: StoreEvent, now: int) -> None:
        """Take in an event of the store."""
        if isinstance(event, TimeFound):
            partition = self._searches.pop(event.token, None)
            if partition is not None and partition.found(event, now):
                self._searches[event.token] = partition
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
            self._ends.changed(partition, now)
        elif isinstance(event, RecoverFailed):
            partition.recover_failed(event, now)
        else:
            partition.write_failed(event, now)

    def read_failed(self, block: BlockId, error: PymqError, now: int) -> PymqError:
        """Take in that records of a block could not be read; returns the error to answer."""
        partition = self._find(block)
        if partition is None:
            return error
        told = partition.read_failed(block, error, now)
        self._schedule.touch(partition)
        self._rearm()
        return told

    def tick(self, now: int) -> None:
        """Do what is due."""
        for partition in self._schedule.due(now):
            if partition.deadline <= now:
                partition.tick(now)
            self._schedule.touch(partition)
        self._coordinators.tick(now)
        if now >= self.slots.deadline:
            self.slots.tick(now)
        if now >= self._copies.deadline:
            self._copies.tick(now)
        if now >= self._hosting.removals.deadline:
            self._hosting.removals.tick(now)
        if now >= self._registration.deadline:
            self._registration.beat(self.out, now)
        if now >= self._departure.deadline:
            self._hand_over(now)
        if now >= self._troubles.deadline:
            self.tell_controller(self._troubles.report(now))
        if now >= self._ends.deadline:
            ends = self._ends.report(self._partitions, now)
            if ends is not None:
                self.tell_controller(ends)
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
        if self.slots.is_wanted:
            self.slots.fill(now)
            self.deadline = min(self.deadline, self.slots.deadline)
        if self.lending.deadline != NEVER:
            self.lending.fill(self.out, now)
        if self.fetches.deadline <= now:
            self._serve_fetches(now)
            self.deadline = min(self.deadline, self.fetches.deadline)
        if not self.out:
            return None
        out, self.out, self._is_busy = self.out, Ready(), True
        return out

    def advance(self, ready: Ready, now: int) -> None:
        """Take in that the Ready was carried out: its writes are done, unless reported as
        failed.
        """
        self._is_busy = False
        self.fetches.sent()
        flushed, self._flushed = self._flushed, []
        for partition in flushed:
            partition.advance(now)
            self._ends.changed(partition, now)
            self._schedule.touch(partition)
        self._rearm()

    def _rearm(self) -> None:
        due = self._schedule.deadline  # written out: it runs with every message
        if self._registration.deadline < due:
            due = self._registration.deadline
        if self._peers.deadline < due:
            due = self._peers.deadline
        if self._departure.deadline < due:
            due = self._departure.deadline
        if self._troubles.deadline < due:
            due = self._troubles.deadline
        if self._ends.deadline < due:
            due = self._ends.deadline
        if self.slots.deadline < due:
            due = self.slots.deadline
        if self.lending.deadline < due:
            due = self.lending.deadline
        if self._copies.deadline < due:
            due = self._copies.deadline
        if self._hosting.removals.deadline < due:
            due = self._hosting.removals.deadline
        if self.fetches.deadline < due:
            due = self.fetches.deadline
        if self._coordinators.deadline < due:
            due = self._coordinators.deadline
        for coordinator in self._coordinators.values():
            if coordinator.deadline < due:
                due = coordinator.deadline
        self.deadline = due

    # --- clients --------------------------------------------------------------------------------

    def hosted(self, topic: str, partition: str) -> Partition | None:
        """Return a hosted partition."""
        return self._partitions.get((topic, partition))

    def on_partition(
        self, source: str, m: Produce | Fetch | GetSequence | FindOffset, now: int
    ) -> None:
        """Pass a client's request to a partition; the answer goes to *source*."""
        partition = self._partitions.get((m.topic, m.partition))
        if partition is None:
            error = NotLeader(f"{self.me} does not host {m.topic}/{m.partition}", leader=None)
            self._refuse(source, m, error, now)
            return
        if m.topic_id not in ("", topic_id := partition.state.topic_id):
            why = f"{partition.name} is not of the topic {m.topic_id}, but of another of its name"
            self._refuse(source, m, NotLeader(why, leader=None, topic_id=topic_id), now)
            return
        if isinstance(m, Produce):
            if m.topic == OFFSETS_TOPIC:
                refusal = InvalidRequest("only coordinators write the offsets of groups")
                self.reply(source, Produced(m.id, error=refusal), now)
            else:
                partition.produce(source, m, now)
        elif isinstance(m, Fetch):
            partition.fetch(source, m, now)
        elif isinstance(m, GetSequence):
            partition.sequence(source, m, now)
        else:
            self._tokens += 1
            if partition.find(source, m, now, self._tokens):
                self._searches[self._tokens] = partition
        self._schedule.touch(partition)

    def _refuse(
        self,
        source: str,
        m: Produce | Fetch | GetSequence | FindOffset,
        error: NotLeader,
        now: int,
    ) -> None:
        if isinstance(m, Produce):
            # Also with acks=0: only this tells the producer that the leader has moved.
            self.reply(source, Produced(m.id, error=not_written(error)), now)
        elif isinstance(m, Fetch):
            self._answer_fetch(source, m, now, error)
        elif isinstance(m, GetSequence):
            self.reply(source, Sequence(m.id, error=error), now)
        else:
            self.reply(source, OffsetFound(m.id, error=error), now)

    def _holds(self, source: str, topic: str, partition: str) -> bool:
        """Whether the broker *source* is a replica of a partition that is hosted here."""
        found = self._partitions.get((topic, partition))
        return found is not None and any(source in b.replicas for b in found.state.blocks)

    def _answer_fetch(self, source: str, m: Fetch, now: int, error: PymqError) -> None:
        self.reply(source, Fetched(m.id, m.topic, m.partition, m.offset, 0, 0, b"", error), now)

    def _serve_fetches(self, now: int) -> None:
        """Serve fetches that waited for room, as far as there is room now."""
        while (found := self.fetches.next(now)) is not None:
            source, m, self._granted = found
            # The partition may have changed meanwhile, so it checks the fetch again.
            self.on_partition(source, m if self._granted else attrs.evolve(m, max_bytes=0), now)
            self._granted = 0

    # --- other brokers --------------------------------------------------------------------------

    def _find(self, block: BlockId) -> Partition | None:
        return self._by_index.get((block.topic_id, block.partition))

    def _replicate(self, source: str, m: Replication, now: int) -> None:
        partition = self._find(m.block)
        if partition is not None:
            partition.replicate(source, m, now)
            self._schedule.touch(partition)
        elif isinstance(m, ReplicaFetch) and m.leader_epoch == 0:
            # Repairs that wait for this broker ask another one then.
            error = ReplicaNotAvailable(f"{self.me} does not hold {m.block}")
            self.send(source, ReplicaFetched(m.id, m.block, m.offset, 0, 0, error=error))

    def _pinged(self, source: str, m: Ping, now: int) -> None:
        is_other, blocks = self._peers.heard(source, m, now)
        if is_other:
            self._peer_changed(source, now)
            return
        for block in blocks:
            partition = self._find(block)
            if partition is not None and partition.is_open(block):
                partition.peer_changed(source, now)
                self._schedule.touch(partition)

    def _peer_changed(self, peer: str, now: int) -> None:
        for partition in self._sharing.with_peer(peer):
            partition.peer_changed(peer, now)
            self._schedule.touch(partition)

    # --- leaving --------------------------------------------------------------------------------

    def leave(self, now: int, within_ms: int) -> None:
        """Begin to hand over leadership, for at most *within_ms*; see :attr:`has_left`."""
        is_needed = any(partition.peers for partition in self._partitions.values())
        self._departure.begin(now, within_ms if is_needed else 0)
        self._rearm()

    @property
    def has_left(self) -> bool:
        """Whether all leadership is handed over, or the time for it has run out."""
        return self._departure.is_over

    def _hand_over(self, now: int) -> None:
        ask = self._departure.ask(now)
        if ask is not None:
            self.tell_controller(ask)
            for partition in hand_over(self._partitions.values(), now):
                self._schedule.touch(partition)

    def shut_down(self, now: int) -> None:
        """Write checkpoints that make the next start fast; the last Ready holds them."""
        for partition in self._partitions.values():
            partition.checkpoint()
