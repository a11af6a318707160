"""The state that the parts of a broker share, and the messages between them.

Partitions, group coordinators and copies of a broker use this environment to send messages, read
the broker's state, and pass requests to partitions. If such a part sends a request, its source
begins with `#`, and the answer goes back to the part.
"""

from __future__ import annotations

import attrs

from pymq.broker.batch_copies import COPIES, BatchCopies
from pymq.broker.delay_schedulers import DELAY_SOURCE, DelaySchedulers
from pymq.broker.group_coordinators import GroupCoordinators
from pymq.broker.hosting.disk_troubles import DiskTroubles
from pymq.broker.hosting.schedule import PartitionSchedule
from pymq.broker.peer_liveness import PeerLiveness
from pymq.broker.registration import BrokerConfig, Registration
from pymq.broker.shared_blocks import SharedBlocks
from pymq.core.batch.header import DELAYED_COPY
from pymq.core.block.idempotence import DELAYS
from pymq.core.group.consumer_group import Assignors
from pymq.core.message import (
    EpochFound,
    Fetch,
    Fetched,
    FindEpoch,
    FindOffset,
    GetSequence,
    Message,
    OffsetFound,
    Produce,
    Produced,
    RetireBlocks,
    Sequence,
)
from pymq.core.observe.events import EventLog
from pymq.core.partition.partition import Partition
from pymq.core.pending.fetch_limits import AGAIN_MS, Boundless, Fetches, FetchOutbox
from pymq.core.pending.growth import Growth
from pymq.core.pending.pending_fetches import WaitingRoom
from pymq.core.pending.pending_produces import DelayedAppended
from pymq.core.ready import Ready
from pymq.core.repair.repair_scheduler import RepairScheduler
from pymq.core.repair.repair_throttle import RepairThrottle
from pymq.core.types import OFFSETS_TOPIC, BlockId, Rng, TopicPartition
from pymq.errors import InvalidRequest, NotLeader, PymqError, QuotaExceeded, StoreError, not_written


class BrokerEnvironment:
    """The interface of the broker to its partitions, group coordinators and copies."""

    def __init__(
        self,
        config: BrokerConfig,
        assignors: Assignors,
        rng: Rng,
        journal: EventLog,
        outbox: FetchOutbox | None,
    ) -> None:
        self.me = config.name
        self.journal = journal
        self.storage_id = config.storage_id
        self.incarnation = config.incarnation
        self.rng = rng
        self.replication = config.replication
        self.wall_offset_ms = config.wall_offset_ms  # wall clock minus the loop's clock
        self.out = Ready()
        # the hosted partitions, by topic and partition
        self.partitions: dict[tuple[str, str], Partition] = {}
        self.schedule = PartitionSchedule()
        self.slots = RepairScheduler(config.replication)
        self.lending = RepairThrottle(config.replication.lend_bytes)
        self.outbox = outbox or Boundless()
        self.fetches = Fetches(config.fetches, self.outbox)
        self.waiting = WaitingRoom()
        # the partition of each search by time in the store, by token
        self.searches: dict[int, Partition] = {}
        self.peers = PeerLiveness(config.incarnation, config.replication, rng)
        self.sharing = SharedBlocks(self.peers)
        self.troubles = DiskTroubles(
            config.name, config.incarnation, repeats=config.heartbeat_ms > 0
        )
        self.registration = Registration(config)
        self.coordinators = GroupCoordinators(
            self.me, self, assignors, config.incarnation, config.groups
        )
        self.awaited = self.coordinators.awaited
        self.copies = BatchCopies(self)
        self.delays = DelaySchedulers(self)
        self._granted = 0  # bytes granted to the current fetch
        self._tokens = 0
        self._led: dict[TopicPartition, None] = {}

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at the monotonic time *now*."""
        return now + self.wall_offset_ms

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer to another machine, or to a part of this broker."""
        if source == COPIES:
            self.copies.answered(message, now)
        elif source.startswith(DELAY_SOURCE):
            self.delays.answered(source, message, now)
        elif source.startswith("#"):
            self.coordinators.answered(int(source[1:]), message, now)
        else:
            self.out.send.append((source, message))

    def delayed(self, name: TopicPartition, news: DelayedAppended, now: int) -> None:
        """Note that a batch with delayed records is committed."""
        self.delays.step(name, news, now)

    def grown(self, growth: Growth, now: int) -> None:
        """Tell the group coordinators of this broker that a partition has grown."""
        self.coordinators.grown(growth, now)

    def admit(self, source: str, m: Fetch, now: int) -> int:
        """Return the bytes that may be read for a fetch now; 0 if it must wait or was refused."""
        if self._granted:
            return self._granted
        if source == COPIES or source.startswith("#"):
            return m.max_bytes  # internal readers fetch one part at a time
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
        self.out.send.append((self.registration.controller, message))

    def send(self, peer: str, message: Message) -> None:
        """Send a message to another broker."""
        self.out.send.append((peer, message))

    def is_alive(self, peer: str) -> bool:
        """Whether another broker is alive, by its pings."""
        return self.peers.is_alive(peer)

    def has_failed(self, peer: str, block: BlockId) -> bool:
        """Whether another broker reports that it cannot serve an open block."""
        return self.peers.has_failed(peer, block)

    def shares(self, partition: Partition, now: int) -> None:
        """Note that the replicas of *partition*'s open block may have changed."""
        self.sharing.look(partition, now)
        self.troubles.note(partition, now)

    def role_changed(self, partition: Partition, now: int) -> None:
        """Note that a replica has become leader or is no longer leader, and move group
        coordinators.
        """
        self._note_role(partition)
        self.sharing.note_unable(partition)
        self.troubles.note(partition, now)
        self.delays.role_changed(partition, now)
        if partition.name.topic == OFFSETS_TOPIC:
            self.coordinators.leadership_changed(partition, now)

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
        """Pass a group coordinator's request to its local partition, or to another broker."""
        if holder is not None:
            self.send(holder, message)
            return
        self.to_partition(f"#{index}", self.partitions[OFFSETS_TOPIC, str(index)], message, now)

    def to_partition(self, source: str, partition: Partition, m: Fetch | Produce, now: int) -> None:
        """Pass a request of this broker to a partition; the answer goes to *source*."""
        if isinstance(m, Produce):
            partition.produces.produce(source, m, now)
        else:
            partition.fetch(source, m, now)
        self.schedule.touch(partition)

    def offsets_end(self, index: int) -> int:
        """The end offset of a coordinator's partition."""
        return self.partitions[OFFSETS_TOPIC, str(index)].opened.offsets.end

    def offsets_since(self, index: int, offset: int) -> None:
        """Allow a group coordinator's partition to retire all blocks before *offset*."""
        state = self.partitions[OFFSETS_TOPIC, str(index)].state
        kept = max(block.number for block in state.blocks if block.start <= offset)
        if kept > state.blocks[0].number:
            name = TopicPartition(state.topic, state.partition)
            self.tell_controller(RetireBlocks(*name, state.epoch, kept, state.topic_id))

    def hosted(self, topic: str, partition: str) -> Partition | None:
        """Return a hosted partition."""
        return self.partitions.get((topic, partition))

    def on_partition(
        self, source: str, m: Produce | Fetch | GetSequence | FindOffset | FindEpoch, now: int
    ) -> None:
        """Pass a client's request to a partition; the answer goes to *source*."""
        partition = self.partitions.get((m.topic, m.partition))
        if partition is None:
            error = NotLeader(f"{self.me} does not host {m.topic}/{m.partition}", leader=None)
            self._refuse(source, m, error, now)
            return
        if m.topic_id not in ("", topic_id := partition.state.topic_id):
            why = f"{partition.name} belongs to another topic of that name, not to {m.topic_id}"
            self._refuse(source, m, NotLeader(why, leader=None, topic_id=topic_id), now)
            return
        if isinstance(m, Produce):
            header = m.batch.header
            if m.topic == OFFSETS_TOPIC:
                refusal = InvalidRequest("only coordinators write the offsets of groups")
                self.reply(source, Produced(m.id, error=refusal), now)
            elif header.attributes & DELAYED_COPY or header.producer_id == DELAYS:
                refusal = InvalidRequest("only a leader writes copies of delayed records")
                self.reply(source, Produced(m.id, error=refusal), now)
            else:
                partition.produces.produce(source, m, now)
        elif isinstance(m, Fetch):
            partition.fetch(source, m, now)
        elif isinstance(m, GetSequence):
            partition.produces.sequence(source, m, now)
        elif isinstance(m, FindEpoch):
            partition.fetches.find_epoch(source, m, now)
        else:
            self._tokens += 1
            if partition.fetches.find(source, m, now, self._tokens):
                self.searches[self._tokens] = partition
        self.schedule.touch(partition)

    def _refuse(
        self,
        source: str,
        m: Produce | Fetch | GetSequence | FindOffset | FindEpoch,
        error: NotLeader,
        now: int,
    ) -> None:
        if isinstance(m, Produce):
            # Answer even with acks=0, because the producer learns of the new leader only from this
            # error.
            self.reply(source, Produced(m.id, error=not_written(error)), now)
        elif isinstance(m, Fetch):
            self._answer_fetch(source, m, now, error)
        elif isinstance(m, GetSequence):
            self.reply(source, Sequence(m.id, error=error), now)
        elif isinstance(m, FindEpoch):
            self.reply(source, EpochFound(m.id, error=error), now)
        else:
            self.reply(source, OffsetFound(m.id, error=error), now)

    def _answer_fetch(self, source: str, m: Fetch, now: int, error: PymqError) -> None:
        self.reply(source, Fetched(m.id, m.topic, m.partition, m.offset, 0, 0, b"", error), now)

    def serve_fetches(self, now: int) -> None:
        """Serve fetches that have waited for memory, as far as there is memory."""
        while (found := self.fetches.next(now)) is not None:
            source, m, self._granted = found
            # The partition may have changed meanwhile, so the current partition checks the fetch
            # again.
            self.on_partition(source, m if self._granted else attrs.evolve(m, max_bytes=0), now)
            self._granted = 0
