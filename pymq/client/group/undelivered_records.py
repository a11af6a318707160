"""The leased records of a member that its application has not got yet.

| record | what the member does |
|---|---|
| waits for the application | renews the lease |
| came while the application works on other records | returns it after some milliseconds |
| is for another group, or expired or delayed | acknowledges it, without delivering it |
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container

from pymq.client.counters import Counters
from pymq.client.fetching.offset_spans import Span, ranges
from pymq.client.fetching.partition_route import RETRY_MAX_MS
from pymq.client.group.acknowledgements import Acknowledger
from pymq.client.group.lease_requests import AHEAD_MS
from pymq.client.group.leased_fetches import LeasedFetches
from pymq.client.group.membership import Membership
from pymq.core.batch.header import EXPIRES, ROUTED
from pymq.core.batch.view import RecordBatch
from pymq.core.delay.record_times import TIMED, due_now
from pymq.core.metadata.route import for_group
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER
from pymq.errors import CorruptBatch

FOR_SOME = TIMED | ROUTED
BEGINNING = 0  # the time at which no record has expired
EXPIRED = b"the record expired before a consumer got it"

Dead = tuple[RecordBatch, bytes | None]  # records for the dead-letter topic, and their error


class UndeliveredRecords:
    """The undelivered records of one member: fetched ones (*chunks*) and those being fetched."""

    def __init__(
        self,
        membership: Membership,
        chunks: deque[RecordBatch],
        lock: threading.RLock,
        leased: LeasedFetches,
        settler: Acknowledger,
        ack_wait_ms: int,
        clock: Callable[[], int],
        wall_ms: Callable[[], int],
        tally: Counters,
        dead: deque[Dead],
    ) -> None:
        self.is_at_work = False  # the application has got records and has not polled since
        self.renew_at = NEVER
        self.return_at = NEVER
        self.handed = 0  # how many views the application has got
        self._handed_before = 0  # ... when the timer was set
        self._membership = membership
        self._chunks = chunks
        self._lock = lock  # protects *chunks*
        self._leased = leased
        self._settler = settler
        self._third_ms = ack_wait_ms // 3
        self._clock = clock
        self._wall_ms = wall_ms
        self._tally = tally
        self._dead = dead

    @property
    def are_coming(self) -> bool:
        """Whether leased records are being fetched or wait for the application."""
        return bool(self._chunks or self._leased)

    def spans(self) -> list[Span]:
        """The offsets of all undelivered records."""
        found = self._settler.buffered() + self._leased.coming()
        # A copy: the application's thread may take chunks out at the same time.
        found += [(c.partition, (c.base_offset, c.end_offset)) for c in self._chunks.copy()]
        return found

    # --- for this group, and due ------------------------------------------------------------------

    def due_now(self, view: RecordBatch) -> RecordBatch:
        """Return the fetched records that are for this group and due; the others count as holes.

        Expired records are included if they become dead letters.
        """
        attributes = view.batch.header.attributes
        is_named = self._membership.is_named_by_route()
        if not (attributes & FOR_SOME or is_named) or view.problem is not None:
            return view
        config = self._membership.config
        try:
            due = due_now(view, BEGINNING) if attributes & TIMED else view
            mine = for_group(due, config.group, is_named=is_named)
            if not attributes & EXPIRES or config.buries_expired:
                return mine
            kept = due_now(mine, self._wall_ms())
        except CorruptBatch:
            return view  # The application gets the error.
        self._tally.expired += len(mine) - len(kept)
        return kept

    def without_expired(self, view: RecordBatch) -> RecordBatch:
        """Return the leased records that have not expired.

        The others become dead letters, if the consumer wants that.
        """
        if not self._membership.config.buries_expired or not _may_expire(view):
            return view
        kept = due_now(view, self._wall_ms())
        self._dead.extend((expired, EXPIRED) for expired in self._expired(view, kept))
        return kept

    def unexpired(self, view: RecordBatch) -> RecordBatch:
        """Return the records of a view that have not expired by the time the application gets them.

        All other records are acknowledged, or become dead letters.
        """
        if self._membership.config.buries_expired:
            return self.without_expired(view)
        if not _may_expire(view):
            return view
        kept = due_now(view, self._wall_ms())
        for expired in self._expired(view, kept):
            self._settler.handed.out(expired)
            self._settler.acknowledge(expired, self._clock())
        return kept

    def _expired(self, view: RecordBatch, kept: RecordBatch) -> list[RecordBatch]:
        """Count and return the records of *view* that are not in *kept*."""
        if kept is view:
            return []
        left = sorted({*view.offsets} - {*kept.offsets})
        self._tally.expired += len(left)
        return [view.part(start, end, view.delivery_count) for start, end in ranges(left)]

    # --- leases of undelivered records ------------------------------------------------------------

    def leased(self, now: int) -> None:
        """Note that more records were leased."""
        self.renew_at = min(self.renew_at, now + self._third_ms)

    def fetched(self, now: int) -> None:
        """Note that a fetch may have returned records."""
        if self.is_at_work and self._chunks and self.return_at == NEVER:
            self.return_at = now + AHEAD_MS
            self._handed_before = self.handed

    def renew(self, now: int) -> None:
        """Renew the leases."""
        self.renew_at = NEVER
        if held := self.spans():
            is_told = self._settler.renew(held)
            self.renew_at = now + (self._third_ms if is_told else min(self._third_ms, RETRY_MAX_MS))

    def take_out(self, partitions: Container[str] | None = None) -> list[Span]:
        """Drop the fetched records of *partitions*, or all; returns their offsets."""
        with self._lock:
            chunks = [c for c in self._chunks if partitions is None or c.partition in partitions]
            for chunk in chunks:
                self._chunks.remove(chunk)
        return [(c.partition, (c.base_offset, c.end_offset)) for c in chunks]

    def return_surplus(self, now: int, *, is_stuck: bool) -> None:
        """Return records that came while the application works on others.

        Either the application takes longer than before, so that the member has asked too early for
        the next records. Or the member sent a second request before the first answer came, and both
        brought records. The records would wait here although other members are idle.
        """
        self.return_at = NEVER
        if self.handed != self._handed_before:
            self.fetched(now)  # The application has polled since, so these records came later.
            return
        if not self.is_at_work or is_stuck:
            return
        if surplus := self.take_out():
            mark("worker.surplus")
            self._settler.give_back(surplus)

    def stop(self) -> None:
        """Stop renewing and returning records: the leases are lost."""
        self.renew_at = self.return_at = NEVER


def _may_expire(view: RecordBatch) -> bool:
    return view.problem is None and bool(view.batch.header.attributes & EXPIRES)
