"""Gauges of a broker or a zkserver, read on request.

The thread that runs the loop only copies the numbers, which takes about 5 us for each partition
that the broker leads. The thread that requested the numbers formats them.
"""

from __future__ import annotations

from pymq.broker.broker import BrokerMachine
from pymq.controller.controller import Controller
from pymq.controller.transitions import rereplication, takeover
from pymq.core.observe.metrics import Metrics
from pymq.core.partition.partition import Partition
from pymq.core.types import AckMode, TopicPartition


def broker(machine: BrokerMachine, out: Metrics) -> None:
    """Add the numbers of hosted and led partitions and of coordinated groups."""
    led = under = few = failed = 0
    taken_in: dict[str, list[int]] = {}
    for partition in machine.partitions.values():
        total = taken_in.setdefault(partition.name.topic, [0, 0])
        records, size = partition.produces.records, partition.produces.bytes
        total[0] += records
        total[1] += size
        failed += partition.offline is not None
        if not partition.leads:
            continue
        led += 1
        in_sync, replicas = _led(partition, out)
        under += in_sync < replicas
        few += in_sync < min(partition.state.config.min_in_sync, replicas)
    for topic, (records, size) in taken_in.items():
        out.add("pymq_messages_in_total", records, topic)
        out.add("pymq_bytes_in_total", size, topic)
    out.add("pymq_hosted_partitions", len(machine.partitions))
    out.add("pymq_led_partitions", led)
    out.add("pymq_under_replicated_partitions", under)
    out.add("pymq_under_min_isr_partitions", few)
    out.add("pymq_failed_partitions", failed)
    out.add("pymq_fetches_waiting", machine.fetches.waiting)
    out.add("pymq_delayed_records", machine.delayed)
    _groups(machine, out)


def _led(partition: Partition, out: Metrics) -> tuple[int, int]:
    """Add a partition that this broker leads.

    Returns the numbers of in-sync and of all replicas.
    """
    report, state = partition.report(), partition.state
    replicas = len(state.blocks[-1].replicas)
    in_sync = len(report.in_sync)
    size = sum(block.size for block in state.blocks[:-1]) + report.size
    for name, found in (
        ("pymq_log_start_offset", report.log_start),
        ("pymq_log_end_offset", report.end),
        ("pymq_high_watermark", report.high_watermark),
        ("pymq_leader_epoch", partition.epoch),
        ("pymq_replicas", replicas),
        ("pymq_in_sync_replicas", in_sync),
        ("pymq_log_size_bytes", size),
    ):
        out.add(name, found, *partition.name)
    return in_sync, replicas


def _groups(machine: BrokerMachine, out: Metrics) -> None:
    for coordinator in machine.coordinators.values():
        for group in coordinator.groups.values():
            out.add("pymq_group_members", len(group.members), group.name)
            for (topic, partition), leases in group.offsets.leases.items():
                where = (group.name, topic, partition)
                out.add("pymq_group_committed_offset", leases.committed, *where)
                out.add("pymq_group_in_flight", leases.spans.in_flight, *where)
                # A leader on this broker knows a newer high watermark than the members have
                # reported.
                led = machine.partitions.get((topic, partition))
                if led is not None and led.leads:
                    end = led.opened.offsets.high_watermark
                elif (known := group.offsets.end(topic, partition)) is not None:
                    end = known
                else:
                    end = leases.committed
                out.add("pymq_group_lag", max(0, end - leases.committed), *where)


def zkserver(machine: Controller, out: Metrics) -> None:
    """Add the figures of the cluster, if this zkserver is the active one."""
    counts = machine.journal.counts
    out.add("pymq_active_controller", int(machine.is_active))
    out.add("pymq_isr_shrinks_total", counts["isr_shrunk"])
    out.add("pymq_isr_expands_total", counts["isr_expanded"])
    out.add("pymq_leader_elections_total", counts["leader_changed"])
    out.add("pymq_unclean_elections_total", machine.unclean_elections)
    out.add("pymq_rolls_total", counts["block_rolled"])
    out.add("pymq_rolls_under_way", machine.rolls)
    out.add("pymq_metadata_queue", machine.queue)
    if not machine.is_active:
        # sums over zkservers would add a former controller's figures to those of the active one
        return
    image, members = machine.image, machine.members
    dead = offline = partitions = 0
    for name in image.brokers:
        dead += name not in members
    for topic, found in image.topics.items():
        partitions += len(found.partitions)
        for partition in found.partitions:
            offline += _is_offline(machine, TopicPartition(topic, partition))
    out.add("pymq_controller_epoch", image.controller_epoch)
    out.add("pymq_brokers", len(image.brokers) - dead, "alive")
    out.add("pymq_brokers", dead, "dead")
    out.add("pymq_brokers", sum(b.is_draining for b in image.brokers.values()), "draining")
    out.add("pymq_topics", len(image.topics))
    out.add("pymq_partitions", partitions)
    out.add("pymq_offline_partitions", offline)
    out.add("pymq_offline_replicas", len(members.offline))
    out.add("pymq_short_partitions", len(image.short))
    short = rereplication.under_replicated(image, members.live)
    out.add("pymq_under_replicated_blocks", short)
    out.add("pymq_moving_blocks", len(image.moving))


def _is_offline(machine: Controller, name: TopicPartition) -> bool:
    block = machine.image.partition(*name).open_block
    if block.acks is not AckMode.RAFT and block.leader in machine.members:
        return False  # the usual case, with a cheap check
    return takeover.problem(machine.image, machine.members, name) is not None
