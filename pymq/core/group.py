"""The group coordinator: who consumes what, and what has been consumed.

One coordinator serves the groups that hash to one partition of the internal topic
``__consumer_offsets`` and lives on the broker that leads that partition. What must outlive it, the
committed offsets, are records of that partition: they are replayed when it takes over, and the
newest of each key counts. Membership and leases are not kept: members join again, and what they had
leased is delivered again.

A member may hold any records of a partition at a time. It loses them by settling them, by silence
(its session or the lease runs out), or when it leaves. When a partition goes over to another
member, that one gets nothing of it before the leases of the former one are settled, so that records
of one key are not worked on by two consumers at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, assert_never

from pymq.core import codec
from pymq.core.leases import NEVER, Leases
from pymq.core.marks import mark
from pymq.core.message import (
    BEGIN,
    Acquire,
    Acquired,
    Assigned,
    CommitOffset,
    Fetch,
    Fetched,
    GetGroup,
    GroupMember,
    GroupNames,
    GroupOffset,
    GroupState,
    Heartbeat,
    Join,
    Lease,
    Leave,
    ListGroups,
    Message,
    Produce,
    Produced,
    Range,
    Settle,
    Settled,
)
from pymq.core.record import RecordBatch, split
from pymq.core.types import OFFSETS_TOPIC, AckMode
from pymq.core.values import Factory, define
from pymq.errors import FencedMember, InvalidRequest, PymqError, UnknownGroup

OFFSET_KEY = 1  # kind and version of a record's key
TOMBSTONE = ("pymq.tombstone", b"")  # what compaction takes for a deletion
RANGES_MAX = 512  # ranges acknowledged above the committed offset that are kept
LOAD_BYTES = 1 << 20
RETRY_MS = 200

TopicIndex = tuple[str, int]
Assign = Callable[
    [Sequence[str], Sequence[TopicIndex], Mapping[str, Sequence[TopicIndex]]],
    dict[str, tuple[TopicIndex, ...]],
]
Assignors = Callable[[str], Assign]

GroupRequest = Join | Heartbeat | Leave | Acquire | Settle | CommitOffset | GetGroup | ListGroups


class GroupHost(Protocol):
    """What a coordinator needs of the broker around it."""

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer."""
        ...

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at *now*."""
        ...

    def offsets_step(self, index: int, message: Produce | Fetch, now: int) -> None:
        """Hand a request to partition *index* of the offsets topic; answers come to ``step``."""
        ...


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
    partitions: tuple[str, ...]  # assigned
    told: int = 0  # the last generation that it was told of
    waiting: Acquire | None = None
    waits_until: int = NEVER


@define
class Group:
    """A consumer group."""

    name: str
    generation: int = 0
    members: dict[str, Member] = Factory(dict)
    leases: dict[tuple[str, str], Leases] = Factory(dict)  # by topic and partition
    known: dict[tuple[str, str], tuple[int, int]] = Factory(dict)  # log start, high watermark
    topics: dict[str, tuple[str, ...]] = Factory(dict)  # partitions, as members have told
    added: dict[tuple[str, str], None] = Factory(dict)  # partitions that came while it consumed
    turn: int = 0  # so that no partition is always asked first

    def owners(self, topic: str, partition: str) -> list[str]:
        """The members that the partition is assigned to."""
        return [
            m.id for m in self.members.values() if m.topic == topic and partition in m.partitions
        ]


class GroupCoordinator:
    """The groups of one partition of the offsets topic."""

    def __init__(
        self, index: int, host: GroupHost, assignors: Assignors, now: int, first_request: int = 0
    ) -> None:
        self.index = index
        self.deadline = NEVER
        self.groups: dict[str, Group] = {}
        self._host = host
        self._assignors = assignors
        self._loading: list[tuple[str, GroupRequest]] | None = []
        self._changed: dict[tuple[str, str, str], None] = {}  # to be written; keeps its order
        self._unanswered: list[tuple[str, Settled]] = []
        self._writing: list[tuple[str, Settled]] | None = None
        self._written: dict[tuple[str, str, str], None] = {}
        self._must_sync = False  # somebody waits until what was acknowledged is durable
        self._is_syncing = False
        self._loose: tuple[str, str, str] | None = None  # what was written last, without a sync
        self._requests = first_request  # ids that no coordinator before has used
        self._retry_at = NEVER

    # --- loading (immigration) ------------------------------------------------------------------

    def begin(self, now: int) -> None:
        """Read what the partition holds; requests wait until that is done."""
        self._load(BEGIN, now)

    def _load(self, offset: int, now: int) -> None:
        self._requests += 1
        fetch = Fetch(self._requests, OFFSETS_TOPIC, str(self.index), offset, LOAD_BYTES, 0)
        self._host.offsets_step(self.index, fetch, now)

    def _loaded(self, m: Fetched, now: int) -> None:
        if self._loading is None:
            return
        if m.error is not None:
            self._retry_at = self.deadline = now + RETRY_MS
            return
        offset = m.offset
        for batch in split(m.data):
            self._replay(batch.verify())
            offset = batch.end_offset
        if offset < m.high_watermark and m.data:
            self._load(offset, now)
            return
        waiting, self._loading = self._loading, None
        for source, request in waiting:
            self.step(source, request, now)

    def _replay(self, batch: RecordBatch) -> None:
        if batch.header.is_control:
            return
        for key, item, headers in zip(batch.keys, batch.values, batch.headers, strict=True):
            kind, name, topic, partition = codec.loads(key or b"")
            if kind != OFFSET_KEY:
                continue
            group = self.groups.setdefault(name, Group(name))
            if TOMBSTONE in headers:
                group.leases.pop((topic, partition), None)
                self._forget_if_empty(group)
            else:
                committed, done = codec.loads(item)
                group.leases[topic, partition] = Leases(committed, [(a, b) for a, b in done])

    def resign(self, error: PymqError, now: int) -> None:
        """Another broker takes over (emigration): whoever waits is told to ask there."""
        for group in self.groups.values():
            for member in group.members.values():
                if member.waiting is not None:
                    self._host.reply(member.source, Acquired(member.waiting.id, error=error), now)
        # Whether what is being written holds, nobody knows; the new coordinator does.
        for source, answer in (*(self._writing or ()), *self._unanswered):
            self._host.reply(source, Settled(answer.id, error=error), now)
        for source, request in self._loading or ():
            self._host.reply(source, refusal(request, error), now)

    # --- messages -------------------------------------------------------------------------------

    def step(self, source: str, m: GroupRequest | Fetched | Produced, now: int) -> None:
        """Take in a request of a client, or an answer of the offsets partition."""
        if self.deadline <= now:
            self.tick(now)  # What is due comes first: from here on it would be taken for the past.
        if isinstance(m, Fetched):
            self._loaded(m, now)
        elif isinstance(m, Produced):
            self._stored(m, now)
        elif self._loading is not None:
            self._loading.append((source, m))
        else:
            self._request(source, m, now)
        self._rearm(now)

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
        elif isinstance(m, GetGroup):
            self._describe(source, m, now)
        else:
            self._host.reply(source, GroupNames(m.id, tuple(sorted(self.groups))), now)

    def _member(
        self, source: str, m: Heartbeat | Acquire | Settle | Leave, now: int
    ) -> tuple[Group, Member] | None:
        """Find a live member; one that was given up is told so."""
        group = self.groups.get(m.group)
        member = group.members.get(m.member) if group else None
        if group is None or member is None:
            error = FencedMember(f"{m.member} is no member of group {m.group!r} any more")
            self._host.reply(source, refusal(m, error), now)
            return None
        member.gone_at = now + member.session_ms
        return group, member

    # --- membership -----------------------------------------------------------------------------

    def _join(self, source: str, m: Join, now: int) -> None:
        try:
            self._assignors(m.assignor)
        except PymqError as error:
            self._host.reply(source, Assigned(m.id, error=error), now)
            return
        group = self.groups.setdefault(m.group, Group(m.group))
        self._grow(group, m.topic, m.partitions)
        before = group.members.get(m.member)
        if before is not None:
            self._answer_acquire(group, before, (), now)
            if before.topic != m.topic:
                self._release(group, before, now)
                before = None
        group.members[m.member] = Member(
            m.member,
            source,
            m.topic,
            m.assignor,
            m.session_ms,
            m.ack_wait_ms,
            m.max_deliver,
            m.reset,
            now + m.session_ms,
            before.partitions if before is not None else (),
        )
        self._rebalance(group, now)
        self._tell(group.members[m.member], group, m.id, now)

    def _heartbeat(self, source: str, m: Heartbeat, now: int) -> None:
        found = self._member(source, m, now)
        if found is None:
            return
        group, member = found
        if self._grow(group, member.topic, m.partitions):
            self._rebalance(group, now)
        self._tell(member, group, m.id, now)

    def _grow(self, group: Group, topic: str, partitions: tuple[str, ...]) -> bool:
        """Learn of partitions that a member has seen; those who know less say nothing new."""
        known = group.topics.get(topic, ())
        if len(partitions) <= len(known):
            return False
        group.topics[topic] = partitions
        if known and group.members:
            group.added.update(((topic, p), None) for p in partitions if p not in known)
        return True

    def _tell(self, member: Member, group: Group, request: int, now: int) -> None:
        member.told = group.generation
        answer = Assigned(request, group.generation, member.partitions)
        self._host.reply(member.source, answer, now)

    def _leave(self, source: str, m: Leave, now: int) -> None:
        found = self._member(source, m, now)
        if found is None:
            return
        group, member = found
        for partition, span in m.unread:
            leases = group.leases.get((member.topic, partition))
            if leases is not None:
                leases.give_back(member.id, [span], now)
        self._remove(group, member, now)
        self._host.reply(source, Settled(m.id), now)

    def _remove(self, group: Group, member: Member, now: int) -> None:
        del group.members[member.id]
        self._release(group, member, now)
        self._rebalance(group, now)
        self._forget_if_empty(group)

    def _release(self, group: Group, member: Member, now: int) -> None:
        for leases in group.leases.values():
            leases.release(member.id, now)

    def _forget_if_empty(self, group: Group) -> None:
        """A group without members and without offsets is none."""
        if not group.members and not group.leases:
            self.groups.pop(group.name, None)

    def _rebalance(self, group: Group, now: int) -> None:
        """Compute who consumes what; whoever waits learns of it at once."""
        group.generation += 1
        by_topic: dict[str, list[Member]] = {}
        for member in group.members.values():
            by_topic.setdefault(member.topic, []).append(member)
        for topic, members in by_topic.items():
            names = group.topics[topic]
            place = {name: index for index, name in enumerate(names)}
            previous = {
                m.id: [(topic, place[p]) for p in m.partitions if p in place] for m in members
            }
            assign = self._assignors(members[0].assignor)
            given = assign([m.id for m in members], [(topic, i) for i in place.values()], previous)
            for member in members:
                member.partitions = tuple(names[i] for _, i in given.get(member.id, ()))
        for member in group.members.values():
            if member.waiting is not None:
                self._answer_acquire(group, member, (), now)

    # --- leases ---------------------------------------------------------------------------------

    def _acquire(self, source: str, m: Acquire, now: int) -> None:
        found = self._member(source, m, now)
        if found is None:
            return
        group, member = found
        news = False
        for partition, *bounds in m.known:
            name = member.topic, partition
            before = group.known.get(name, (-1, -1))
            start, end = map(max, before, bounds)
            if (start, end) != before:
                group.known[name] = (start, end)
                self._begin(group, name, start, end, member.reset)
                news = True
        if member.waiting is not None:
            self._answer_acquire(group, member, (), now)
        member.waiting, member.waits_until = m, now + m.max_wait_ms
        if news and len(group.members) > 1:
            self._serve_all(group, now)
        else:
            self._serve(group, member, now)
        if m.max_wait_ms == 0 or member.told != group.generation:
            self._answer_acquire(group, member, (), now)

    def _begin(self, group: Group, name: tuple[str, str], start: int, end: int, reset: int) -> None:
        leases = group.leases.get(name)
        if leases is None:
            # What is added to a topic while the group consumes it is new from its first record.
            from_start = reset == BEGIN or name in group.added
            group.leases[name] = Leases(start if from_start else end)
            if not from_start:
                self._changed[group.name, *name] = None  # "The end" is this one for ever.
        else:
            leases.begin_at(start)

    def _serve_all(self, group: Group, now: int) -> None:
        for member in list(group.members.values()):
            if member.waiting is not None:
                self._serve(group, member, now)

    def _serve(self, group: Group, member: Member, now: int) -> None:
        """Give a waiting member what there is for it."""
        assert member.waiting is not None
        limit, found = member.waiting.max_records, []
        wanted = {partition for partition, _, _ in member.waiting.known}  # not those it has paused
        count = len(member.partitions)
        group.turn += 1
        for step in range(count):
            if limit <= 0:
                break
            partition = member.partitions[(group.turn + step) % count]
            name = member.topic, partition
            if partition not in wanted:
                continue
            leases, known = group.leases.get(name), group.known.get(name)
            if leases is None or known is None or not leases.has_available(known[1], now):
                continue
            if leases.held_by_others(group.owners(*name)):
                continue  # The member that had the partition before is still at work on it.
            until = now + member.ack_wait_ms
            for lease in leases.acquire(member.id, known[1], limit, until, now, member.max_deliver):
                found.append(
                    Lease(partition, lease.start, lease.end, lease.delivery_count, lease.dead)
                )
                limit -= lease.end - lease.start
        if found:
            self._answer_acquire(group, member, tuple(found), now)

    def _answer_acquire(
        self, group: Group, member: Member, leases: tuple[Lease, ...], now: int
    ) -> None:
        if member.waiting is None:
            return
        answer = Acquired(member.waiting.id, leases, group.generation)
        member.waiting, member.waits_until = None, NEVER
        self._host.reply(member.source, answer, now)

    def _settle(self, source: str, m: Settle, now: int) -> None:
        found = self._member(source, m, now)
        if found is None:
            return
        group, member = found
        # First what is given back: an acknowledgement of all around it does not mean it.
        for partition, span, delay in m.nacks:
            if (leases := group.leases.get((member.topic, partition))) is not None:
                leases.reject(member.id, [span], now + delay)
        for partition, span in m.renewals:
            if (leases := group.leases.get((member.topic, partition))) is not None:
                leases.renew(member.id, [span], now + member.ack_wait_ms)
        for partition, span in m.unread:
            if (leases := group.leases.get((member.topic, partition))) is not None:
                leases.give_back(member.id, [span], now)
        refused = 0
        for partition, ranges in _by_partition(m.acks).items():
            name = member.topic, partition
            leases = group.leases.get(name)
            if leases is not None:
                before = leases.committed
                refused += leases.acknowledge(member.id, ranges)
                if leases.committed != before or leases.done_ranges():
                    self._changed[group.name, *name] = None
        if m.id:
            self._unanswered.append((source, Settled(m.id, refused)))
            self._must_sync = self._must_sync or m.durable
        self._serve_all(group, now)

    def _commit(self, source: str, m: CommitOffset, now: int) -> None:
        group = self.groups.setdefault(m.group, Group(m.group))
        if group.members:
            error = InvalidRequest(
                f"group {m.group!r} has {len(group.members)} members; close them first"
            )
            self._host.reply(source, Settled(m.id, error=error), now)
            return
        group.leases[m.topic, m.partition] = Leases(m.offset)
        self._changed[m.group, m.topic, m.partition] = None
        self._unanswered.append((source, Settled(m.id)))
        self._must_sync = True

    def _describe(self, source: str, m: GetGroup, now: int) -> None:
        group = self.groups.get(m.group)
        if group is None:
            error = UnknownGroup(f"there is no group {m.group!r}")
            self._host.reply(source, GroupState(m.id, m.group, error=error), now)
            return
        members = tuple(GroupMember(x.id, x.topic, x.partitions) for x in group.members.values())
        offsets = tuple(
            GroupOffset(
                topic,
                partition,
                leases.committed,
                leases.next,
                leases.in_flight,
                leases.waiting,
                leases.holders,
            )
            for (topic, partition), leases in sorted(group.leases.items())
        )
        answer = GroupState(m.id, m.group, group.generation, members, offsets)
        self._host.reply(source, answer, now)

    def forget_topic(self, topic: str, now: int) -> None:
        """The topic was deleted: its offsets mean nothing any more."""
        for group in list(self.groups.values()):
            for name in [name for name in group.leases if name[0] == topic]:
                del group.leases[name]
                self._changed[group.name, *name] = None
            for name in [name for name in group.known if name[0] == topic]:
                del group.known[name]
            for name in [name for name in group.added if name[0] == topic]:
                del group.added[name]
            if group.topics.get(topic):
                group.topics[topic] = ()  # until a member tells of what was made anew
                self._rebalance(group, now)
            self._forget_if_empty(group)

    # --- the offsets partition ------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write, or to answer, and no write is under way."""
        if self._writing is not None or self._retry_at != NEVER:
            return False
        return bool(self._changed or self._unanswered)

    def flush(self, now: int) -> None:
        """Write every offset that changed since the last time, in one batch.

        It is synced if somebody waits for that; else that is up to the topic's ``fsync``.
        """
        self._is_syncing, self._must_sync = self._must_sync, False
        if self._is_syncing and self._loose is not None:
            self._changed[self._loose] = None  # Syncing this syncs all that was written before.
        if not self._changed:
            for source, answer in self._unanswered:
                self._host.reply(source, answer, now)
            self._unanswered = []
            return
        self._written, self._changed = self._changed, {}
        self._writing, self._unanswered = self._unanswered, []
        keys: list[bytes | None] = []
        values, headers = [], []
        for name, topic, partition in self._written:
            group = self.groups.get(name)
            leases = group.leases.get((topic, partition)) if group is not None else None
            keys.append(codec.dumps([OFFSET_KEY, name, topic, partition]))
            done = leases.done_ranges()[:RANGES_MAX] if leases else ()
            values.append(codec.dumps([leases.committed if leases else 0, [list(r) for r in done]]))
            headers.append((TOMBSTONE,) if leases is None else ())
        batch = RecordBatch.encode(
            values, timestamp_ms=self._host.wall_ms(now), keys=keys, headers=headers
        )
        self._requests += 1
        produce = Produce(
            self._requests,
            OFFSETS_TOPIC,
            str(self.index),
            AckMode.RAFT,  # by all in sync: an offset must not go with the leader
            batch,
            self._is_syncing,
        )
        self._host.offsets_step(self.index, produce, now)

    def _stored(self, m: Produced, now: int) -> None:
        if self._writing is None or m.id != self._requests:
            return  # It was written by the coordinator before this one.
        answers, self._writing = self._writing, None
        for source, answer in answers:
            if m.error is not None:
                answer = Settled(answer.id, answer.refused, m.error)  # noqa: PLW2901 # replaced whole
            self._host.reply(source, answer, now)
        if m.error is not None:
            mark("group.not_stored")
            # They are tried again after a while; until then a crash would deliver again.
            self._changed = {**self._written, **self._changed}
            self._retry_at = now + RETRY_MS
        else:
            self._loose = None if self._is_syncing else next(reversed(self._written))
        self._written = {}

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Do what is due: sessions and leases that run out, waits that end."""
        if self._loading is not None:
            if now >= self._retry_at:
                mark("group.load_again")
                self._retry_at = NEVER
                self._load(BEGIN, now)
            self._rearm(now)
            return
        if now >= self._retry_at:
            self._retry_at = NEVER
        for group in list(self.groups.values()):
            for member in [x for x in group.members.values() if x.gone_at <= now]:
                mark("group.member_gone")
                self._remove(group, member, now)
            for leases in group.leases.values():
                leases.expire(now)
            self._serve_all(group, now)
            for member in group.members.values():
                if member.waits_until <= now:
                    self._answer_acquire(group, member, (), now)
        self._rearm(now)

    def _rearm(self, now: int) -> None:
        due = self._retry_at
        for group in self.groups.values():
            for member in group.members.values():
                due = min(due, member.gone_at, member.waits_until)
            if group.members:
                for leases in group.leases.values():
                    due = min(due, leases.next_due(now))
        self.deadline = due


def refusal(m: GroupRequest, error: PymqError) -> Message:
    """The answer to *m* that says why not."""
    match m:
        case Acquire():
            return Acquired(m.id, error=error)
        case Settle() | Leave() | CommitOffset():
            return Settled(m.id, error=error)
        case GetGroup():
            return GroupState(m.id, m.group, error=error)
        case ListGroups():
            return GroupNames(m.id, error=error)
        case Join() | Heartbeat():
            return Assigned(m.id, error=error)
        case _:
            assert_never(m)


def _by_partition(acks: Sequence[tuple[str, Range]]) -> dict[str, list[Range]]:
    found: dict[str, list[Range]] = {}
    for partition, span in acks:
        found.setdefault(partition, []).append(span)
    return found
