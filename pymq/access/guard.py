"""The guard of a node: admits a message, or answers it with an error."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import get_args

import attrs

from pymq.access.audit import Audit, AuditedRequest
from pymq.access.grants import Grants
from pymq.access.quotas import Quota, Quotas
from pymq.access.requirements import CLUSTER_ACTION, Needs, Requirement, requirements
from pymq.access.rules import Kind, Operation, Policy
from pymq.core import message as msg
from pymq.core.batch.header import EPOCH_HALF, NO_PRODUCER
from pymq.core.group.request_validation import refusal
from pymq.core.message import Message
from pymq.core.types import CLIENT_PREFIX, AckMode
from pymq.errors import (
    AuthorizationFailed,
    ClusterAuthorizationFailed,
    PymqError,
    QuotaExceeded,
    ReplicaNotAvailable,
    not_written,
)

# most group members of a principal whose topic is remembered, at about 300 bytes each
MEMBERS_MAX = 10_000


class Guard:
    """Admits a message if the policy and the quotas of its principal allow it.

    A guard is a gate: a transport calls it with each message (:data:`pymq.transport.base.Gate`).
    The guard checks permissions before the node looks up the topic or group, so a refusal does not
    reveal whether the topic or group exists. The guard's only state is the topic of each group
    member. A member names its topic only when it joins, but its principal may lose the right to
    read the topic later.
    """

    def __init__(self, policy: Policy, audit: Audit, clock: Callable[[], int]) -> None:
        self._policy = policy
        self._audit = audit
        self._clock = clock
        self._quotas = Quotas(self._quota)
        # Topics by principal and (group, member), so that no principal can displace another's
        # members.
        self._consumed: dict[str, OrderedDict[tuple[str, str], str]] = {}
        self.grants: Grants | None = None  # set after the creation of the node

    def allows(self, principal: str, need: Requirement) -> bool:
        """Whether *principal* has a permission."""
        return self._policy.allows(principal, need.operation, need.kind, need.name)

    def replace(self, policy: Policy) -> None:
        """Use another policy, beginning with the next message."""
        self._policy = policy

    def __call__(self, principal: str, source: str, message: Message) -> Sequence[Message] | None:
        """Return None to admit *message*, or the answers to send instead."""
        return self._examine(principal, source, message, is_direct=True)

    def admit(self, principal: str, source: str, message: Message) -> Sequence[Message] | None:
        """As a call, for a client to which the node itself has given its producer ids."""
        return self._examine(principal, source, message, is_direct=False)

    def _examine(
        self, principal: str, source: str, message: Message, *, is_direct: bool
    ) -> Sequence[Message] | None:
        needed = requirements(message)
        if isinstance(message, msg.Acquire | msg.Heartbeat):
            # If a member may no longer read the topic, it must not keep leases and partitions.
            members = self._consumed.get(principal)
            topic = members.get((message.group, message.member)) if members else None
            if topic is not None:
                needed = (*needed, Requirement(Operation.READ, Kind.TOPIC, topic))
        is_of_cluster = bool(needed) and needed[0] is CLUSTER_ACTION
        for need in needed:
            if not self.allows(principal, need):
                # A broker also asks for its Kafka clients, whose permissions it has checked.
                # Transports let no client use the name of a node.
                is_node = is_direct and not source.startswith(CLIENT_PREFIX)
                if not is_node or not self.allows(principal, CLUSTER_ACTION):
                    return self._refuse(principal, source, message, need)
                is_of_cluster = True
        if not principal:
            return self._refuse(principal, source, message, None)
        if is_direct and not is_of_cluster and isinstance(message, msg.Produce | msg.Copy):
            refusal = self._disown(principal, source, message)
            if refusal is not None:
                return refusal
        # Quotas do not apply to messages within the cluster, because other brokers wait for these.
        answers = None
        if not is_of_cluster:
            answers = self._measure(principal, source, message)
        if answers is None and self._policy.audited:
            self._note_allowed(principal, source, message, needed)
        if answers is None and isinstance(message, msg.Join | msg.Leave):
            self._note_member(principal, message)
        if answers is None and isinstance(message, msg.InitProducer):
            return self._give(principal, message)
        return answers

    def _note_member(self, principal: str, message: msg.Join | msg.Leave) -> None:
        """Remember the topic of a group member until it leaves."""
        members = self._consumed.setdefault(principal, OrderedDict())
        key = message.group, message.member
        members.pop(key, None)
        if isinstance(message, msg.Join):
            members[key] = message.topic
            if len(members) > MEMBERS_MAX:
                members.popitem(last=False)
        elif not members:
            del self._consumed[principal]

    def _give(self, principal: str, message: msg.InitProducer) -> Sequence[Message] | None:
        """Assign producer ids here, because only the guard knows the principal.

        The result is None if the node has no secret.
        """
        if message.name or self.grants is None or not self.grants.is_able:
            return None
        return (msg.Answer(message.id, self.grants.give(principal)),)

    def _disown(
        self, principal: str, source: str, message: msg.Produce | msg.Copy
    ) -> Sequence[Message] | None:
        """Refuse a write with a producer id that was not granted to *principal*."""
        if isinstance(message, msg.Produce):
            header = message.batch.header
            producer_id, epoch = header.producer_id, header.epoch_high
        else:
            producer_id, epoch = message.producer_id, message.producer_epoch >> EPOCH_HALF
        if producer_id == NO_PRODUCER or self.grants is None:
            return None
        if not self.grants.is_able:
            return denial(message, ReplicaNotAvailable("this broker is not registered yet"))
        grant = self.grants.read(message.grant)
        if grant is not None and grant.covers(producer_id, epoch):
            if grant.name:
                need = Requirement(Operation.WRITE, Kind.PRODUCER, grant.name)
                is_allowed = self.allows(principal, need)
                return None if is_allowed else self._refuse(principal, source, message, need)
            if grant.principal == principal:
                return None
        what = f"{Kind.PRODUCER.value}:{producer_id}"
        request, operation = type(message).__name__, Operation.WRITE.value
        self._audit.refuse(
            AuditedRequest(principal, source, request, operation, what), self._clock()
        )
        return denial(
            message,
            AuthorizationFailed(
                f"{principal} was not given the id {producer_id} and epoch {epoch}: {request} "
                "needs the grant that InitProducer answers with; older clients do not know of it",
                operation=operation,
                resource=what,
            ),
        )

    def _note_allowed(self, principal: str, source: str, message: Message, needed: Needs) -> None:
        for need in needed:
            if need.operation in self._policy.audited:
                request, operation = type(message).__name__, need.operation.value
                asked = AuditedRequest(principal, source, request, operation, need.resource)
                self._audit.allow(asked, self._clock())

    def send(self, principal: str, message: Message) -> Message:
        """Charge an answer to *principal*; returns the answer without hidden topics."""
        if type(message) is msg.Fetched and message.data:
            self._quotas.charge(principal, self._clock(), fetched_bytes=len(message.data))
        elif type(message) is msg.GroupState:
            return self._visible(principal, message)
        return message

    def _visible(self, principal: str, group: msg.GroupState) -> msg.GroupState:
        """Remove topics that *principal* may not describe."""
        topics = {m.topic for m in group.members} | {o.topic for o in group.offsets}
        hidden = {
            topic
            for topic in topics
            if not self.allows(principal, Requirement(Operation.DESCRIBE, Kind.TOPIC, topic))
        }
        if not hidden:
            return group
        return attrs.evolve(
            group,
            members=tuple(m for m in group.members if m.topic not in hidden),
            offsets=tuple(o for o in group.offsets if o.topic not in hidden),
        )

    def fetch_wait_ms(self, principal: str) -> int:
        """Return the milliseconds until *principal* may get more records; 0 means now."""
        return self._quotas.wait_ms(principal, self._clock(), "fetch_bytes_per_second")

    def produce_wait_ms(self, principal: str) -> int:
        """Return the milliseconds until more may be written for *principal*; 0 means now."""
        return self._quotas.wait_ms(principal, self._clock(), "produce_bytes_per_second")

    def produced(self, principal: str, size: int) -> None:
        """Charge *principal* for batches that a broker has copied for it (``Copy``)."""
        self._quotas.charge(principal, self._clock(), produced_bytes=size)

    def _quota(self, principal: str) -> Quota | None:
        return self._policy.quota(principal)

    def _measure(self, principal: str, source: str, message: Message) -> Sequence[Message] | None:
        now = self._clock()
        if isinstance(message, _HELD_UP_LATER):
            wait_ms = max(0, self._quotas.wait_ms(principal, now, REQUESTS) - GRACE_MS)
        else:
            wait_ms = self._quotas.wait_ms(principal, now)
        if wait_ms:
            request = type(message).__name__
            self._audit.refuse(AuditedRequest(principal, source, request, "quota", ""), now)
            error = QuotaExceeded(
                f"{principal} has used up its quota; again in {wait_ms} ms", retry_ms=wait_ms
            )
            return denial(message, error)
        size = message.batch.size if type(message) is msg.Produce else 0
        self._quotas.charge(principal, now, requests=1, produced_bytes=size)
        return None

    def _refuse(
        self, principal: str, source: str, message: Message, need: Requirement | None
    ) -> Sequence[Message]:
        operation = need.operation.value if need else "authenticate"
        resource = need.resource if need else ""
        request = type(message).__name__
        refused = AuditedRequest(principal, source, request, operation, resource)
        self._audit.refuse(refused, self._clock())
        who = principal or "an unauthenticated client"
        is_cluster = need is not None and need.kind is Kind.CLUSTER
        kind = ClusterAuthorizationFailed if is_cluster else AuthorizationFailed
        return denial(
            message,
            kind(
                f"{who} may not {operation} {resource}: {request} needs it; "
                "an administrator can add a rule to the policy",
                operation=operation,
                resource=resource,
            ),
        )


# If heartbeats were refused, a member would lose its leases and then request even more. So these
# requests ignore byte quotas, and may exceed the request quota by GRACE_MS. These requests are
# charged, so other requests wait longer.
GRACE_MS = 2_000
REQUESTS = "requests_per_second"
_HELD_UP_LATER = (msg.Heartbeat, msg.Leave, msg.Settle, msg.Unsubscribe)


def denial(message: Message, error: PymqError) -> Sequence[Message]:
    """Return the answer to a refused request; empty if the message has no answer."""
    match message:
        case msg.Produce():
            if message.acks is AckMode.NONE:
                return ()
            return (msg.Produced(message.id, error=not_written(error)),)
        case msg.GetSequence():
            return (msg.Sequence(message.id, error=error),)
        case msg.Fetch():
            place = (message.topic, message.partition, message.offset)
            return (msg.Fetched(message.id, *place, 0, 0, error=error),)
        case msg.FindOffset():
            return (msg.OffsetFound(message.id, error=error),)
        case msg.FindEpoch():
            return (msg.EpochFound(message.id, error=error),)
        case msg.CancelDelayed():
            return (msg.Cancelled(message.id, error=error),)
        case msg.Copy():
            return (msg.Copied(message.id, error=error),)
        case msg.Settle(id=0):
            return ()
        case (
            msg.Join()
            | msg.Heartbeat()
            | msg.Leave()
            | msg.Acquire()
            | msg.Settle()
            | msg.CommitOffset()
            | msg.DeleteGroup()
            | msg.GetGroup()
            | msg.GetLeases()
            | msg.ListGroups()
            | msg.JoinClassic()
            | msg.SyncClassic()
            | msg.BeatClassic()
            | msg.LeaveClassic()
            | msg.CommitClassic()
            | msg.DescribeClassic()
            | msg.BeatReconciled()
            | msg.DescribeReconciled()
        ):
            return (refusal(message, error),)
        case msg.LeaderAndIsr():
            # CLUSTER_AUTHORIZATION_FAILED, for each partition.
            errors = tuple((each.topic, each.partition, error) for each in message.partitions)
            return (msg.LeaderAndIsrAnswer(message.id, "", errors, error),)
        case msg.RegisterBroker() | msg.ControlledShutdown():
            return (msg.Answer(message.id, error=error),)
        case _ if type(message) in _ADMIN:
            return (msg.Answer(message.id, error=error),)  # type: ignore[union-attr]  # each has one
        case _:
            return ()  # The message is an answer, or a report between nodes, which has no answer.


_ADMIN = frozenset(get_args(msg.AdminMessage)) - {msg.Answer, msg.UnderWay}
