"""A group member's requests for leases; at most one waits at the coordinator.

A request reports the known ends of partitions. When one changes, the next request replaces the
waiting one. The answer to the earlier one may be in flight, with leases: the member accepts it too.
If many ends change, the next request waits for an answer and reports all changes at once.
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

# how long a request may wait at the coordinator; its answer proves the coordinator alive
WAIT_MS = 2_000
ACQUIRES_MAX = 16  # requests without an answer, which may come late
FIRST = 16  # records, before the application's speed is known
GROWTH = 8  # greatest growth from one lease to the next
AHEAD_MS = 20  # milliseconds of work that are leased at a time
LEAD_MS = 5  # a lease and a fetch, on a busy machine or a slow network


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
        self.halted: Collection[str] = ()  # partitions with records that cannot be read
        self.wanted = 0  # records that the application polls for, until some are leased
        self.has_more = False  # there were more unordered records than the last lease took
        self._membership = membership
        self._watches = watches
        self._leased = leased
        self._outbox = outbox
        self._timers = timers
        self._paused = paused
        self._shares = shares  # unkeyed records go to any idle member
        self._waiting = 0  # the waiting request
        self._introduction = 0  # id of the request that reports where partitions begin and end
        # requests that may still bring leases, by id, with their timeouts
        self._open: dict[int, int] = {}
        self._is_late = False  # some changes have not been reported yet
        # the positions that each open request has reported
        self._told: dict[int, tuple[tuple[str, int, int, int], ...]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether a request is not answered."""
        return self._waiting != 0

    @property
    def is_free(self) -> bool:
        """Whether the member may send a request that replaces no other one."""
        return self._membership.is_joined and not self._waiting

    @property
    def shares(self) -> bool:
        """Whether unkeyed records of other members' partitions may be leased."""
        return self._shares and not self._paused

    @property
    def is_due_again(self) -> bool:
        """Whether to send a request now, after an answer."""
        return self.wanted > 0 and (self._is_late or not self._waiting)

    @property
    def has_introduced(self) -> bool:
        """Whether the coordinator knows where the partitions begin and end."""
        return self._introduction != 0

    def introduce(self, now: int) -> None:
        """Report where the partitions begin and end, so that a new group's offsets are fixed."""
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
        """Report ends of partitions without asking for records; other members may want them.

        Returns whether that was done or is not needed.
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
        """Ask for leases, if there is room and the application polls.

        With *ahead* the application works on other records, and will soon want so many.
        """
        membership, outbox = self._membership, self._outbox
        # A partition without a reachable leader must not hold up the others.
        stuck = self._leased.stuck(now)
        if not membership.is_joined or self._leased.is_coming(stuck):
            return
        coordinator = membership.coordinator.find()
        if coordinator is None:
            return
        # Nor must records behind unreadable ones be leased: the application could not get them.
        known = self._watches.known({*self._paused, *stuck, *self.halted})
        if not known and membership.assigned and not self._paused:
            return  # The watches will wake the member.
        self._is_late = not self._has_room(now)
        if self._is_late:
            return  # The next answer or timeout will wake the member.
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
        """Whether one more request is allowed; gives up those whose answers are long overdue.

        Records that a lost answer leased cannot be delivered until their leases run out. So a
        request that may still be answered is not given up while the member awaits another answer.
        """
        while len(self._open) >= ACQUIRES_MAX:
            oldest, due = next(iter(self._open.items()))
            if self._waiting and now < due:
                return False
            del self._open[oldest]
            self._told.pop(oldest, None)
        return True

    def unanswered(self, request: int, now: int) -> None:
        """Note that an answer is missing: ask again."""
        if request == self._introduction:
            self.introduce(now)
        elif request == self._waiting:
            # The answer may hold leases; if it comes after all, they are accepted.
            self._waiting = 0
            if self.wanted:
                self.ask(now)

    def is_due(self, m: Acquired) -> bool:
        """Whether *m* answers a request of this membership; true once for each request."""
        if m.id not in self._open:
            return False  # The request was of an earlier membership.
        del self._open[m.id]
        self._timers.drop(("acquire", m.id))
        return True

    def refused(self, m: Acquired) -> bool:
        """Handle an error; returns False if the request was replaced by a later one."""
        self._told.pop(m.id, None)
        if m.id == self._introduction:
            self._introduction = 0
        elif m.id == self._waiting:
            self._waiting = 0
        else:
            return False
        return True

    def granted(self, m: Acquired) -> bool:
        """Handle an answer without leases; returns whether it answers the first report."""
        self._watches.told(self._told.pop(m.id, ()))
        if m.leases:
            # Reset this also if a later request has replaced this one: the two may have crossed.
            self.wanted = 0
            self.has_more = m.has_more
        if m.id == self._waiting:
            self._waiting = 0
        return m.id == self._introduction

    def forget(self) -> None:
        """Drop all requests: the leases are lost, and answers to these count no more."""
        self._waiting = self._introduction = 0
        self._is_late = False
        self._open.clear()
        self._told.clear()
        self._watches.untold()


class LeasePace:
    """How many records a member leases at a time: about 20 ms of its application's work.

    Delivered records cannot be taken back. So a slow application gets few at a time, and other
    members get the rest. A fast application gets many records at a time, since each lease costs a
    request. The speed of the application is measured on the records before.
    """

    def __init__(self, prefetch: int | None = None) -> None:
        self._prefetch = prefetch
        self._limit = FIRST
        self._last = 0, 0.0  # weighted sums of records and of milliseconds
        self._each_ms: float | None = None  # milliseconds of work for a record, once known
        # milliseconds between two polls that do not depend on the number of records
        self._idle_ms = 0.0

    def limit(self, wanted: int) -> int:
        """How many records to lease, at least one, if a poll returns up to *wanted*.

        A consumer with *prefetch* keeps what the poll does not return for the next ones: an
        application that takes one record at a time does not wait for a lease each time.
        """
        return self._prefetch or max(1, min(wanted, self._limit))

    def took(self, records: int, ms: float) -> None:
        """Note that the application polled again, *ms* milliseconds after it got *records*."""
        if records < 1:
            return
        records_before, ms_before = self._last
        if records * 2 <= records_before and ms * 4 > ms_before * 3:
            # Fewer records took the same time, so the application spends its time on something
            # else, such as a timer.
            self._idle_ms = ms
        self._idle_ms = min(self._idle_ms, ms)
        self._last = records, ms
        self._each_ms = each = (ms - self._idle_ms) / records
        fitting = int(AHEAD_MS / each) if each * (GROWTH * self._limit) > AHEAD_MS else 1 << 31
        self._limit = max(1, min(fitting, max(records, self._limit) * GROWTH))

    def expected_ms(self, records: int) -> int | None:
        """How long the application will take for *records*, which are the last that it leased.

        None if its speed is not known, or if it has chosen how many records to lease.
        """
        if self._each_ms is None or self._prefetch:
            return None
        return int(self._each_ms * records)


class LeaseAhead:
    """Asks for the next records shortly before the application polls for them.

    A lease and the fetch of its records take two round trips, during which the application would
    have nothing to do. The member knows about when the application will have finished, and asks
    `LEAD_MS` earlier. It must not ask much earlier: while records wait for a busy application,
    another member may be idle. Records that come too early are returned
    (:meth:`~pymq.client.group.undelivered_records.UndeliveredRecords.return_surplus`). If the last
    lease took all records that there were, the member does not ask ahead: an idle member may get
    the next ones, and the request would cost time for nothing.

    The member asks ahead for records without an order only. An application that returns a record
    with ``nack`` gets it again before later ones of its key.
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
        """Ask for records, unless the application polls, or some wait for it already."""
        self.due = NEVER
        requests, undelivered = self._requests, self._undelivered
        if not undelivered.is_at_work or undelivered.are_coming or not requests.is_free:
            return
        requests.wanted = 0  # The last poll may have asked twice.
        self._settler.settle()
        requests.ask(now, ahead=self._pace.limit(self._wanted))
