"""The machine behind a consumer of a group (PTP): leases records, fetches them, settles them.

Two things go on at a time. Of each assigned partition it keeps itself informed how far it reaches,
by a fetch of nothing that is answered when there is more. And when the application asks for
records, it leases some from the group coordinator and fetches just those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from pymq.client.base import NEVER, Driver, Waitable
from pymq.client.deadlines import Deadlines
from pymq.client.intake import FETCH_BYTES, Intake, located, wait_ms
from pymq.client.route import ANSWER_MAX_MS, ANSWER_MS, CONFIRMED, RETRY_MAX_MS, RETRY_MS, Route
from pymq.client.router import Router
from pymq.core.message import (
    END,
    Acquire,
    Acquired,
    Assigned,
    Fetch,
    Fetched,
    Heartbeat,
    Join,
    Lease,
    Leave,
    Message,
    Range,
    Settle,
    Settled,
)
from pymq.core.ready import Ready
from pymq.core.record import RecordBatch
from pymq.core.runs import split
from pymq.core.types import OFFSETS_TOPIC
from pymq.core.values import Factory, define
from pymq.core.view import BatchView
from pymq.errors import (
    Closed,
    FencedMember,
    NotLeader,
    OffsetOutOfRange,
    PymqError,
    ReplicaNotAvailable,
)

T = TypeVar("T")

SESSION_MS = 30_000
BEAT_MS = 5_000
ACQUIRE_WAIT_MS = 2_000  # how long the coordinator may wait for records; then we know it is there
ACQUIRES_MAX = 16  # requests for leases that may still be answered, long after they should be
LEASE_WAIT_MS = 500  # a new leader may not know yet that what was leased is safe
ACK_LINGER_MS = 20  # acknowledgements that nobody waits for are sent together


@define
class WorkerConfig:
    """What a consumer asks of its group; times in milliseconds."""

    group: str
    assignor: str
    ack_wait_ms: int
    max_deliver: int
    reset: int


@define
class Watch:
    """One assigned partition: how far it is known to reach."""

    partition: str
    route: Route
    log_start: int = 0
    end: int = -1  # -1: not known yet
    request: int = 0


@define
class Fetching:
    """A lease whose records are being fetched."""

    lease: Lease
    route: Route
    handed: int  # ready to be handed out up to here,
    position: int  # fetched up to here,
    end: int  # to be fetched up to here
    views: list[BatchView] = Factory(list)  # fetched, and waiting for what was leased before


class Settling(Waitable):
    """Acknowledgements on their way."""

    __slots__ = ("error", "is_durable", "is_waited_for")

    def __init__(self, is_waited_for: bool, is_durable: bool) -> None:
        super().__init__()
        self.is_waited_for = is_waited_for
        self.is_durable = is_durable
        self.error: PymqError | None = None


@define
class Settlement:
    """Acknowledgements that were sent and are not answered."""

    message: Settle
    waits: list[Settling]
    tries: int = 1

    @property
    def count(self) -> int:
        """How many records are acknowledged by it."""
        return sum(end - start for _, (start, end) in self.message.acks)

    def finish(self, error: PymqError | None) -> None:
        """It was answered, or will not be."""
        for done in self.waits:
            done.error = error
            done.finish()


Key = tuple[str, str | int]  # kind of request; partition or number of the request


class Worker(Intake):
    """A member of a group."""

    def __init__(
        self,
        name: str,
        topic: str,
        router: Router,
        driver: Driver,
        config: WorkerConfig,
        new_member: Callable[[], str],
    ) -> None:
        super().__init__(name, topic, router, driver, config.group)
        self.config = config
        self.dead: deque[BatchView] = deque()  # to be moved to the dead-letter topic
        self.assigned: tuple[str, ...] = ()
        self.generation = 0
        self.refused = 0  # acknowledgements that came too late
        self.changes: deque[tuple[tuple[str, ...], tuple[str, ...]]] = deque()  # (lost, gained)
        self.acks: dict[str, deque[int | Range]] = {}  # filled by any thread
        self.nacks: deque[tuple[str, Range, int]] = deque()  # filled by any thread
        self.unread: Callable[[], list[tuple[str, Range]]] = list  # what the handle has buffered
        self.is_joined = False
        self._is_closed = False
        self._new_member = new_member
        self._member = new_member()
        self._watches: dict[str, Watch] = {}
        self._leased: dict[str, deque[Fetching]] = {}  # by partition, in the order of the leases
        self._fetching: dict[int, Fetching] = {}  # what is asked for, by request
        self._to_fetch: list[Fetching] = []  # what waits for a leader
        self._last: dict[str, BatchView] = {}  # the batch fetched last, by partition
        self._acquire: int = 0  # the request that waits
        self._acquires: dict[int, None] = {}  # those that may still bring leases
        self._introduction = 0  # the request that tells where partitions begin and end
        self._told: tuple[str, ...] = ()  # the partitions that the coordinator has heard of
        self._wanted = 0
        self._joining = 0
        self._beat = 0
        self._beat_at = NEVER
        self._renew_at = NEVER
        self._retry_at = 0  # join, at first at once
        self._settle_at = NEVER
        self._settling: dict[int, Settlement] = {}
        self._held: list[Settling] = []  # commits that wait until we are a member again
        self._timers: Deadlines[Key] = Deadlines()  # when an answer is missing
        self._unarmed: list[Key] = []  # requests that were sent and have no time yet
        self._asked = ""  # the broker that we take for the coordinator
        self._tries = 0  # to get an answer from the coordinator, since it gave one
        self._trouble: str | None = None  # why the coordinator does not do what we want
        self._was_fenced = False  # at least once
        self._forfeited = 0  # acknowledgements that came to nothing, and no commit has told of

    # --- the handle -----------------------------------------------------------------------------

    def want(self, records: int, now: int) -> None:
        """Lease up to *records* and fetch them."""
        self._wanted = records
        if self.topic in self._router.gone:
            self._gone()
            return
        self.settle()
        self._try_acquire(now, self._acquire == 0)

    def settle(self, *, wait: bool = False, durable: bool = False) -> Settling | None:
        """Send the acknowledgements that have gathered; the caller holds the driver.

        What is returned is done once they are written, or *durable*.
        """
        # Disarm first: what another thread adds from here on arms again, or is taken along.
        self._settle_at = NEVER
        queues = list(self.acks.items())  # at once: another thread may be adding one
        acks = [(p, span) for p, queue in queues for span in ranges(_drain(queue))]
        nacks = tuple(_drain(self.nacks))
        if not (acks or nacks or wait or self._held):
            return None
        done = Settling(wait, durable)
        coordinator = self._coordinator() if self.is_joined else None
        if coordinator is None:
            self._put_back(acks, nacks)
            self._held += [done] if wait else []
            return done
        waits, self._held = [*self._held, done], []
        is_durable = any(waiting.is_durable for waiting in waits)
        request = self._request()
        group, member = self.config.group, self._member
        settle = Settle(request, group, member, tuple(acks), nacks, durable=is_durable)
        self._settling[request] = Settlement(settle, waits)
        self._unarmed.append(("settle", request))
        self.out.send.append((coordinator, settle))
        return done

    def _put_back(
        self, acks: Iterable[tuple[str, Range]], nacks: Iterable[tuple[str, Range, int]]
    ) -> None:
        for partition, span in acks:
            self.acks.setdefault(partition, deque()).append(span)
        self.nacks.extend(nacks)

    def arm_settling(self, now: int) -> None:
        """Something is to be settled soon."""
        if self._settle_at == NEVER:
            self._settle_at = now + ACK_LINGER_MS
            self._driver.arm(self._settle_at)

    @property
    def is_armed(self) -> bool:
        """Whether acknowledgements are going to be sent by themselves."""
        return self._settle_at != NEVER

    def handed_out(self, chunk: BatchView) -> None:
        """The application has got these records; their lease began when they were leased."""

    def known_end(self, partition: str) -> int:
        """How far a partition is known to reach."""
        watch = self._watches.get(partition)
        return watch.end if watch is not None else -1

    def close(self, unread: list[tuple[str, Range]]) -> None:
        """Settle and leave; the caller holds the driver."""
        super().close(unread)
        self.settle()
        coordinator = self._coordinator()
        if coordinator is not None and (self.is_joined or self._joining):
            unread += [(c.partition, (c.base_offset, c.end_offset)) for c in self.chunks]
            unread += self._coming()
            leave = Leave(self._request(), self.config.group, self._member, tuple(unread))
            self.out.send.append((coordinator, leave))
        self.chunks.clear()
        self.dead.clear()
        self._last.clear()
        self.is_joined = False
        self._is_closed = True
        error = Closed("the consumer was closed before it could settle")
        for settlement in (Settlement(_NO_SETTLE, self._held), *self._settling.values()):
            settlement.finish(error)
        self._settling.clear()
        self._timers.clear()
        self._beat_at = self._renew_at = self._settle_at = NEVER
        self._retry_at = 0

    def pause(self, partitions: Iterable[str], unread: list[tuple[str, Range]], now: int) -> None:
        """Lease nothing more of some partitions and give back what was not handed out."""
        self.paused.update(dict.fromkeys(partitions))
        chunks, self.chunks = self.chunks, deque()
        for chunk in chunks:
            if chunk.partition in self.paused:
                unread.append((chunk.partition, (chunk.base_offset, chunk.end_offset)))
            else:
                self.chunks.append(chunk)
        self._give_back(unread)
        if self._acquire:
            self._try_acquire(now, True)  # The one that waits would bring records of them.

    def resume(self, partitions: Iterable[str], now: int) -> None:
        """Undo :meth:`pause`."""
        for partition in partitions:
            self.paused.pop(partition, None)
        if self._acquire:
            self._try_acquire(now, True)

    def _give_back(self, unread: list[tuple[str, Range]]) -> None:
        coordinator = self._coordinator()
        if unread and coordinator is not None and self.is_joined:
            settle = Settle(0, self.config.group, self._member, unread=tuple(unread))
            self.out.send.append((coordinator, settle))

    # --- the machine ----------------------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in an answer."""
        if self._is_closed:
            return
        match message:
            case Fetched():
                self._on_fetched(source, message, now)
            case Acquired():
                self._on_acquired(source, message, now)
            case Assigned():
                self._on_assigned(source, message, now)
            case Settled():
                self._on_settled(source, message, now)
            case _:
                pass

    def tick(self, now: int) -> None:
        """Do what is due."""
        if self.is_abandoned:
            self.bury()
            return
        if now >= self._settle_at:
            self.settle()
        if now >= self._beat_at:
            self._heartbeat(now)
        if now >= self._renew_at:
            self._renew(now)
        for kind, what in self._timers.over(now):
            if kind == "watch":
                self._no_watch(str(what), now)
            elif kind == "lease":
                self._no_data(int(what), now)
            elif kind == "again":
                self._settle_again(int(what), now)
            else:
                self._no_answer(kind, int(what), now)
        if self._retry_at and now >= self._retry_at:
            self._retry_at = 0
            self._has_news = True

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work, and begin what had to wait for metadata or time."""
        if (self._has_news or not self.is_joined) and not self._is_closed:
            self._has_news = False
            self._go_on(now)
        while self._unarmed:
            self._timers.set(self._unarmed.pop(), now + self._patience_ms)
        return super().ready(now)

    @property
    def deadline(self) -> int:
        """When something is due; the application arms settling at any time."""
        if self.is_abandoned:
            return 0
        return min(
            self._beat_at,
            self._renew_at,
            self._settle_at,
            self._retry_at or NEVER,
            self._timers.due,
        )

    def _go_on(self, now: int) -> None:
        if self.topic in self._router.gone:
            self._gone()
            return
        if not self.is_joined:
            self._join(now)
            return
        if self._retry_at > now:
            return
        if self._held:
            self.settle()
        if not set(self._partitions()) <= set(self._told):
            self._heartbeat(now)  # The topic has grown.
        for watch in self._watches.values():
            if watch.request and watch.route.has_moved(self._router):
                watch.request = 0
                self._timers.drop(("watch", watch.partition))
            self._watch(watch, now)
        waiting, self._to_fetch = self._to_fetch, []
        for fetching in waiting:
            self._fetch(fetching, now)
        if not (self.started.is_done or self._introduction) and self._knows_ends:
            self._introduce()
        if self._wanted and not self._acquire:
            self._try_acquire(now, True)

    def _gone(self) -> None:
        """The topic was deleted; should it be made again, it begins at its beginning."""
        self._watches = {partition: self._new_watch(partition) for partition in self._watches}
        self._forget_leases()
        self.fail(self._router.gone[self.topic])

    def _new_watch(self, partition: str) -> Watch:
        return Watch(partition, Route(self.topic, partition))

    def _retry(self, now: int, pause: int = RETRY_MS) -> None:
        if not self._retry_at:
            self._retry_at = now + pause

    def trouble(self) -> str | None:
        """What keeps records from coming, for people; None if nothing does."""
        group = self.config.group
        place = self._router.coordinator_of(group)
        if place is None or self._router.find(*place) is None:
            reason = self._router.why_no_leader(OFFSETS_TOPIC)
            return f"the coordinator of group {group!r} is unknown: {reason}"
        if self._trouble is not None:
            return f"the coordinator of group {group!r}: {self._trouble}"
        lines = [fetching.route for line in self._leased.values() for fetching in line]
        for route in (*lines, *(watch.route for watch in self._watches.values())):
            if why := route.why(self._router):
                return why
        return None

    # --- the coordinator ------------------------------------------------------------------------

    def _coordinator(self) -> str | None:
        """Whom to send what is for the coordinator; None while that is being found out."""
        found = self._router.coordinator(self.config.group)
        if found is not None:
            self._asked = found
        return found

    @property
    def _patience_ms(self) -> int:
        return min(ANSWER_MS << min(self._tries, 10), ANSWER_MAX_MS)

    def _answered(self) -> None:
        self._tries, self._trouble = 0, None

    def _distrust(self) -> None:
        """Whoever we take for the coordinator does not answer, or not as one."""
        place = self._router.coordinator_of(self.config.group)
        if place is None:
            self._router.refresh(OFFSETS_TOPIC)
        else:
            self._router.distrust(*place)

    def _no_answer(self, kind: str, request: int, now: int) -> None:
        """The coordinator has not answered, for longer than it should take: ask again."""
        self._tries += 1
        self._trouble = f"{self._asked} did not answer"
        self._distrust()
        if kind == "join" and request == self._joining:
            self._joining = 0
            self._join(now)
        elif kind == "beat" and request == self._beat:
            self._heartbeat(now)
        elif kind == "settle" and request in self._settling:
            self._settle_again(request, now)
        elif kind == "acquire" and request == self._introduction:
            self._introduce()
        elif kind == "acquire" and request == self._acquire:
            # It may have given us leases; should its answer come after all, they are taken.
            self._acquire = 0
            if self._wanted:
                self._try_acquire(now, True)

    def _settle_again(self, request: int, now: int) -> None:
        settlement = self._settling.get(request)
        if settlement is None:
            return
        settlement.tries += 1
        coordinator = self._coordinator()
        if coordinator is not None:
            self.out.send.append((coordinator, settlement.message))
        self._timers.set(("settle", request), now + self._patience_ms)

    def _turned_down(self, source: str, error: PymqError, now: int) -> bool:
        """The coordinator cannot do it now; returns False if it never will."""
        if isinstance(error, FencedMember):
            self._lost_group(error, now)
            return True
        if not error.retriable:
            return False
        pause = 0
        if self._tries:
            pause = min(RETRY_MS << min(self._tries - 1, 10), RETRY_MAX_MS)
        self._tries += 1
        self._trouble = f"{source}: {error}"
        place = self._router.coordinator_of(self.config.group)
        if isinstance(error, NotLeader) and place is not None:
            if not self._router.refused(*place, source, error):
                pause = max(pause, RETRY_MS)
        else:
            self._router.refresh(OFFSETS_TOPIC)
            pause = max(pause, RETRY_MS)
        self._retry(now, pause)
        self._has_news = True
        return True

    # --- membership -----------------------------------------------------------------------------

    def _partitions(self) -> tuple[str, ...]:
        known = self._router.topics.get(self.topic)
        return tuple(p.partition for p in known.partitions) if known else self._told

    def _join(self, now: int) -> None:
        if self._joining or self._retry_at > now:
            return
        coordinator = self._coordinator()
        self._told = self._partitions()
        if not self._told:
            self._router.refresh(self.topic)
        if coordinator is None or not self._told:
            return
        c = self.config
        self._joining = self._request()
        join = Join(
            self._joining,
            c.group,
            self._member,
            self.topic,
            self._told,
            c.assignor,
            SESSION_MS,
            c.ack_wait_ms,
            c.max_deliver,
            c.reset,
        )
        self.out.send.append((coordinator, join))
        self._timers.set(("join", self._joining), now + self._patience_ms)

    def _on_assigned(self, source: str, m: Assigned, now: int) -> None:
        if not m.id or m.id not in (self._joining, self._beat):
            return
        is_join = m.id == self._joining
        self._timers.drop(("join" if is_join else "beat", m.id))
        if is_join:
            self._joining = 0
        else:
            self._beat = 0
        if m.error is not None:
            if not is_join and self.is_joined:
                self._beat_at = now + RETRY_MAX_MS
            if not self._turned_down(source, m.error, now):
                self.fail(m.error)
                self._retry(now, BEAT_MS)
            return
        self._answered()
        self.is_joined = True
        self._beat_at = now + BEAT_MS
        self.generation = m.generation
        lost = tuple(p for p in self.assigned if p not in m.partitions)
        gained = tuple(p for p in m.partitions if p not in self.assigned)
        if lost or gained:
            self.changes.append((lost, gained))
        for partition in lost:
            self._watches.pop(partition, None)
        self.assigned = m.partitions
        for partition in gained:
            self._watches[partition] = self._new_watch(partition)
        self._has_news = True
        if is_join:
            self.settle()
        if not gained:
            self._introduce()
        self._go_on(now)

    def _lost_group(self, error: PymqError, now: int) -> None:
        """The coordinator does not know us, because it is a new one or gave us up: join again.

        What the application has got until now is no longer leased to us: acknowledgements of it
        come to nothing, and it is delivered again, perhaps to others.
        """
        self._member = self._new_member()
        self._was_fenced, self.is_joined = True, False
        settling, self._settling = self._settling, {}
        for request, settlement in settling.items():
            self._timers.drop(("settle", request))
            self._forfeit(settlement.count)
            is_waited_for = any(done.is_waited_for for done in settlement.waits)
            if is_waited_for:
                self._forfeited = 0  # It is told now.
            settlement.finish(error)
        self._forfeit(
            sum(end - start for q in self.acks.values() for start, end in ranges(_drain(q)))
        )
        self.nacks.clear()
        self._joining = self._beat = self._acquire = self._introduction = 0
        self._acquires.clear()
        self._beat_at = NEVER
        # Without the leases these would be worked on here and by others.
        self._forget_leases()
        self.chunks.clear()
        self.dead.clear()
        self._retry_at = 0
        self._has_news = True

    def _forfeit(self, count: int) -> None:
        self.refused += count
        self._forfeited += count

    def _heartbeat(self, now: int) -> None:
        self._beat_at = now + BEAT_MS
        coordinator = self._coordinator()
        if not self.is_joined:
            return
        self._router.refresh(self.topic)  # Partitions may have been added.
        self._timers.drop(("beat", self._beat))
        self._beat, self._told = self._request(), self._partitions()
        beat = Heartbeat(self._beat, self.config.group, self._member, self._told)
        if coordinator is not None:
            self.out.send.append((coordinator, beat))
        self._timers.set(("beat", self._beat), now + self._patience_ms)

    # --- how far partitions reach ---------------------------------------------------------------

    def _watch(self, watch: Watch, now: int) -> None:
        if watch.request or ("watch", watch.partition) in self._timers:
            return
        peer = watch.route.find(self._router)
        if peer is None:
            return
        is_new = watch.end < 0
        watch.request = self._request()
        offset, wait = (END, 0) if is_new else (watch.end, wait_ms(len(self._watches)))
        fetch = Fetch(watch.request, self.topic, watch.partition, offset, 0, wait)
        self.out.send.append((peer, fetch))
        due = now + wait + watch.route.patience_ms
        self._timers.set(("watch", watch.partition), due)

    def _no_watch(self, partition: str, now: int) -> None:
        """A partition is to be asked again, or has not answered."""
        watch = self._watches.get(partition)
        if watch is None:
            return
        if watch.request:
            watch.request = 0
            watch.route.silent(self._router)
        self._watch(watch, now)

    def _on_fetched(self, source: str, m: Fetched, now: int) -> None:
        fetching = self._fetching.pop(m.id, None)
        if fetching is not None:
            self._timers.drop(("lease", m.id))
            self._on_data(fetching, m, now)
            return
        watch = self._watches.get(m.partition)
        if watch is None or watch.request != m.id:
            return
        watch.request = 0
        self._timers.drop(("watch", watch.partition))
        if isinstance(m.error, (OffsetOutOfRange, ReplicaNotAvailable)) and watch.end >= 0:
            watch.end = -1  # The topic was made anew, or its end has gone to other brokers.
            self._watch(watch, now)
            return
        if m.error is not None:
            pause = watch.route.refused(self._router, m.error)
            if pause is None:
                self.fail(m.error)
                pause = RETRY_MAX_MS
            self._timers.set(("watch", watch.partition), now + pause)
            return
        watch.route.came()
        is_new, has_more = watch.end < 0, m.high_watermark > watch.end
        watch.log_start = m.log_start
        watch.end = max(watch.end, m.high_watermark)  # A new leader may not know it at once.
        if is_new and self._knows_ends:
            self._introduce()
        self._watch(watch, now)
        if self._wanted and has_more:
            self._try_acquire(now, True)

    # --- leases ---------------------------------------------------------------------------------

    def _introduce(self) -> None:
        """Tell where the partitions begin and end, so that the group's offsets are from now on."""
        coordinator = self._coordinator()
        if coordinator is None or not self.is_joined:
            return
        self._introduction = self._request()
        self._acquires[self._introduction] = None
        self._unarmed.append(("acquire", self._introduction))
        acquire = Acquire(
            self._introduction, self.config.group, self._member, self._known(()), 0, 0
        )
        self.out.send.append((coordinator, acquire))

    @property
    def _knows_ends(self) -> bool:
        return all(watch.end >= 0 for watch in self._watches.values())

    def _known(self, but: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
        return tuple(
            (w.partition, w.log_start, w.end)
            for w in self._watches.values()
            if w.end >= 0 and w.partition not in but
        )

    def _try_acquire(self, now: int, is_news: bool) -> None:
        """Ask for leases, unless a request is waiting that knows as much."""
        if not (self.is_joined and is_news) or any(self._leased.values()):
            return
        coordinator = self._coordinator()
        if coordinator is None:
            return
        known = self._known(self.paused)
        if not known and self.assigned and not self.paused:
            return  # The watches will tell.
        self._timers.drop(("acquire", self._acquire))
        self._acquire = self._request()
        self._acquires[self._acquire] = None
        if len(self._acquires) > ACQUIRES_MAX:
            del self._acquires[next(iter(self._acquires))]
        count = self._wanted or 1
        acquire = Acquire(
            self._acquire, self.config.group, self._member, known, count, ACQUIRE_WAIT_MS
        )
        self.out.send.append((coordinator, acquire))
        due = now + ACQUIRE_WAIT_MS + self._patience_ms
        self._timers.set(("acquire", self._acquire), due)

    def _on_acquired(self, source: str, m: Acquired, now: int) -> None:
        if m.id not in self._acquires:
            return  # As another member, we had it asked.
        del self._acquires[m.id]
        self._timers.drop(("acquire", m.id))
        if m.error is not None:
            if m.id == self._introduction:
                self._introduction = 0
            elif m.id == self._acquire:
                self._acquire = 0
            else:
                return  # An old one, which was asked again.
            if not self._turned_down(source, m.error, now):
                self.fail(m.error)
            return
        self._answered()
        if m.leases:
            # Even if a later request has taken its place: both may have met on the way.
            self._wanted = 0
            self._renew_at = min(self._renew_at, now + self.config.ack_wait_ms // 3)
            self._take_leases(m.leases, now)
        if m.id == self._introduction:
            self.started.finish()
        if m.id == self._acquire:
            self._acquire = 0
        if m.generation != self.generation:
            self._heartbeat(now)
        elif self._wanted and not self._acquire:
            self._try_acquire(now, True)

    def _take_leases(self, leases: Iterable[Lease], now: int) -> None:
        for lease in leases:
            if lease.partition in self.paused and not lease.dead:
                self._give_back([(lease.partition, (lease.start, lease.end))])
            else:
                route = Route(self.topic, lease.partition)
                fetching = Fetching(lease, route, lease.start, lease.start, lease.end)
                self._leased.setdefault(lease.partition, deque()).append(fetching)
                self._fetch(fetching, now)

    def _forget_leases(self) -> None:
        self._leased.clear()
        for request in self._fetching:
            self._timers.drop(("lease", request))
        self._fetching.clear()
        self._to_fetch.clear()

    def _coming(self) -> list[tuple[str, Range]]:
        """What is leased, and to be handed out once it is fetched."""
        # Not what is to die: given back, it would count as one delivery less.
        return [
            (partition, (fetching.handed, fetching.end))
            for partition, line in self._leased.items()
            for fetching in line
            if not fetching.lease.dead
        ]

    def _fetch(self, fetching: Fetching, now: int) -> None:
        lease, route = fetching.lease, fetching.route
        peer = route.find(self._router)
        if peer is None:
            self._to_fetch.append(fetching)
            return
        request = self._request()
        self._fetching[request] = fetching
        at, end = fetching.position, fetching.end
        wait = 0 if route.is_elsewhere else LEASE_WAIT_MS
        fetch = Fetch(request, self.topic, lease.partition, at, FETCH_BYTES, wait, end)
        self.out.send.append((peer, fetch))
        self._timers.set(("lease", request), now + wait + route.patience_ms)

    def _no_data(self, request: int, now: int) -> None:
        """What was leased has not come, or is to be asked for again."""
        fetching = self._fetching.pop(request, None)
        if fetching is not None:
            fetching.route.silent(self._router)
            self._fetch(fetching, now)

    def _fetch_later(self, fetching: Fetching, pause: int, now: int) -> None:
        if pause:
            self._to_fetch.append(fetching)
            self._retry(now, pause)
        else:
            self._fetch(fetching, now)

    def _on_data(self, fetching: Fetching, m: Fetched, now: int) -> None:
        partition, route = fetching.lease.partition, fetching.route
        if partition in self.paused and not fetching.lease.dead:
            fetching.position = fetching.end  # It is going to be given back.
        elif (
            isinstance(m.error, OffsetOutOfRange)
            and m.log_start > fetching.position
            and not route.is_elsewhere
        ):
            # Retention was faster. The coordinator lets go of it when it hears of the new start.
            watch = self._watches.get(partition)
            if watch is not None:
                watch.log_start = max(watch.log_start, m.log_start)
            fetching.position = min(m.log_start, fetching.end)
        elif m.error is not None and (pause := self._pause(route, m.error)) is not None:
            self._fetch_later(fetching, pause, now)
            return
        elif m.error is None and not m.data:
            # It is not to be had here yet: a new leader, or one that knows no better.
            self._fetch_later(fetching, route.refused(self._router, _NOTHING) or 0, now)
            return
        else:
            try:
                if m.error is not None:
                    raise m.error
                self._read(fetching, m.data)
            except PymqError as error:
                self.fail(located(error, self.topic, partition))
                fetching.end = fetching.position  # The rest stays leased until that runs out.
        if fetching.position < fetching.end:
            self._fetch(fetching, now)
        self._line_up(partition, now)
        if not any(self._leased.values()) and not self.has_chunks:
            self._wanted = self._wanted or 1  # All of it was compacted away or not for consumers.
            self._try_acquire(now, True)
        self._arrived()

    def _pause(self, route: Route, error: PymqError) -> int | None:
        """In how many ms to ask again for what was leased; None if that is of no use."""
        is_leader = not route.is_elsewhere
        pause = route.refused(self._router, error)
        if isinstance(error, OffsetOutOfRange) and is_leader and route.tries < CONFIRMED:
            self._router.refresh(self.topic)
            return route.patience_ms // 2
        return pause

    def _read(self, fetching: Fetching, data: bytes) -> None:
        fetching.route.came()
        lease = fetching.lease
        for batch in split(data):
            whole = self._whole(batch, lease.partition)
            view = whole.part(fetching.position, fetching.end, lease.delivery_count)
            fetching.views.append(view)
            fetching.position = view.end_offset

    def _line_up(self, partition: str, now: int) -> None:
        """Make ready what has come, in the order of the leases: records keep theirs."""
        line = self._leased.get(partition)
        while line:
            first = line[0]
            is_complete, is_dead = first.position >= first.end, first.lease.dead
            if partition not in self.paused or is_dead:
                for view in first.views:
                    self._skip(view, now)
                    if len(view) and not view.is_control:
                        (self.dead if is_dead else self.chunks).append(view)
                first.views.clear()
                first.handed = first.position
            elif is_complete:
                self._give_back([(partition, (first.handed, first.end))])
            if not is_complete:
                return
            line.popleft()

    def _whole(self, batch: RecordBatch, partition: str) -> BatchView:
        """The view of a fetched batch; leases are often parts of the batch fetched last."""
        last = self._last.get(partition)
        if (
            last is None
            or last.batch_crc != batch.batch_crc
            or (last.base_offset != batch.base_offset)
        ):
            last = BatchView(batch.verify().at(self.topic, partition))
            self._last[partition] = last
        return last

    @property
    def has_chunks(self) -> bool:
        """Whether there is something to hand out or to move away, or a problem to raise."""
        return bool(self.chunks or self.dead) or self.problem is not None

    def _skip(self, view: BatchView, now: int) -> None:
        """Offsets that hold no record for a consumer are done; nobody else will say so."""
        if view.is_control:
            holes: list[int | Range] = [(view.base_offset, view.end_offset)]
        elif len(view) != view.end_offset - view.base_offset:
            ends = (*view.offsets, view.end_offset)
            starts = (view.base_offset, *(offset + 1 for offset in view.offsets))
            holes = [(a, b) for a, b in zip(starts, ends, strict=True) if a < b]
        else:
            return
        self.acks.setdefault(view.partition, deque()).extend(holes)
        self._settle_at = min(self._settle_at, now + ACK_LINGER_MS)

    def _renew(self, now: int) -> None:
        """What the application has not seen yet must not be taken for abandoned."""
        self._renew_at = NEVER
        held = self.unread() + self._coming()
        # A copy: the application takes chunks away meanwhile.
        held += [(c.partition, (c.base_offset, c.end_offset)) for c in self.chunks.copy()]
        coordinator = self._coordinator()
        if held and coordinator is not None and self.is_joined:
            settle = Settle(0, self.config.group, self._member, renewals=tuple(held))
            self.out.send.append((coordinator, settle))
            self._renew_at = now + self.config.ack_wait_ms // 3

    def _on_settled(self, source: str, m: Settled, now: int) -> None:
        settlement = self._settling.get(m.id)
        if settlement is None:
            return
        error = m.error
        is_waited_for = any(done.is_waited_for for done in settlement.waits)
        if error is not None and error.retriable:
            # It may have been carried out; the coordinator, or the next one, knows.
            self._turned_down(source, error, now)
            self._timers.drop(("settle", m.id))
            self._timers.set(("again", m.id), max(now, self._retry_at))
            return
        if isinstance(error, FencedMember):
            self._lost_group(error, now)
            return
        del self._settling[m.id]
        self._timers.drop(("settle", m.id))
        self._answered()
        if settlement.tries == 1 or self._was_fenced:
            self.refused += m.refused  # Else it has been acknowledged by the first try, perhaps.
        if self._was_fenced:
            self._forfeited += m.refused
        if error is None and self._forfeited and is_waited_for:
            error = FencedMember(
                f"{self._forfeited} acknowledgements came to nothing: the group's coordinator has "
                "changed or had given this consumer up, so those records are delivered again"
            )
            self._forfeited = 0
        elif error is not None and not is_waited_for:
            self.fail(error)
        settlement.finish(error)


_NO_SETTLE = Settle(0, "", "")
_NOTHING = ReplicaNotAvailable("it has nothing of what it was said to hold")


def _drain(queue: deque[T]) -> list[T]:
    return [queue.popleft() for _ in range(len(queue))]


def ranges(items: Sequence[int | Range]) -> list[Range]:
    """Join offsets and ranges into as few ranges as possible."""
    if not items:
        return []
    first, last = items[0], items[-1]
    # The usual case, records acknowledged in their order, is told at the speed of a comparison.
    if isinstance(first, int) and isinstance(last, int) and items == list(range(first, last + 1)):
        return [(first, last + 1)]
    spans = sorted((item, item + 1) if isinstance(item, int) else item for item in items)
    joined = [spans[0]]
    for start, end in spans[1:]:
        if start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
