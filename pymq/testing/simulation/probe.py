"""What checkers and tests look at inside of the machines; the one place that knows their insides.

Nothing is changed through it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from pymq.broker.broker import BrokerMachine
from pymq.client.group.group_member import GroupConsumer
from pymq.controller.controller import Controller
from pymq.core.group.coordinator import GroupCoordinator
from pymq.core.group.leases import Leases
from pymq.core.metadata.nodes import PartitionState
from pymq.core.partition.partition import Partition
from pymq.core.types import BlockId, TopicPartition
from pymq.replication.fetch import FetchReplicator


class Look(NamedTuple):
    """A partition as its broker sees it; everything that checkers ask of it."""

    block: BlockId  # the open one
    start: int  # of the open block
    end: int  # of the log, written or not
    high_watermark: int
    epoch: int
    is_leader: bool  # and takes in records: behind a seal nobody does
    is_strict: bool  # everything is synced before it counts
    majority: int  # replicas that must hold what is visible
    told: tuple[int, int]  # epoch and version of what the zkserver has told of it
    made_on: str  # the disk that this replica of the open block was made on; "" if unknown


def partitions(broker: BrokerMachine) -> Iterable[Partition]:
    """The partitions that a broker hosts, in the order in which it has got them."""
    return broker._partitions.values()


def incomplete(broker: BrokerMachine) -> Iterator[BlockId]:
    """The sealed blocks that a broker is still to complete, from others that hold all of them."""
    for partition in partitions(broker):
        repairs, me = partition._repairs._repairs, partition.me
        for block in partition.state.blocks:
            found = repairs.get(block.number)
            if found is not None and not found.is_done and set(block.in_sync) - {me}:
                yield partition.state.block_id(block)


def sign(partition: Partition) -> tuple[object, ...]:
    """What a :func:`look` follows from; as long as it is equal, so is the look, at less cost."""
    opened = partition.opened
    replicator, log = opened.replicator, opened.log
    if replicator is None:
        return (partition.state, opened.visible)
    return (
        replicator,
        partition.state,
        log,
        log.end if log is not None else -1,
        log.seal_end if log is not None else None,
        replicator.high_watermark,
        opened.visible,
        replicator.epoch,
        replicator.is_leader,
    )


def look(partition: Partition, last: Look | None) -> Look | None:
    """A partition, or None while it does not know its log, or will never.

    One that cannot act any more is looked at too: it may have answered in the turn of its failure.
    So is one that has to start over: what it had got to by then, beyond the *last* look, it shows.
    """
    opened = partition.opened
    replicator = opened.replicator
    state = partition.state
    block = state.blocks[-1]
    if replicator is None:
        visible = partition.opened.visible
        if last is None or last.block != state.block_id(block) or visible <= last.high_watermark:
            return None
        end = max(last.end, visible)
        return last._replace(high_watermark=visible, end=end, is_leader=False)
    is_strict = state.config.sync_policy(state.acks) == "always"
    is_placed = bool(block.storages) and partition.me in block.replicas
    return Look(
        state.block_id(block),
        block.start,
        opened.end,
        opened.high_watermark,
        replicator.epoch,
        replicator.is_leader and (opened.log is None or opened.log.seal_end is None),
        is_strict,
        len(block.replicas) // 2 + 1 if state.acks == -1 else 1,
        (state.epoch, state.version),
        block.storages[block.replicas.index(partition.me)] if is_placed else "",
    )


def high_watermark(broker: BrokerMachine | None, topic: str, partition: str) -> int | None:
    """How far a broker knows a partition to be committed now; None if it does not host it."""
    found = broker._partitions.get(TopicPartition(topic, partition)) if broker else None
    return found.opened.high_watermark if found is not None else None


def readable_from_begin(partition: Partition) -> int | None:
    """How far a broker has a partition without a gap; None if it does not know its begin.

    Of the open block it is as far as the broker knows it to be committed, and has it on its disk.
    """
    *sealed, opened = partition.state.blocks
    for block in sealed:
        if not partition.has(block) or partition.damage(block) is not None:
            return None if block is sealed[0] else block.start
    if partition.problem is not None or partition.opened.replicator is None:
        return opened.start
    return max(opened.start, partition.opened.readable_end)


def in_sync(partition: Partition) -> tuple[str, ...] | None:
    """Whom the leader of a fetch block counts on, and will if it gets its way; else None."""
    replicator = partition.opened.replicator
    if not isinstance(replicator, FetchReplicator) or not replicator.is_leader:
        return None
    wanted = replicator._wanted
    return tuple(name for name in replicator.in_sync if wanted is None or name in wanted)


def state(partition: Partition) -> PartitionState:
    """What the broker was told of a partition."""
    return partition.state


def knows(controller: Controller, brokers: Iterable[str]) -> bool:
    """Whether it is active and takes all of *brokers* to be alive."""
    return controller.is_active and all(name in controller._members for name in brokers)


def is_busy(controller: Controller) -> bool:
    """Whether it has something under way: a commit, a task, a roll."""
    return controller._commits.is_busy or controller._rolls.is_busy


def coordinators(broker: BrokerMachine) -> Iterator[GroupCoordinator]:
    """The group coordinators of a broker."""
    yield from broker._coordinators.values()


def members(broker: BrokerMachine, group: str) -> tuple[str, ...] | None:
    """The members of a group, if the broker coordinates it."""
    for coordinator in broker._coordinators.values():
        found = coordinator.groups.get(group)
        if found is not None:
            return tuple(found.members)
    return None


def is_member(broker: BrokerMachine, group: str, member: str, now: int) -> bool:
    """Whether a member is in a group, and will be once what is due by *now* is done."""
    for coordinator in broker._coordinators.values():
        found = coordinator.groups.get(group)
        if found is not None and member in found.members:
            return found.members[member].gone_at > coordinator._attention.at(now)
    return False


def owners(
    broker: BrokerMachine, group: str, generation: int, name: tuple[str, str]
) -> Collection[str] | None:
    """To whom a partition is assigned, if that generation of the group is the one there is."""
    for coordinator in broker._coordinators.values():
        found = coordinator.groups.get(group)
        if found is not None and found.generation == generation:
            return found.owners(*name)
    return None


def loose(broker: BrokerMachine, group: str, member: str) -> Iterator[tuple[str, int, int]]:
    """What is available to any member that takes records of others, as its coordinator knows it.

    Nothing while the member has not been told of the latest generation.
    """
    for coordinator in broker._coordinators.values():
        found = coordinator.groups.get(group)
        who = found.members.get(member) if found is not None else None
        if found is None or who is None or who.told != found.generation:
            continue
        reach, now = found.topic(who.topic).reach, coordinator._attention.ms
        for (topic, partition), leases in found.leases.items():
            if topic == who.topic and partition in reach and not leases.is_full:
                for start, end in leases.available(reach[partition][1], now):
                    part = leases.unkeyed.first(start, end)
                    if part is not None:
                        yield partition, *part


def leases(
    broker: BrokerMachine, group: str, topic: str, partition: str
) -> tuple[GroupCoordinator, Leases] | None:
    """What a group has leased and done in a partition, and who coordinates it, if *broker* does."""
    for coordinator in broker._coordinators.values():
        found = coordinator.groups.get(group)
        if found is not None and (topic, partition) in found.leases:
            return coordinator, found.leases[topic, partition]
    return None


def all_leases(broker: BrokerMachine) -> Iterator[tuple[GroupCoordinator, str, str, str, Leases]]:
    """The same of all groups: (coordinator, group, topic, partition, leases)."""
    for coordinator in broker._coordinators.values():
        for group in coordinator.groups.values():
            for (topic, partition), found in group.leases.items():
                yield coordinator, group.name, topic, partition, found


def is_loading(coordinator: GroupCoordinator) -> bool:
    """Whether it has not read all offsets yet."""
    return not coordinator._offsets.is_loaded


def fetching(worker: GroupConsumer) -> Iterator[tuple[str, int]]:
    """Where a member of a group goes on to fetch what it has leased: (partition, offset)."""
    for partition, line in worker._leased._lines.items():
        for lease in line:
            yield partition, lease.position
