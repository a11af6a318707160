"""ShareGroupDescribe: the members of share groups, with pymq's own consumers among them."""

from __future__ import annotations

from functools import partial

from pymq.core.message import GetGroup, GroupMember, GroupState
from pymq.core.metadata.descriptions import TopicMetadata
from pymq.errors import UnknownGroup
from pymq.kafka.codes import Code, group_code
from pymq.kafka.handlers.share.membership import ASSIGNOR
from pymq.kafka.shared.conversation import Ask, GateContext, KafkaCall, Steps
from pymq.kafka.shared.share_members import ShareMember
from pymq.kafka.shared.topic_cache import find_topic, id_bytes
from pymq.kafka.wire.messages import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupDescribeResponseAssignment,
    ShareGroupDescribeResponseDescribedGroup,
    ShareGroupDescribeResponseMember,
    ShareGroupDescribeResponseTopicPartitions,
)


def share_group_describe(
    context: GateContext, m: ShareGroupDescribeRequest, call: KafkaCall
) -> Steps:
    """Describe groups and their members."""
    del call
    states = yield Ask([(context.me, partial(GetGroup, group=name)) for name in m.group_ids])
    response = ShareGroupDescribeResponse()
    for name, state in zip(m.group_ids, states, strict=True):
        described = ShareGroupDescribeResponseDescribedGroup(group_id=name)
        response.groups.append(described)
        workers = list(context.share.members.of(name, context.now))
        is_unknown = isinstance(state.error, UnknownGroup)
        if state.error is not None and not (is_unknown and workers):
            code = Code.GROUP_ID_NOT_FOUND if is_unknown else group_code(state.error)
            described.error_code, described.error_message = int(code), state.error.message
            continue
        known = state if isinstance(state, GroupState) and state.error is None else None
        described.group_epoch = described.assignment_epoch = known.generation if known else 0
        described.assignor_name = ASSIGNOR
        described.members = [_worker(each) for each in workers]
        for member in known.members if known else ():
            if not any(member.member.startswith(f"{each.id}.") for each in workers):
                described.members.append((yield from _consumer(context, member)))
        described.group_state = "Stable" if described.members else "Empty"
    return response


def _worker(member: ShareMember) -> ShareGroupDescribeResponseMember:
    """Describe a Kafka client."""
    return ShareGroupDescribeResponseMember(
        member.id,
        member.rack,
        member.epoch,
        member.client,
        member.host,
        list(member.names),
        ShareGroupDescribeResponseAssignment(
            [
                ShareGroupDescribeResponseTopicPartitions(
                    bytes.fromhex(id), name, list(range(count))
                )
                for name, id, count in member.topics
            ]
        ),
    )


def _consumer(context: GateContext, member: GroupMember) -> Steps:
    """Describe a consumer of pymq, or the session of a Kafka client at another broker."""
    topic = yield from find_topic(context, member.topic)
    assigned = []
    if isinstance(topic, TopicMetadata):
        indexes = [each.index for each in topic.partitions if each.partition in member.partitions]
        assigned.append(
            ShareGroupDescribeResponseTopicPartitions(
                id_bytes(topic.topic_id), topic.topic, indexes
            )
        )
    return ShareGroupDescribeResponseMember(
        member.member,
        None,
        0,
        member.source,
        "",
        [member.topic],
        ShareGroupDescribeResponseAssignment(assigned),
    )
