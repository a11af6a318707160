"""The group coordinator: assigns partitions, leases records and commits offsets.

One coordinator serves the groups that hash to one partition of the internal topic
``__consumer_offsets`` and lives on the broker that leads that partition. What must outlive it, the
committed offsets, are records of that partition: they are replayed when it takes over, and the
newest of each key counts. Membership and leases are not kept: members join again, and what they had
leased is delivered again.

A member may hold leases on any records of its partitions. It loses them when it settles them, when
its session or the lease runs out, or when it leaves. When a partition is assigned to another
member, that member gets none of its records before the former member's leases have ended. So two
consumers never work on records of one key at the same time.

A member belongs to the node that it has joined from, which its connection has authenticated. Other
nodes may not send requests for the member. The numbers of members, groups and offsets are bounded
(:mod:`pymq.core.group.group_limits`), and so is the time that assignments take
(:meth:`~pymq.core.group.membership.ConsumerGroup.pause_ms`).

Sessions, leases and waits count only the time in which the coordinator ran
(:mod:`pymq.core.time.pausable_clock`): after a pause it first handles the requests that arrived
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from pymq.core.group.fenced_members import FencedMembers
from pymq.core.group.group_limits import GroupLimits
from pymq.core.group.leases import Leases
from pymq.core.group.membership import Assignors, ConsumerGroup, Member
from pymq.core.group.offset_log import GroupHost, OffsetLog
from pymq.core.group.request_validation import GroupRequest, check, refusal
from pymq.core.message import (
    Acquire,
    Acquired,
    Answer,
    Assigned,
    CommitOffset,
    DeleteGroup,
    Fetched,
    GetGroup,
    GetLeases,
    GroupNames,
    Heartbeat,
    Join,
    Lease,
    Leave,
    Message,
    Produced,
    Settle,
    Settled,
    Unsubscribe,
)
from pymq.core.observe.coverage import mark
from pymq.core.time.pausable_clock import PausableClock
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER, node_of
from pymq.errors import (
    AuthorizationFailed,
    InvalidRequest,
    PymqError,
    ReplicaNotAvailable,
    UnknownGroup,
)

IDLE_TRIES = 64  # idle members for which one request looks for records
LOOK_MS = 250  # between two looks at sessions and leases


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
    ) -> None:
        self.index = index
        self._limits = limits or GroupLimits()
        self.deadline = NEVER
        self.groups: dict[str, ConsumerGroup] = {}
        self._offsets = OffsetLog(index, host, self.groups, first_request)
        self._host = host
        self._assignors = assignors
        self._parked: list[tuple[str, GroupRequest]] = []  # until the offsets are loaded
        # topics that were deleted before the offsets were loaded
        self._deleted: list[tuple[str, str]] = []
        self._exiles = FencedMembers()
        self._attention = PausableClock(LOOK_MS)  # the clock of groups, members and leases ...
        self._due: TimerHeap[str] = TimerHeap()  # ... and when something is due on it, by group

    @property
    def is_loaded(self) -> bool:
        """Whether the offsets of all its groups are loaded."""
        return self._offsets.is_loaded

    @property
    def last_request(self) -> int:
        """The highest request id that it has used towards the offsets partition."""
        return self._offsets.last_request

    # --- loading (immigration) ------------------------------------------------------------------

    def begin(self, now: int) -> None:
        """Begin to load the offsets; requests wait until they are loaded."""
        self._offsets.begin(now)

    def _loading(self) -> PymqError:
        return ReplicaNotAvailable(
            f"the offsets of partition {self.index} are still being read; try again"
        )

    def _loaded(self, m: Fetched, now: int) -> None:
        if self._offsets.loaded(m, now):
            deleted, self._deleted = self._deleted, []
            for topic, topic_id in deleted:
                self.forget_topic(topic, now, topic_id)
            parked, self._parked = self._parked, []
            for source, request in parked:
                self.step(source, request, now)

    def resign(self, error: PymqError, now: int) -> None:
        """Answer all waiting requests with *error*: another broker takes over (emigration)."""
        for group in self.groups.values():
            for member in group.members.values():
                if member.waiting is not None:
                    self._host.reply(member.source, Acquired(member.waiting.id, error=error), now)
                if member.id in group.joining:
                    refused = Assigned(group.joining[member.id], error=error)
                    self._host.reply(member.source, refused, now)
        # The outcome of the write under way is unknown; the new coordinator will know it.
        for source, answer in self._offsets.waiting():
            self._host.reply(source, Settled(answer.id, error=error), now)
        for source, request in self._parked:
            self._host.reply(source, refusal(request, error), now)

    # --- messages -------------------------------------------------------------------------------

    def step(self, source: str, m: GroupRequest | Fetched | Produced, now: int) -> None:
        """Take in a request of a client, or an answer of the offsets partition."""
        self._attention.look(now)
        if self.deadline <= now:
            # First expire sessions, so that the request finds none that has run out.
            self.tick(now)
        if isinstance(m, Fetched):
            self._loaded(m, now)
        elif isinstance(m, Produced):
            self._offsets.stored(m, now)
        else:
            try:
                self._asked(source, check(m), now)
            except PymqError as error:
                self._host.reply(source, refusal(m, error), now)
        self._arm()

    def _asked(self, source: str, m: GroupRequest, now: int) -> None:
        if self._offsets.is_loaded:
            self._request(source, m, now)
        elif now < self._offsets.patience_until:
            self._parked.append((source, m))
        else:
            raise self._loading()

    def _request(self, source: str, m: GroupRequest, now: int) -> None:
        if isinstance(m, Acquire):
            self._acquire(source, m, now)
        elif isinstance(m, Settle):
            self._settle(source, m, now)
        elif isinstance(m, Heartbeat):
            self._heartbeat(source, m, now)
        elif isinstance(m, Join):
            self._join(source, m, now)
        elif isinstance(m, Leave):
            self._leave(source, m, now)
        elif isinstance(m, CommitOffset):
            self._commit(source, m, now)
        elif isinstance(m, DeleteGroup):
            self._delete(source, m)
        elif isinstance(m, GetGroup | GetLeases):
            self._describe(source, m, now)
        elif isinstance(m, Unsubscribe):
            self._unsubscribe(source, m, now)
        else:
            self._host.reply(source, GroupNames(m.id, tuple(sorted(self.groups))), now)

    def _member(
        self, source: str, m: Heartbeat | Acquire | Settle | Leave, now: int
    ) -> tuple[ConsumerGroup, Member] | None:
        """Find a live member; raises why a former one was removed."""
        group = self.groups.get(m.group)
        member = group.members.get(m.member) if group else None
        if group is None or member is None:
            self._host.reply(source, refusal(m, self._exiles.reason(m.group, m.member)), now)
            return None
        self._check_owner(group, member, source)
        member.gone_at = self._attention.ms + member.session_ms
        return group, member

    def _check_owner(self, group: ConsumerGroup, member: Member, source: str) -> None:
        """Check that *source* may send requests for a member.

        Raises:
            AuthorizationFailed: the member belongs to another node.
        """
        if node_of(member.source) != node_of(source):
            raise AuthorizationFailed(
                f"member {member.id} of group {group.name!r} is another client's"
            )

    # --- membership -----------------------------------------------------------------------------

    def _join(self, source: str, m: Join, now: int) -> None:
        try:
            self._assignors(m.assignor)
            self._admit(source, m)
            self._meet(m, now)
        except PymqError as error:
            self._host.reply(source, Assigned(m.id, error=error), now)
            return
        group = self.groups.setdefault(m.group, ConsumerGroup(m.group))
        before = group.members.get(m.member)
        if before is not None:
            self._answer_acquire(group, before, (), now)
        member = group.join(m, source, self._attention.ms)
        self._due.sooner(m.group, member.gone_at)
        group.joining[member.id] = m.id
        self._rebalance(group, now)

    def _admit(self, source: str, m: Join) -> None:
        """Check that the group has room for a member, and that a known member belongs to *source*.

        Raises:
            GroupLimitReached, AuthorizationFailed: as they say.
        """
        group = self.groups.get(m.group)
        if group is None:
            self._limits.check_groups(len(self.groups))
        elif (before := group.members.get(m.member)) is not None:
            self._check_owner(group, before, source)
        else:
            self._limits.check_members(m.group, len(group.members))
        self._limits.check_offsets(m.group, len(m.partitions))

    def _meet(self, m: Join, now: int) -> None:
        """Take in the id of the topic that a member means: a topic of that name may have been
        recreated.

        A coordinator that took over after the deletion got no notice of it.

        Raises:
            StaleEpoch: a later topic of that name exists.
        """
        group = self.groups.get(m.group)
        if group is None or not m.topic_id:
            return
        group.topic(m.topic).check(m.topic_id)
        self._forget(group, m.topic, lambda topic_id: "" < topic_id < m.topic_id, now)

    def _heartbeat(self, source: str, m: Heartbeat, now: int) -> None:
        found = self._member(source, m, now)
        if found is None:
            return
        group, member = found
        self._limits.check_offsets(m.group, len(m.partitions))
        if group.grow(member.topic, m.partitions):
            self._rebalance(group, now)
        self._tell(member, group, m.id, now)

    def _tell(self, member: Member, group: ConsumerGroup, request: int, now: int) -> None:
        member.told = group.generation
        answer = Assigned(request, group.generation, member.partitions)
        self._host.reply(member.source, answer, now)

    def _leave(self, source: str, m: Leave, now: int) -> None:
        found = self._member(source, m, now)
        if found is None:
            return
        group, member = found
        group.give_back(member, m.unread, self._attention.ms)
        self._remove(group, member, now)
        self._host.reply(source, Settled(m.id), now)

    def _unsubscribe(self, source: str, m: Unsubscribe, now: int) -> None:
        """End the group's consumption of a topic: remove its members there, keep its offsets."""
        group = self.groups.get(m.name)
        if group is not None:
            for member in [x for x in group.members.values() if x.topic == m.topic]:
                mark("group.member_unsubscribed")
                self._fence(group, member, now, is_deleted=False)
        self._host.reply(source, Answer(m.id), now)

    def _fence(self, group: ConsumerGroup, member: Member, now: int, *, is_deleted: bool) -> None:
        """Remove a live member. It gets the error at once if it waits, else with its next
        request.
        """
        self._exiles.add(member, is_deleted=is_deleted)
        error = self._exiles.reason(group.name, member.id)
        if member.waiting is not None:
            self._host.reply(member.source, Acquired(member.waiting.id, error=error), now)
        if member.id in group.joining:
            self._host.reply(member.source, Assigned(group.joining[member.id], error=error), now)
        self._remove(group, member, now)

    def _remove(self, group: ConsumerGroup, member: Member, now: int) -> None:
        del group.members[member.id]
        group.joining.pop(member.id, None)
        group.topic(member.topic).idle.pop(member.id, None)
        group.release(member, self._attention.ms)
        self._note_counts(group, list(group.leases))
        self._rebalance(group, now)
        self._forget_if_empty(group)

    def _forget_if_empty(self, group: ConsumerGroup) -> None:
        """Remove a group that has neither members nor offsets."""
        if group.is_empty:
            self.groups.pop(group.name, None)

    def _rebalance(self, group: ConsumerGroup, now: int) -> None:
        """Rebalance now, or a little later together with further changes."""
        if self._attention.ms >= group.assign_from:
            self._assign(group, now)
        else:
            group.assign_at = group.assign_from
            self._due.sooner(group.name, group.assign_at)

    def _assign(self, group: ConsumerGroup, now: int) -> None:
        """Rebalance: compute the assignment and answer the members that wait for it."""
        group.assign(self._assignors)
        group.assign_at, group.assign_from = NEVER, self._attention.ms + group.pause_ms()
        joining, group.joining = group.joining, {}
        for member in group.members.values():
            if member.waiting is not None:
                self._answer_acquire(group, member, (), now)
            if member.id in joining:
                self._tell(member, group, joining[member.id], now)

    # --- leases ---------------------------------------------------------------------------------

    def _acquire(self, source: str, m: Acquire, now: int) -> None:
        found = self._member(source, m, now)
        if found is None:
            return
        group, member = found
        fresh = sum((member.topic, name) not in group.leases for name, _, _ in m.known)
        if fresh:
            self._limits.check_offsets(m.group, len(group.leases) + fresh)
        news, changed = group.learn(member, m)
        for name in changed:
            self._offsets.changed(group.name, *name)
        if member.waiting is not None:
            self._answer_acquire(group, member, (), now)
        member.waiting, member.waits_until = m, self._attention.ms + m.max_wait_ms
        self._serve(group, member, now)
        if len(group.members) > 1:
            self._serve_owners(group, news, now)
            self._serve_idle(group, member.topic, now)
        if m.max_wait_ms == 0 or member.told != group.generation:
            self._answer_acquire(group, member, (), now)
        self._due.sooner(m.group, member.waits_until)

    def _serve_owners(
        self, group: ConsumerGroup, names: Iterable[tuple[str, str]], now: int
    ) -> None:
        """Serve the members that wait for records of some partitions."""
        waiting = dict.fromkeys(id for name in names for id in group.owners(*name))
        for id in waiting:
            member = group.members.get(id)  # The member may have left since the last assignment.
            if member is not None and member.waiting is not None:
                self._serve(group, member, now)

    def _serve_idle(self, group: ConsumerGroup, topic: str, now: int) -> None:
        """Give members without records of their own partitions the unordered records of others."""
        consumed = group.topics.get(topic)
        if consumed is None or not consumed.open:
            return
        for id in list(islice(consumed.idle, IDLE_TRIES)):
            if not consumed.open:
                return
            if (member := group.members.get(id)) is not None:
                self._serve(group, member, now)

    def _serve_all(self, group: ConsumerGroup, now: int) -> None:
        for member in list(group.members.values()):
            if member.waiting is not None:
                self._serve(group, member, now)

    def _serve(self, group: ConsumerGroup, member: Member, now: int) -> None:
        """Answer a waiting member if there are records for it."""
        at = self._attention.ms
        if found := group.lease(member, at):
            self._due.sooner(group.name, at + member.ack_wait_ms)
            self._answer_acquire(group, member, found, now)
        elif member.waiting is not None and member.waiting.shares:
            group.topic(member.topic).idle[member.id] = None

    def _note_counts(self, group: ConsumerGroup, names: Iterable[tuple[str, str]]) -> None:
        """Mark delivery counts to be written, for a coordinator that takes over."""
        for name in names:
            leases = group.leases.get(name)
            if leases is not None and leases.has_counted:
                leases.has_counted = False
                self._offsets.changed(group.name, *name)

    def _answer_acquire(
        self, group: ConsumerGroup, member: Member, leases: tuple[Lease, ...], now: int
    ) -> None:
        if member.waiting is None:
            return
        answer = Acquired(member.waiting.id, leases, group.generation)
        member.waiting, member.waits_until = None, NEVER
        group.topic(member.topic).idle.pop(member.id, None)
        self._host.reply(member.source, answer, now)

    def _settle(self, source: str, m: Settle, now: int) -> None:
        found = self._member(source, m, now)
        if found is None:
            return
        group, member = found
        at = self._attention.ms
        # Returned records first: an acknowledged range around them does not include them.
        self._due.sooner(group.name, group.put_off(member, m, at))
        group.give_back(member, m.unread, at)
        refused, lapsed, changed = group.acknowledge(member, m.acks)
        for name in changed:
            self._offsets.changed(group.name, *name)
        self._note_counts(group, [(member.topic, partition) for partition, _, _ in m.nacks])
        if m.id:
            self._offsets.answer(source, Settled(m.id, refused, lapsed=lapsed), durable=m.durable)
        told = (*m.acks, *m.unread, *((partition, span) for partition, span, _ in m.nacks))
        names = {(member.topic, partition): None for partition, _ in told}
        for name in names:
            group.open(*name)
        self._serve_owners(group, names, now)
        self._serve_idle(group, member.topic, now)

    def _commit(self, source: str, m: CommitOffset, now: int) -> None:
        there = self.groups.get(m.group)
        if there is None:
            self._limits.check_groups(len(self.groups))
        elif (m.topic, m.partition) not in there.leases:
            self._limits.check_offsets(m.group, len(there.leases) + 1)
        group = self.groups.setdefault(m.group, ConsumerGroup(m.group))
        if group.members:
            error = InvalidRequest(
                f"group {m.group!r} has {len(group.members)} members; close them first"
            )
            self._host.reply(source, Settled(m.id, error=error), now)
            return
        group.set_offset(m.topic, m.partition, Leases(m.offset))
        self._offsets.changed(m.group, m.topic, m.partition)
        self._offsets.answer(source, Settled(m.id), durable=True)

    def _delete(self, source: str, m: DeleteGroup) -> None:
        group = self.groups.get(m.group)
        error: PymqError | None = None
        if group is None:
            # The answer waits until all is written: the deletion may be ours, and its write may
            # fail.
            error = UnknownGroup(f"there is no group {m.group!r}")
        elif group.members:
            raise InvalidRequest(
                f"group {m.group!r} has {len(group.members)} members; close them first"
            )
        else:
            for name in group.leases:
                # As the group is gone, each becomes a tombstone.
                self._offsets.changed(m.group, *name)
            del self.groups[m.group]
        self._offsets.answer(source, Settled(m.id, error=error), durable=True)

    def _describe(self, source: str, m: GetGroup | GetLeases, now: int) -> None:
        group = self.groups.get(m.group)
        answer: Message
        if group is None:
            answer = refusal(m, UnknownGroup(f"there is no group {m.group!r}"))
        elif isinstance(m, GetGroup):
            answer = group.describe(m.id, self._attention.ms)
        else:
            answer = group.describe_leases(m, self._attention.ms)
        self._host.reply(source, answer, now)

    def forget_topic(self, topic: str, now: int, topic_id: str = "") -> None:
        """Take in that a topic was deleted: drop its offsets and remove its members.

        Members have to join again, as other members: late requests of the old ones must not be
        taken for requests about a topic that is created again under the name. If that has happened
        already, its offsets and members stay: its id is greater than *topic_id*.
        """
        if not self.is_loaded:
            # The notice comes once, and the offsets may not be loaded yet.
            self._deleted.append((topic, topic_id))
            return
        for group in list(self.groups.values()):
            self._forget(group, topic, lambda found: not topic_id or found <= topic_id, now)
            self._forget_if_empty(group)

    def _forget(
        self, group: ConsumerGroup, topic: str, is_gone: Callable[[str], bool], now: int
    ) -> None:
        for name in group.forget(topic, is_gone):
            self._offsets.changed(group.name, *name)
        members = [x for x in group.members.values() if x.topic == topic and is_gone(x.topic_id)]
        for member in members:
            mark("group.member_without_topic")
            self._fence(group, member, now, is_deleted=True)

    # --- the offsets partition ------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write, or to answer, and no write is under way."""
        return self._offsets.is_dirty

    def flush(self, now: int) -> None:
        """Write what has changed."""
        self._offsets.flush(now)

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Do what is due: sessions and leases that run out, waits that end."""
        self._offsets.tick(now)
        if self._parked and now >= self._offsets.patience_until:
            mark("group.loading_refused")
            parked, self._parked = self._parked, []
            for source, request in parked:
                self._host.reply(source, refusal(request, self._loading()), now)
        for name in self._due.over(self._attention.look(now)):
            if (group := self.groups.get(name)) is not None:
                self._tick_group(group, now)
                self._look_at(name)
        self._arm()

    def _tick_group(self, group: ConsumerGroup, now: int) -> None:
        at = self._attention.ms
        for member in [x for x in group.members.values() if x.gone_at <= at]:
            mark("group.member_gone")
            self._remove(group, member, now)
        if group.assign_at <= at:
            self._assign(group, now)
        for name, leases in group.leases.items():
            leases.expire(at)
            group.open(*name)
        self._note_counts(group, list(group.leases))
        self._serve_all(group, now)
        for member in group.members.values():
            if member.waits_until <= at:
                self._answer_acquire(group, member, (), now)

    def _look_at(self, name: str) -> None:
        """Compute when something of a group is due next.

        This goes through all of its members and partitions, so it runs when something seems due.
        Requests only lower the deadline.
        """
        group = self.groups.get(name)
        due = group.next_due(self._attention.ms) if group is not None else NEVER
        if due < NEVER:
            self._due.set(name, due)
        else:
            self._due.drop(name)

    def _arm(self) -> None:
        self.deadline = min(self._offsets.retry_at, self._attention.when(self._due.due))
        if self._parked:
            self.deadline = min(self.deadline, self._offsets.patience_until)
