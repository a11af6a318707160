"""Acknowledgements of a group member: sends acks, nacks and renewals until they are answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from pymq.client.base import ClientDriver, Outbox, Waitable
from pymq.client.fetching.offset_spans import Records, Span, drain, ranges, spans
from pymq.client.group.delivered_ranges import DeliveredRanges
from pymq.client.group.membership import Key, Membership
from pymq.core.batch.view import RecordBatch
from pymq.core.counts import clause
from pymq.core.message import Lease, Range, Settle, Settled
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER
from pymq.core.values import define
from pymq.errors import Closed, CommitFailed, FencedMember, PymqError

LAPSED_MAX = 20  # most ranges of offsets that an error names
ACK_LINGER_MS = 20  # delay of acknowledgements without a waiting thread, to send several together


class Settling(Waitable):
    """A request with acknowledgements, and its result."""

    __slots__ = ("error", "is_durable", "is_waited_for")

    def __init__(self, is_waited_for: bool, is_durable: bool) -> None:
        super().__init__()
        self.is_waited_for = is_waited_for
        self.is_durable = is_durable
        self.error: PymqError | None = None


Nack = tuple[str, Range, int, str]  # partition, offsets, delay in ms, error or ""


@define
class Settlement:
    """A sent request with acknowledgements that was not answered yet."""

    message: Settle
    waits: list[Settling]
    tries: int = 1

    @property
    def count(self) -> int:
        """The number of records that the request acknowledges."""
        return sum(end - start for _, (start, end) in self.message.acks)

    @property
    def is_waited_for(self) -> bool:
        """Whether a caller waits for the result."""
        return any(done.is_waited_for for done in self.waits)

    def finish(self, error: PymqError | None) -> None:
        """Finish the request, which was answered or never will be."""
        for done in self.waits:
            done.error = error
            done.finish()


class Acknowledger:
    """Collects acknowledgements from any thread, and sends them to the coordinator.

    This object is a part of the state machine of the consumer *name*.
    """

    def __init__(
        self,
        name: str,
        membership: Membership,
        outbox: Outbox,
        timers: TimerHeap[Key],
        driver: ClientDriver,
    ) -> None:
        # acknowledgements by partition; any thread may add to them
        self.acks: dict[str, deque[int | Range]] = {}
        # returned ranges, each with its delay in ms and its error; any thread may add to them
        self.nacks: deque[Nack] = deque()
        self.refused = 0  # number of acknowledgements that arrived too late
        self.due = NEVER
        self.armed_at = -1  # the time when a thread last armed the timer; see :meth:`arm`
        self.handed = DeliveredRanges()
        # Returns the records that the consumer has fetched but not shown; the consumer sets this.
        self.buffered: Callable[[], list[Span]] = list
        self._holes: list[Span] = []  # offsets without a record for the application
        self._name = name
        self._membership = membership
        self._outbox = outbox
        self._timers = timers
        self._driver = driver
        self._sent: dict[int, Settlement] = {}
        self._held: list[Settling] = []  # commits that wait until the consumer is a member again
        # whether acknowledgements are pending while no coordinator is known
        self._is_put_back = False
        self.unarmed: list[Key] = []  # sent requests without a timeout
        self._was_fenced = False  # whether a coordinator has fenced this member at least once
        self._forfeited = 0  # failed acknowledgements that no commit has reported
        self._released = (
            DeliveredRanges()
        )  # records delivered under leases that have expired, and not acknowledged
        # acknowledgements after the end of a lease; no commit has reported them yet
        self._lapsed = 0
        # the reason why acknowledgements can no longer be sent
        self._ended: PymqError | None = None
        # offsets of those records, as far as known
        self._lapsed_in: list[tuple[str, int, int]] = []

    # --- the handle -----------------------------------------------------------------------------

    def arm(self, now: int) -> None:
        """Note that there are acknowledgements to send soon."""
        if self.due == NEVER:
            self.armed_at = now
            self.due = now + ACK_LINGER_MS
            self._driver.loop.rearm(self._name)
            self._driver.arm(self.due)

    def acknowledge(self, records: Records, now: int) -> None:
        """Acknowledge *records*; the member sends the acknowledgements some milliseconds later."""
        for partition, span in spans(records):
            self.acks.setdefault(partition, deque()).append(span)
        if self.due == NEVER:
            self.arm(now)

    @property
    def is_armed(self) -> bool:
        """Whether a timer will send the acknowledgements."""
        return self.due != NEVER

    # --- the machine ----------------------------------------------------------------------------

    def settle(self, *, wait: bool = False, durable: bool = False) -> Settling | None:
        """Send the collected acknowledgements; the caller holds the driver's lock.

        The result is done when the acknowledgements are written or, with *durable*, synced.
        """
        # Disarm first. If another thread adds an acknowledgement after this line, either the thread
        # arms the timer again, or this request includes the acknowledgement.
        self.due, self._is_put_back = NEVER, False
        # copy the queues first, because another thread may add one
        queues = list(self.acks.items())
        acks = [(p, span) for p, queue in queues if queue for span in ranges(drain(queue))]
        nacks = tuple(drain(self.nacks)) if self.nacks else ()
        if not (acks or nacks or wait or self._held or self._holes):
            return None
        done = Settling(wait, durable)
        if self._ended is not None:
            self._forfeit(_count(span for _, span in acks))
            Settlement(_NO_SETTLE, [done]).finish(self._ended)
            return done
        membership = self._membership
        coordinator = membership.coordinator.find() if membership.is_joined else None
        if coordinator is None:
            self._put_back(acks, nacks)
            self._is_put_back = True
            self._held += [done] if wait else []
            return done
        waits, self._held = [*self._held, done], []
        acks = [*self._worked_on(acks), *self._holes]
        self._holes = []
        for partition, span, _, _ in nacks:
            self.handed.take(partition, span)
        is_durable = any(waiting.is_durable for waiting in waits)
        request = self._outbox.number()
        group, member = membership.group, membership.name
        errors = tuple(error for *_, error in nacks)
        settle = Settle(
            request,
            group,
            member,
            tuple(acks),
            tuple((partition, span, delay) for partition, span, delay, _ in nacks),
            durable=is_durable,
            errors=errors if any(errors) else (),
        )
        self._sent[request] = Settlement(settle, waits)
        self.unarmed.append(("settle", request))
        self._outbox.post(coordinator, settle)
        return done

    def _worked_on(self, acks: list[Span]) -> list[Span]:
        """Return the part of *acks* that was delivered under leases that may still be valid."""
        handed, buffered = self.handed, list[Span]()
        if self._was_fenced and acks:
            # A record in the buffer may be a redelivery that the application has not seen.
            buffered = [(p, part) for p, span in self.buffered() for part in handed.take(p, span)]
        found = list[Span]()
        for partition, span in acks:
            parts = handed.take(partition, span)
            found += [(partition, part) for part in parts]
            self._note_lapsed(partition, span, parts)
        for partition, span in buffered:
            handed.put(partition, span)
        late = _count(span for _, span in acks) - _count(span for _, span in found)
        self.refused += late
        self._forfeited += late if self._was_fenced else 0
        return found

    def leased(self, leases: Iterable[Lease]) -> None:
        """Note the records of *leases* that this member has already delivered under an earlier
        lease, which has expired.
        """
        for lease in leases:
            for part in self.handed.take(lease.partition, (lease.start, lease.end)):
                self._released.put(lease.partition, part)

    def _note_lapsed(self, partition: str, span: Range, held: list[Range]) -> None:
        """Note the parts of an acknowledged range that are not in *held*: their leases have
        expired.
        """
        start = span[0]
        for low, high in [*held, (span[1], span[1])]:
            if start < low:
                for part in self._released.take(partition, (start, low)):
                    self._lapse(part[1] - part[0], [(partition, part)])
            # A later delivery of the record was acknowledged.
            self._released.take(partition, (low, high))
            start = high

    def _lapse(self, count: int, spans: Iterable[Span]) -> None:
        self._lapsed += count
        for partition, (start, end) in spans:
            if len(self._lapsed_in) < LAPSED_MAX:
                self._lapsed_in.append((partition, start, end))

    def _commit_failed(self) -> CommitFailed | None:
        """Return the error for the next commit if leases have expired.

        Each loss is reported once.
        """
        count, ranges = self._lapsed, tuple(self._lapsed_in)
        if not count:
            return None
        self._lapsed, self._lapsed_in = 0, []
        places = ", ".join(f"{partition}: {start} to {end - 1}" for partition, start, end in ranges)
        return CommitFailed(
            f"{clause(count, 'acknowledged record', 'was', 'were')} not committed, because "
            f"{'its lease' if count == 1 else 'their leases'} had run out (among {places}); "
            f"{'it is' if count == 1 else 'they are'} delivered again. Handle records within "
            "ack_wait_s, or make that longer",
            count=count,
            ranges=ranges,
        )

    def _put_back(self, acks: Iterable[Span], nacks: Iterable[Nack]) -> None:
        for partition, span in acks:
            self.acks.setdefault(partition, deque()).append(span)
        self.nacks.extend(nacks)

    def settle_held(self) -> None:
        """Send the requests that have waited for a membership or a coordinator."""
        if self._held or self._is_put_back:
            self.settle()

    def time(self, now: int) -> None:
        """Give a timeout to the requests that were sent without one."""
        while self.unarmed:
            self._timers.set(self.unarmed.pop(), now + self._membership.coordinator.patience_ms)

    def send_again(self, request: int, now: int) -> None:
        """Send a request again after a timeout or a transient error."""
        settlement = self._sent.get(request)
        if settlement is None:
            return
        settlement.tries += 1
        coordinator = self._membership.coordinator.find()
        if coordinator is not None:
            self._outbox.post(coordinator, settlement.message)
        self._timers.set(("settle", request), now + self._membership.coordinator.patience_ms)

    def send_later(self, request: int, due: int) -> None:
        """Send a request again at *due*; a coordinator recognises a request that it has already
        carried out.
        """
        self._timers.drop(("settle", request))
        self._timers.set(("again", request), due)

    def is_waiting_for(self, request: int) -> bool:
        """Whether a request has no answer yet."""
        return request in self._sent

    def answered(self, m: Settled) -> PymqError | None:
        """Handle a final answer; returns its error if no caller waits for the result."""
        settlement = self._sent.pop(m.id)
        error, is_waited_for = m.error, settlement.is_waited_for
        self._timers.drop(("settle", m.id))
        self._membership.coordinator.answered()
        if settlement.tries == 1 or self._was_fenced:
            # After a retry a refusal proves nothing, because the first try may have acknowledged
            # the records.
            self.refused += m.refused
        if self._was_fenced:
            self._forfeited += m.refused
        elif m.lapsed:  # The leases expired; an earlier try would have reported the same records.
            self._lapse(m.lapsed, settlement.message.acks)
        if error is None and any(done.is_durable for done in settlement.waits):
            error = self._commit_failed()
        if error is None and self._forfeited and is_waited_for:
            error = FencedMember(
                f"{self._forfeited} acknowledgements have failed, because the coordinator has "
                "changed or has removed this consumer, so those records are delivered again"
            )
            self._forfeited = 0
        settlement.finish(error)
        return None if is_waited_for else error

    def give_back(self, unread: list[Span]) -> None:
        """Return leased records that were not delivered, so that other members may get them at
        once.
        """
        membership, coordinator = self._membership, self._membership.coordinator.find()
        for partition, span in unread:
            self.handed.take(partition, span)
        if unread and coordinator is not None and membership.is_joined:
            group, member = membership.group, membership.name
            self._outbox.post(coordinator, Settle(0, group, member, unread=tuple(unread)))

    def renew(self, held: list[Span]) -> bool:
        """Renew the leases of records in the buffer; returns whether a coordinator is known."""
        membership, coordinator = self._membership, self._membership.coordinator.find()
        if not held or coordinator is None or not membership.is_joined:
            return False
        group, member = membership.group, membership.name
        self._outbox.post(coordinator, Settle(0, group, member, renewals=tuple(held)))
        return True

    def skip(self, view: RecordBatch, now: int) -> None:
        """Acknowledge offsets without a record for consumers, since applications never see them."""
        if view.is_control:
            holes = [(view.base_offset, view.end_offset)]
        elif len(view) != view.end_offset - view.base_offset:
            ends = (*view.offsets, view.end_offset)
            starts = (view.base_offset, *(offset + 1 for offset in view.offsets))
            holes = [(a, b) for a, b in zip(starts, ends, strict=True) if a < b]
        else:
            return
        self._holes += [(view.partition, hole) for hole in holes]
        self.due = min(self.due, now + ACK_LINGER_MS)

    # --- end of membership ------------------------------------------------------------------------

    def fenced(self, error: PymqError) -> None:
        """Note that all leases are lost, so that acknowledgements of their records fail."""
        self._was_fenced = True
        sent, self._sent = self._sent, {}
        for request, settlement in sent.items():
            self._timers.drop(("settle", request))
            self._forfeit(settlement.count)
            if settlement.is_waited_for:
                self._forfeited = 0  # The error below reports this number.
            settlement.finish(error)
        self._forfeit(sum(_count(ranges(drain(queue))) for queue in self.acks.values()))
        self.nacks.clear()
        self.handed.forget()
        self._released.forget()
        self._holes = []

    def _forfeit(self, count: int) -> None:
        self.refused += count
        self._forfeited += count

    def end(self, error: PymqError) -> None:
        """Fail each acknowledgement with *error*, because the group is deleted or unsubscribed."""
        self._ended = error
        self._give_up(error)

    def close(self) -> None:
        """Finish all requests, because no answer will arrive."""
        self._give_up(Closed("the consumer was closed before the acknowledgements were written"))

    def _give_up(self, error: PymqError) -> None:
        for settlement in (Settlement(_NO_SETTLE, self._held), *self._sent.values()):
            settlement.finish(error)
        self._held = []
        self._sent.clear()
        self.due = NEVER


def _count(spans: Iterable[Range]) -> int:
    return sum(end - start for start, end in spans)


_NO_SETTLE = Settle(0, "", "")
