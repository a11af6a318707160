"""Messages between Kafka gateways, which serve Kafka clients, and coordinators of classic groups.

In such a group one of the clients assigns partitions to all (Kafka's JoinGroup and SyncGroup).
Codes are Kafka's error codes, since Kafka's clients act on them.
"""

from __future__ import annotations

from typing import NamedTuple

from pymq.core.values import value
from pymq.errors import PymqError


class ClassicMember(NamedTuple):
    """A member, with the data that it has sent about itself and its assignment."""

    member: str
    instance: str | None  # its ``group.instance.id``, if it is a static member (KIP-345)
    client: str = ""
    host: str = ""
    metadata: bytes = b""  # the member's subscription, in the format of the group's protocol
    assignment: bytes = b""


class ClassicOffset(NamedTuple):
    """An offset to commit, with a text that the client stores with it."""

    topic: str
    partition: str
    offset: int
    metadata: str = ""


@value
class JoinClassic:
    """Join a group, or join again in a rebalance; the answer comes when all members have joined."""

    id: int
    group: str
    member: str  # "" for a new member, ...
    new_member: str  # ... which gets this id
    instance: str | None
    client: str
    host: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # the member's assignors, the preferred one first
    session_ms: int
    rebalance_ms: int  # how long others wait for this member in a rebalance
    # a new member first gets its id, and then joins again with this id (KIP-394)
    needs_id: bool = False


@value
class JoinedClassic:
    """The member's generation; only the leader gets the list of members, to assign partitions."""

    id: int
    code: int = 0
    member: str = ""
    generation: int = -1
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[ClassicMember, ...] = ()
    error: PymqError | None = None


@value
class SyncClassic:
    """Get the member's assignment; the leader's request contains all assignments, others wait for
    it.
    """

    id: int
    group: str
    member: str
    instance: str | None
    generation: int
    protocol_type: str | None  # None: not given
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@value
class SyncedClassic:
    """The member's assignment."""

    id: int
    code: int = 0
    protocol_type: str = ""
    protocol: str = ""
    assignment: bytes = b""
    error: PymqError | None = None


@value
class BeatClassic:
    """A member's heartbeat. :class:`ClassicDone` answers it and the next two messages."""

    id: int
    group: str
    member: str
    instance: str | None
    generation: int


@value
class LeaveClassic:
    """Members leave; each is named by its id, or by its instance alone."""

    id: int
    group: str
    members: tuple[tuple[str, str | None], ...]


@value
class CommitClassic:
    """Commit offsets; a client that is no member may do so only while the group has no members."""

    id: int
    group: str
    member: str
    instance: str | None
    generation: int
    offsets: tuple[ClassicOffset, ...]


@value
class ClassicDone:
    """The code of each part of a request, or of the request as a whole."""

    id: int
    codes: tuple[int, ...] = (0,)
    error: PymqError | None = None


@value
class DescribeClassic:
    """Get the state of a group."""

    id: int
    group: str


@value
class ClassicState:
    """The answer to DescribeClassic; *state* is Kafka's name for it, or "" if there is no group."""

    id: int
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[ClassicMember, ...] = ()
    error: PymqError | None = None


ClassicMessage = (
    JoinClassic
    | JoinedClassic
    | SyncClassic
    | SyncedClassic
    | BeatClassic
    | LeaveClassic
    | CommitClassic
    | ClassicDone
    | DescribeClassic
    | ClassicState
)
