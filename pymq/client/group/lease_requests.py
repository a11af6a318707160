"""The requests of a consumer of a group for leases: one waits at the coordinator, or none.

A request tells the coordinator what is known of the partitions' ends, so another one takes the
place of the one that waits as soon as there is news. The answer to the earlier one may be on its
way, with leases in it: it is taken all the same. Where news comes of many partitions, the next
request waits for an answer, and tells of all of it at once.
"""

from __future__ import annotations

from collections.abc import Collection

from pymq.client.base import Outbox
from pymq.client.group.leased_fetches import LeasedFetches
from pymq.client.group.membership import Key, Membership
from pymq.client.group.watches import WatermarkWatches
from pymq.core.message import Acquire, Acquired
from pymq.core.time.timer_heap import TimerHeap

WAIT_MS = 2_000  # how long the coordinator may wait for records; then we know it is there
ACQUIRES_MAX = 16  # requests without an answer; it may come long after it should have


class LeaseRequests:
    """What one worker asks for, and has asked for."""

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
        self.wanted = 0  # records that the application has asked for, until some are leased
        self._membership = membership
        self._watches = watches
        self._leased = leased
        self._outbox = outbox
        self._timers = timers
        self._paused = paused
        self._shares = shares  # records that have no order to keep go to whoever is free
        self._waiting = 0  # the request that waits
        self._introduction = 0  # the request that tells where partitions begin and end
        self._open: dict[int, int] = {}  # those that may still bring leases; when they should have
        self._is_late = False  # there is news that the coordinator could not be told yet

    @property
    def is_waiting(self) -> bool:
        """Whether the coordinator has been asked, and has not answered."""
        return self._waiting != 0

    @property
    def is_due_again(self) -> bool:
        """Whether the coordinator is to be asked, now that it has answered something."""
        return self.wanted > 0 and (self._is_late or not self._waiting)

    @property
    def has_introduced(self) -> bool:
        """Whether the coordinator was told where the partitions begin and end."""
        return self._introduction != 0

    def introduce(self, now: int) -> None:
        """Tell where the partitions begin and end, so that the group's offsets are from now on."""
        membership, outbox = self._membership, self._outbox
        coordinator = membership.coordinator.find()
        if coordinator is None or not membership.is_joined:
            return
        self._introduction = outbox.number()
        known, unkeyed = self._watches.known(()), self._unkeyed()
        group, member = membership.group, membership.name
        request = Acquire(self._introduction, group, member, known, 0, 0, unkeyed)
        outbox.post(coordinator, request)
        due = now + membership.coordinator.patience_ms
        self._open[self._introduction] = due
        self._timers.set(("acquire", self._introduction), due)

    def tell(self, now: int) -> bool:
        """Tell how far partitions reach while nothing is asked for; others may want of it.

        Returns whether that was done, or needs not be.
        """
        if self._waiting:
            return True
        if self._introduction in self._open:
            return False
        self.introduce(now)
        return True

    def _unkeyed(self) -> tuple[tuple[str, int, int], ...]:
        return self._watches.unkeyed() if self._shares else ()

    def ask(self, now: int) -> None:
        """Ask for leases, if there is room for some and anything to ask for."""
        membership, outbox = self._membership, self._outbox
        # One partition that nobody can be asked for now must not keep all others from us.
        stuck = self._leased.stuck(now)
        if not membership.is_joined or self._leased.is_coming(stuck):
            return
        coordinator = membership.coordinator.find()
        if coordinator is None:
            return
        # Nor what is behind records that cannot be read: it would only be held here.
        known = self._watches.known({*self._paused, *stuck, *self.halted})
        if not known and membership.assigned and not self._paused:
            return  # The watches will tell.
        self._is_late = not self._has_room(now)
        if self._is_late:
            return  # The next answer will tell, or that there is none.
        self._timers.drop(("acquire", self._waiting))
        self._waiting = outbox.number()
        count, group, member = self.wanted or 1, membership.group, membership.name
        unkeyed, shares = self._unkeyed(), self._shares and not self._paused
        request = Acquire(
            self._waiting, group, member, known, count, WAIT_MS, unkeyed, shares=shares
        )
        outbox.post(coordinator, request)
        due = now + WAIT_MS + membership.coordinator.patience_ms
        self._open[self._waiting] = due
        self._timers.set(("acquire", self._waiting), due)

    def _has_room(self, now: int) -> bool:
        """Whether there may be one more request; gives up those whose answers are long overdue.

        What such an answer has leased nobody would know of before the leases run out. So none is
        given up that can still be expected, while there is another whose answer is waited for.
        """
        while len(self._open) >= ACQUIRES_MAX:
            oldest, due = next(iter(self._open.items()))
            if self._waiting and now < due:
                return False
            del self._open[oldest]
        return True

    def unanswered(self, request: int, now: int) -> None:
        """An answer is missing: ask again."""
        if request == self._introduction:
            self.introduce(now)
        elif request == self._waiting:
            # It may have given us leases; should its answer come after all, they are taken.
            self._waiting = 0
            if self.wanted:
                self.ask(now)

    def is_due(self, m: Acquired) -> bool:
        """Whether an answer is one to a request of this membership; it is so once."""
        if m.id not in self._open:
            return False  # As another member, we had it asked.
        del self._open[m.id]
        self._timers.drop(("acquire", m.id))
        return True

    def refused(self, m: Acquired) -> bool:
        """An answer is an error; whether that matters, or the request was made again since."""
        if m.id == self._introduction:
            self._introduction = 0
        elif m.id == self._waiting:
            self._waiting = 0
        else:
            return False
        return True

    def granted(self, m: Acquired) -> bool:
        """An answer is none; returns whether it was the introduction's."""
        if m.leases:
            # Even if a later request has taken its place: both may have met on the way.
            self.wanted = 0
        if m.id == self._waiting:
            self._waiting = 0
        return m.id == self._introduction

    def forget(self) -> None:
        """What was asked for, another member has asked for."""
        self._waiting = self._introduction = 0
        self._is_late = False
        self._open.clear()
