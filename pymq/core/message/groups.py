"""What members of consumer groups say to their coordinator."""

from __future__ import annotations

from pymq.core.values import value
from pymq.errors import PymqError

Range = tuple[int, int]  # offsets from the first up to, not including, the second


@value
class Join:
    """Become a member of a group; a member that is known already may change what it wants."""

    id: int
    group: str
    member: str
    topic: str
    partitions: tuple[str, ...]  # as the member knows them
    assignor: str
    session_ms: int  # the member is gone when it is silent for longer
    ack_wait_ms: int
    max_deliver: int  # 0: no limit
    reset: int  # BEGIN or END: where the group starts when it has no offset
    topic_id: str = ""  # of the topic that is meant; "": not told
    # Whether a partition is worked on by one member at a time: True always, False never, None where
    # records have keys.
    ordered: bool | None = None


@value
class Heartbeat:
    """A member is alive; *partitions* tells when the topic has grown, and is empty otherwise.

    That is until it is answered (as in KIP-848, where what is not said has not changed).
    """

    id: int
    group: str
    member: str
    partitions: tuple[str, ...]


@value
class Assigned:
    """What a member of a group is to consume, as of a generation."""

    id: int
    generation: int = 0
    partitions: tuple[str, ...] = ()
    error: PymqError | None = None


@value
class Leave:
    """A member goes; *unread* are the leases that its application never saw."""

    id: int
    group: str
    member: str
    unread: tuple[tuple[str, Range], ...] = ()


@value
class Acquire:
    """Lease up to *max_records* for *member*.

    *known* holds, for each partition that the member has been told of, where its log starts and
    ends, and *unkeyed* ranges in them whose records have no key. Without anything to lease the
    answer waits, at most *max_wait_ms*; the member's next Acquire ends the wait of the one before.
    """

    id: int
    group: str
    member: str
    known: tuple[tuple[str, int, int], ...]
    max_records: int
    max_wait_ms: int
    unkeyed: tuple[tuple[str, int, int], ...] = ()
    # Whether it takes records of partitions that are not its own, if it may. None: not told; then
    # several members that have the same partition may be at work on what has keys.
    shares: bool | None = None


@value
class Lease:
    """Records of one partition, leased to one member until it acknowledges or the time is up."""

    partition: str
    start: int
    end: int
    delivery_count: int
    dead: bool = False  # delivered too often: move it to the dead-letter topic, then acknowledge


@value
class Acquired:
    """The leases; none when the wait was over."""

    id: int
    leases: tuple[Lease, ...] = ()
    generation: int = 0  # another one than the member's: it is to send a heartbeat and see
    error: PymqError | None = None


@value
class Settle:
    """What became of leased records. Not answered when *id* is 0."""

    id: int
    group: str
    member: str
    acks: tuple[tuple[str, Range], ...] = ()
    nacks: tuple[tuple[str, Range, int], ...] = ()  # with the delay in ms before the next delivery
    renewals: tuple[tuple[str, Range], ...] = ()  # still being worked on: the time begins anew
    unread: tuple[tuple[str, Range], ...] = ()  # given back, as if never delivered
    durable: bool = False  # answered once this, and all that came before, would survive a power cut


@value
class Settled:
    """The acknowledgements are written; *refused* records had been leased to somebody else.

    *lapsed* says how many of those are not done and are delivered again. The others were done
    already, or retention has taken them.
    """

    id: int
    refused: int = 0
    error: PymqError | None = None
    lapsed: int = 0


@value
class CommitOffset:
    """Move a group's offset in a partition; only while the group has no members."""

    id: int
    group: str
    topic: str
    partition: str
    offset: int


@value
class DeleteGroup:
    """Forget a group with its offsets; only while it has no members. Answered by Settled."""

    id: int
    group: str


@value
class GetGroup:
    """Ask for a group's state."""

    id: int
    group: str


@value
class GetLeases:
    """Ask what has become, in a group, of the records of a partition from *offset* on."""

    id: int
    group: str
    topic: str
    partition: str
    offset: int = 0
    max_spans: int = 100


@value
class ListGroups:
    """Ask for the names of the groups of one partition of the offsets topic.

    Without a partition it is those of all that this broker coordinates, which need not be all of
    those that whoever asks believes it to coordinate.
    """

    id: int
    partition: str = ""


@value
class GroupOffset:
    """How far a group has got in one partition."""

    topic: str
    partition: str
    committed: int
    delivered: int  # the offset after the last one that was ever leased
    in_flight: int  # records leased and not yet acknowledged
    waiting: int = 0  # records that were given back and are to be delivered again
    holders: tuple[str, ...] = ()  # the members that hold those in flight
    is_full: bool = False  # so much is open that no new record is leased


@value
class GroupMember:
    """A member, what it has been assigned and what it asks for."""

    member: str
    topic: str
    partitions: tuple[str, ...]
    source: str = ""  # the machine that speaks for it
    assignor: str = ""
    ack_wait_ms: int = 0
    max_deliver: int = 0
    silent_ms: int = 0  # since it was last heard of
    asks: tuple[str, ...] | None = None  # partitions it waits for records of; None: it asks nothing


@value
class GroupState:
    """The answer to GetGroup."""

    id: int
    group: str
    generation: int = 0
    members: tuple[GroupMember, ...] = ()
    offsets: tuple[GroupOffset, ...] = ()
    error: PymqError | None = None


@value
class LeaseSpan:
    """Records of a partition that have the same fate in a group."""

    start: int
    end: int
    state: str  # "available" (to be delivered again), "leased" or "acked"
    member: str | None = None  # that holds them
    delivery_count: int = 0
    due_ms: int = 0  # from now on: until they are available, or the lease runs out


@value
class GroupLeases:
    """The answer to GetLeases.

    What lies before *committed* is acknowledged, and what lies from *delivered* on was never handed
    out. The spans are in order, and no more than were asked for; *known_end* is how far the group
    knows the partition to reach.
    """

    id: int
    committed: int = 0
    delivered: int = 0
    known_end: int = 0
    spans: tuple[LeaseSpan, ...] = ()
    error: PymqError | None = None


@value
class GroupNames:
    """The answer to ListGroups."""

    id: int
    groups: tuple[str, ...] = ()
    error: PymqError | None = None


GroupMessage = (
    Join
    | Heartbeat
    | Assigned
    | Leave
    | Acquire
    | Acquired
    | Settle
    | Settled
    | CommitOffset
    | DeleteGroup
    | GetGroup
    | ListGroups
    | GetLeases
    | GroupState
    | GroupNames
    | GroupLeases
)
