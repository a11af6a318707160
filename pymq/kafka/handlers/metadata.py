"""Metadata, DescribeCluster, ApiVersions and FindCoordinator: find the broker to ask."""

from __future__ import annotations

from typing import Any

from pymq.core.message import Answer, CreateTopic, GetMetadata
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.core.types import OFFSETS_TOPIC, AckMode, check_name, is_internal
from pymq.errors import InvalidName, NoBrokers, NotEnoughBrokers, PymqError, UnknownTopic
from pymq.hash.partitioner import key_partition
from pymq.kafka.codes import Code, code_of
from pymq.kafka.shared.controllers import ask_controller, load_brokers
from pymq.kafka.shared.conversation import GateContext, KafkaCall, Pause, Steps
from pymq.kafka.shared.topic_cache import (
    NO_ID,
    id_bytes,
    load_all,
    load_topic,
    topic_names,
)
from pymq.kafka.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseDescribeClusterBroker,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseMetadataResponseBroker,
    MetadataResponseMetadataResponsePartition,
    MetadataResponseMetadataResponseTopic,
)

CLUSTER_ID = "pymq"
NO_OPERATIONS = -(1 << 31)  # the client did not ask for authorized operations
LEADER_TRIES = 100  # attempts to find the leaders of a new topic ...
LEADER_MS = 10  # ... with such pauses
BROKERS_TRIES = 15  # attempts to create a topic while the zkserver knows too few live brokers ...
BROKERS_MS = 200  # ... with such pauses
_GROUPS = 0  # the kind of coordinator that serves groups


def metadata(context: GateContext, m: MetadataRequest, call: KafkaCall) -> Steps:
    """Describe brokers, and the topics that are named, or all."""
    yield from load_brokers(context)
    answer = MetadataResponse(
        brokers=[
            MetadataResponseMetadataResponseBroker(*each, None)
            for each in sorted(context.endpoints.values())
        ],
        cluster_id=CLUSTER_ID,
        controller_id=_admin_broker(context),
    )
    if m.topics is None or (not m.topics and call.version == 0):
        names = yield from topic_names(context)
        if isinstance(names, PymqError):
            return answer
        wanted = [(name, NO_ID) for name in names]
        creates = False
    else:
        wanted = [(topic.name or "", topic.topic_id) for topic in m.topics]
        creates = context.auto_create and (m.allow_auto_topic_creation or call.version < 4)
    for name, topic_id in wanted:
        if topic_id != NO_ID:
            known = context.topics.name(topic_id)
            if known is None:
                yield from load_all(context)
                known = context.topics.name(topic_id)
            if known is None:
                answer.topics.append(_refused("", topic_id, Code.UNKNOWN_TOPIC_ID))
                continue
            name = known  # noqa: PLW2901 # the id stands for it
        answer.topics.append((yield from _topic(context, name, creates)))
    return answer


def _admin_broker(context: GateContext) -> int:
    """Return the broker that clients send administrative requests to: this one, as any will do."""
    endpoints = context.endpoints
    mine = endpoints.get(context.me)
    return mine.node if mine is not None else min((e.node for e in endpoints.values()), default=-1)


def _topic(context: GateContext, name: str, creates: bool) -> Steps:
    """Describe one topic; create a missing topic, if the client and the gate allow it."""
    try:
        check_name(name, "topic name")
    except InvalidName:
        return _refused(name, NO_ID, Code.INVALID_TOPIC_EXCEPTION)
    found = yield from load_topic(context, name)
    if isinstance(found, UnknownTopic) and creates and not is_internal(name):
        error = yield from create_topic(
            context, name, context.default_partitions, replicas_of(context), {}
        )
        if error is not None and error.code != "TOPIC_EXISTS":
            return _refused(name, NO_ID, code_of(error))
        found = yield from await_leaders(context, name)
    if isinstance(found, PymqError):
        return _refused(name, NO_ID, code_of(found))
    return MetadataResponseMetadataResponseTopic(
        0,
        name,
        id_bytes(found.topic_id),
        partitions=[_partition(context, each) for each in found.partitions],
        topic_authorized_operations=NO_OPERATIONS,
    )


def replicas_of(context: GateContext) -> int:
    """Return the replicas of a partition, if the client gives no number."""
    return max(min(context.default_replicas, len(context.endpoints)), 1)


def create_topic(
    context: GateContext, name: str, partitions: int, replicas: int, config: dict[str, Any]
) -> Steps:
    """Create a topic as pymq's own clients do; returns the error, if any."""
    names = tuple(map(str, range(partitions)))
    for tries_left in range(BROKERS_TRIES, -1, -1):
        answer = yield from ask_controller(
            context,
            lambda r: CreateTopic(r, name, names, replicas, AckMode.LEADER, config),
            done="TOPIC_EXISTS",
        )
        # A zkserver that has just taken over does not know all live brokers yet.
        is_early = isinstance(answer.error, (NoBrokers, NotEnoughBrokers))
        if not is_early or not tries_left or replicas > len(context.endpoints):
            break
        yield Pause(BROKERS_MS)
    return answer.error


def await_leaders(context: GateContext, name: str) -> Steps:
    """Return a topic, once all of its partitions have leaders."""
    for _ in range(LEADER_TRIES):
        found = yield from load_topic(context, name)
        if isinstance(found, TopicMetadata) and all(each.leader for each in found.partitions):
            break
        yield Pause(LEADER_MS)
    return found


def _partition(
    context: GateContext, found: PartitionLeader
) -> MetadataResponseMetadataResponsePartition:
    leader = context.endpoints.get(found.leader or "")
    replicas = [
        context.endpoints[name].node for name in found.replicas if name in context.endpoints
    ]
    return MetadataResponseMetadataResponsePartition(
        int(Code.NONE if leader is not None else Code.LEADER_NOT_AVAILABLE),
        found.index,
        leader.node if leader is not None else -1,
        found.epoch,
        replicas,
        list(replicas),
    )


def _refused(name: str, topic_id: bytes, code: Code) -> MetadataResponseMetadataResponseTopic:
    named = None if topic_id != NO_ID else name
    return MetadataResponseMetadataResponseTopic(
        int(code), named, topic_id, topic_authorized_operations=NO_OPERATIONS
    )


def describe_cluster(context: GateContext, m: DescribeClusterRequest, call: KafkaCall) -> Steps:
    """Describe the brokers."""
    del call
    yield from load_brokers(context)
    return DescribeClusterResponse(
        endpoint_type=m.endpoint_type,
        cluster_id=CLUSTER_ID,
        controller_id=_admin_broker(context),
        brokers=[
            DescribeClusterResponseDescribeClusterBroker(each.node, each.host, each.port, None)
            for each in sorted(context.endpoints.values())
        ],
        cluster_authorized_operations=NO_OPERATIONS,
    )


def find_coordinator(context: GateContext, m: FindCoordinatorRequest, call: KafkaCall) -> Steps:
    """Name the broker that coordinates a group: the leader of the partition with the group's
    offsets.
    """
    keys = m.coordinator_keys if call.version >= 4 else [m.key]
    partitions: tuple[PartitionLeader, ...] = ()
    if m.key_type == _GROUPS:
        yield from load_brokers(context)
        for _ in range(LEADER_TRIES):
            found = yield from ask_controller(context, lambda r: GetMetadata(r, OFFSETS_TOPIC))
            if isinstance(found, Answer) and isinstance(found.result, TopicMetadata):
                partitions = found.result.partitions
                if all(each.leader for each in partitions):
                    break
            yield Pause(LEADER_MS)
    answers = [_coordinator(context, key, m.key_type, partitions) for key in keys]
    if call.version >= 4:
        return FindCoordinatorResponse(coordinators=answers)
    (one,) = answers
    return FindCoordinatorResponse(
        0, one.error_code, one.error_message, one.node_id, one.host, one.port
    )


def _coordinator(
    context: GateContext, key: str, kind: int, partitions: tuple[PartitionLeader, ...]
) -> FindCoordinatorResponseCoordinator:
    if kind != _GROUPS:
        code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if kind == 1 else Code.INVALID_REQUEST
        why = "there are coordinators of groups only"
        return FindCoordinatorResponseCoordinator(key, -1, "", -1, int(code), why)
    try:
        check_name(key, "group name")
    except InvalidName as error:
        code = Code.INVALID_GROUP_ID
        return FindCoordinatorResponseCoordinator(key, -1, "", -1, int(code), error.message)
    leader = None
    if partitions:
        leader = partitions[key_partition(key.encode(), len(partitions))].leader
    endpoint = context.endpoints.get(leader or "")
    if endpoint is None:
        code = Code.COORDINATOR_NOT_AVAILABLE
        return FindCoordinatorResponseCoordinator(key, -1, "", -1, int(code), None)
    return FindCoordinatorResponseCoordinator(
        key, endpoint.node, endpoint.host, endpoint.port, 0, None
    )
