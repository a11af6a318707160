"""A group member's requests for leases; at most one request waits at the coordinator.

A request reports the known ends of partitions. When an end changes, a new request replaces the
waiting request. The answer to the replaced request may already be in flight, with leases, so the
member accepts this answer, too. If many ends change, the next request waits for an answer and
reports all changes at once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pymq.client.base import ClientDriver, Outbox
from pymq.client.group.acknowledgements import Acknowledger
from pymq.client.group.leased_fetches import LeasedFetches
from pymq.client.group.membership import Key, Membership
from pymq.client.group.watches import WatermarkWatches
from pymq.core.message import Acquire, Acquired
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER

if TYPE_CHECKING:
    from pymq.client.group.undelivered_records import UndeliveredRecords

# how long a request may wait at the coordinator; the answer shows that the coordinator is alive
WAIT_MS = 2_000
ACQUIRES_MAX = 16  # most requests without an answer
FIRST = 16  # records in a lease before the application's speed is known
GROWTH = 8  # greatest factor between one lease and the next
AHEAD_MS = 20  # milliseconds of work that one lease contains
LEAD_MS = 5  # time for a lease and a fetch on a busy machine or a slow network


class LeaseRequests:
    """The requests for leases of one member."""

    def __init__(
        self,
        membership: Membership,
        watches: WatermarkWatches,
        leased: LeasedFetches,
        outbox: Outbox,
        timers: TimerHeap[Key],
        paused: Collection[str],
        *,
        shares: bool,
    ) -> None:
        self.halted: Collection[str] = ()  # partitions with unreadable records
        self.wanted = 0  # records that the application's poll needs, until some are leased
        self.has_more = False  # there were more unordered records than the last lease took
        self._membership = membership
        self._watches = watches
        self._leased = leased
        self._outbox = outbox
        self._timers = timers
        self._paused = paused
        self._shares = shares  # whether any idle member may get unkeyed records
        self._waiting = 0  # the waiting request
        self._introduction = 0  # id of the request that reports the starts and ends of partitions
        # requests whose answers may still contain leases, by id, with their timeouts
        self._open: dict[int, int] = {}
        self._is_late = False  # some changes have not been reported yet
        # the ends that each open request has reported
        self._told: dict[int, tuple[tuple[str, int, int, int], ...]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether a request has no answer yet."""
        return self._waiting != 0

    @property
    def is_free(self) -> bool:
        """Whether the member may send a request that replaces no other one."""
        return self._membership.is_joined and not self._waiting

    @property
    def shares(self) -> bool:
        """Whether this member may lease unkeyed records of other members' partitions."""
        return self._shares and not self._paused

    @property
    def is_due_again(self) -> bool:
        """Whether to send another request now, after an answer."""
        return self.wanted > 0 and (self._is_late or not self._waiting)

    @property
    def has_introduced(self) -> bool:
        """Whether the coordinator knows the starts and ends of the partitions."""
        return self._introduction != 0

    def introduce(self, now: int) -> None:
        """Report the starts and ends of the partitions, which fixes a new group's first offsets."""
        membership, outbox = self._membership, self._outbox
        coordinator = membership.coordinator.find()
        if coordinator is None or not membership.is_joined:
            return
        self._introduction = outbox.number()
        known, unkeyed = self._watches.known(()), self._unkeyed()
        group, member = membership.group, membership.name
        runs = self._priorities(self._introduction)
        request = Acquire(self._introduction, group, member, known, 0, 0, unkeyed, priorities=runs)
        outbox.post(coordinator, request)
        due = now + membership.coordinator.patience_ms
        self._open[self._introduction] = due
        self._timers.set(("acquire", self._introduction), due)

    def tell(self, now: int) -> bool:
        """Report ends of partitions for other members, without a request for records.

        Returns False if the report is needed but cannot be sent now.
        """
        if self._waiting:
            return True
        if self._introduction in self._open:
            return False
        self.introduce(now)
        return True

    def _unkeyed(self) -> tuple[tuple[str, int, int], ...]:
        return self._watches.unkeyed() if self._shares else ()

    def _priorities(self, request: int) -> tuple[tuple[str, int, int, int], ...]:
        if found := self._watches.priorities():
            self._told[request] = found
        return found

    def ask(self, now: int, ahead: int = 0) -> None:
        """Request leases, if the application polls and not too many requests are open.

        With *ahead*, the application still works on other records, and will soon need this many.
        """
        membership, outbox = self._membership, self._outbox
        # A partition without a reachable leader must not delay the others.
        stuck = self._leased.stuck(now)
        if not membership.is_joined or self._leased.is_coming(stuck):
            return
        coordinator = membership.coordinator.find()
        if coordinator is None:
            return
        # Do not lease records after unreadable ones, because the application could not get them.
        known = self._watches.known({*self._paused, *stuck, *self.halted})
        if not known and membership.assigned and not self._paused:
            return  # The watches will call this method again.
        self._is_late = not self._has_room(now)
        if self._is_late:
            return  # The next answer or timeout will call this method again.
        self._timers.drop(("acquire", self._waiting))
        self._waiting = outbox.number()
        wait = 0 if ahead else WAIT_MS
        count, group, member = ahead or self.wanted or 1, membership.group, membership.name
        request = Acquire(
            self._waiting,
            group,
            member,
            known,
            count,
            wait,
            self._unkeyed(),
            shares=self.shares,
            priorities=self._priorities(self._waiting),
            ahead=ahead > 0,
        )
        outbox.post(coordinator, request)
        due = now + wait + membership.coordinator.patience_ms
        self._open[self._waiting] = due
        self._timers.set(("acquire", self._waiting), due)

    def _has_room(self, now: int) -> bool:
        """Whether one more request is allowed; gives up requests whose answers are long overdue.

        If an answer with leases is given up, its records cannot be delivered until the leases
        expire. So the member does not give up a request that may still be answered while it waits
        for another answer.
        """
        while len(self._open) >= ACQUIRES_MAX:
            oldest, due = next(iter(self._open.items()))
            if self._waiting and now < due:
                return False
            del self._open[oldest]
            self._told.pop(oldest, None)
        return True

    def unanswered(self, request: int, now: int) -> None:
        """Handle a missing answer: a new request is sent."""
        if request == self._introduction:
            self.introduce(now)
        elif request == self._waiting:
            # A late answer may contain leases, which the member accepts.
            self._waiting = 0
            if self.wanted:
                self.ask(now)

    def is_due(self, m: Acquired) -> bool:
        """Whether *m* is the first answer to a request of this membership."""
        if m.id not in self._open:
            return False  # The request belonged to an earlier membership.
        del self._open[m.id]
        self._timers.drop(("acquire", m.id))
        return True

    def refused(self, m: Acquired) -> bool:
        """Handle an error; returns False if a later request has replaced the request."""
        self._told.pop(m.id, None)
        if m.id == self._introduction:
            self._introduction = 0
        elif m.id == self._waiting:
            self._waiting = 0
        else:
            return False
        return True

    def granted(self, m: Acquired) -> bool:
        """Handle an answer; returns whether it answers :meth:`introduce`."""
        self._watches.told(self._told.pop(m.id, ()))
        if m.leases:
            # Reset this even if a later request has replaced this one, since request and answer may
            # have crossed.
            self.wanted = 0
            self.has_more = m.has_more
        if m.id == self._waiting:
            self._waiting = 0
        return m.id == self._introduction

    def forget(self) -> None:
        """Drop all requests, because the leases are lost; answers to these requests are ignored."""
        self._waiting = self._introduction = 0
        self._is_late = False
        self._open.clear()
        self._told.clear()
        self._watches.untold()


class LeasePace:
    """Computes how many records a member leases at a time: 20 ms of the application's work.

    Delivered records cannot be taken back. So a slow application gets few records at a time, and
    other members get the rest. A fast application gets many records at a time, since each lease
    costs a request. The application's speed is measured on the previous records.
    """

    def __init__(self, prefetch: int | None = None) -> None:
        self._prefetch = prefetch
        self._limit = FIRST
        self._last = 0, 0.0  # weighted sums of earlier records and milliseconds
        self._each_ms: float | None = None  # milliseconds of work for a record, once known
        # the part of the time between two polls that does not depend on the number of records
        self._idle_ms = 0.0

    def limit(self, wanted: int) -> int:
        """Return how many records to lease, at least one, if a poll returns up to *wanted*.

        A consumer with *prefetch* keeps the remaining records for later polls, so an application
        that takes one record at a time does not wait for a lease each time.
        """
        return self._prefetch or max(1, min(wanted, self._limit))

    def took(self, records: int, ms: float) -> None:
        """Note that the application polled again, *ms* milliseconds after getting *records*
        records.
        """
        if records < 1:
            return
        records_before, ms_before = self._last
        if records * 2 <= records_before and ms * 4 > ms_before * 3:
            # Fewer records took the same time, so this time does not depend on the records; it may
            # be a timer.
            self._idle_ms = ms
        self._idle_ms = min(self._idle_ms, ms)
        self._last = records, ms
        self._each_ms = each = (ms - self._idle_ms) / records
        fitting = int(AHEAD_MS / each) if each * (GROWTH * self._limit) > AHEAD_MS else 1 << 31
        self._limit = max(1, min(fitting, max(records, self._limit) * GROWTH))

    def expected_ms(self, records: int) -> int | None:
        """Return how many milliseconds the application will take for *records*, the last lease.

        The result is None if the application's speed is not known, or if the option ``prefetch``
        sets the number of records to lease.
        """
        if self._each_ms is None or self._prefetch:
            return None
        return int(self._each_ms * records)


class LeaseAhead:
    """Requests the next records shortly before the application polls for them.

    A lease and the fetch of its records take two round trips, during which the application would
    have nothing to do. The member estimates when the application will have finished, and sends the
    request `LEAD_MS` earlier. The request must not be much earlier: while records wait for a busy
    application, another member may be idle. Records that come too early are returned
    (:meth:`~pymq.client.group.undelivered_records.UndeliveredRecords.return_surplus`). If the last
    lease took all available records, the member sends no early request: an idle member may get the
    next records, and the request would be wasted.

    An early request gets only records without an order. So if an application returns a record with
    ``nack``, the group delivers this record again before later records of its key.
    """

    def __init__(
        self,
        name: str,
        requests: LeaseRequests,
        undelivered: UndeliveredRecords,
        settler: Acknowledger,
        pace: LeasePace,
        driver: ClientDriver,
    ) -> None:
        self.due = NEVER
        self._name = name
        self._requests = requests
        self._undelivered = undelivered
        self._settler = settler
        self._pace = pace
        self._driver = driver
        self._wanted = 0  # how many records a poll may return

    def delivered(self, records: int, wanted: int, now: int) -> None:
        """Note that a poll for up to *wanted* has returned *records*; any thread may call this."""
        work_ms = self._pace.expected_ms(records)
        # With less than a millisecond of work the application polls before an answer could come.
        if not (work_ms and self._requests.has_more and self._requests.shares):
            return
        self._wanted = wanted
        self.due = due = now + max(0, work_ms - LEAD_MS)
        self._driver.loop.rearm(self._name)
        self._driver.arm(due, self._name)

    def ask(self, now: int) -> None:
        """Request records, unless the application polls or records already wait for it."""
        self.due = NEVER
        requests, undelivered = self._requests, self._undelivered
        if not undelivered.is_at_work or undelivered.are_coming or not requests.is_free:
            return
        requests.wanted = 0  # The last poll may have asked twice.
        self._settler.settle()
        requests.ask(now, ahead=self._pace.limit(self._wanted))
