"""Makes a share session a member of pymq's group, one for each topic that it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pymq.core.message import BEGIN, Acquire, Assigned, Heartbeat, Join, Message, Subscribe
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.core.types import NAME_LENGTH_MAX, TopicPartition
from pymq.errors import (
    FencedMember,
    NotLeader,
    NotSubscribed,
    PymqError,
    ReplicaNotAvailable,
    RequestTimeout,
)
from pymq.kafka.shared.controllers import ask_controller
from pymq.kafka.shared.conversation import (
    Ask,
    GateContext,
    Late,
    Pause,
    Steps,
)
from pymq.kafka.shared.group_coordinators import coordinator_of
from pymq.kafka.shared.share_sessions import SessionMember, ShareSession

LOCK_MS = 30_000  # share.record.lock.duration.ms: how long a lease lasts
MAX_DELIVER = 5  # share.delivery.count.limit
SESSION_MS = 45_000  # a gate that does not send heartbeats for so long has stopped
ASSIGNOR = "sticky"
RETRY_MS = 100
# Time limit for the coordinator's answer: the broker may have stopped. Leases in a later answer end
# after LOCK_MS.
GROUP_ANSWER_MS = 5_000
PATIENCE_MS = 10_000  # time for another broker to take over as coordinator
_MOVED = (NotLeader, ReplicaNotAvailable, RequestTimeout)


def join(
    context: GateContext, session: ShareSession, topic: TopicMetadata, within: tuple[str, ...]
) -> Steps:
    """Let a session join its group for a topic; returns the member, or the error.

    *within* are the partitions that the session reads. The session joins again if they change.
    """
    member = session.members.get(topic.topic)
    if member is not None and member.topic_id != topic.topic_id:
        member = None  # The topic was deleted and created again.
    names = tuple(each.partition for each in topic.partitions)
    if member is None:
        name = _name(session.member, topic, context.me)
        member = SessionMember(name, topic.topic, topic.topic_id)
        session.members[topic.topic] = member
    if member.is_joined and (member.within, member.partitions) == (within, names):
        if member.is_stale:
            yield from _look(context, session, member)
        return member
    if not member.is_joined:
        # Also after an Unsubscribe: a worker that goes on subscribes its group again.
        error = yield from _subscribe(context, session.group, topic.topic)
        if error is not None:
            return error
    member.within, member.partitions, member.is_joined = within, names, False
    request = partial(
        Join,
        group=session.group,
        member=member.name,
        topic=topic.topic,
        partitions=names,
        assignor=ASSIGNOR,
        session_ms=SESSION_MS,
        ack_wait_ms=LOCK_MS,
        max_deliver=MAX_DELIVER,
        reset=BEGIN,
        topic_id=topic.topic_id,
        ordered=False,
        within=within,
    )
    (done,) = yield from ask_group(context, session, [member], [request])
    if not isinstance(done, Assigned) or done.error is not None:
        error = done.error
        return error
    member.is_joined, member.generation, member.is_stale = True, done.generation, False
    return member


def _look(context: GateContext, session: ShareSession, member: SessionMember) -> Steps:
    """Take note of a new assignment: until then, the coordinator leases nothing to the member."""
    request = partial(Heartbeat, group=session.group, member=member.name, partitions=())
    (done,) = yield from ask_group(context, session, [member], [request])
    if isinstance(done, Assigned) and done.error is None:
        member.generation, member.is_stale = done.generation, False


def _name(member: str, topic: TopicMetadata, broker: str) -> str:
    """Return the name of a session's member, which ``explain`` shows.

    A client has a session at each broker whose partitions it reads, and a member belongs to the
    broker that has sent its Join.
    """
    name = f"{member}.{topic.topic}.{broker}"
    if len(name) > NAME_LENGTH_MAX:
        name = f"{member}.{topic.topic_id}.{broker}"
    return name


def _subscribe(context: GateContext, group: str, topic: str) -> Steps:
    """Subscribe a group to a topic, as pymq's own consumer does; returns the error."""
    answer = yield from ask_controller(context, lambda r: Subscribe(r, group, topic, "ptp", group))
    return answer.error


def ask_group(
    context: GateContext,
    session: ShareSession,
    members: Sequence[SessionMember],
    make: Sequence[Callable[[int], Message]],
    wait_ms: int = 0,
    hasten: Sequence[Callable[[int], Message]] = (),
    watch: Sequence[tuple[TopicPartition, int]] = (),
) -> Steps:
    """Send a request for each member to the group's coordinator; returns the answers.

    The requests are sent again if the coordinator has moved; those that were carried out before
    must not do harm. A member that the coordinator does not know has to join again.
    """
    until = context.now + PATIENCE_MS
    left = list(range(len(make)))
    found: dict[int, Any] = dict.fromkeys(left, NO_COORDINATOR)
    while True:
        coordinator = yield from coordinator_of(context, session.group)
        if coordinator is not None:
            for index in left:
                members[index].coordinator = coordinator
            answers = yield Ask(
                [(coordinator, make[index]) for index in left],
                wait_ms + GROUP_ANSWER_MS,
                hasten=[(coordinator, each) for each in hasten],
                watch=watch,
            )
            found |= dict(zip(left, answers, strict=True))
            left = [index for index in left if isinstance(found[index].error, _MOVED)]
        for index, answer in found.items():
            if isinstance(answer.error, FencedMember | NotSubscribed):
                members[index].is_joined = False
        if not left or context.now >= until or session.is_over:
            return list(found.values())
        context.share.leaders.forget()
        yield Pause(RETRY_MS)


class _NoCoordinator(Late):
    error: PymqError = RequestTimeout("no broker coordinates the group at the moment")


NO_COORDINATOR = _NoCoordinator()


def hastened(session: ShareSession, member: SessionMember) -> Callable[[int], Message]:
    """Return a request that makes the coordinator answer the member's waiting Acquire."""
    return partial(
        Acquire,
        group=session.group,
        member=member.name,
        known=(),
        max_records=0,
        max_wait_ms=0,
    )


def close(context: GateContext, session: ShareSession, topics: Sequence[str]) -> Steps:
    """Leave the group for some topics, so that other members get the leased records at once."""
    requests = session.leave(topics)
    if requests:
        yield Ask(requests)
