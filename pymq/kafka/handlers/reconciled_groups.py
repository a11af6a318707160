"""Groups whose coordinator assigns (KIP-848): heartbeats of members, and descriptions."""

from __future__ import annotations

from functools import partial

from pymq.core.message import (
    BeatReconciled,
    DescribeReconciled,
    Indexes,
    Reconciled,
    ReconciledMember,
    ReconciledState,
)
from pymq.kafka.codes import Code, group_code
from pymq.kafka.shared.conversation import Ask, GateContext, KafkaCall, Steps, ask
from pymq.kafka.shared.subscriptions import MemberSubscription, compile_pattern
from pymq.kafka.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupDescribeResponseMember,
    ConsumerGroupDescribeResponseTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

CONSUMER_MEMBER = 1  # the type of a member, where 0 is classic (KIP-1099)
OWN_ID_FROM = 1  # the version whose clients choose their members' ids


def consumer_group_heartbeat(
    context: GateContext, m: ConsumerGroupHeartbeatRequest, call: KafkaCall
) -> Steps:
    """Take in a heartbeat: a member joins, is alive, has given partitions up, or leaves."""
    member, subscriptions = m.member_id, context.subscriptions
    if not member and m.member_epoch == 0 and call.version < OWN_ID_FROM:
        member = context.new_id()
    if m.subscribed_topic_names is not None or m.subscribed_topic_regex is not None:
        found = _subscription(m, subscriptions.get(m.group_id, member))
        if found is None:
            code = Code.INVALID_REGULAR_EXPRESSION
            why = f"{m.subscribed_topic_regex!r} is no regular expression, or too expensive"
            return ConsumerGroupHeartbeatResponse(0, int(code), why, m.member_id)
        subscriptions.put(m.group_id, member, found)
    topics = None
    subscription = subscriptions.get(m.group_id, member)
    if subscription is not None and m.member_epoch >= 0:
        topics = yield from subscriptions.topics(context, subscription)
    owned = None
    if m.topic_partitions is not None:
        owned = tuple(
            sorted((each.topic_id.hex(), tuple(each.partitions)) for each in m.topic_partitions)
        )
    done = yield from ask(
        context.me,
        lambda r: BeatReconciled(
            r,
            m.group_id,
            member,
            m.instance_id,
            m.member_epoch,
            call.client,
            call.host,
            m.rack_id,
            m.rebalance_timeout_ms,
            topics,
            m.server_assignor,
            owned,
        ),
    )
    if m.member_epoch < 0:
        subscriptions.forget(m.group_id, member)
    if not isinstance(done, Reconciled) or done.error is not None:
        return ConsumerGroupHeartbeatResponse(
            0, int(group_code(done.error)), str(done.error), m.member_id
        )
    if done.code:
        return ConsumerGroupHeartbeatResponse(0, done.code, done.why, m.member_id)
    assignment = None
    if done.assignment is not None:
        assignment = ConsumerGroupHeartbeatResponseAssignment(
            [
                ConsumerGroupHeartbeatResponseTopicPartitions(bytes.fromhex(id), list(indexes))
                for id, indexes in done.assignment
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        0, 0, None, member, done.epoch, done.interval_ms, assignment
    )


def _subscription(
    m: ConsumerGroupHeartbeatRequest, known: MemberSubscription | None
) -> MemberSubscription | None:
    """Return what a heartbeat subscribes to; None if its pattern is invalid."""
    names, pattern = (known.names, known.pattern) if known is not None else ((), None)
    if m.subscribed_topic_names is not None:
        names = tuple(m.subscribed_topic_names)
    if m.subscribed_topic_regex is not None:
        pattern = compile_pattern(m.subscribed_topic_regex) if m.subscribed_topic_regex else None
        if m.subscribed_topic_regex and pattern is None:
            return None
    return MemberSubscription(names, pattern)


def consumer_group_describe(
    context: GateContext, m: ConsumerGroupDescribeRequest, call: KafkaCall
) -> Steps:
    """Describe groups and their members."""
    del call
    answers = yield Ask(
        [(context.me, partial(DescribeReconciled, group=name)) for name in m.group_ids]
    )
    response = ConsumerGroupDescribeResponse()
    for name, found in zip(m.group_ids, answers, strict=True):
        described = ConsumerGroupDescribeResponseDescribedGroup(group_id=name)
        response.groups.append(described)
        if not isinstance(found, ReconciledState) or found.error is not None:
            described.error_code = int(group_code(found.error))
            continue
        if not found.state:
            described.error_code = int(Code.GROUP_ID_NOT_FOUND)
            described.error_message = f"there is no group {name} of the type consumer"
            continue
        described.group_state = found.state
        described.group_epoch = found.epoch
        described.assignment_epoch = found.assignment_epoch
        described.assignor_name = found.assignor
        described.members = [_described(each) for each in found.members]
    return response


def _described(member: ReconciledMember) -> ConsumerGroupDescribeResponseMember:
    names = {id: name for name, id in member.topics}

    def assigned(found: Indexes) -> ConsumerGroupDescribeResponseAssignment:
        return ConsumerGroupDescribeResponseAssignment(
            [
                ConsumerGroupDescribeResponseTopicPartitions(
                    bytes.fromhex(id), names.get(id, ""), list(indexes)
                )
                for id, indexes in found
            ]
        )

    return ConsumerGroupDescribeResponseMember(
        member.member,
        member.instance,
        member.rack,
        member.epoch,
        member.client,
        member.host,
        [name for name, _ in member.topics],
        None,
        assigned(member.assignment),
        assigned(member.target),
        CONSUMER_MEMBER,
    )
