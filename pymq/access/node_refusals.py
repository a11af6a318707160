"""Refuses messages that a node may not send, such as reports about other brokers.

A key proves the name of the node at the other end of a connection. The rules here compare that name
with the message, so that the key of a broker gives access only to the partitions of that broker:

* A broker obeys requests (:class:`LeaderAndIsr`, :class:`Seal`, :class:`StopReplica`,
  :class:`TransferLeader`, :class:`DescribePartitions`) only from its configured zkservers.
* A zkserver accepts a report about a broker only from that broker. A report about a whole partition
  (:class:`RollWanted`, :class:`RetireBlocks`, :class:`BlockSizes`) must be from a broker that hosts
  the partition.

A message that breaks a rule has no effect. If the message is a request, the answer is
:class:`~pymq.errors.ClusterAuthorizationFailed`.
"""

from __future__ import annotations

from pymq.core.message import (
    Answer,
    ControlledShutdown,
    LeaderAndIsr,
    LeaderAndIsrAnswer,
    Message,
    RegisterBroker,
)
from pymq.core.observe.events import EventLog
from pymq.errors import ClusterAuthorizationFailed

NOTED_MS = 60_000  # pause between two events about one sender
NOTED_MAX = 100  # senders that are remembered


class Refusals:
    """Refuses messages of nodes that may not send them, and logs an event about each sender."""

    def __init__(self, journal: EventLog) -> None:
        self._journal = journal
        self._noted: dict[str, int] = {}  # time of the last event, by sender

    def refuse(self, me: str, source: str, message: Message, now: int) -> Message | None:
        """Note the refusal, and return the answer for *source* if this kind of message has an
        answer.
        """
        request = type(message).__name__
        if now - self._noted.get(source, -NOTED_MS) >= NOTED_MS:
            self._noted.pop(source, None)
            self._noted[source] = now
            if len(self._noted) > NOTED_MAX:
                del self._noted[next(iter(self._noted))]
            self._journal.note("node_refused", source=source, request=request)
        error = ClusterAuthorizationFailed(f"{source} may not send this {request} to {me}")
        match message:
            case LeaderAndIsr():
                errors = tuple((each.topic, each.partition, error) for each in message.partitions)
                return LeaderAndIsrAnswer(message.id, me, errors, error)
            case RegisterBroker() | ControlledShutdown():
                return Answer(message.id, error=error)
            case _:
                return None
