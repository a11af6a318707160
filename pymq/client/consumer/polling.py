"""Gets record batches for a poll: waits, and drops batches whose leases may have expired."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pymq.client.consumer.dead_letters import DeadLetters
from pymq.client.consumer.iteration_buffer import IterationBuffer
from pymq.client.consumer.lease_guard import LeaseGuard
from pymq.client.fetching.consumer_machine import ConsumerMachine
from pymq.client.fetching.offset_spans import drain
from pymq.client.group.group_member import GroupConsumer
from pymq.core.batch.view import RecordBatch
from pymq.errors import Closed

if TYPE_CHECKING:
    from pymq.client.client import Client

# seconds before a poll raises the error of an unreadable record again; meanwhile polls return
# records of other partitions
STUCK_S = 1.0

OnChange = Callable[[tuple[str, ...]], object]  # called with the names of partitions


class Timeout:
    """The rest of a call's timeout, in seconds; None is no limit."""

    __slots__ = ("_monotonic", "_until")

    def __init__(self, monotonic: Callable[[], float], timeout: float | None) -> None:
        self._monotonic = monotonic
        self._until = None if timeout is None else monotonic() + timeout

    @property
    def left(self) -> float | None:
        """The remaining seconds; below 0 if the time is over."""
        return None if self._until is None else self._until - self._monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._until is not None and self._monotonic() >= self._until


class Polling:
    """The polls of one consumer; one thread at a time."""

    def __init__(
        self,
        client: Client,
        intake: ConsumerMachine,
        unread: IterationBuffer,
        undertaker: DeadLetters,
        on_assigned: OnChange | None,
        on_revoked: OnChange | None,
        *,
        auto_ack: bool,
    ) -> None:
        self.is_closed = False
        self.guard: LeaseGuard | None = None  # set for a member of a group
        self._driver = client.driver
        self._tally = client.tally
        self._intake = intake
        self._worker = intake if isinstance(intake, GroupConsumer) else None
        if self._worker is not None:
            self.guard = LeaseGuard(self._worker, client.driver)
        self._unread = unread
        self._undertaker = undertaker
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._auto_ack = auto_ack
        self._given = 0  # the number of records of the last poll ...
        self._given_at = 0  # ... and the time of that poll

    def check(self) -> None:
        """Check that the consumer may be used here.

        Raises:
            Closed: the consumer was closed.
            ForkedError: the consumer belongs to the parent process.
        """
        self._driver.check_process()  # After a fork, the records belong to the parent process.
        if self.is_closed:
            raise Closed("the consumer was closed")

    def timeout(self, seconds: float | None) -> Timeout:
        """Start a timeout."""
        return Timeout(self._driver.monotonic, seconds)

    def poll(
        self, max_records: int, timeout: float | None, max_bytes: int = 1 << 62
    ) -> list[RecordBatch]:
        """Return batches as soon as there are some, or none after *timeout* seconds.

        Errors are those of :meth:`pymq.Consumer.poll`.
        """
        time = self.timeout(timeout)
        self.bury_dead()  # also here, because a poll never waits while records are buffered
        while True:
            if self._intake.chunks and not self.is_ours(time.left):
                if time.is_over:
                    return []
                continue
            self.check()
            if views := self._intake.take(max_records, max_bytes):
                break
            with self._driver as loop:
                self.check()
                self._intake.want(max_records, loop.clock())
                arrival = self._intake.arrival()
                loop.touch(self._intake.name)
            left = time.left
            if stuck := self._intake.stuck():
                left = STUCK_S if left is None else min(left, STUCK_S)
            if not arrival.is_done and (left is not None and left <= 0):
                self.tell_changes()
                _raise_stuck(stuck.values())
                return []
            self._intake.is_awaited = True
            try:
                has_come = self._driver.wait(arrival, left)
            finally:
                self._intake.is_awaited = False
            if not has_come:
                _raise_stuck(stuck.values())
            self.tell_changes()
            self.bury_dead()
        count = sum(map(len, views))
        if self._worker is not None:
            self._given, self._given_at = count, self._driver.loop.clock()
            self._worker.ahead.delivered(count, max_records, self._given_at)
        # Make no call between these lines, because other threads change this counter, too.
        self._tally.consumed += count
        return views

    def measure(self) -> None:
        """Measure how long the application took for the records of the last poll."""
        given, self._given = self._given, 0
        if not given or self._worker is None:
            return
        settler = self._worker.settler
        until = self._driver.loop.clock()
        if not (self._auto_ack or settler.is_armed) and settler.armed_at >= self._given_at:
            # The application had finished processing at that time; afterwards its thread only
            # waited.
            until = settler.armed_at
        self._worker.pace.took(given, until - self._given_at)

    # --- leases ---------------------------------------------------------------------------------

    def is_ours(self, timeout: float | None) -> bool:
        """Whether a poll may return the fetched records; asks the coordinator if this is uncertain.

        If the leases of fetched records may have expired, the method drops the records, since other
        members may have them. If the coordinator does not answer within *timeout* seconds, the
        method keeps the records, but the poll does not return them now.
        """
        guard = self.guard
        if guard is None:
            return True
        if self.has_dropped():
            return False
        self.check()
        lasts = guard.lasts(timeout)
        return not self.has_dropped() and lasts

    def has_dropped(self) -> bool:
        """Drop the fetched records if other members may have got them; returns whether any were
        dropped.

        This happens if the application has not polled for too long, or the group has removed this
        member.
        """
        if self.guard is None or not self.guard.has_lapsed():
            return False
        self._unread.clear()
        return True

    # --- the group ------------------------------------------------------------------------------

    def tell_changes(self) -> None:
        """Call the application's callbacks with lost and gained partitions."""
        while self._worker is not None and self._worker.membership.changes:
            lost, gained = self._worker.membership.changes.popleft()
            if lost and self._on_revoked is not None:
                self._on_revoked(lost)
            if gained and self._on_assigned is not None:
                self._on_assigned(gained)

    def bury_dead(self) -> None:
        """Move records to the dead-letter topic, and acknowledge them."""
        worker = self._worker
        while worker is not None and worker.dead:
            views = drain(worker.dead)
            for view, why in views:
                self._undertaker.send(view, why)
            self._undertaker.flush()
            for view, _ in views:
                # Acknowledge the expired records only after the application got the others, because
                # the application acknowledges whole batches.
                worker.settler.handed.out(view)
                worker.settler.acknowledge(view, self._driver.loop.clock())


def _raise_stuck(views: Iterable[RecordBatch]) -> None:
    """Raise the error of an unreadable record again, if there are no other records."""
    for view in views:
        if (fault := view.fault()) is not None:
            raise fault
