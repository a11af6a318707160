"""Messages between members of consumer groups and their coordinator."""

from __future__ import annotations

from pymq.core.values import value
from pymq.errors import PymqError

Range = tuple[int, int]  # offsets from the first up to, not including, the second

ERROR_MAX = 200  # bytes of UTF-8 that a member may say about records that it returns


@value
class Join:
    """Join a group; a known member may change its options."""

    id: int
    group: str
    member: str
    topic: str
    partitions: tuple[str, ...]  # as the member knows them
    assignor: str
    session_ms: int  # a member that is silent for longer is removed
    ack_wait_ms: int
    max_deliver: int  # 0: no limit
    reset: int  # BEGIN or END: where a group without an offset starts
    topic_id: str = ""  # of the topic that is meant; "": not given
    # Whether one member at a time consumes a partition: True always, False never, None if its
    # records have keys.
    ordered: bool | None = None


@value
class Heartbeat:
    """A member is alive.

    *partitions* lists the topic's partitions after it has grown, until the coordinator answers;
    otherwise it is empty (as in KIP-848, where missing fields are unchanged).
    """

    id: int
    group: str
    member: str
    partitions: tuple[str, ...]


@value
class Assigned:
    """The partitions assigned to a member, as of a generation."""

    id: int
    generation: int = 0
    partitions: tuple[str, ...] = ()
    error: PymqError | None = None


@value
class Leave:
    """A member leaves; *unread* are leased ranges that were not delivered to its application."""

    id: int
    group: str
    member: str
    unread: tuple[tuple[str, Range], ...] = ()


@value
class Acquire:
    """Lease up to *max_records* for *member*.

    *known* holds the log start and end of each partition that the member knows, *unkeyed* the
    ranges in them whose records have no key, and *priorities* those whose records have a priority
    above 0, with that. If there is nothing to lease, the answer waits for at
    most *max_wait_ms*, or until the member's next Acquire.
    """

    id: int
    group: str
    member: str
    known: tuple[tuple[str, int, int], ...]
    max_records: int
    max_wait_ms: int
    unkeyed: tuple[tuple[str, int, int], ...] = ()
    # Whether it takes records of other members' partitions, if it may. None: not given; then
    # several members of one partition may hold records with keys at a time.
    shares: bool | None = None
    priorities: tuple[tuple[str, int, int, int], ...] = ()


@value
class Lease:
    """Records of one partition, leased to one member until it acknowledges or the lease expires."""

    partition: str
    start: int
    end: int
    delivery_count: int
    dead: bool = False  # delivered too often: move it to the dead-letter topic, then acknowledge
    error: str = ""  # why a member has returned the records, if one did; see Settle.errors


@value
class Acquired:
    """The leases; none if the wait has ended without any."""

    id: int
    leases: tuple[Lease, ...] = ()
    generation: int = 0  # if it is not the member's, the member sends a heartbeat
    error: PymqError | None = None


@value
class Settle:
    """Settles leased records. There is no answer if *id* is 0."""

    id: int
    group: str
    member: str
    acks: tuple[tuple[str, Range], ...] = ()
    nacks: tuple[tuple[str, Range, int], ...] = ()  # with the delay in ms before the next delivery
    renewals: tuple[tuple[str, Range], ...] = ()  # still in work: their leases start anew
    unread: tuple[tuple[str, Range], ...] = ()  # returned, as if never delivered
    durable: bool = False  # answer when this and all before it survives a power cut
    # why the records of *nacks* were returned, in their order; no entry or "" says nothing. At most
    # ERROR_MAX bytes of UTF-8 each
    errors: tuple[str, ...] = ()


@value
class Settled:
    """The acknowledgements are written; *refused* records were not leased to the member.

    *lapsed* of those are not acknowledged and will be delivered again. The others were acknowledged
    before, or removed by retention.
    """

    id: int
    refused: int = 0
    error: PymqError | None = None
    lapsed: int = 0


@value
class CommitOffset:
    """Set a group's offset in a partition; only while the group has no members."""

    id: int
    group: str
    topic: str
    partition: str
    offset: int
    end: int | None = None  # the high watermark as the client knows it, for the lag in metrics


@value
class DeleteGroup:
    """Delete a group and its offsets; only while it has no members. Answered by Settled."""

    id: int
    group: str


@value
class GetGroup:
    """Get the state of a group."""

    id: int
    group: str


@value
class GetLeases:
    """Get the state, in a group, of a partition's records from *offset* on."""

    id: int
    group: str
    topic: str
    partition: str
    offset: int = 0
    max_spans: int = 100


@value
class ListGroups:
    """Get the names of the groups of one partition of the offsets topic.

    Without a partition these are all groups that the broker coordinates, which may be fewer than
    the client expects.
    """

    id: int
    partition: str = ""


@value
class GroupOffset:
    """The position of a group in one partition."""

    topic: str
    partition: str
    committed: int
    delivered: int  # the offset after the last one that was ever leased
    in_flight: int  # records leased and not yet acknowledged
    waiting: int = 0  # returned records that wait for redelivery
    holders: tuple[str, ...] = ()  # the members that hold those in flight
    is_full: bool = False  # too much is unacknowledged to lease a new record


@value
class GroupMember:
    """A member, its assignment and its pending request."""

    member: str
    topic: str
    partitions: tuple[str, ...]
    source: str = ""  # name of the client machine that sends its messages
    assignor: str = ""
    ack_wait_ms: int = 0
    max_deliver: int = 0
    silent_ms: int = 0  # since its last message
    asks: tuple[str, ...] | None = None  # partitions of its waiting Acquire; None: there is none


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
    """A range of records with the same state in a group."""

    start: int
    end: int
    state: str  # "available" (for redelivery), "leased" or "acked"
    member: str | None = None  # the holder
    delivery_count: int = 0
    due_ms: int = 0  # until they are available, or the lease expires


@value
class GroupLeases:
    """The answer to GetLeases.

    Records before *committed* are acknowledged, and records from *delivered* on were never leased.
    The spans are in order, at most as many as requested. *known_end* is the log end that the group
    knows.
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
