"""Messages between the gates of Kafka clients and the coordinator of their classic groups.

The clients of such a group assign partitions to each other (Kafka's JoinGroup and SyncGroup). Codes
are Kafka's own error codes, on which its clients act.
"""

from __future__ import annotations

from typing import NamedTuple

from pymq.core.values import value
from pymq.errors import PymqError


class ClassicMember(NamedTuple):
    """A member, with what it has sent about itself and what it was assigned."""

    member: str
    instance: str | None  # its ``group.instance.id``, if it is a static member (KIP-345)
    client: str = ""
    host: str = ""
    metadata: bytes = b""  # its subscription, for the group's protocol
    assignment: bytes = b""


class ClassicOffset(NamedTuple):
    """An offset to commit, with the text that the client wants back."""

    topic: str
    partition: str
    offset: int
    metadata: str = ""


@value
class JoinClassic:
    """Join a group, or join again after a rebalance has begun. The answer waits for the others."""

    id: int
    group: str
    member: str  # "" for a new one, ...
    new_member: str  # ... whose id this becomes
    instance: str | None
    client: str
    host: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # the member's assignors, the preferred one first
    session_ms: int
    rebalance_ms: int  # how long others wait for this member in a rebalance
    needs_id: bool = False  # a new member first gets its id, and joins again with it (KIP-394)


@value
class JoinedClassic:
    """The member's generation; only the leader gets the members, which it assigns partitions."""

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
    """Get the assignment of a generation; the leader brings it. The answer waits for the leader."""

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
    """A member is alive. Answered by :class:`ClassicDone`, as are the next two."""

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
    """Commit offsets; without a member only while the group has none."""

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
    """The answer to DescribeClassic; *state* is named as in Kafka, and "" if there is no group."""

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
