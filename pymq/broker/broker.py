"""The broker's state machine: hosts partitions and coordinates groups.

In a turn the broker handles only the partitions that have something to do
(:mod:`~pymq.broker.hosting.schedule`). All partitions share one write per turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pymq.access.node_refusals import Refusals
from pymq.broker.delay_schedulers import FIRST_REQUEST
from pymq.broker.end_reports import EndReports
from pymq.broker.environment import BrokerEnvironment
from pymq.broker.group_coordinators import GroupCoordinators
from pymq.broker.hosting.hosting import HostedPartitions, Leftovers
from pymq.broker.registration import BrokerConfig
from pymq.broker.shutdown import ShutdownHandover, hand_over
from pymq.core.block.replicator import ReplicatorFactory
from pymq.core.group.consumer_group import Assignors
from pymq.core.message import (
    Acquire,
    Answer,
    BeatClassic,
    BeatReconciled,
    CancelDelayed,
    CommitClassic,
    CommitOffset,
    Copy,
    DeleteGroup,
    DescribeClassic,
    DescribePartitions,
    DescribeReconciled,
    Fetch,
    Fetched,
    FindEpoch,
    FindOffset,
    GetGroup,
    GetLeases,
    GetSequence,
    Heartbeat,
    Join,
    JoinClassic,
    LeaderAndIsr,
    Leave,
    LeaveClassic,
    ListGroups,
    Message,
    PartitionReports,
    Ping,
    Produce,
    RaftAppend,
    RaftAppended,
    RaftTimeout,
    RaftVote,
    RaftVoted,
    ReplicaFetch,
    ReplicaFetched,
    Replication,
    Seal,
    Settle,
    StopReplica,
    SyncClassic,
    TransferLeader,
    Unsubscribe,
)
from pymq.core.observe.events import EventLog
from pymq.core.partition.partition import Partition
from pymq.core.pending.fetch_limits import FetchOutbox
from pymq.core.ready import (
    Compacted,
    Ready,
    Recovered,
    RecoverFailed,
    StoreEvent,
    TimeFound,
    WriteFailed,
)
from pymq.core.types import NEVER, OFFSETS_TOPIC, BlockId, Rng, TopicPartition
from pymq.errors import (
    NotController,
    NotRegistered,
    PymqError,
    ReplicaNotAvailable,
)


class BrokerMachine:
    """The state machine of one broker, with all of its partitions and coordinators."""

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
        self.incarnation = config.incarnation
        self.journal = journal or EventLog()
        self._environment = host = BrokerEnvironment(config, assignors, rng, self.journal, outbox)
        self.fetches = host.fetches
        self._peers = host.peers
        self._sharing = host.sharing
        self._registration = host.registration
        self._coordinators = host.coordinators
        self._copies = host.copies
        self._delays = host.delays
        self._schedule = host.schedule
        self._partitions: Mapping[tuple[str, str], Partition] = host.partitions
        self._hosting = HostedPartitions(host, make_replicator, Leftovers(found, unsealed))
        self._by_index: Mapping[tuple[str, int], Partition] = self._hosting.by_index
        self._refusals = Refusals(self.journal)
        self._departure = ShutdownHandover(config.name, config.incarnation)
        self._ends = EndReports(config.name, config.incarnation)
        # The parts with deadlines, except for the coordinators.
        self._timed = (
            host.schedule,
            host.registration,
            host.peers,
            self._departure,
            host.troubles,
            self._ends,
            host.slots,
            host.lending,
            host.copies,
            host.delays,
            self._hosting.removals,
            host.fetches,
            host.coordinators,
        )
        self._flushed: list[Partition] = []
        self._is_busy = False
        self._registration.register(host.out, now)

    # --- state for other machines and metrics ---------------------------------------------------

    @property
    def deadline(self) -> int:
        """When ``tick`` has something to do; any thread may read it."""
        due = NEVER
        for part in self._timed:
            if part.deadline < due:
                due = part.deadline
        # Iterate over a copy, because the loop's thread may add and remove coordinators at the same
        # time.
        for coordinator in list(self._coordinators.by_index.values()):
            if coordinator.deadline < due:
                due = coordinator.deadline
        return due

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

    @property
    def delayed(self) -> int:
        """The number of delayed records that are not due yet, in all partitions that this broker
        leads.
        """
        return self._delays.pending()

    def set_wall_offset(self, offset_ms: int) -> None:
        """Set the wall clock minus the loop's clock, in milliseconds."""
        self._environment.wall_offset_ms = offset_ms

    # --- step, tick, ready, advance ---------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Handle one message."""
        match message:  # the most frequent messages first: cases are tried in order
            case Produce() | Fetch() | GetSequence() | FindOffset() | FindEpoch():
                self._environment.on_partition(source, message, now)
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
                | JoinClassic()
                | SyncClassic()
                | BeatClassic()
                | LeaveClassic()
                | CommitClassic()
                | DescribeClassic()
                | BeatReconciled()
                | DescribeReconciled()
            ):
                self._coordinators.step(source, message, now)
            case Copy():
                self._copies.begin(source, message, now)
            case CancelDelayed():
                self._delays.cancel(source, message, now)
            case Fetched(topic=topic, partition=index):  # this broker has sent the fetch itself
                if topic != OFFSETS_TOPIC:
                    if source == self.me and message.id < FIRST_REQUEST:
                        self._copies.answered(message, now)
                    elif source == self.me or self._holds(source, topic, index):
                        self._delays.fetched(TopicPartition(topic, index), message, now)
                elif self._holds(source, topic, index):
                    self._coordinators.answered(int(index), message, now)
            case LeaderAndIsr() | Seal() | StopReplica() | TransferLeader() | DescribePartitions():
                self._ordered(source, message, now)
            case ListGroups():
                self._environment.reply(source, self._coordinators.list(message), now)
            case Answer() if self._registration.is_controller(source):
                self._answered(source, message, now)
            case _:
                # brokers do not handle this message; the peer may run another version of pymq
                return

    def _ordered(
        self,
        source: str,
        m: LeaderAndIsr | Seal | StopReplica | TransferLeader | DescribePartitions,
        now: int,
    ) -> None:
        """Carry out a request of the active zkserver."""
        if not self._registration.is_controller(source):
            if (answer := self._refusals.refuse(self.me, source, m, now)) is not None:
                self._environment.reply(source, answer, now)
            return
        match m:
            case LeaderAndIsr():
                self._hosting.leader_and_isr(source, m, now)
                self._ends.renew(self._registration.epoch, self._partitions.values(), now)
            case Seal():
                self._hosting.seal(m, now)
            case StopReplica():
                self._hosting.stop_replica(source, m, now)
            case TransferLeader():
                self._hosting.transfer(m, now)
            case DescribePartitions():
                found = [self._partitions.get(TopicPartition(*n)) for n in m.partitions]
                reports = tuple(partition.report() for partition in found if partition)
                self._environment.reply(source, PartitionReports(m.id, reports), now)

    def _answered(self, source: str, m: Answer, now: int) -> None:
        """Handle the active zkserver's answer to a registration, heartbeat or shutdown."""
        out = self._environment.out
        match m.error:
            case NotController() as error:
                self._registration.other(source, error, out, now)
            case NotRegistered():
                self._registration.unknown(source, out, now)
            case PymqError() as error if m.id == 0:
                why = self._registration.refused(error)
                if why:
                    self.journal.note("registration_refused", why=why)
            case _:
                self._departure.answered(m)

    def stored(self, event: StoreEvent, now: int) -> None:
        """Handle an event of the store."""
        if isinstance(event, TimeFound):
            partition = self._environment.searches.pop(event.token, None)
            if partition is not None and partition.fetches.found(event, now):
                self._environment.searches[event.token] = partition
        elif isinstance(event, Compacted):
            partition = self._partitions.get((event.topic, event.partition))
            if partition is not None:
                partition.maintenance.compacted(event)
        else:
            partition = self._find(event.block)
            if partition is not None:
                self._block_event(partition, event, now)
        if partition is not None:
            self._schedule.touch(partition)

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
        """Note that records of a block could not be read; returns the error to answer."""
        partition = self._find(block)
        if partition is None:
            return error
        told = partition.read_failed(block, error, now)
        self._schedule.touch(partition)
        return told

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        host = self._environment
        for partition in self._schedule.due(now):
            if partition.deadline <= now:
                partition.tick(now)
            self._schedule.touch(partition)
        self._coordinators.tick(now)
        if now >= host.slots.deadline:
            host.slots.tick(now)
        if now >= self._copies.deadline:
            self._copies.tick(now)
        if now >= self._delays.deadline:
            self._delays.tick(now)
        if now >= self._hosting.removals.deadline:
            self._hosting.removals.tick(now)
        if now >= self._registration.deadline:
            self._registration.beat(host.out, now)
        if now >= self._departure.deadline:
            self._hand_over(now)
        if now >= host.troubles.deadline:
            host.tell_controller(host.troubles.report(now))
        if now >= self._ends.deadline:
            ends = self._ends.report(self._partitions, now)
            if ends is not None:
                host.tell_controller(ends)
        if now >= self._peers.deadline:
            pings, gone = self._peers.tick(now)
            host.out.send += pings
            for peer in gone:
                self._peer_changed(peer, now)

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work, merged; only one Ready is out at a time."""
        if self._is_busy:
            return None
        host = self._environment
        if self._coordinators.by_index:
            self._coordinators.flush(now)
        if dirty := self._schedule.dirty:
            for partition in dirty:
                if partition.is_dirty:
                    due = partition.deadline
                    partition.flush(host.out, now)
                    self._flushed.append(partition)
                    if partition.deadline < due:
                        self._schedule.arm(partition)
            dirty.clear()
        if host.slots.waiting:
            host.slots.fill(now)
        if host.lending.deadline != NEVER:
            host.lending.fill(host.out, now)
        if host.fetches.deadline <= now:
            host.serve_fetches(now)
        out = host.out
        # Like `if not out`, but without a call, because this runs with each message.
        if not (out.send or out.write or out.after or out.read or out.ask or out.meta or out.jobs):
            return None
        host.out, self._is_busy = Ready(), True
        return out

    def advance(self, ready: Ready, now: int) -> None:
        """Note that the Ready was carried out: its writes are done, except those reported as
        failed.
        """
        self._is_busy = False
        if self.fetches.loads is not None:
            self.fetches.sent()
        flushed, self._flushed = self._flushed, []
        for partition in flushed:
            partition.advance(now)
            if partition.opened.is_shared:
                self._ends.changed(partition, now)
            self._schedule.touch(partition)

    # --- other brokers --------------------------------------------------------------------------

    def _find(self, block: BlockId) -> Partition | None:
        return self._by_index.get((block.topic_id, block.partition))

    def _holds(self, source: str, topic: str, partition: str) -> bool:
        """Whether the broker *source* is a replica of a partition that this broker hosts."""
        found = self._partitions.get((topic, partition))
        return found is not None and any(source in b.replicas for b in found.state.blocks)

    def _replicate(self, source: str, m: Replication, now: int) -> None:
        partition = self._find(m.block)
        if partition is not None:
            partition.replicate(source, m, now)
            self._schedule.touch(partition)
        elif isinstance(m, ReplicaFetch) and m.leader_epoch == 0:
            # A repair that waits for this broker then sends its request to another broker.
            error = ReplicaNotAvailable(f"{self.me} does not hold {m.block}")
            self._environment.send(
                source, ReplicaFetched(m.id, m.block, m.offset, 0, 0, error=error)
            )

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

    # --- shutdown ---------------------------------------------------------------------------------

    def leave(self, now: int, within_ms: int) -> None:
        """Begin to hand over leadership, within *within_ms*; see :attr:`has_left`."""
        is_needed = any(partition.peers for partition in self._partitions.values())
        self._departure.begin(now, within_ms if is_needed else 0)

    @property
    def has_left(self) -> bool:
        """Whether all leadership is handed over, or the time for this is over."""
        return self._departure.is_over

    def _hand_over(self, now: int) -> None:
        ask = self._departure.ask(now)
        if ask is not None:
            self._environment.tell_controller(ask)
            for partition in hand_over(self._partitions.values(), now):
                self._schedule.touch(partition)

    def shut_down(self, now: int) -> None:
        """Write checkpoints that make the next start fast; the last Ready holds them."""
        for partition in self._partitions.values():
            partition.checkpoint()
