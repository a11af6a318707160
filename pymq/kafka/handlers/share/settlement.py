"""Acknowledgements of share sessions: accepted, released, rejected and renewed records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from pymq.core.message import Range, Settle, Settled
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.errors import FencedMember, NotSubscribed
from pymq.kafka.codes import Code, group_code
from pymq.kafka.handlers.share import dead_letters
from pymq.kafka.handlers.share.membership import ask_group
from pymq.kafka.shared.conversation import GateContext, Steps
from pymq.kafka.shared.share_sessions import Place, SessionMember, ShareSession
from pymq.kafka.shared.topic_cache import find_topic, partition_of

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
OFFSET_MAX = 1 << 61
RUNS_MAX = 100_000  # of one kind, in the acknowledgements of one partition
REJECTED = b"a worker has rejected the record"


class AcknowledgementBatch(Protocol):
    """A range of offsets, with one kind for all or one for each."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


Acknowledgements = Mapping[Place, Sequence[AcknowledgementBatch]]


class _Runs(NamedTuple):
    """The ranges of a partition, by what happens to their records."""

    done: list[Range]
    released: list[Range]
    rejected: list[Range]
    renewed: list[Range]


def settle(
    context: GateContext, session: ShareSession, given: Acknowledgements, *, renews: bool
) -> Steps:
    """Settle leases; returns the code for each partition.

    As in Kafka, the acknowledgements of a partition are taken as a whole or not at all.
    """
    codes: dict[Place, Code] = {}
    for place, batches in given.items():
        if not batches:
            continue
        runs = _runs(batches, renews=renews)
        if isinstance(runs, Code):
            codes[place] = runs
            continue
        topic = yield from find_topic(context, "", place[0])
        partition = None
        if isinstance(topic, TopicMetadata):
            partition = partition_of(topic, place[1])
        if partition is None or not isinstance(topic, TopicMetadata):
            codes[place] = Code.UNKNOWN_TOPIC_ID
            continue
        member = session.members.get(topic.topic)
        if member is None:
            codes[place] = Code.INVALID_RECORD_STATE
            continue
        codes[place] = yield from _settle(
            context, session, member, topic, partition.partition, runs
        )
    return codes


def _runs(batches: Sequence[AcknowledgementBatch], *, renews: bool) -> _Runs | Code:
    """Return the ranges of a partition by their kinds, or the code of a refusal."""
    found = _Runs([], [], [], [])
    by_kind = (found.done, found.done, found.released, found.rejected, found.renewed)
    reached, count = 0, 0
    for batch in batches:
        first, end, kinds = batch.first_offset, batch.last_offset + 1, batch.acknowledge_types
        if not reached <= first < end <= OFFSET_MAX or len(kinds) not in (1, end - first):
            return Code.INVALID_REQUEST
        if min(kinds) < GAP or max(kinds) > (RENEW if renews else REJECT):
            return Code.INVALID_REQUEST
        reached = end
        if len(kinds) == 1:
            _add(by_kind[kinds[0]], first, end)
            count += 1
            continue
        for offset, kind in enumerate(kinds, first):
            count += _add(by_kind[kind], offset, offset + 1)
        if count > RUNS_MAX:
            return Code.INVALID_REQUEST
    return found


def _add(runs: list[Range], start: int, end: int) -> bool:
    """Add a range, joined with the one before if they adjoin; returns whether it is a new one."""
    if runs and runs[-1][1] == start:
        runs[-1] = runs[-1][0], end
        return False
    runs.append((start, end))
    return True


def _settle(
    context: GateContext,
    session: ShareSession,
    member: SessionMember,
    topic: TopicMetadata,
    partition: str,
    runs: _Runs,
) -> Steps:
    """Settle the leases of one partition; returns the code.

    The leases of rejected records begin again, and end when their dead letters are written.
    """
    code = yield from _send(
        context,
        session,
        member,
        partial(
            Settle,
            group=session.group,
            member=member.name,
            acks=tuple((partition, span) for span in runs.done),
            nacks=tuple((partition, span, 0) for span in runs.released),
            renewals=tuple((partition, span) for span in (*runs.renewed, *runs.rejected)),
            whole=True,
        ),
    )
    if code or not runs.rejected:
        return code
    counted = yield from dead_letters.counted(context, session, member, partition, runs.rejected)
    code = yield from dead_letters.bury(context, session.group, topic, partition, counted, REJECTED)
    if code:
        return code
    acks = tuple((partition, span) for span in runs.rejected)
    request = partial(Settle, group=session.group, member=member.name, acks=acks, whole=True)
    return (yield from _send(context, session, member, request))


def _send(
    context: GateContext, session: ShareSession, member: SessionMember, make: partial[Settle]
) -> Steps:
    (done,) = yield from ask_group(context, session, [member], [make])
    if isinstance(done.error, FencedMember | NotSubscribed):
        return Code.INVALID_RECORD_STATE  # The leases went to other members.
    if not isinstance(done, Settled) or done.error is not None:
        return group_code(done.error)
    return Code.INVALID_RECORD_STATE if done.refused else Code.NONE
