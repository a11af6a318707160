"""Describes a consumer's position, and the reason if it gets no records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymq.core.counts import clause
from pymq.core.message import GroupOffset, GroupState
from pymq.core.values import value
from pymq.errors import PymqError

if TYPE_CHECKING:
    from pymq.client.consumer.consumer import Consumer

STATUS_S = 1.0  # timeout of the requests for a status


@value
class ConsumerStatus:
    """A consumer's position, and the reason if it gets no records."""

    topic: str
    mode: str  # "ptp" or "psb"
    group: str | None
    assigned: tuple[str, ...]
    positions: dict[str, int]
    end_offsets: dict[str, int]
    buffered: int  # fetched records that no poll has returned
    # acknowledgements that the coordinator refused, because the lease had expired
    unacknowledged_refused: int
    idle: str | None  # the reason why no records arrive; None if there are records


def status_of(consumer: Consumer) -> ConsumerStatus:
    """Return a consumer's status, after requests to its group and its partitions' leaders.

    If a broker does not answer soon, its last known state is used.
    """
    reader, worker, intake = consumer._reader, consumer._worker, consumer._intake
    if worker is not None:
        assigned = worker.membership.assigned
    else:
        assigned = tuple(reader.cursors) if reader is not None else ()
    ends, state, silence = _ask(consumer)
    if reader is not None:
        positions = consumer._read_so_far()
    else:
        positions = {o.partition: o.committed for o in state.offsets if o.topic == consumer.topic}
    buffered = len(consumer._unread.records) + sum(map(len, intake.chunks))
    idle = _handle_idle(consumer, assigned)
    if idle is None and not buffered:
        idle = _group_idle(consumer, assigned, positions, ends, state)
    if not (buffered or consumer._polling.is_closed or intake.problem):
        idle = intake.trouble() or silence or idle
    return ConsumerStatus(
        consumer.topic,
        "psb" if reader is not None else "ptp",
        consumer.group,
        assigned,
        positions,
        ends,
        buffered,
        worker.settler.refused if worker is not None else 0,
        idle,
    )


def _ask(consumer: Consumer) -> tuple[dict[str, int], GroupState, str | None]:
    """Return the partitions' ends, the group's state, and a note if these may be out of date."""
    ends: dict[str, int] = {}
    state, silence = GroupState(0, consumer.group or ""), None
    reader, worker = consumer._reader, consumer._worker
    if consumer._polling.is_closed:
        return ends, state, None
    try:
        bounds = consumer._positions.bounds(STATUS_S, any_replica=True)
        ends = {p: end for p, (_, end) in bounds.items()}
        if worker is not None:
            state = consumer._positions.group_state(STATUS_S)
    except PymqError as error:
        silence = str(error)
    if reader is not None and not ends:
        ends = {p: c.end for p, c in reader.cursors.items()}
    elif worker is not None and not ends:
        ends = {p: worker.watches.end(p) for p in worker.membership.assigned}
    return ends, state, silence


def _handle_idle(consumer: Consumer, assigned: tuple[str, ...]) -> str | None:
    """Return why no records can arrive, as far as the consumer knows without requests."""
    worker = consumer._worker
    if consumer._polling.is_closed:
        return "it was closed"
    if consumer._intake.problem is not None:
        return f"the next poll raises: {consumer._intake.problem}"
    if worker is not None and not worker.membership.is_joined:
        return f"it is joining group {consumer.group!r}"
    if not assigned:
        return f"group {consumer.group!r} has assigned no partition to it"
    return None


def _group_idle(
    consumer: Consumer,
    assigned: tuple[str, ...],
    positions: dict[str, int],
    ends: dict[str, int],
    state: GroupState,
) -> str | None:
    """Return why no records arrive, by the answers of the group and the leaders."""
    active = [partition for partition in assigned if partition not in consumer._intake.paused]
    if not active:
        return "all its partitions are paused"
    behind = [p for p in active if positions.get(p, 0) < ends.get(p, 0)]
    if not behind:
        return "it has reached the end of all its partitions"
    if consumer._worker is None:
        return None
    offsets = {o.partition: o for o in state.offsets if o.topic == consumer.topic}
    if awaited := [p for p in behind if p in offsets and _is_awaited(offsets[p], state)]:
        return f"other consumers still work on records of {', '.join(awaited)}"
    if full := [p for p in behind if p in offsets and offsets[p].is_full]:
        return (
            f"its group has too many unacknowledged records of {', '.join(full)}, so it gets no "
            "new records before the oldest ones are acknowledged"
        )
    held = sum(offsets[p].in_flight for p in behind if p in offsets)
    later = sum(offsets[p].waiting for p in behind if p in offsets)
    fresh = any(p not in offsets or offsets[p].delivered < ends[p] for p in behind)
    if fresh or not held + later:
        return None
    leased = clause(held, "record", "is", "are")
    waiting = "1 is" if later == 1 else f"{later:,} are"
    return f"{leased} leased and not acknowledged, {waiting} to be delivered again later"


def _is_awaited(offset: GroupOffset, state: GroupState) -> bool:
    """Whether the owner of a partition has to wait for leases of its former owners."""
    owners = {
        member.member
        for member in state.members
        if member.topic == offset.topic and offset.partition in member.partitions
    }
    return not owners.issuperset(offset.holders)
