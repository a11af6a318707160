"""Messages between members of consumer groups and their coordinator."""

from __future__ import annotations

from pymq.core.values import value
from pymq.errors import PymqError

Range = tuple[int, int]  # the first offset and the offset after the last

ERROR_MAX = 200  # bytes of UTF-8 for a member's error text about returned records


@value
class Join:
    """Join a group; a known member may change its options."""

    id: int
    group: str
    member: str
    topic: str
    partitions: tuple[str, ...]  # partitions of the topic, as far as the member knows
    assignor: str
    session_ms: int  # a member that is silent for this long is removed
    ack_wait_ms: int
    max_deliver: int  # 0: no limit
    reset: int  # BEGIN or END: where a group without an offset starts
    topic_id: str = ""  # id of the topic; "": not given
    # Whether only one member at a time may consume a partition. True: always. False: never. None:
    # only if the records have keys.
    ordered: bool | None = None
    # The only partitions of which the member can consume records; None: all. A share session of a
    # Kafka client (KIP-932) is bound to one broker, and to the partitions that this broker leads.
    within: tuple[str, ...] | None = None


@value
class Heartbeat:
    """A member's heartbeat.

    If the topic has grown, *partitions* lists its partitions until the coordinator answers;
    otherwise it is empty (as in KIP-848, where missing fields mean no change).
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
    """Leave the group; *unread* are leased ranges that the application has not received."""

    id: int
    group: str
    member: str
    unread: tuple[tuple[str, Range], ...] = ()


@value
class Acquire:
    """Lease up to *max_records* for *member*.

    *known* holds the log start and end of each partition that the member knows. *unkeyed* holds the
    ranges of these partitions whose records have no key, and *priorities* the ranges with a
    priority above 0, each with its priority. If no records are available, the answer waits for up
    to *max_wait_ms*, or until the member's next Acquire.

    *ahead* means that the member still works on other records, and may return some of them. So it
    gets only records without an order, and only those that no waiting member takes.
    """

    id: int
    group: str
    member: str
    known: tuple[tuple[str, int, int], ...]
    max_records: int
    max_wait_ms: int
    unkeyed: tuple[tuple[str, int, int], ...] = ()
    # Whether the member accepts records of other members' partitions. None: not given; several
    # members of one partition may then hold keyed records at the same time.
    shares: bool | None = None
    priorities: tuple[tuple[str, int, int, int], ...] = ()
    ahead: bool = False


@value
class Lease:
    """Records of one partition, leased to a member until it settles them or the lease expires."""

    partition: str
    start: int
    end: int
    delivery_count: int
    # delivered too often: move the records to the dead-letter topic, then acknowledge them
    dead: bool = False
    error: str = ""  # the error with which a member returned the records, if any; see Settle.errors


@value
class Acquired:
    """The leases; empty if the wait ended and no records were available."""

    id: int
    leases: tuple[Lease, ...] = ()
    generation: int = 0  # a member with another generation sends a heartbeat
    error: PymqError | None = None
    has_more: bool = False  # more records without an order may be leased


@value
class Settle:
    """Settle leased records. There is no answer if *id* is 0."""

    id: int
    group: str
    member: str
    acks: tuple[tuple[str, Range], ...] = ()
    # each range with the delay in ms before its redelivery
    nacks: tuple[tuple[str, Range, int], ...] = ()
    # records that are still being processed: their leases start again
    renewals: tuple[tuple[str, Range], ...] = ()
    unread: tuple[tuple[str, Range], ...] = ()  # returned without counting the delivery
    durable: bool = False  # answer only when this change and all earlier ones survive a power cut
    # the error texts of *nacks*, in the same order; a missing entry or "" means no text. Each text
    # has at most ERROR_MAX bytes of UTF-8
    errors: tuple[str, ...] = ()
    # Settle all records, or none if the member does not hold the leases of all of them; Settled
    # then counts the refused records. *unread* is not checked.
    whole: bool = False


@value
class Settled:
    """The acknowledgements of a Settle are written.

    *refused* is the number of records not leased to the member.

    *lapsed* is the number of refused records that are unacknowledged and will be delivered again.
    The other refused records were acknowledged before, or retention has removed them.
    """

    id: int
    refused: int = 0
    error: PymqError | None = None
    lapsed: int = 0


@value
class CommitOffset:
    """Set a group's offset in a partition; allowed only while the group has no members."""

    id: int
    group: str
    topic: str
    partition: str
    offset: int
    end: int | None = None  # the high watermark as the client knows it, for the lag in metrics


@value
class DeleteGroup:
    """Delete a group without members, and its offsets. The answer is Settled."""

    id: int
    group: str
    topic: str = ""  # delete only the offsets of this topic; "": the group with all offsets


@value
class GetGroup:
    """Get the state of a group."""

    id: int
    group: str


@value
class GetLeases:
    """Get a group's state of a partition's records from *offset* on."""

    id: int
    group: str
    topic: str
    partition: str
    offset: int = 0
    max_spans: int = 100


@value
class ListGroups:
    """Get the names of the groups of one partition of the offsets topic.

    Without a partition, the answer holds all groups that the broker coordinates; other brokers may
    coordinate more.
    """

    id: int
    partition: str = ""


@value
class GroupOffset:
    """The position of a group in one partition."""

    topic: str
    partition: str
    committed: int
    delivered: int  # the offset after the last record that was ever leased
    in_flight: int  # leased records that are not yet acknowledged
    waiting: int = 0  # returned records that wait for redelivery
    holders: tuple[str, ...] = ()  # the members that hold leases
    is_full: bool = False  # too many records are unacknowledged, so no new records are leased
    note: str = ""  # the text that a Kafka client has committed with the offset


@value
class GroupMember:
    """A member, its assignment and its pending request."""

    member: str
    topic: str
    partitions: tuple[str, ...]
    source: str = ""  # name of the client's machine that sends its messages
    assignor: str = ""
    ack_wait_ms: int = 0
    max_deliver: int = 0
    silent_ms: int = 0  # time since the member's last message
    # partitions of the member's pending Acquire; None if it has none
    asks: tuple[str, ...] | None = None


@value
class GroupState:
    """The answer to GetGroup."""

    id: int
    group: str
    generation: int = 0
    members: tuple[GroupMember, ...] = ()
    offsets: tuple[GroupOffset, ...] = ()
    error: PymqError | None = None
    is_new: bool = False
    """Whether the coordinator has just taken over; members that have not rejoined are missing."""


@value
class LeaseSpan:
    """A range of records with the same state in a group."""

    start: int
    end: int
    state: str  # "available" (for redelivery), "leased" or "acked"
    member: str | None = None  # the member that leases the records
    delivery_count: int = 0
    due_ms: int = 0  # time until the records are available, or until the lease expires


@value
class GroupLeases:
    """The answer to GetLeases.

    Records before *committed* are acknowledged, and records from *delivered* on were never leased.
    The spans are in order, at most as many as requested. *known_end* is the log end as far as the
    group knows.
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
    # the groups that Kafka's clients have joined: name, protocol type and state
    classic: tuple[tuple[str, str, str], ...] = ()


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
