"""The group coordinator: assigns partitions, leases records and commits offsets.

One coordinator serves the groups that hash to one partition of the internal topic
``__consumer_offsets``, and runs on the broker that leads that partition. Committed offsets must
outlive the coordinator, so they are stored as records of that partition. A new coordinator reads
these records; the newest record of each key counts. Membership and leases are not stored: members
join a new coordinator again, and records that were leased are delivered again.

A member may hold leases on any records of its partitions. A lease ends when the member acknowledges
or returns the record (settles the lease), when the lease or the member's session expires, or when
the member leaves. After a partition is assigned to another member, the new member gets records only
when the former member's leases have ended. So two consumers never work on records of one key at the
same time.

The numbers of members, groups and offsets are bounded (:mod:`pymq.core.group.group_limits`). The
time for assignments is bounded, too
(:meth:`~pymq.core.group.consumer_group.ConsumerGroup.pause_ms`).

Sessions, leases and waits count only the time in which the coordinator ran
(:mod:`pymq.core.time.pausable_clock`): after a pause it handles the requests that arrived meanwhile
before anything expires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymq.core.counts import plural
from pymq.core.group.consumer_group import Assignors, ConsumerGroup
from pymq.core.group.group_limits import GroupLimits
from pymq.core.group.lease_manager import Awaited, GroupContext, LeaseManager
from pymq.core.group.leases import Leases
from pymq.core.group.membership import MembershipManager
from pymq.core.group.offset_log import GroupHost, OffsetLog
from pymq.core.group.request_validation import GroupRequest, KafkaRequest, check, refusal
from pymq.core.message import (
    Acquire,
    CommitOffset,
    DeleteGroup,
    Fetched,
    GetGroup,
    GetLeases,
    GroupNames,
    Heartbeat,
    Join,
    Leave,
    Message,
    Produced,
    Settle,
    Settled,
    Unsubscribe,
)
from pymq.core.observe.coverage import mark
from pymq.core.pending.growth import Growth
from pymq.core.time.pausable_clock import PausableClock
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER
from pymq.errors import InvalidRequest, PymqError, ReplicaNotAvailable, UnknownGroup

if TYPE_CHECKING:
    from pymq.core.group.kafka.coordinator import KafkaGroupCoordinator

LOOK_MS = 250  # interval of checks of sessions and leases
# Within this time, the members of the former coordinator join the new one, because members send a
# heartbeat at least every three seconds.
REJOIN_MS = 4_000


class GroupCoordinator:
    """The groups of one partition of the offsets topic."""

    def __init__(
        self,
        index: int,
        host: GroupHost,
        assignors: Assignors,
        now: int,
        first_request: int = 0,
        limits: GroupLimits | None = None,
        awaited: Awaited | None = None,
        *,
        is_first: bool = True,
    ) -> None:
        """Prepare to load the groups; *is_first*: there was no coordinator before."""
        self.index = index
        self.deadline = NEVER
        self.groups: dict[str, ConsumerGroup] = {}
        self.clock = PausableClock(LOOK_MS)  # the time of groups, members and leases
        self.offsets = OffsetLog(index, host, self.groups, self.clock, first_request)
        self._host = host
        self._limits = limits or GroupLimits()
        self._timers: TimerHeap[str] = TimerHeap()
        context = GroupContext(
            host,
            self._limits,
            self.groups,
            self.offsets,
            self.clock,
            self._timers,
            index,
            {} if awaited is None else awaited,
        )
        self._leases = LeaseManager(context)
        self._membership = MembershipManager(context, self._leases, assignors)
        self._context = context
        self._kafka: KafkaGroupCoordinator | None = None  # made for the first Kafka client
        self._assignors = assignors
        # Until then, members of a former coordinator may not have joined this one.
        self._is_new_until = 0 if is_first else now + REJOIN_MS
        # requests and deleted topics that wait until the offsets are loaded
        self._parked: list[tuple[str, GroupRequest]] = []
        self._deleted: list[tuple[str, str]] = []

    # --- loading (immigration, emigration) ------------------------------------------------------

    def _loading(self) -> PymqError:
        return ReplicaNotAvailable(
            f"the offsets of partition {self.index} are still being read; try again"
        )

    def _loaded(self, m: Fetched, now: int) -> None:
        if self.offsets.loaded(m, now):
            if self._is_new_until:
                self._is_new_until = now + REJOIN_MS
            for name in self.groups:
                self._rearm(name)  # Delays of loaded offsets may end before members join.
            deleted, self._deleted = self._deleted, []
            for topic, topic_id in deleted:
                self.forget_topic(topic, now, topic_id)
            parked, self._parked = self._parked, []
            for source, request in parked:
                self.step(source, request, now)

    def resign(self, error: PymqError, now: int) -> None:
        """Answer all waiting requests with *error*; another broker takes over (emigration)."""
        self._membership.resign(error, now)
        if self._kafka is not None:
            self._kafka.resign(error, now)
        # Whether the write in progress succeeds is unknown; the new coordinator reads the result.
        for source, answer in self.offsets.waiting():
            self._host.reply(source, type(answer)(answer.id, error=error), now)
        for source, request in self._parked:
            self._host.reply(source, refusal(request, error), now)

    # --- messages -------------------------------------------------------------------------------

    def step(self, source: str, m: GroupRequest | Fetched | Produced, now: int) -> None:
        """Handle a request of a client, or an answer of the offsets partition."""
        self.clock.look(now)
        if self.deadline <= now:
            # Expire sessions first, so that the request meets no expired member.
            self.tick(now)
        if isinstance(m, Fetched):
            self._loaded(m, now)
        elif isinstance(m, Produced):
            self.offsets.stored(m, now)
        else:
            try:
                self._asked(source, check(m), now)
            except PymqError as error:
                self._host.reply(source, refusal(m, error), now)
        self._arm()

    def grown(self, growth: Growth, now: int) -> None:
        """Lease the new records of a partition on this broker to members that wait for records.

        The member that watches the partition will report them, too. But that takes two more
        messages, and up to 20 ms while this member works.
        """
        self.clock.look(now)
        self._leases.grown(growth, now)
        self._arm()

    def _asked(self, source: str, m: GroupRequest, now: int) -> None:
        if self.offsets.is_loaded:
            self._request(source, m, now)
        elif now < self.offsets.patience_until:
            self._parked.append((source, m))
        else:
            raise self._loading()

    def _request(self, source: str, m: GroupRequest, now: int) -> None:
        if isinstance(m, Acquire):
            self._leases.acquire(*self._membership.find(source, m), m, now)
        elif isinstance(m, Settle):
            self._leases.settle(source, *self._membership.find(source, m), m, now)
        elif isinstance(m, Heartbeat):
            self._membership.heartbeat(*self._membership.find(source, m), m, now)
        elif isinstance(m, Join):
            self._check_free(m.group)
            self._membership.join(source, m, now)
        elif isinstance(m, Leave):
            self._membership.leave(source, *self._membership.find(source, m), m, now)
        elif isinstance(m, CommitOffset):
            self._commit(source, m)
        elif isinstance(m, DeleteGroup):
            self._delete(source, m)
        elif isinstance(m, GetGroup | GetLeases):
            self._describe(source, m, now)
        elif isinstance(m, Unsubscribe):
            self._check_free(m.name)
            self._membership.unsubscribe(source, m, now)
        elif isinstance(m, KafkaRequest):
            self._kafka_groups().step(source, m, now)
        else:
            names = {*self.groups, *(name for name, _, _ in self.kinds())}
            self._host.reply(source, GroupNames(m.id, tuple(sorted(names))), now)

    # --- groups of Kafka's clients --------------------------------------------------------------

    def _kafka_groups(self) -> KafkaGroupCoordinator:
        if self._kafka is None:
            # lazy: most queues have no Kafka clients
            from pymq.core.group.kafka.coordinator import KafkaGroupCoordinator

            self._kafka = KafkaGroupCoordinator(self._context, self._assignors)
        return self._kafka

    def kinds(self) -> tuple[tuple[str, str, str], ...]:
        """The groups that Kafka's clients have joined: name, protocol type and state."""
        return self._kafka.kinds() if self._kafka is not None else ()

    def _check_free(self, group: str) -> None:
        """Check that a group has no Kafka clients as members.

        Raises:
            InvalidRequest: it has.
        """
        if self._kafka is not None:
            self._kafka.check_free(group)

    # --- offsets of groups without members ------------------------------------------------------

    def _commit(self, source: str, m: CommitOffset) -> None:
        there = self.groups.get(m.group)
        if there is None:
            self._limits.check_groups(len(self.groups))
        elif (m.topic, m.partition) not in there.offsets.leases:
            self._limits.check_offsets(m.group, len(there.offsets.leases) + 1)
        self._check_free(m.group)
        group = self.groups.setdefault(m.group, ConsumerGroup(m.group))
        _check_closed(group)
        group.offsets.set_offset(m.topic, m.partition, Leases(m.offset))
        if m.end is not None:
            # The log start is unknown here, so the first report of a member that joins must count
            # as new.
            group.offsets.topic(m.topic).learn(m.partition, -1, m.end)
        self.offsets.changed(m.group, m.topic, m.partition)
        self.offsets.answer(source, Settled(m.id), durable=True)

    def _delete(self, source: str, m: DeleteGroup) -> None:
        self._check_free(m.group)
        group = self.groups.get(m.group)
        error: PymqError | None = None
        if group is None:
            # Answer only when all changes are written: this request may repeat an earlier deletion,
            # whose write may still fail.
            error = UnknownGroup(f"there is no group {m.group!r}")
        else:
            _check_closed(group)
            for name in [x for x in group.offsets.leases if m.topic in ("", x[0])]:
                # The offset is gone, so it is written as a tombstone.
                self.offsets.changed(m.group, *name)
                group.offsets.drop_offset(*name)
            if not m.topic or group.is_empty:
                del self.groups[m.group]
                if self._kafka is not None:
                    self._kafka.settle(m.group)
        self.offsets.answer(source, Settled(m.id, error=error), durable=True)

    def _describe(self, source: str, m: GetGroup | GetLeases, now: int) -> None:
        group = self.groups.get(m.group)
        answer: Message
        is_new = now < self._is_new_until
        if group is None:
            error = UnknownGroup(f"there is no group {m.group!r}", is_new=is_new)
            answer = refusal(m, error)
        elif isinstance(m, GetGroup):
            answer = group.describe(m.id, self.clock.ms, is_new=is_new)
        else:
            answer = group.offsets.describe_leases(m, self.clock.ms)
        self._host.reply(source, answer, now)

    def forget_topic(self, topic: str, now: int, topic_id: str = "") -> None:
        """Drop the offsets of a deleted topic and remove its members.

        Members have to join again with new ids: otherwise a late request about the old topic could
        be applied to a new topic of the same name. If a new topic of that name already exists, with
        an id greater than *topic_id*, the offsets and members of the new topic stay.
        """
        if not self.offsets.is_loaded:
            # Keep the deletion, because the broker reports it only once and the offsets may not be
            # loaded yet.
            self._deleted.append((topic, topic_id))
            return
        for group in list(self.groups.values()):
            self._membership.forget(
                group, topic, lambda found: not topic_id or found <= topic_id, now
            )
            if group.is_empty:
                self.groups.pop(group.name, None)
                if self._kafka is not None:
                    self._kafka.settle(group.name)

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed: expire sessions and leases, and end waits."""
        self.offsets.tick(now)
        if self._parked and now >= self.offsets.patience_until:
            mark("group.loading_refused")
            parked, self._parked = self._parked, []
            for source, request in parked:
                self._host.reply(source, refusal(request, self._loading()), now)
        for name in self._timers.over(self.clock.look(now)):
            if (group := self.groups.get(name)) is not None:
                self._membership.tick(group, now)
                self._leases.tick(group, now)
                self._rearm(name)
        if self._kafka is not None:
            self._kafka.tick(now)
        self._arm()

    def _rearm(self, name: str) -> None:
        """Compute the next deadline of a group.

        This method visits all members and partitions of the group, so it runs only when a deadline
        seems to have passed. Between two runs, a request can only make the stored deadline earlier.
        """
        group = self.groups.get(name)
        due = group.next_due(self.clock.ms) if group is not None else NEVER
        if due < NEVER:
            self._timers.set(name, due)
        else:
            self._timers.drop(name)

    def _arm(self) -> None:
        due = self._timers.due
        if self._kafka is not None:
            due = min(due, self._kafka.due)
        self.deadline = min(self.offsets.retry_at, self.clock.when(due))
        if self._parked:
            self.deadline = min(self.deadline, self.offsets.patience_until)


def _check_closed(group: ConsumerGroup) -> None:
    """Check that a group has no members.

    Raises:
        InvalidRequest: it has.
    """
    if group.members:
        members = plural(len(group.members), "member")
        it = "it" if len(group.members) == 1 else "them"
        raise InvalidRequest(f"group {group.name!r} has {members}; close {it} first")
