"""The members of share groups, as their heartbeats describe them.

The members that count are those of pymq's group, which a member's share sessions join on the
brokers whose partitions it reads (:mod:`pymq.kafka.shared.share_sessions`). What is here only tells
clients which partitions to read: each member may read all partitions of its topics, since the
group's coordinator divides the records.

The gate at the group's coordinator keeps the members. After a takeover a heartbeat gets
UNKNOWN_MEMBER_ID, so the client joins again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from pymq.core.values import define
from pymq.kafka.codes import Code

Topic = tuple[str, str, int]  # (name, id, number of partitions)

MEMBERS_MAX = 10_000  # of a gate
GROUP_MEMBERS_MAX = 1_000  # of a group
SESSION_MS = 45_000  # group.share.session.timeout.ms
HEARTBEAT_MS = 5_000  # group.share.heartbeat.interval.ms
JOIN, LEAVE = 0, -1  # epochs of a heartbeat


@define
class ShareMember:
    """A member of a share group."""

    group: str
    id: str
    epoch: int
    rack: str | None
    client: str
    host: str
    names: tuple[str, ...]  # of the topics that it subscribes to
    gone_at: int
    topics: tuple[Topic, ...] = ()  # those that exist
    told_epoch: int = -1  # the member has got the topics of this epoch


class ShareMembers:
    """The members of share groups that one gate knows."""

    def __init__(self) -> None:
        self._members: OrderedDict[tuple[str, str], ShareMember] = OrderedDict()  # by heartbeat

    def __len__(self) -> int:
        return len(self._members)

    def of(self, group: str, now: int) -> Iterator[ShareMember]:
        """Return the members of a group."""
        self._expire(now)
        return (member for (name, _), member in self._members.items() if name == group)

    def groups(self, now: int) -> set[str]:
        """Return the groups that have members."""
        self._expire(now)
        return {name for name, _ in self._members}

    def join(self, member: ShareMember, now: int) -> Code:
        """Add a member, or let it begin again; returns why not."""
        key = member.group, member.id
        if key not in self._members:
            count = sum(1 for _ in self.of(member.group, now))
            if count >= GROUP_MEMBERS_MAX or len(self._members) >= MEMBERS_MAX:
                return Code.GROUP_MAX_SIZE_REACHED
        self._members[key] = member
        self._members.move_to_end(key)
        return Code.NONE

    def beat(self, group: str, id: str, epoch: int, now: int) -> ShareMember | Code:
        """Return a member that is alive."""
        self._expire(now)
        member = self._members.get((group, id))
        if member is None:
            return Code.UNKNOWN_MEMBER_ID
        # A member that did not get the last answer repeats the epoch before.
        if epoch not in (member.epoch, member.epoch - 1):
            return Code.FENCED_MEMBER_EPOCH
        member.gone_at = now + SESSION_MS
        self._members.move_to_end((group, id))
        return member

    def leave(self, group: str, id: str) -> bool:
        """Remove a member; returns whether there was one."""
        return self._members.pop((group, id), None) is not None

    def _expire(self, now: int) -> None:
        while self._members:
            key, member = next(iter(self._members.items()))
            if member.gone_at > now:
                break
            del self._members[key]
