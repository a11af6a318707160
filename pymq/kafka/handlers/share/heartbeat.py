"""ShareGroupHeartbeat: members of share groups learn the partitions that they may read."""

from __future__ import annotations

from pymq.core.message import ClassicState, DescribeClassic, DescribeReconciled, ReconciledState
from pymq.core.types import check_name
from pymq.errors import InvalidName
from pymq.kafka.codes import Code
from pymq.kafka.shared.conversation import Ask, GateContext, KafkaCall, Steps
from pymq.kafka.shared.group_coordinators import coordinator_of
from pymq.kafka.shared.share_members import (
    HEARTBEAT_MS,
    JOIN,
    LEAVE,
    SESSION_MS,
    ShareMember,
)
from pymq.kafka.shared.subscriptions import MemberSubscription
from pymq.kafka.wire.messages import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatResponseAssignment,
    ShareGroupHeartbeatResponseTopicPartitions,
)

PYMQ = "pymq"  # the protocol type of a group whose members are pymq's own, or share sessions
TOPICS_MAX = 1_000  # of a member's subscription
Refusal = tuple[Code, str]


def share_group_heartbeat(
    context: GateContext, m: ShareGroupHeartbeatRequest, call: KafkaCall
) -> Steps:
    """Take in a heartbeat: a member joins, is alive, or leaves.

    Each member may read all partitions of its topics, since the coordinator divides the records.
    """
    why = _problem(m)
    if why:
        return _refused(m, Code.INVALID_REQUEST, why)
    coordinator = yield from coordinator_of(context, m.group_id)
    if coordinator is None:
        return _refused(m, Code.COORDINATOR_NOT_AVAILABLE, "no broker coordinates the group")
    if coordinator != context.me:
        return _refused(m, Code.NOT_COORDINATOR, f"{coordinator} coordinates the group")
    members = context.share.members
    if m.member_epoch == LEAVE:
        if not members.leave(m.group_id, m.member_id):
            return _refused(m, Code.UNKNOWN_MEMBER_ID, "there is no such member")
        return ShareGroupHeartbeatResponse(0, 0, None, m.member_id, LEAVE)
    member: ShareMember | Code
    if m.member_epoch == JOIN:
        refusal = yield from _other_kind(context, m.group_id)
        if refusal is not None:
            return _refused(m, *refusal)
        names = tuple(m.subscribed_topic_names or ())
        who = m.rack_id, call.client, call.host
        member = ShareMember(m.group_id, m.member_id, 0, *who, names, context.now + SESSION_MS)
        code = members.join(member, context.now)
        if code:
            return _refused(m, code, f"group {m.group_id!r} has no room for another member")
    else:
        member = members.beat(m.group_id, m.member_id, m.member_epoch, context.now)
        if isinstance(member, Code):
            return _refused(m, member, f"member {m.member_id!r} of epoch {m.member_epoch}")
        if m.subscribed_topic_names is not None:
            member.names = tuple(m.subscribed_topic_names)
    subscription = MemberSubscription(member.names)
    topics = yield from context.subscriptions.topics(context, subscription)
    if topics != member.topics or member.epoch == JOIN:
        member.topics = topics
        member.epoch += 1
    assignment = None
    if m.member_epoch != member.epoch:
        assignment = ShareGroupHeartbeatResponseAssignment(
            [
                ShareGroupHeartbeatResponseTopicPartitions(bytes.fromhex(id), list(range(count)))
                for _, id, count in member.topics
            ]
        )
    return ShareGroupHeartbeatResponse(
        0, 0, None, member.id, member.epoch, HEARTBEAT_MS, assignment
    )


def _problem(m: ShareGroupHeartbeatRequest) -> str:
    """Return why a heartbeat is invalid; empty if it is valid."""
    try:
        check_name(m.group_id, "group name")
        check_name(m.member_id, "member name")
    except InvalidName as error:
        return error.message
    if m.member_epoch < LEAVE:
        return f"a member's epoch is not {m.member_epoch}"
    if m.member_epoch == JOIN and not m.subscribed_topic_names:
        return "a member that joins has to subscribe"
    if len(m.subscribed_topic_names or ()) > TOPICS_MAX:
        return f"a member subscribes to at most {TOPICS_MAX} topics"
    return ""


def _other_kind(context: GateContext, group: str) -> Steps:
    """Return a refusal if the group has members that consume partitions, not single records."""
    classic, reconciled = yield Ask(
        [
            (context.me, lambda r: DescribeClassic(r, group)),
            (context.me, lambda r: DescribeReconciled(r, group)),
        ]
    )
    is_other = isinstance(classic, ClassicState) and classic.protocol_type not in ("", PYMQ)
    is_other = is_other or (isinstance(reconciled, ReconciledState) and bool(reconciled.state))
    return (Code.GROUP_ID_NOT_FOUND, f"group {group!r} is not a share group") if is_other else None


def _refused(m: ShareGroupHeartbeatRequest, code: Code, why: str) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(0, int(code), why, m.member_id)
