"""Reads the inner state of machines for checkers and tests, or listens to it; changes nothing.

No other module of the simulator reads private attributes of machines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pymq.broker.broker import BrokerMachine
from pymq.client.client import Client
from pymq.client.group.group_member import GroupConsumer
from pymq.client.rpc.mailbox import Pending
from pymq.client.rpc.requester import Requester
from pymq.controller.controller import Controller
from pymq.core.group.consumer_group import ConsumerGroup
from pymq.core.group.coordinator import GroupCoordinator
from pymq.core.group.leases import Leases
from pymq.core.group.member import Member
from pymq.core.group.spans import LEASED
from pymq.core.message import Lease, Range
from pymq.core.metadata.nodes import PartitionState
from pymq.core.partition.partition import Partition
from pymq.core.types import BlockId, TopicPartition
from pymq.hash.partitioner import key_partition
from pymq.replication.fetch import FetchReplicator

if TYPE_CHECKING:
    from pymq.kafka.connection import KafkaConnection
    from pymq.kafka.door import KafkaDoor


class Look(NamedTuple):
    """The state of a partition on its broker, as far as checkers need it."""

    block: BlockId  # id of the open block
    start: int  # start of the open block
    end: int  # end of the log, including unwritten records
    high_watermark: int
    epoch: int
    is_leader: bool  # whether the replica leads and appends records; False after a seal
    is_strict: bool  # whether each write must be synced before it counts
    majority: int  # number of replicas that must have all visible records
    told: tuple[int, int]  # epoch and version of the last state from the zkserver
    made_on: str  # disk on which this replica of the open block was created; "" if unknown


def partitions(broker: BrokerMachine) -> Iterable[Partition]:
    """Return the partitions of a broker in the order in which it received them."""
    return broker._partitions.values()


def incomplete(broker: BrokerMachine) -> Iterator[BlockId]:
    """Return the sealed blocks that a broker still copies from other brokers."""
    for partition in partitions(broker):
        repairs, me = partition._repairs._repairs, partition.me
        for block in partition.state.blocks:
            found = repairs.get(block.number)
            if found is not None and not found.is_done and set(block.in_sync) - {me}:
                yield partition.state.block_id(block)


def sign(partition: Partition) -> tuple[object, ...]:
    """Return the inputs of a :func:`look`, at little cost: equal inputs give equal looks."""
    opened = partition.opened
    replicator, log = opened.replicator, opened.log
    if replicator is None:
        return (partition.state, opened.offsets.visible)
    return (
        replicator,
        partition.state,
        log,
        log.end if log is not None else -1,
        log.seal_end if log is not None else None,
        replicator.high_watermark,
        opened.offsets.visible,
        replicator.epoch,
        replicator.is_leader,
    )


def look(partition: Partition, last: Look | None) -> Look | None:
    """Return a partition's state; None if its log is not recovered yet, or never will be.

    A failed partition has a state too, since it may have sent an answer in the turn of its failure.
    So has a partition that restarts its log: its progress since the *last* look counts.
    """
    opened = partition.opened
    replicator = opened.replicator
    state = partition.state
    block = state.blocks[-1]
    if replicator is None:
        visible = partition.opened.offsets.visible
        if last is None or last.block != state.block_id(block) or visible <= last.high_watermark:
            return None
        end = max(last.end, visible)
        return last._replace(high_watermark=visible, end=end, is_leader=False)
    is_strict = state.config.sync_policy(state.acks) == "always"
    is_placed = bool(block.storages) and partition.me in block.replicas
    return Look(
        state.block_id(block),
        block.start,
        opened.offsets.end,
        opened.offsets.high_watermark,
        replicator.epoch,
        replicator.is_leader and (opened.log is None or opened.log.seal_end is None),
        is_strict,
        len(block.replicas) // 2 + 1 if state.acks == -1 else 1,
        (state.epoch, state.version),
        block.storages[block.replicas.index(partition.me)] if is_placed else "",
    )


def high_watermark(broker: BrokerMachine | None, topic: str, partition: str) -> int | None:
    """Return the high watermark that a broker knows; None if it does not host the partition."""
    found = broker._partitions.get(TopicPartition(topic, partition)) if broker else None
    return found.opened.offsets.high_watermark if found is not None else None


def readable_from_begin(partition: Partition) -> int | None:
    """Return the offset up to which a broker has a partition without a gap; None if it lacks the
    beginning.

    In the open block only committed records on its disk count.
    """
    *sealed, opened = partition.state.blocks
    for block in sealed:
        if not partition.blocks.has(block) or partition._repairs.problem(block.number):
            return None if block is sealed[0] else block.start
    if partition.problem is not None or partition.opened.replicator is None:
        return opened.start
    return max(opened.start, partition.opened.offsets.readable_end)


def in_sync(partition: Partition) -> tuple[str, ...] | None:
    """Return the in-sync replicas, with requested ones, if the broker leads a fetch block; else
    None.
    """
    replicator = partition.opened.replicator
    if not isinstance(replicator, FetchReplicator) or not replicator.is_leader:
        return None
    wanted = replicator._wanted
    return tuple(name for name in replicator.in_sync if wanted is None or name in wanted)


def state(partition: Partition) -> PartitionState:
    """Return the zkserver's last state of a partition on this broker."""
    return partition.state


def knows(controller: Controller, brokers: Iterable[str]) -> bool:
    """Whether the zkserver is active and counts all of *brokers* as alive."""
    return controller.is_active and all(name in controller._members for name in brokers)


def is_busy(controller: Controller) -> bool:
    """Whether the zkserver has a commit, a task or a roll in progress."""
    return len(controller._commits) > 0 or len(controller._rolls) > 0


def coordinators(broker: BrokerMachine) -> Iterator[GroupCoordinator]:
    """Return the group coordinators of a broker."""
    yield from broker._coordinators.values()


def members(broker: BrokerMachine, group: str) -> tuple[str, ...] | None:
    """Return the members of a group, if the broker coordinates the group."""
    for coordinator in broker._coordinators.values():
        found = coordinator.groups.get(group)
        if found is not None:
            return tuple(found.members)
    return None


def is_member(broker: BrokerMachine, group: str, member: str, now: int) -> bool:
    """Whether a member is still in its group once all timers due by *now* have run."""
    for coordinator in broker._coordinators.values():
        found = coordinator.groups.get(group)
        if found is not None and member in found.members:
            return found.members[member].gone_at > coordinator.clock.at(now)
    return False


def address(broker: BrokerMachine, group: str, member: str) -> str | None:
    """Return the address of a group's member, if the broker coordinates the group."""
    for coordinator in broker._coordinators.values():
        found = coordinator.groups.get(group)
        if found is not None and member in found.members:
            return found.members[member].source
    return None


def held(leases: Leases, member: str, span: Range, now: int) -> Iterator[tuple[int, int, int]]:
    """Return the parts of *span* that a member has leased, each with its number of deliveries."""
    for each in leases.spans:
        is_its = each.state == LEASED and each.owner == member and each.due > now
        if is_its and each.start < span[1] and span[0] < each.end:
            yield max(each.start, span[0]), min(each.end, span[1]), each.count


def owners(
    broker: BrokerMachine, group: str, generation: int, name: tuple[str, str]
) -> Collection[str] | None:
    """Return the owner of a partition, if *generation* is the present generation of the group."""
    for coordinator in broker._coordinators.values():
        found = coordinator.groups.get(group)
        if found is not None and found.generation == generation:
            return found.owners(*name)
    return None


def loose(broker: BrokerMachine, group: str, member: str) -> Iterator[tuple[str, int, int]]:
    """Yield the ranges that, by the coordinator's state, any member may lease.

    Yields nothing while the member does not know the latest generation.
    """
    for coordinator in broker._coordinators.values():
        found = coordinator.groups.get(group)
        who = found.members.get(member) if found is not None else None
        if found is None or who is None or who.generation != found.generation:
            continue
        reach, now = found.offsets.topic(who.topic).reach, coordinator.clock.ms
        for (topic, partition), leases in found.offsets.leases.items():
            if topic == who.topic and partition in reach and not leases.is_full:
                for start, end in leases.available(reach[partition][1], now):
                    part = leases.unkeyed.first(start, end)
                    if part is not None:
                        yield partition, *part


def leases(
    broker: BrokerMachine, group: str, topic: str, partition: str
) -> tuple[GroupCoordinator, Leases] | None:
    """Return the leases of a group in a partition and their coordinator, if it is on *broker*."""
    for coordinator in broker._coordinators.values():
        found = coordinator.groups.get(group)
        if found is not None and (topic, partition) in found.offsets.leases:
            return coordinator, found.offsets.leases[topic, partition]
    return None


def all_leases(broker: BrokerMachine) -> Iterator[tuple[GroupCoordinator, str, str, str, Leases]]:
    """Return the leases of all groups: (coordinator, group, topic, partition, leases)."""
    for coordinator in broker._coordinators.values():
        for group in coordinator.groups.values():
            for (topic, partition), found in group.offsets.leases.items():
                yield coordinator, group.name, topic, partition, found


def is_loading(coordinator: GroupCoordinator) -> bool:
    """Whether a coordinator has not loaded all offsets yet."""
    return not coordinator.offsets.is_loaded


def fetching(worker: GroupConsumer) -> Iterator[tuple[str, int]]:
    """Return the next offsets that a member will fetch of its leased records: (partition,
    offset).
    """
    for partition, line in worker._leased._lines.items():
        for lease in line:
            yield partition, lease.position


def requester(client: Client) -> Requester:
    """Return the part of a client that sends requests."""
    return client._requests()


def count_replies(pending: Pending, on_reply: Callable[[Pending], object]) -> None:
    """Call *on_reply* whenever a request accepts a reply."""
    pending._on_reply = on_reply


def on_lease(
    coordinator: GroupCoordinator,
    leased: Callable[[ConsumerGroup, Member, tuple[Lease, ...], int], None],
) -> None:
    """Call *leased* whenever a coordinator has leased records, before anything else happens.

    The arguments are the group, the member that still waits, the leases, and the group's time.
    """
    manager = coordinator._leases
    answer = manager.answer

    def told(group: ConsumerGroup, member: Member, leases: tuple[Lease, ...], now: int) -> None:
        if leases:
            leased(group, member, leases, coordinator.clock.ms)
        answer(group, member, leases, now)

    manager.answer = told  # type: ignore[method-assign] # the one place where all leases pass


def has_settled(broker: BrokerMachine, group: str, now: int) -> bool:
    """Whether a broker coordinates a group, and for so long that all members have joined it."""
    coordinators = broker._coordinators
    index = key_partition(group.encode(), coordinators._offsets_partitions)
    found = coordinators.by_index.get(index)
    return found is not None and found.offsets.is_loaded and now >= found._is_new_until


def kafka_connection(door: KafkaDoor, socket: object) -> KafkaConnection | None:
    """Return the connection of a door's socket; None if the gate does not know it yet."""
    for connection, client in door._clients.items():
        if client.socket is socket:
            return connection
    return None


def is_reconciled_member(broker: BrokerMachine, group: str, member: str) -> bool:
    """Whether a broker coordinates a group of KIP-848, and has a member."""
    for coordinator in broker._coordinators.values():
        kafka = coordinator._kafka
        found = kafka._reconciled.groups.get(group) if kafka is not None else None
        if found is not None and member in found.members:
            return True
    return False


def reconciled_holdings(
    broker: BrokerMachine,
) -> Iterator[tuple[str, dict[str, frozenset[tuple[str, int]]]]]:
    """Yield the groups of KIP-848 of a broker, and the partitions that each member holds."""
    for coordinator in broker._coordinators.values():
        groups = coordinator._kafka._reconciled.groups if coordinator._kafka is not None else {}
        for name, group in groups.items():
            yield name, {member: found.held for member, found in group.members.items()}
