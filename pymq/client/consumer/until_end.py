"""Iterating up to what is there now: where the end is, and what keeps an iteration from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pymq.core.batch.record import Record
from pymq.core.message import GroupState
from pymq.errors import FencedMember, RequestTimeout

if TYPE_CHECKING:
    from pymq.client.consumer.consumer import Consumer

STALL_S = 30.0  # how long an iteration may be kept from its end


class UntilEnd:
    """The end of one iteration: where the partitions of a consumer reached when it began."""

    def __init__(self, consumer: Consumer, ends: dict[str, int]) -> None:
        self._consumer = consumer
        self._ends = ends
        self._has_come = False  # a record, since other partitions were asked last
        self._has_looked = False  # whether others of the group have something for us
        self._since: float | None = None  # when it was first found to be kept from its end

    def before(self, records: Iterator[Record]) -> Iterator[Record]:
        """Go through *records*; those from the end on are set aside, for the next call."""
        for record in records:
            if record.offset < self._ends.get(record.partition, 0):
                self._since, self._has_come = None, True
                yield record
            else:
                self._consumer._set_aside(record)

    def is_reached(self) -> bool:
        """Whether there is nothing before it any more; may ask the group."""
        consumer = self._consumer
        paused = consumer._intake.paused
        active = {p: end for p, end in self._ends.items() if p not in paused}
        if consumer._reader is not None:
            read = consumer._read_so_far()
            return all(read[p] >= end for p, end in active.items())
        worker = consumer._member()
        if consumer._unread.records or worker.is_bringing:
            return False
        try:
            consumer._settle_soon()
        except FencedMember:
            return False  # What was acknowledged in vain is delivered again.
        state = consumer._positions.group_state()
        if not self._is_told(state):
            return False  # What others had may be ours by now.
        found = {o.partition: o for o in state.offsets if o.topic == consumer.topic}
        is_delivered = all(
            p in found and found[p].delivered >= end and found[p].waiting == 0
            for p, end in active.items()
            if p in worker.assigned
        )
        # What was delivered may have been so to us, while we asked.
        if not is_delivered or worker.is_bringing:
            return False
        return not worker.shares or active.keys() <= set(worker.assigned) or self._is_in_vain()

    def _is_in_vain(self) -> bool:
        """Whether records of partitions that others have were asked for, and none came."""
        is_in_vain = self._has_looked and not self._has_come
        self._has_looked, self._has_come = True, False
        return is_in_vain

    def _is_told(self, state: GroupState) -> bool:
        """Whether the consumer knows what its group has assigned to it."""
        worker = self._consumer._worker
        assert worker is not None
        own = [m.partitions for m in state.members if m.member == worker.membership.name]
        return [set(partitions) for partitions in own] == [set(worker.assigned)]

    def stall(self) -> None:
        """Nothing has come for a while.

        Raises:
            RequestTimeout: that has been so for too long, and should not be.
        """
        consumer = self._consumer
        why = consumer._intake.trouble()
        if why is None and consumer._reader is not None:
            read, paused = consumer._read_so_far(), consumer._intake.paused
            lost = [p for p, end in self._ends.items() if read[p] < end and p not in paused]
            if lost:
                at, end = read[lost[0]], self._ends[lost[0]]
                why = f"{consumer.topic}/{lost[0]} has nothing from {at} on, and reached to {end}"
        now = consumer._driver.monotonic()
        if why is None:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since > STALL_S:
            raise RequestTimeout(f"nothing has come for {STALL_S:g} s: {why}")
