"""Reports the state of a record in consumer groups, with the reason."""

from __future__ import annotations

import time

import pymq
from pymq.cli.units import duration_text, time_text
from pymq.core.counts import clause
from pymq.core.metadata.descriptions import PartitionDescription
from pymq.core.values import value
from pymq.errors import UnknownGroup


@value
class RecordStatus:
    """The state of a record in one group."""

    group: str
    state: str  # "acked", "leased", "to be redelivered", "not delivered" or "not begun"
    why: str
    member: str | None = None  # the member that holds the record, or will get it
    delivery_count: int = 0
    until_ms: int | None = None  # wall clock: the end of the lease, or the next delivery


def fates(
    mq: pymq.Client, topic: str, part: PartitionDescription, offset: int, only: str | None
) -> list[RecordStatus]:
    """Return the state of a record in *only* one group, or in all groups of its topic.

    Raises:
        UnknownGroup: the group *only* does not exist.
    """
    found = []
    for name in mq.groups() if only is None else [only]:
        try:
            group = mq.describe_group(name)
        except UnknownGroup:
            if only is not None:
                raise
            continue  # the group has been deleted
        if only is not None or topic in _topics(group):
            found.append(_fate(mq, group, topic, part, offset))
    return found


def _topics(group: pymq.GroupDescription) -> set[str]:
    """Return the topics that the group consumes, including topics without committed offsets."""
    return {member.topic for member in group.consumers} | {topic for topic, _ in group.committed}


def _fate(
    mq: pymq.Client,
    group: pymq.GroupDescription,
    topic: str,
    part: PartitionDescription,
    offset: int,
) -> RecordStatus:
    committed = group.committed.get((topic, part.name))
    if committed is None:
        why = "the group has consumed no record of this partition yet"
        return RecordStatus(
            group.name, "not begun", f"{why}; {_who_is_to(group, topic, part.name)}"
        )
    if offset < committed:
        return RecordStatus(
            group.name, "acked", f"all records before {committed:,} are acknowledged and committed"
        )
    leases = mq.describe_leases(group.name, topic, part.name, offset, 1)
    if offset < leases.committed:
        return RecordStatus(
            group.name, "acked", f"all records before {leases.committed:,} are acknowledged"
        )
    span = next((x for x in leases.leases if x.start_offset <= offset < x.end_offset), None)
    if span is not None:
        return _of_span(group, topic, part.name, span)
    return _undelivered(group, topic, part, offset, leases.delivered)


def _of_span(
    group: pymq.GroupDescription, topic: str, partition: str, span: pymq.LeaseDescription
) -> RecordStatus:
    name, count, until = group.name, span.delivery_count, span.until_ms
    if span.state == "acked":
        return RecordStatus(
            name, "acked", "the record itself is acknowledged; one before it is not", None, count
        )
    assert until is not None
    left = duration_text(max(0, until - time.time() * 1000))
    member = next((m for m in group.consumers if m.name == span.member), None)
    if span.state == "leased":
        whom = span.member or "somebody"
        whom += f" ({member.client})" if member is not None else ""
        limit = f" of {member.max_deliver}" if member is not None and member.max_deliver else ""
        why = (
            f"delivered to {whom}, delivery {count}{limit}, and not acknowledged yet; it comes "
            f"again after {time_text(until)}, in {left}"
        )
        return RecordStatus(name, "leased", why, span.member, count, until)
    due = f"from {time_text(until)} on, in {left}" if until > time.time() * 1000 else "now"
    why = f"it was returned or its lease ran out, after delivery {count}; it can be delivered {due}"
    why += f"; {_who_is_to(group, topic, partition)}"
    return RecordStatus(name, "to be redelivered", why, None, count, until)


def _undelivered(
    group: pymq.GroupDescription,
    topic: str,
    part: PartitionDescription,
    offset: int,
    delivered: int,
) -> RecordStatus:
    if offset >= part.end_offset:
        return RecordStatus(group.name, "not delivered", "no record is ready for delivery")
    if offset >= part.high_watermark:
        why = "no consumer gets it before it is committed"
        return RecordStatus(group.name, "not delivered", why)
    before = offset - delivered
    reasons = (
        [f"{clause(before, 'record', 'comes', 'come')} before it"]
        if before > 0
        else ["it is the next record"]
    )
    held = group.in_flight.get((topic, part.name), 0)
    if held:
        reasons.append(f"{clause(held, 'record', 'is', 'are')} in progress in the partition")
    reasons.append(_who_is_to(group, topic, part.name))
    return RecordStatus(
        group.name, "not delivered", "; ".join(reasons), _owner(group, topic, part.name)
    )


def _owner(group: pymq.GroupDescription, topic: str, partition: str) -> str | None:
    owners = [m.name for m in group.consumers if m.topic == topic and partition in m.partitions]
    return owners[0] if len(owners) == 1 else None


def _who_is_to(group: pymq.GroupDescription, topic: str, partition: str) -> str:
    """Describe the members to which a partition is assigned, and why they do not fetch."""
    if not group.consumers:
        return "the group has no consumer: start one"
    owners = [m for m in group.consumers if m.topic == topic and partition in m.partitions]
    if not owners:
        return "the partition is assigned to none of its consumers"
    asking = [m for m in owners if m.asks is not None and partition in m.asks]
    paused = [m for m in owners if m.asks is not None and partition not in m.asks]
    who = ", ".join(f"{m.name} ({m.client})" for m in owners)
    if asking:
        return f"{', '.join(m.name for m in asking)} waits for its records"
    if len(paused) == len(owners):
        return f"{who} has paused the partition"
    return f"it is assigned to {who}, which polls nothing now: its application works or hangs"
