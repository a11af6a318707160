"""The partitions that one broker hosts, and the zkserver's requests that change them.

| request | effect |
|---|---|
| `LeaderAndIsr` | the partition gets a new state; the broker begins to host a new partition |
| `Seal` | the partition seals its open block |
| `TransferLeader` | another replica leads the open block |
| `StopReplica` | the broker removes the partition |

The broker refuses or drops late requests, and requests of a zkserver that was replaced
(:mod:`~pymq.broker.hosting.request_fence`).
"""

from __future__ import annotations

from collections.abc import Iterable

from pymq.broker.environment import BrokerEnvironment
from pymq.broker.hosting.removals import Removals
from pymq.broker.hosting.request_fence import RequestFence
from pymq.core.block.replicator import ReplicatorFactory
from pymq.core.message import (
    LeaderAndIsr,
    LeaderAndIsrAnswer,
    Seal,
    Stopped,
    StopReplica,
    TransferLeader,
)
from pymq.core.message.chunks import MessageChunks
from pymq.core.metadata.nodes import PartitionState
from pymq.core.observe.coverage import mark
from pymq.core.partition.partition import Partition
from pymq.core.ready import RemoveBlock
from pymq.core.types import BlockId, TopicPartition, check_name, check_topic_id
from pymq.errors import (
    NotLeader,
    PymqError,
    ReplicaNotAvailable,
    StaleControllerEpoch,
    StaleEpoch,
    UnknownPartition,
)


class Leftovers:
    """Blocks that the store has found at the start, and whose partitions are not hosted yet."""

    def __init__(self, found: Iterable[BlockId], unsealed: Iterable[BlockId]) -> None:
        # block numbers, by topic id and partition index
        self._numbers: dict[tuple[str, int], list[int]] = {}
        for block in found:
            self._numbers.setdefault((block.topic_id, block.partition), []).append(block.number)
        self._unsealed = frozenset(unsealed)

    def take_up(self, topic_id: str, index: int) -> tuple[list[int], frozenset[int]]:
        """Take out one partition's blocks; returns their numbers, and the numbers of unsealed
        blocks.
        """
        left = self._numbers.pop((topic_id, index), [])
        is_unsealed = (n for n in left if BlockId(topic_id, index, n) in self._unsealed)
        return left, frozenset(is_unsealed)

    def take_out(self, topic_id: str, index: int | None) -> list[BlockId]:
        """Take out and return the blocks of a partition, or of a whole topic, for removal."""
        left = [key for key in self._numbers if key[0] == topic_id]
        keys = left if index is None else [(topic_id, index)]
        return [BlockId(*key, number) for key in keys for number in self._numbers.pop(key, ())]


class HostedPartitions:
    """The partitions of one broker."""

    def __init__(
        self, host: BrokerEnvironment, make_replicator: ReplicatorFactory, leftovers: Leftovers
    ) -> None:
        self.by_name = host.partitions
        self.by_index: dict[tuple[str, int], Partition] = {}  # topic id and index
        self._host = host
        self._make_replicator = make_replicator
        self._leftovers = leftovers
        self._registration = host.registration
        self._sharing = host.sharing
        self._schedule = host.schedule
        self.removals = Removals(host, self._give_up)
        self._orders = RequestFence()
        self._parts = MessageChunks()

    # --- new states, seals and transfers --------------------------------------------------------

    def leader_and_isr(self, source: str, m: LeaderAndIsr, now: int) -> None:
        """Adopt the zkserver's states of partitions; the answer has an error or None for each."""
        host, registration = self._host, self._registration
        if m.incarnation != host.incarnation:
            return  # the message is for an earlier incarnation of this broker
        if m.controller_epoch < registration.epoch:
            error = StaleControllerEpoch(
                f"controller epoch {m.controller_epoch} was replaced by {registration.epoch}"
            )
            host.reply(source, LeaderAndIsrAnswer(m.id, host.me, error=error), now)
            return
        if m.controller_epoch > registration.epoch:
            self._orders.forget()
            self._parts.forget()
        registration.heard(m)
        errors = [(s.topic, s.partition, self._adopt(m.id, s, now)) for s in m.partitions]
        host.reply(source, LeaderAndIsrAnswer(m.id, host.me, tuple(errors)), now)
        registration.beat(host.out, now)

    def _adopt(self, request: int, state: PartitionState, now: int) -> PymqError | None:
        name = TopicPartition(state.topic, state.partition)
        try:
            check_name(state.topic, "topic name")
            check_name(state.partition, "partition name")
            check_topic_id(state.topic_id)
        except PymqError as error:
            return error
        if self._orders.is_late(request, state.topic_id, name):
            mark("broker.late_state")
            return StaleEpoch(f"{name} was removed, or has a later state")
        if self._parts.is_part(state):
            return None
        if (whole := self._parts.whole(state)) is None:
            return ReplicaNotAvailable(f"the metadata of {name} is incomplete; retry")
        state = whole
        if not any(self._host.me in block.replicas for block in state.blocks):
            return UnknownPartition(f"{self._host.me} is no replica of {name}")
        self._orders.accept(request, name)
        partition = self.by_name.get(name)
        if partition is not None and partition.state.topic_id != state.topic_id:
            self._drop(partition, NotLeader(f"{name} was created again", leader=None), True, now)
            partition = None
        if partition is None:
            partition = self._take_up(state, now)
        elif (state.epoch, state.version) < (partition.state.epoch, partition.state.version):
            return StaleEpoch(f"{name} is at epoch {partition.state.epoch}")
        else:
            partition.adopt(state, self._registration.epoch, now)
        self._schedule.touch(partition)
        return None

    def _take_up(self, state: PartitionState, now: int) -> Partition:
        found, unsealed = self._leftovers.take_up(state.topic_id, state.index)
        self._host.out.write += [RemoveBlock(block) for block in self._given_away(state, found)]
        partition = Partition(state, self._host, self._make_replicator, unsealed, now)
        self.by_name[partition.name] = partition
        self.by_index[state.topic_id, state.index] = partition
        self._sharing.look(partition, now)
        return partition

    def _given_away(self, state: PartitionState, found: Iterable[int]) -> list[BlockId]:
        """Return the blocks *found* on this disk that the zkserver has retired or moved meanwhile.

        The open block and later blocks stay, because they may belong to a state that has not
        arrived yet.
        """
        me = self._host.me
        mine = {block.number for block in state.blocks if me in block.replicas}
        last = state.blocks[-1].number
        gone = [number for number in found if number not in mine and number < last]
        if gone:
            mark("broker.given_away")
        return [BlockId(state.topic_id, state.index, number) for number in gone]

    def seal(self, m: Seal, now: int) -> None:
        """Seal the open block of a partition."""
        partition = self.by_name.get((m.topic, m.partition))
        if partition is None or m.topic_id not in ("", partition.state.topic_id):
            # The request concerns another topic of that name, or a partition that was removed.
            return
        if m.controller_epoch >= self._registration.epoch:
            partition.seal(m, now)
            self._schedule.touch(partition)

    def transfer(self, m: TransferLeader, now: int) -> None:
        """Transfer the leadership of a partition's open block, if this broker leads it."""
        partition = self.by_name.get((m.topic, m.partition))
        if partition is None or m.topic_id != partition.state.topic_id:
            return
        is_it = partition.state.blocks[-1].number == m.block and partition.leads
        if is_it and m.controller_epoch >= self._registration.epoch:
            partition.hand_over(now, m.target)
            self._schedule.touch(partition)

    # --- removal --------------------------------------------------------------------------------

    def stop_replica(self, source: str, m: StopReplica, now: int) -> None:
        """Remove a partition or a whole topic; `Stopped` is sent when the removal is durable."""
        if m.controller_epoch < self._registration.epoch:
            return
        if m.partition:
            found = self.by_index.get((m.topic_id, m.index))
            stopped = [found] if found is not None and found.state.epoch <= m.epoch else []
            if found is not None and not stopped:
                return  # this broker hosts the partition again, with a later epoch
            if self._orders.is_late(m.id, TopicPartition(m.topic, m.partition)):
                mark("broker.late_stop")
                # meanwhile the broker got a block of the partition, which does not raise the epoch
                return
            self._orders.accept(m.id, TopicPartition(m.topic, m.partition))
        else:
            if self._orders.accept(m.id, m.topic_id):
                # Do this only for the first request: when the request is repeated, there may be
                # another topic of that name.
                self._host.coordinators.forget_topic(m.topic, m.topic_id, now)
            self._host.troubles.forget_topic(m.topic_id)
            going = [p for (topic, _), p in self.by_index.items() if topic == m.topic_id]
            left = self._leftovers.take_out(m.topic_id, None)
            self.removals.begin(source, m, going, left, now)
            return
        for partition in stopped:
            error = NotLeader(f"{partition.name} is no longer here", leader=None)
            self._drop(partition, error, m.delete, now)
        if m.delete:
            left = self._leftovers.take_out(m.topic_id, m.index)
            self._host.out.write += [RemoveBlock(block) for block in left]
        self._host.out.after.append((source, Stopped(m.id, self._host.me)))

    def _give_up(self, partition: Partition, now: int) -> None:
        """Drop a partition of a deleted topic, unless this was already done."""
        if self.by_index.get((partition.state.topic_id, partition.state.index)) is partition:
            error = NotLeader(f"{partition.name} is no longer here", leader=None)
            self._drop(partition, error, False, now)

    def _drop(self, partition: Partition, error: PymqError, delete: bool, now: int) -> None:
        # this call also hands over the partition's group coordinator
        partition.remove(error, delete, now)
        self._sharing.drop(partition, now)
        self.by_name.pop(partition.name, None)
        self.by_index.pop((partition.state.topic_id, partition.state.index), None)
        self._schedule.drop(partition)
