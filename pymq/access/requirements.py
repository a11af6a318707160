"""The permissions that each type of message requires.

Each message type has a line here; a test fails for a type without a line. Messages that only
brokers and zkservers send require ``ClusterAction``. Answers require ``ClusterAction``, too,
because clients never send answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pymq.access.rules import Kind, Operation
from pymq.core import message as msg
from pymq.core.message import Message
from pymq.core.types import INTERNAL_PREFIX, OFFSETS_TOPIC


class Requirement(NamedTuple):
    """A required permission: an operation on a resource; the cluster resource has no name."""

    operation: Operation
    kind: Kind
    name: str = ""

    @property
    def resource(self) -> str:
        """The resource, written as in a policy."""
        return f"{self.kind.value}:{self.name}" if self.name else self.kind.value


CLUSTER_ACTION = Requirement(Operation.CLUSTER_ACTION, Kind.CLUSTER)
ALTER_CLUSTER = Requirement(Operation.ALTER, Kind.CLUSTER)
DESCRIBE_CLUSTER = Requirement(Operation.DESCRIBE, Kind.CLUSTER)

Needs = tuple[Requirement, ...]


def requirements(message: Message) -> Needs:
    """Return the permissions for *message*; empty if any authenticated principal may send it."""
    return _NEEDS[type(message)](message)


def is_declared(cls: type) -> bool:
    """Whether the permissions of a message class are declared."""
    return cls in _NEEDS


def _topic(operation: Operation, field: str = "topic") -> Callable[[Any], Needs]:
    return lambda message: _named_topic(operation, getattr(message, field))


def _named_topic(operation: Operation, name: str) -> Needs:
    if name.startswith(INTERNAL_PREFIX):
        # Internal topics contain data of all principals.
        return (CLUSTER_ACTION,)
    return (Requirement(operation, Kind.TOPIC, name),)


def _copy(message: msg.Copy) -> Needs:
    return (
        *_topic(Operation.WRITE)(message),
        *_topic(Operation.READ, "origin")(message),
    )


def _group(operation: Operation) -> Callable[[Any], Needs]:
    return lambda message: (Requirement(operation, Kind.GROUP, message.group),)


def _join(message: msg.Join) -> Needs:
    return (*_group(Operation.READ)(message), *_topic(Operation.READ)(message))


def _commit_classic(message: msg.CommitClassic) -> Needs:
    topics = [need for each in message.offsets for need in _topic(Operation.READ)(each)]
    return tuple(dict.fromkeys((*_group(Operation.READ)(message), *topics)))


def _beat_reconciled(message: msg.BeatReconciled) -> Needs:
    names = [topic for topic, _, _ in message.topics or ()]
    topics = [need for name in names for need in _named_topic(Operation.READ, name)]
    return tuple(dict.fromkeys((*_group(Operation.READ)(message), *topics)))


def _commit(message: msg.CommitOffset) -> Needs:
    return (*_group(Operation.READ)(message), *_topic(Operation.READ)(message))


def _leases(message: msg.GetLeases) -> Needs:
    return (*_group(Operation.DESCRIBE)(message), *_topic(Operation.DESCRIBE)(message))


def _subscribe(message: msg.Subscribe) -> Needs:
    needs = _topic(Operation.READ)(message)
    if message.group is not None:
        needs += (Requirement(Operation.READ, Kind.GROUP, message.group),)
    return needs


def _unsubscribe(message: msg.Unsubscribe) -> Needs:
    needs = _topic(Operation.READ)(message)
    if message.group is not None:
        needs += (Requirement(Operation.DELETE, Kind.GROUP, message.group),)
    return needs


def _metadata(message: msg.GetMetadata) -> Needs:
    # Members must find their group coordinator, so this topic is public.
    if message.topic == OFFSETS_TOPIC:
        return ()
    return _topic(Operation.DESCRIBE)(message)


def _producer(message: msg.InitProducer) -> Needs:
    if not message.name:
        return ()  # Each principal may get ids; brokers check the grant of a write with an id.
    return (Requirement(Operation.WRITE, Kind.PRODUCER, message.name),)


def _always(needed: Requirement) -> Callable[[Any], Needs]:
    return lambda _: (needed,)


_NEEDS: dict[type, Callable[[Any], Needs]] = {
    msg.Produce: _topic(Operation.WRITE),
    msg.GetSequence: _topic(Operation.WRITE),
    msg.CancelDelayed: _topic(Operation.WRITE),
    msg.Fetch: _topic(Operation.READ),
    msg.FindOffset: _topic(Operation.READ),
    msg.FindEpoch: _topic(Operation.READ),
    msg.Copy: _copy,
    msg.Join: _join,
    msg.Heartbeat: _group(Operation.READ),
    msg.Leave: _group(Operation.READ),
    msg.Acquire: _group(Operation.READ),
    msg.Settle: _group(Operation.READ),
    msg.CommitOffset: _commit,
    msg.DeleteGroup: _group(Operation.DELETE),
    msg.GetGroup: _group(Operation.DESCRIBE),
    msg.GetLeases: _leases,
    msg.ListGroups: _always(DESCRIBE_CLUSTER),
    msg.JoinClassic: _group(Operation.READ),
    msg.SyncClassic: _group(Operation.READ),
    msg.BeatClassic: _group(Operation.READ),
    msg.LeaveClassic: _group(Operation.READ),
    msg.CommitClassic: _commit_classic,
    msg.DescribeClassic: _group(Operation.DESCRIBE),
    msg.BeatReconciled: _beat_reconciled,
    msg.DescribeReconciled: _group(Operation.DESCRIBE),
    msg.CreateTopic: _topic(Operation.CREATE, "name"),
    msg.CreatePartition: _topic(Operation.ALTER),
    msg.DeleteTopic: _topic(Operation.DELETE, "name"),
    msg.DeleteRecords: _topic(Operation.DELETE),
    msg.AlterTopic: _topic(Operation.ALTER, "name"),
    msg.SetPartitionState: _topic(Operation.ALTER),
    msg.Reassign: _always(ALTER_CLUSTER),
    msg.Decommission: _always(ALTER_CLUSTER),
    msg.Recommission: _always(ALTER_CLUSTER),
    msg.BalanceLeaders: _always(ALTER_CLUSTER),
    msg.RecoverPartition: _always(ALTER_CLUSTER),
    msg.DescribeTopic: _topic(Operation.DESCRIBE, "name"),
    msg.ListTopics: _always(DESCRIBE_CLUSTER),
    msg.DescribeCluster: _always(DESCRIBE_CLUSTER),
    msg.GetMetadata: _metadata,
    msg.Subscribe: _subscribe,
    msg.Unsubscribe: _unsubscribe,
    msg.Locate: _topic(Operation.READ),
    msg.InitProducer: _producer,
}
_NEEDS |= dict.fromkeys(
    (
        # Answers, which only servers send.
        *(msg.Produced, msg.Sequence, msg.Fetched, msg.OffsetFound, msg.Assigned, msg.Acquired),
        *(msg.Copied, msg.Cancelled, msg.EpochFound),
        *(msg.JoinedClassic, msg.SyncedClassic, msg.ClassicDone, msg.ClassicState),
        *(msg.Reconciled, msg.ReconciledState),
        *(msg.Settled, msg.GroupState, msg.GroupNames, msg.GroupLeases, msg.Answer),
        msg.UnderWay,
        # Messages between brokers and the controller.
        *(msg.RegisterBroker, msg.BrokerHeartbeat, msg.LeaderAndIsr, msg.LeaderAndIsrAnswer),
        *(msg.StopReplica, msg.Stopped, msg.Seal, msg.Sealed, msg.RollWanted, msg.RetireBlocks),
        msg.TransferLeader,
        *(msg.BlockSizes, msg.AlterIsr, msg.BecomeLeader, msg.Progress, msg.DescribePartitions),
        *(msg.OfflineReplicas, msg.ReplicaEnds),
        *(msg.PartitionReports, msg.ControlledShutdown),
        # Messages between brokers.
        *(msg.Ping, msg.ReplicaFetch, msg.ReplicaFetched, msg.RaftAppend, msg.RaftAppended),
        *(msg.RaftVote, msg.RaftVoted, msg.RaftTimeout),
    ),
    _always(CLUSTER_ACTION),
)
