"""The coordinator's state of a group member, and the members that were fenced.

A member waits for at most one answer at a time. The member's state says which:

==========  ==========================================================  ======================
state       meaning                                                     next
==========  ==========================================================  ======================
`JOINING`   the member's `Join` waits for the next assignment           `STABLE`
`STABLE`    the member has an assignment, and no request waits          `WAITING`
`WAITING`   the member's `Acquire` waits for records of its partitions  `STABLE` or `IDLE`
`IDLE`      like `WAITING`, but accepts unordered records of others      `STABLE`
`REMOVED`   the member left, was silent, was fenced or joined
            again; the coordinator refuses its requests
==========  ==========================================================  ======================

Each state may change to `REMOVED`. A member that joins again is a new :class:`Member` object.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, auto

from pymq.core.message import Acquire, GroupMember
from pymq.core.types import NEVER
from pymq.core.values import define
from pymq.errors import FencedMember, NotSubscribed, PymqError

FENCED_MAX = 10_000  # fenced members that the coordinator remembers


class MemberState(IntEnum):
    """The answer that a member waits for, if any."""

    JOINING = auto()
    STABLE = auto()
    WAITING = auto()
    IDLE = auto()
    REMOVED = auto()


TRANSITIONS: Mapping[MemberState, frozenset[MemberState]] = {
    MemberState.JOINING: frozenset({MemberState.STABLE, MemberState.REMOVED}),
    MemberState.STABLE: frozenset({MemberState.WAITING, MemberState.REMOVED}),
    MemberState.WAITING: frozenset({MemberState.STABLE, MemberState.IDLE, MemberState.REMOVED}),
    MemberState.IDLE: frozenset({MemberState.STABLE, MemberState.REMOVED}),
    MemberState.REMOVED: frozenset(),
}


@define
class Member:
    """A consumer in a group."""

    id: str
    source: str
    topic: str
    assignor: str
    session_ms: int
    ack_wait_ms: int
    max_deliver: int
    reset: int
    gone_at: int
    partitions: tuple[str, ...]  # the partitions assigned to the member
    join_id: int = 0  # the request id of the member's last Join
    generation: int = 0  # generation of the last assignment that was sent to the member
    state: MemberState = MemberState.JOINING
    waiting: Acquire | None = None  # the member's pending request while it is WAITING or IDLE
    waits_until: int = NEVER
    ordered: bool | None = None
    # id of the consumed topic (a later topic of that name has a greater id); "": not given
    topic_id: str = ""
    within: frozenset[str] | None = None  # the partitions that it can consume; None: all

    def can_consume(self, partition: str) -> bool:
        """Whether the member can consume records of a partition."""
        return self.within is None or partition in self.within

    def move(
        self, to: MemberState, waiting: Acquire | None = None, waits_until: int = NEVER
    ) -> None:
        """Change the state as :data:`TRANSITIONS` allows, and set the pending request."""
        assert to in TRANSITIONS[self.state], f"{self.id}: {self.state.name} to {to.name}"
        self.state, self.waiting, self.waits_until = to, waiting, waits_until

    def describe(self, now: int) -> GroupMember:
        """Describe the member for ``describe_group``."""
        waiting = self.waiting
        return GroupMember(
            self.id,
            self.topic,
            self.partitions,
            self.source,
            self.assignor,
            self.ack_wait_ms,
            self.max_deliver,
            max(0, now + self.session_ms - self.gone_at),
            None if waiting is None else tuple(partition for partition, _, _ in waiting.known),
        )


class FencedMembers:
    """Members that were removed because their topic was deleted or their group unsubscribed.

    The coordinator answers each request of a fenced member with the reason. If there are too many
    fenced members, the oldest is forgotten.
    """

    def __init__(self) -> None:
        # (topic, whether it was deleted) by member
        self._topics: dict[str, tuple[str, bool]] = {}

    def add(self, member: Member, *, is_deleted: bool) -> None:
        """Add a member whose topic was deleted, or whose group is no longer subscribed to it."""
        self._topics[member.id] = member.topic, is_deleted
        if len(self._topics) > FENCED_MAX:
            del self._topics[next(iter(self._topics))]

    def reason(self, group: str, member: str) -> PymqError:
        """Return the error for a request of a member that *group* does not have."""
        why = f"{member} is no longer a member of group {group!r}"
        if member not in self._topics:
            return FencedMember(why)
        topic, is_deleted = self._topics[member]
        if is_deleted:
            return FencedMember(f"{why}: topic {topic!r} was deleted", deleted=topic)
        return NotSubscribed(
            f"group {group!r} is not subscribed to topic {topic!r} any more; "
            "opening a new consumer subscribes it again"
        )
