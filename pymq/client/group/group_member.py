"""The machine of a consumer of a group: leases records, fetches and acknowledges them.

1. The member watches the end of each assigned partition (:mod:`pymq.client.group.watches`).
2. When the application polls, it leases records from the group coordinator
   (:mod:`pymq.client.group.lease_requests`).
3. The member fetches these records (:mod:`pymq.client.group.leased_fetches`).
4. The member sends acknowledgements (:mod:`pymq.client.group.acknowledgements`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from pymq.client.base import ClientDriver
from pymq.client.counters import Counters
from pymq.client.fetching.consumer_machine import ConsumerMachine
from pymq.client.fetching.offset_spans import Span
from pymq.client.fetching.replica_preference import Preference
from pymq.client.group.acknowledgements import Acknowledger
from pymq.client.group.lease_requests import LeaseAhead, LeasePace, LeaseRequests
from pymq.client.group.lease_validity import LeaseValidity
from pymq.client.group.leased_fetches import LeasedFetches
from pymq.client.group.membership import BEAT_MS, Key, Membership, MembershipState, WorkerConfig
from pymq.client.group.poll_timer import PollTimer
from pymq.client.group.subscription import Subscription
from pymq.client.group.undelivered_records import Dead, UndeliveredRecords
from pymq.client.group.watches import WatermarkWatches
from pymq.client.router import Router
from pymq.core.batch.view import RecordBatch
from pymq.core.message import Acquired, Assigned, Fetched, Message, Settled
from pymq.core.observe.coverage import mark
from pymq.core.ready import Ready
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER
from pymq.errors import FencedMember, NotSubscribed, PymqError

# offsets that a lease may skip: those before it held no record for the application
SKIP_MAX = 4_096
TELL_MS = 20  # how long a member that is processing records waits before it reports new ends

__all__ = ["GroupConsumer", "WorkerConfig"]


class GroupConsumer(ConsumerMachine):
    """A member of a group."""

    def __init__(
        self,
        name: str,
        topic: str,
        router: Router,
        driver: ClientDriver,
        config: WorkerConfig,
        new_member: Callable[[], str],
        rack: str | None = None,
        *,
        wall_ms: Callable[[], int],
        tally: Counters | None = None,
    ) -> None:
        super().__init__(name, topic, router, driver, config.group)
        self.config = config
        self.dead: deque[Dead] = deque()
        self._timers: TimerHeap[Key] = TimerHeap()  # timeouts of requests, by kind and number
        timers = self._timers
        subscribed = Subscription(config.group, topic, router, self._unsubscribed)
        self.membership = Membership(
            topic, config, router, self, timers, new_member, subscribed.joins
        )
        self.settler = Acknowledger(name, self.membership, self, timers, driver)
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
        self.pace = LeasePace(config.prefetch)
        self.lease_requests = LeaseRequests(
            self.membership,
            self.watches,
            self._leased,
            self,
            timers,
            self.paused,
            shares=config.ordered is not True,
        )
        self.undelivered = UndeliveredRecords(
            self.membership,
            self.chunks,
            self.chunks_lock,
            self._leased,
            self.settler,
            config.ack_wait_ms,
            driver.loop.clock,
            wall_ms,
            tally or Counters(),
            self.dead,
        )
        self.ahead = LeaseAhead(
            name, self.lease_requests, self.undelivered, self.settler, self.pace, driver
        )
        # how many records the last lease skipped, if none of them was for the application
        self._skipped = 0
        self._tell_at = NEVER  # when to report the ends of partitions while the application works
        self.poll_timer = PollTimer(config.max_poll_ms)
        self.standing = LeaseValidity(self.membership, driver)

    # --- the handle -----------------------------------------------------------------------------

    def want(self, records: int, now: int) -> None:
        """Lease up to *records* and fetch them."""
        self.undelivered.is_at_work = False
        self.lease_requests.wanted, self.lease_requests.halted = (
            self.pace.limit(records),
            self.stuck(),
        )
        self.poll_timer.is_used = True
        membership = self.membership
        if membership.state is MembershipState.LAPSED:
            membership.rejoin()
            self._has_news = True
        if (
            self.topic in self._router.metadata.gone
            and membership.state is not MembershipState.UNSUBSCRIBED
        ):
            self._gone()
            return
        self.settler.settle()
        if not self.lease_requests.is_waiting:
            self.lease_requests.ask(now)

    @property
    def has_chunks(self) -> bool:
        """Whether there are records, dead letters, or a problem to raise."""
        return self.has_readable() or bool(self.dead) or self.problem is not None

    def handed_out(self, chunk: RecordBatch) -> RecordBatch:
        """Note that the application gets these records; returns those that have not expired.

        The time of their leases began when the coordinator leased them.
        """
        self.poll_timer.is_used = self.undelivered.is_at_work = True
        self.undelivered.handed += 1
        view = self.undelivered.unexpired(chunk)
        self.settler.handed.out(view)
        return view

    def close(self, unread: list[Span]) -> None:
        """Send acknowledgements and leave the group; the caller holds the driver."""
        super().close(unread)
        self.settler.settle()
        unread += self.undelivered.take_out()
        self.membership.leave(unread + self._leased.coming())
        self.dead.clear()
        self._leased.close()
        self.standing.unanswerable()
        self.membership.left(MembershipState.CLOSED)
        self.settler.close()
        self._timers.clear()
        self.poll_timer.stop()
        self.undelivered.stop()
        self._tell_at = NEVER

    def pause(self, partitions: Iterable[str], unread: list[Span], now: int) -> None:
        """Stop leases of some partitions, and give back their undelivered records."""
        self.paused.update(dict.fromkeys(partitions))
        self.settler.give_back(unread + self.undelivered.take_out(self.paused))
        if self.lease_requests.is_waiting:
            # The waiting request would bring records of these partitions, so a new request replaces
            # it.
            self.lease_requests.ask(now)

    def resume(self, partitions: Iterable[str], now: int) -> None:
        """Undo :meth:`pause`."""
        for partition in partitions:
            self.paused.pop(partition, None)
        if self.lease_requests.is_waiting:
            self.lease_requests.ask(now)

    def trouble(self) -> str | None:
        """Why no records come, as a text for users; None if nothing is wrong."""
        if why := self.membership.coordinator.why():
            return why
        for route in (*self._leased.routes(), *(watch.route for watch in self.watches)):
            if why := route.why(self._router):
                return why
        return None

    # --- the machine ----------------------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Handle an answer."""
        if self.membership.state is MembershipState.CLOSED:
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
        """Act on the deadlines that have passed."""
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
        if now >= self.undelivered.renew_at:
            self.undelivered.renew(now)
        if now >= self.ahead.due:
            self.ahead.ask(now)
        if now >= self.undelivered.return_at:
            self.undelivered.return_surplus(now, is_stuck=bool(self.stuck()))
        if now >= self._tell_at:
            self._tell_at = NEVER if self.lease_requests.tell(now) else now + TELL_MS
        for kind, what in self._timers.over(now):
            if kind == "watch":
                self.watches.over(str(what), now)
            elif kind == "lease":
                self._leased.over(int(what), now)
                # Report the new end, so that other members need not wait for it.
                self._has_news = True
            elif kind == "again":
                self.settler.send_again(int(what), now)
            else:
                self._no_answer(kind, int(what), now)
        if self.membership.retry_at and now >= self.membership.retry_at:
            self.membership.retry_at = 0
            self._has_news = True

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work, and start requests that waited for metadata or a time."""
        membership = self.membership
        if self._has_news or not membership.is_joined:
            self._has_news = False
            if membership.state is not MembershipState.CLOSED:
                self._go_on(now)
        if self.settler.unarmed:
            self.settler.time(now)
        return super().ready(now) if self.out.send else None

    @property
    def deadline(self) -> int:
        """When something is due; the application may arm acknowledgements at any time."""
        if self.is_abandoned:
            return 0
        return min(
            self.membership.beat_at,
            self.undelivered.renew_at,
            self.undelivered.return_at,
            self.ahead.due,
            self._tell_at,
            self.poll_timer.look_at,
            self.settler.due,
            self.membership.retry_at or NEVER,
            self._timers.due,
        )

    def _go_on(self, now: int) -> None:
        membership = self.membership
        if self.topic in self._router.metadata.gone:
            self._gone()
            if not (membership.is_joined or membership.retry_at):
                # Each heartbeat of a member refreshes the topic's metadata; a member that was
                # removed must do the same.
                self._router.refresh(self.topic)
                membership.retry(now, BEAT_MS)
            return
        if membership.state in (MembershipState.LAPSED, MembershipState.UNSUBSCRIBED):
            return
        if membership.is_joined and membership.is_made_again():
            why = f"topic {self.topic!r} was deleted and created again"
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
        requests = self.lease_requests
        if not (self.started.is_done or requests.has_introduced) and self.watches.know_ends:
            requests.introduce(now)
        if self._leased.stuck(now) and not self.has_chunks:
            # The leased records were not enough for the poll.
            requests.wanted = requests.wanted or 1
        if requests.wanted and not requests.is_waiting:
            requests.ask(now)

    def _gone(self) -> None:
        """Note that the topic was deleted: a new topic of its name is read from its start."""
        self.watches.forget()
        self._leased.forget()
        self.fail(self._router.metadata.gone[self.topic])

    # --- the coordinator ------------------------------------------------------------------------

    def _no_answer(self, kind: str, request: int, now: int) -> None:
        """Note that the coordinator has not answered in time: ask again."""
        self.membership.coordinator.silent()
        self.membership.unanswered(kind, request, now)
        if kind == "settle":
            self.settler.send_again(request, now)
        elif kind == "acquire":
            self.lease_requests.unanswered(request, now)

    def _turned_down(self, source: str, error: PymqError, now: int) -> bool:
        """Handle an error of the coordinator; returns False if it is final."""
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
            self.lease_requests.introduce(now)
        if self.standing.assured():
            self._hand_over(now)
        self._go_on(now)

    def _lost_group(self, error: PymqError) -> None:
        """Join again: the coordinator is new or has removed this member.

        The leases of delivered records are lost: acknowledgements of these records fail, and the
        group delivers them again, to any member.
        """
        self.membership.fenced()
        if error.details.get("deleted"):
            # The topic may have been created again, so the known ends are worthless.
            self.watches.forget()
        self._drop_leases(error)
        self._has_news = True

    def _unsubscribed(self, error: NotSubscribed) -> None:
        """Note that the group no longer consumes the topic: the consumer has ended."""
        if self.membership.state in (MembershipState.UNSUBSCRIBED, MembershipState.CLOSED):
            return
        mark("worker.unsubscribed")
        self.final_problem = error
        # A coordinator that has not heard of this would still count the consumer as a member.
        self.membership.leave([])
        self.watches.change(self.membership.assigned, ())
        self.membership.lapsed()
        self.membership.left(MembershipState.UNSUBSCRIBED)
        self._drop_leases(error)
        self.settler.end(error)
        self.undelivered.stop()
        self._tell_at = NEVER
        self.fail(error)

    def _drop_leases(self, error: PymqError) -> None:
        is_awaited = not self.has_chunks
        with self.chunks_lock:
            # Without their leases, other members would work on these records too. Clear the
            # buffered records first: records that were taken before are forgotten below, and no
            # records can be taken afterwards.
            self.chunks.clear()
        self.settler.fenced(error)
        self.lease_requests.forget()
        if self._leased and is_awaited:
            self.lease_requests.wanted = (
                self.lease_requests.wanted or 1
            )  # Other members may wait for these records.
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
        """Leave the group until the application polls again: other members get its records."""
        self.settler.settle()
        self.membership.leave(self.undelivered.spans())
        self.watches.change(self.membership.assigned, ())
        self.membership.lapsed()
        self._drop_leases(self.poll_timer.late())
        self.undelivered.stop()
        self._tell_at = NEVER

    # --- leases ---------------------------------------------------------------------------------

    def _on_acquired(self, source: str, m: Acquired, now: int) -> None:
        requests = self.lease_requests
        if not requests.is_due(m):
            return
        if m.error is not None:
            if requests.refused(m) and not self._turned_down(source, m.error, now):
                self.fail(m.error)
            return
        self.membership.coordinator.answered()
        self.standing.heard(now)
        is_introduction = requests.granted(m)
        if m.leases:
            self.undelivered.leased(now)
            self.settler.leased(m.leases)
            self._leased.take(m.leases, now)
        if is_introduction:
            self.started.finish()
        if m.generation != self.membership.generation:
            self.membership.heartbeat(now)
        elif requests.is_due_again:
            requests.ask(now)

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
            self.lease_requests.introduce(now)
        self.watches.ask(watch, now)
        if self.lease_requests.wanted and has_more:
            self.lease_requests.ask(now)
        elif has_more and self.lease_requests.shares:
            self._tell_at = min(self._tell_at, now + TELL_MS)

    def _hand_over(self, now: int) -> None:
        """Hand fetched records to the application, unless other members may have leased them."""
        if not self.standing.holds(now):
            return
        unread: list[Span] = []
        for found, is_dead in self._leased.lined_up():
            if found.partition in self.paused and not is_dead:
                unread.append((found.partition, (found.base_offset, found.end_offset)))
                continue
            view = self.undelivered.due_now(found)
            self.settler.skip(view, now)
            view = self.undelivered.without_expired(view)
            if is_dead and len(view) and not view.is_control:
                self.dead.append((view, None))
            elif len(view) and not view.is_control:
                self.chunks.append(view)
        self.undelivered.fetched(now)
        self.settler.give_back(unread)
        if not self._leased and not self.has_chunks:
            # All records of the lease were compacted away or are not for consumers now. The records
            # behind this lease may be of the same kind, so each further lease is larger.
            self._skipped = min(2 * self._skipped + 1, SKIP_MAX)
            self.lease_requests.wanted = max(self.lease_requests.wanted, self._skipped)
            self.lease_requests.ask(now)
        elif self.chunks:
            self._skipped = 0
        self._arrived()
