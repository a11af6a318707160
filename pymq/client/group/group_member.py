"""The machine behind a consumer of a group (PTP): leases records, fetches them, settles them.

Two things go on at a time. Of each assigned partition it keeps itself informed how far it reaches
(:mod:`pymq.client.group.watches`). And when the application asks for records, it leases some from
the group coordinator (:mod:`pymq.client.group.lease_requests`) and fetches just those
(:mod:`pymq.client.group.leased_fetches`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from pymq.client.base import Driver
from pymq.client.fetching.consumer_machine import ConsumerMachine
from pymq.client.fetching.offset_spans import Span
from pymq.client.fetching.partition_route import RETRY_MAX_MS
from pymq.client.fetching.replica_preference import Preference
from pymq.client.group.acknowledgements import Acknowledger, Settling
from pymq.client.group.lease_pace import AHEAD_MS, LeasePace
from pymq.client.group.lease_requests import LeaseRequests
from pymq.client.group.lease_validity import LeaseValidity
from pymq.client.group.leased_fetches import LeasedFetches
from pymq.client.group.membership import BEAT_MS, Key, Membership, WorkerConfig
from pymq.client.group.poll_timer import PollTimer
from pymq.client.group.subscription import Subscription
from pymq.client.group.watches import WatermarkWatches
from pymq.client.router import Router
from pymq.core.batch.view import RecordBatch
from pymq.core.message import Acquired, Assigned, Fetched, Message, Settled
from pymq.core.observe.coverage import mark
from pymq.core.ready import Ready
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER
from pymq.errors import FencedMember, NotSubscribed, PymqError

TELL_MS = 20  # how long a member at work keeps to itself that there is more

__all__ = ["GroupConsumer", "WorkerConfig"]


class GroupConsumer(ConsumerMachine):
    """A member of a group."""

    def __init__(
        self,
        name: str,
        topic: str,
        router: Router,
        driver: Driver,
        config: WorkerConfig,
        new_member: Callable[[], str],
        rack: str | None = None,
    ) -> None:
        super().__init__(name, topic, router, driver, config.group)
        self.config = config
        self.dead: deque[RecordBatch] = deque()  # to be moved to the dead-letter topic
        self.unread: Callable[[], list[Span]] = list  # what the handle has buffered
        self._timers: TimerHeap[Key] = TimerHeap()  # when an answer is missing
        timers = self._timers
        self._ended: NotSubscribed | None = None  # we are no member, and shall not be
        subscribed = Subscription(config.group, topic, router, self._unsubscribed)
        self.membership = Membership(
            topic, config, router, self, timers, new_member, subscribed.joins
        )
        self.settler = Acknowledger(name, self.membership, self, timers, driver, self._buffered)
        self.watches = WatermarkWatches(self.membership, router, self, timers)
        self._leased = LeasedFetches(
            self.membership,
            self.watches,
            self.settler,
            router,
            self,
            timers,
            self.paused,
            Preference(name, rack),
        )
        self._acquiring = LeaseRequests(
            self.membership,
            self.watches,
            self._leased,
            self,
            timers,
            self.paused,
            shares=config.ordered is not True,
        )
        self.pace = LeasePace(config.prefetch)
        self._tell_at = NEVER  # how far partitions reach, while the application is at work
        self.poll_timer = PollTimer(config.max_poll_ms)
        self.standing = LeaseValidity(self.membership, driver)
        self._is_closed = False
        self._renew_at = NEVER
        self._is_at_work = False  # the application has got records and has not asked for more
        self._return_at = NEVER  # what has come beyond those

    # --- the handle -----------------------------------------------------------------------------

    def want(self, records: int, now: int) -> None:
        """Lease up to *records* and fetch them."""
        self._is_at_work = False
        self._acquiring.wanted, self._acquiring.halted = self.pace.limit(records), self.stuck()
        if self.poll_timer.asked():
            self._has_news = True
        if self.topic in self._router.gone and self._ended is None:
            self._gone()
            return
        self.settler.settle()
        if not self._acquiring.is_waiting:
            self._acquiring.ask(now)

    def settle(self, *, wait: bool = False, durable: bool = False) -> Settling | None:
        """Send the acknowledgements that have gathered; see :meth:`Acknowledger.settle`."""
        return self.settler.settle(wait=wait, durable=durable)

    @property
    def assigned(self) -> tuple[str, ...]:
        """The partitions that the group has assigned to it."""
        return self.membership.assigned

    @property
    def shares(self) -> bool:
        """Whether it takes records of partitions that it was not assigned, if it may."""
        return self.config.ordered is not True and not self.paused

    @property
    def has_chunks(self) -> bool:
        """Whether there is something to hand out or to move away, or a problem to raise."""
        return self.has_readable() or bool(self.dead) or self.problem is not None

    @property
    def is_bringing(self) -> bool:
        """Whether records are leased that the handle has not taken yet, also those on their way."""
        return bool(self.chunks or self._leased)

    def handed_out(self, chunk: RecordBatch) -> None:
        """The application has got these records; their lease began when they were leased."""
        self.settler.handed.out(chunk)
        self.poll_timer.is_used = self._is_at_work = True

    def close(self, unread: list[Span]) -> None:
        """Settle and leave; the caller holds the driver."""
        super().close(unread)
        self.settler.settle()
        with self.chunks_lock:
            chunks, self.chunks = self.chunks, deque()
        unread += [(c.partition, (c.base_offset, c.end_offset)) for c in chunks]
        self.membership.leave(unread + self._leased.coming())
        self.dead.clear()
        self._leased.close()
        self._is_closed = True
        self.standing.unanswerable()
        self.membership.left()
        self.settler.close()
        self._timers.clear()
        self.poll_timer.stop()
        self._renew_at = self._tell_at = self._return_at = NEVER

    def pause(self, partitions: Iterable[str], unread: list[Span], now: int) -> None:
        """Lease nothing more of some partitions and give back what was not handed out."""
        self.paused.update(dict.fromkeys(partitions))
        with self.chunks_lock:
            chunks, self.chunks = self.chunks, deque()
            for chunk in chunks:
                if chunk.partition in self.paused:
                    unread.append((chunk.partition, (chunk.base_offset, chunk.end_offset)))
                else:
                    self.chunks.append(chunk)
        self.settler.give_back(unread)
        if self._acquiring.is_waiting:
            self._acquiring.ask(now)  # The request that waits would bring records of them.

    def resume(self, partitions: Iterable[str], now: int) -> None:
        """Undo :meth:`pause`."""
        for partition in partitions:
            self.paused.pop(partition, None)
        if self._acquiring.is_waiting:
            self._acquiring.ask(now)

    def trouble(self) -> str | None:
        """What keeps records from coming, for people; None if nothing does."""
        if why := self.membership.coordinator.why():
            return why
        for route in (*self._leased.routes(), *(watch.route for watch in self.watches)):
            if why := route.why(self._router):
                return why
        return None

    # --- the machine ----------------------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in an answer."""
        if self._is_closed:
            return
        match message:
            case Fetched():
                self._on_fetched(message, now)
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
        if now >= self.settler.due:
            self.settler.settle()
        if now >= self.membership.beat_at:
            self.membership.heartbeat(now)
        if now >= self.poll_timer.look_at:
            is_over = self.poll_timer.look(now, is_awaited=self.is_awaited)
            if is_over and self.membership.is_joined:
                self._lapse()
        if now >= self._renew_at:
            self._renew(now)
        if now >= self._return_at:
            self._return_surplus()
        if now >= self._tell_at:
            self._tell_at = NEVER if self._acquiring.tell(now) else now + TELL_MS
        for kind, what in self._timers.over(now):
            if kind == "watch":
                self.watches.over(str(what), now)
            elif kind == "lease":
                self._leased.over(int(what), now)
                self._has_news = True  # Others need not wait for it any longer.
            elif kind == "again":
                self.settler.send_again(int(what), now)
            else:
                self._no_answer(kind, int(what), now)
        if self.membership.retry_at and now >= self.membership.retry_at:
            self.membership.retry_at = 0
            self._has_news = True

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work, and begin what had to wait for metadata or time."""
        if (self._has_news or not self.membership.is_joined) and not self._is_closed:
            self._has_news = False
            self._go_on(now)
        self.settler.time(now)
        return super().ready(now)

    @property
    def deadline(self) -> int:
        """When something is due; the application arms settling at any time."""
        if self.is_abandoned:
            return 0
        return min(
            self.membership.beat_at,
            self._renew_at,
            self._tell_at,
            self._return_at,
            self.poll_timer.look_at,
            self.settler.due,
            self.membership.retry_at or NEVER,
            self._timers.due,
        )

    def _go_on(self, now: int) -> None:
        membership = self.membership
        if self.topic in self._router.gone:
            self._gone()
            if not (membership.is_joined or membership.retry_at):
                # A member asks for the topic with each heartbeat; who was given up does so, too.
                self._router.refresh(self.topic)
                membership.retry(now, BEAT_MS)
            return
        if self.poll_timer.has_lapsed or self._ended is not None:
            return
        if membership.is_joined and membership.is_made_again():
            why = f"topic {self.topic!r} was deleted and made again"
            self._lost_group(FencedMember(why, deleted=self.topic))
        if not membership.is_joined:
            if membership.is_made_again():
                self.watches.forget()
            membership.join(now)
            return
        if membership.retry_at > now:
            return
        self.settler.settle_held()
        if self.standing.is_unsure:
            membership.heartbeat(now)
        if not set(membership.partitions()) <= set(membership.told):
            membership.heartbeat(now)  # The topic has grown.
        self.watches.look(now)
        self._leased.look(now)
        acquiring = self._acquiring
        if not (self.started.is_done or acquiring.has_introduced) and self.watches.know_ends:
            acquiring.introduce(now)
        if self._leased.stuck(now) and not self.has_chunks:
            acquiring.wanted = acquiring.wanted or 1  # What was leased has not satisfied anybody.
        if acquiring.wanted and not acquiring.is_waiting:
            acquiring.ask(now)

    def _gone(self) -> None:
        """The topic was deleted; should it be made again, it begins at its beginning."""
        self.watches.forget()
        self._leased.forget()
        self.fail(self._router.gone[self.topic])

    # --- the coordinator ------------------------------------------------------------------------

    def _no_answer(self, kind: str, request: int, now: int) -> None:
        """The coordinator has not answered, for longer than it should take: ask again."""
        self.membership.coordinator.silent()
        self.membership.unanswered(kind, request, now)
        if kind == "settle":
            self.settler.send_again(request, now)
        elif kind == "acquire":
            self._acquiring.unanswered(request, now)

    def _turned_down(self, source: str, error: PymqError, now: int) -> bool:
        """The coordinator cannot do it now; returns False if it never will."""
        if isinstance(error, FencedMember):
            self._lost_group(error)
            return True
        if isinstance(error, NotSubscribed):
            self._unsubscribed(error)
            return True
        if not error.retriable:
            return False
        self.membership.retry(now, self.membership.coordinator.refused(source, error))
        self._has_news = True
        return True

    def _on_assigned(self, source: str, m: Assigned, now: int) -> None:
        membership = self.membership
        if not membership.is_waiting_for(m.id):
            return
        is_join = membership.answered(m, now)
        if m.error is not None:
            if not self._turned_down(source, m.error, now):
                self.fail(m.error)
                self.standing.unanswerable()
                membership.retry(now, BEAT_MS)
            return
        membership.coordinator.answered()
        self.standing.heard(now)
        lost, gained = membership.assign(m, now)
        self.watches.change(lost, gained)
        self._has_news = True
        if is_join:
            self.settler.settle()
        if not gained:
            self._acquiring.introduce(now)
        if self.standing.assured():
            self._hand_over(now)
        self._go_on(now)

    def _lost_group(self, error: PymqError) -> None:
        """The coordinator does not know us, because it is a new one or gave us up: join again.

        What the application has got until now is no longer leased to us: acknowledgements of it
        come to nothing, and it is delivered again, perhaps to others.
        """
        self.membership.fenced()
        if error.details.get("deleted"):
            self.watches.forget()  # Perhaps it was made anew: how far it reached means nothing.
        self._drop_leases(error)
        self._has_news = True

    def _unsubscribed(self, error: NotSubscribed) -> None:
        """The group does not consume the topic any more: this is over, whatever is asked for."""
        if self._ended is not None or self._is_closed:
            return
        mark("worker.unsubscribed")
        self._ended = error
        self.membership.leave([])  # A coordinator that has not heard of it takes us for a member.
        self.watches.change(self.membership.assigned, ())
        self.membership.lapsed()
        self.membership.left()
        self._drop_leases(error)
        self.settler.end(error)
        self._renew_at = self._tell_at = self._return_at = NEVER
        self.fail(error)

    def take_problem(self) -> PymqError | None:
        """The problem to raise; it is raised once, unless it is one for good."""
        return super().take_problem() if self._ended is None else self._ended

    def _drop_leases(self, error: PymqError) -> None:
        is_awaited = not self.has_chunks
        with self.chunks_lock:
            # Without the leases these would be worked on here and by others. They go first: what is
            # taken before that is forgotten below, and nothing is taken after it.
            self.chunks.clear()
        self.settler.fenced(error)
        self._acquiring.forget()
        if self._leased and is_awaited:
            self._acquiring.wanted = self._acquiring.wanted or 1  # Somebody may wait for them.
        self._leased.forget()
        self.dead.clear()
        self.standing.dropped()

    def _on_settled(self, source: str, m: Settled, now: int) -> None:
        if not self.settler.is_waiting_for(m.id):
            return
        if m.error is not None and m.error.retriable:
            self._turned_down(source, m.error, now)
            self.settler.send_later(m.id, max(now, self.membership.retry_at))
        elif isinstance(m.error, FencedMember):
            self._lost_group(m.error)
        elif isinstance(m.error, NotSubscribed):
            self._unsubscribed(m.error)
        else:
            self.standing.heard(now)
            if (problem := self.settler.answered(m)) is not None:
                self.fail(problem)

    def _lapse(self) -> None:
        """Leave, until the application asks again: others get what it does not work on."""
        self.settler.settle()
        self.membership.leave(self._at_hand())
        self.watches.change(self.membership.assigned, ())
        self.membership.lapsed()
        self._drop_leases(self.poll_timer.lapse())
        self._renew_at = self._tell_at = self._return_at = NEVER

    def _return_surplus(self) -> None:
        """Give back what has come beyond what the application is at work on: others are free.

        A request may bring records after others have been handed out, if it had met their answer
        on its way. Nobody asked for them twice, so they would wait here for as long as that takes.
        """
        self._return_at = NEVER
        with self.chunks_lock:
            if not self._is_at_work or self.stuck():
                return
            chunks, self.chunks = self.chunks, deque()
        if chunks:
            mark("worker.surplus")
            self.settler.give_back([(c.partition, (c.base_offset, c.end_offset)) for c in chunks])

    def _buffered(self) -> list[Span]:
        return self.unread()

    def _at_hand(self) -> list[Span]:
        """What is leased, and the application has not seen yet."""
        found = self.unread() + self._leased.coming()
        # A copy: the application takes chunks away meanwhile.
        found += [(c.partition, (c.base_offset, c.end_offset)) for c in self.chunks.copy()]
        return found

    def _renew(self, now: int) -> None:
        """What the application has not seen yet must not be taken for abandoned."""
        self._renew_at = NEVER
        if held := self._at_hand():
            is_told = self.settler.renew(held)
            third = self.config.ack_wait_ms // 3
            self._renew_at = now + (third if is_told else min(third, RETRY_MAX_MS))

    # --- leases ---------------------------------------------------------------------------------

    def _on_acquired(self, source: str, m: Acquired, now: int) -> None:
        acquiring = self._acquiring
        if not acquiring.is_due(m):
            return
        if m.error is not None:
            if acquiring.refused(m) and not self._turned_down(source, m.error, now):
                self.fail(m.error)
            return
        self.membership.coordinator.answered()
        self.standing.heard(now)
        is_introduction = acquiring.granted(m)
        if m.leases:
            self._renew_at = min(self._renew_at, now + self.config.ack_wait_ms // 3)
            self.settler.leased(m.leases)
            self._leased.take(m.leases, now)
        if is_introduction:
            self.started.finish()
        if m.generation != self.membership.generation:
            self.membership.heartbeat(now)
        elif acquiring.is_due_again:
            acquiring.ask(now)

    def _on_fetched(self, m: Fetched, now: int) -> None:
        fetching = self._leased.answered(m)
        if fetching is not None:
            has_come, problem = self._leased.came(fetching, m, now)
            if problem is not None:
                self.fail(problem)
            if has_come:
                self._hand_over(now)
            return
        watch = self.watches.answered(m)
        if watch is None:
            return
        if m.error is not None:
            if self.watches.refused(watch, m.error, now):
                self.fail(m.error)
            return
        is_new, has_more = self.watches.came(watch, m, now)
        if is_new and self.watches.know_ends:
            self._acquiring.introduce(now)
        self.watches.ask(watch, now)
        if self._acquiring.wanted and has_more:
            self._acquiring.ask(now)
        elif has_more and self.shares:
            self._tell_at = min(self._tell_at, now + TELL_MS)

    def _hand_over(self, now: int) -> None:
        """Make ready for the application what has come, unless it may be leased to others."""
        if not self.standing.holds(now):
            return
        unread: list[Span] = []
        for view, is_dead in self._leased.lined_up():
            if view.partition in self.paused and not is_dead:
                unread.append((view.partition, (view.base_offset, view.end_offset)))
                continue
            self.settler.skip(view, now)
            if is_dead and len(view) and not view.is_control:
                self.settler.handed.out(view)  # for burial
                self.dead.append(view)
            elif len(view) and not view.is_control:
                self.chunks.append(view)
        if self._is_at_work and self.chunks:
            self._return_at = min(self._return_at, now + AHEAD_MS)
        self.settler.give_back(unread)
        if not self._leased and not self.has_chunks:
            # All of it was compacted away or not for consumers.
            self._acquiring.wanted = self._acquiring.wanted or 1
            self._acquiring.ask(now)
        self._arrived()
