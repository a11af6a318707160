"""Classic groups: requests of members, and of tools that list, describe and delete groups."""

from __future__ import annotations

from functools import partial

from pymq.access.rules import Kind, Operation
from pymq.core.message import (
    BeatClassic,
    ClassicDone,
    ClassicState,
    DeleteGroup,
    DescribeClassic,
    GroupNames,
    JoinClassic,
    JoinedClassic,
    LeaveClassic,
    ListGroups,
    SyncClassic,
    SyncedClassic,
)
from pymq.kafka.codes import Code, group_code
from pymq.kafka.shared.conversation import Ask, GateContext, KafkaCall, Steps, ask
from pymq.kafka.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteGroupsResponseDeletableGroupResult,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    DescribeGroupsResponseDescribedGroupMember,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseJoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeaveGroupResponseMemberResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListGroupsResponseListedGroup,
    SyncGroupRequest,
    SyncGroupResponse,
)

SLACK_MS = 10_000  # waiting time beyond the rebalance timeout, when the coordinator answers
REBALANCE_MAX_MS = 1 << 31
CLIENT_MAX = 64  # characters of a client's name in the ids of its members
ID_REQUIRED_FROM = 4  # the version of JoinGroup whose clients know MEMBER_ID_REQUIRED
CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
RECONCILED = "reconciled"  # the coordinator's name for a group of Kafka's type "consumer"
OWN = "pymq"  # the protocol type of a group with pymq's own consumers, or share sessions


def join_group(context: GateContext, m: JoinGroupRequest, call: KafkaCall) -> Steps:
    """Join a group; the answer waits for the other members."""
    rebalance_ms = m.rebalance_timeout_ms if call.version > 0 else m.session_timeout_ms
    rebalance_ms = min(max(rebalance_ms, 0), REBALANCE_MAX_MS)
    client = call.client[:CLIENT_MAX]
    who = m.group_id, m.member_id, f"{client}-{context.new_id()}", m.group_instance_id
    protocols = tuple((each.name, each.metadata) for each in m.protocols)
    options = m.session_timeout_ms, rebalance_ms, call.version >= ID_REQUIRED_FROM
    (found,) = yield Ask(
        [
            (
                context.me,
                lambda r: JoinClassic(
                    r, *who, call.client, call.host, m.protocol_type, protocols, *options
                ),
            )
        ],
        rebalance_ms + SLACK_MS,
    )
    if not isinstance(found, JoinedClassic) or found.error is not None:
        code = group_code(found.error)
        return JoinGroupResponse(0, int(code), member_id=m.member_id)
    return JoinGroupResponse(
        0,
        found.code,
        found.generation,
        found.protocol_type or None,
        found.protocol if found.code == 0 or call.version < 7 else None,
        found.leader,
        False,
        found.member,
        [
            JoinGroupResponseJoinGroupResponseMember(each.member, each.instance, each.metadata)
            for each in found.members
        ],
    )


def sync_group(context: GateContext, m: SyncGroupRequest, call: KafkaCall) -> Steps:
    """Get an assignment; the answer waits until the group's leader has sent the assignments."""
    del call
    assignments = tuple((each.member_id, each.assignment) for each in m.assignments)
    who = m.group_id, m.member_id, m.group_instance_id, m.generation_id
    protocol = m.protocol_type, m.protocol_name
    (found,) = yield Ask(
        [(context.me, lambda r: SyncClassic(r, *who, *protocol, assignments))], REBALANCE_MAX_MS
    )
    if not isinstance(found, SyncedClassic) or found.error is not None:
        return SyncGroupResponse(0, int(group_code(found.error)))
    kind, name = found.protocol_type or None, found.protocol or None
    return SyncGroupResponse(0, found.code, kind, name, found.assignment)


def heartbeat(context: GateContext, m: HeartbeatRequest, call: KafkaCall) -> Steps:
    """Keep a member's session alive."""
    del call
    who = m.group_id, m.member_id, m.group_instance_id, m.generation_id
    found = yield from ask(context.me, lambda r: BeatClassic(r, *who))
    return HeartbeatResponse(0, _code(found))


def _code(found: ClassicDone) -> int:
    """Return the code of a request that has one part."""
    return found.codes[0] if found.error is None else int(group_code(found.error))


def leave_group(context: GateContext, m: LeaveGroupRequest, call: KafkaCall) -> Steps:
    """Remove members."""
    members: tuple[tuple[str, str | None], ...] = ((m.member_id, None),)
    if call.version >= 3:
        members = tuple((each.member_id, each.group_instance_id) for each in m.members)
    found = yield from ask(context.me, lambda r: LeaveClassic(r, m.group_id, members))
    if found.error is not None:
        return LeaveGroupResponse(0, int(group_code(found.error)))
    if call.version < 3:
        return LeaveGroupResponse(0, found.codes[0])
    return LeaveGroupResponse(
        0,
        0,
        [
            LeaveGroupResponseMemberResponse(*who, code)
            for who, code in zip(members, found.codes, strict=True)
        ],
    )


# --- for tools ----------------------------------------------------------------------------------


def list_groups(context: GateContext, m: ListGroupsRequest, call: KafkaCall) -> Steps:
    """List the groups that this broker coordinates, and that the client may describe."""
    (found,) = yield Ask([(context.me, ListGroups)], is_own=True)
    if not isinstance(found, GroupNames) or found.error is not None:
        return ListGroupsResponse(0, int(group_code(found.error)))
    kinds = {name: (kind, state) for name, kind, state in found.classic}
    # A group that has only offsets may be of any type, so it counts as a classic one.
    workers, listed = context.share.members.groups(context.now), []
    for name in sorted({*found.groups, *workers}):
        if not call.caller.may(Operation.DESCRIBE, Kind.GROUP, name):
            continue
        kind, state = kinds.get(name, ("", "Empty"))
        if name not in kinds:
            described = yield from ask(context.me, partial(DescribeClassic, group=name))
            if isinstance(described, ClassicState) and described.error is None:
                kind, state = described.protocol_type, described.state or state
        type_ = CONSUMER if kind == RECONCILED else CLASSIC
        if kind == OWN or name in workers:
            kind, state, type_ = SHARE, "Stable", SHARE
        if m.states_filter and state.lower() not in {each.lower() for each in m.states_filter}:
            continue
        if m.types_filter and type_ not in {each.lower() for each in m.types_filter}:
            continue
        kind = CONSUMER if kind == RECONCILED else kind
        listed.append(ListGroupsResponseListedGroup(name, kind, state, type_))
    return ListGroupsResponse(0, 0, listed)


def describe_groups(context: GateContext, m: DescribeGroupsRequest, call: KafkaCall) -> Steps:
    """Describe groups and their members."""
    answers = yield Ask([(context.me, partial(DescribeClassic, group=name)) for name in m.groups])
    response = DescribeGroupsResponse()
    for name, found in zip(m.groups, answers, strict=True):
        described = DescribeGroupsResponseDescribedGroup(group_id=name)
        response.groups.append(described)
        if not isinstance(found, ClassicState) or found.error is not None:
            described.error_code = int(group_code(found.error))
            continue
        described.group_state = found.state or "Dead"
        if not found.state and call.version >= 6:
            described.error_code = int(Code.GROUP_ID_NOT_FOUND)
            described.error_message = f"there is no group {name}"
        described.protocol_type = found.protocol_type
        described.protocol_data = found.protocol
        described.members = [
            DescribeGroupsResponseDescribedGroupMember(
                each.member,
                each.instance,
                each.client,
                each.host,
                each.metadata,
                each.assignment,
            )
            for each in found.members
        ]
    return response


def delete_groups(context: GateContext, m: DeleteGroupsRequest, call: KafkaCall) -> Steps:
    """Delete groups without members."""
    del call
    answers = yield Ask([(context.me, partial(DeleteGroup, group=name)) for name in m.groups_names])
    results = []
    for name, found in zip(m.groups_names, answers, strict=True):
        code = group_code(found.error)
        if code is Code.INVALID_REQUEST:
            code = Code.NON_EMPTY_GROUP
        results.append(DeleteGroupsResponseDeletableGroupResult(name, int(code)))
    return DeleteGroupsResponse(0, results)
