"""Iterates up to the current end of the partitions, and finds the reason for a delay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pymq.core.batch.record import Record
from pymq.core.message import GroupState
from pymq.errors import FencedMember, RequestTimeout

if TYPE_CHECKING:
    from pymq.client.consumer.consumer import Consumer

STALL_S = 30.0  # how long an iteration may make no progress


class UntilEnd:
    """The end of one iteration: the ends of the consumer's partitions at its start."""

    def __init__(self, consumer: Consumer, ends: dict[str, int]) -> None:
        self._consumer = consumer
        self._ends = ends
        # whether a record has arrived since the last request about other partitions
        self._has_come = False
        # whether this member has asked for records of other members' partitions
        self._has_looked = False
        self._since: float | None = None  # the time since which no record has arrived

    def before(self, records: Iterator[Record]) -> Iterator[Record]:
        """Iterate over *records*; keep records beyond the end for the next call."""
        for record in records:
            if record.offset < self._ends.get(record.partition, 0):
                self._since, self._has_come = None, True
                yield record
            else:
                self._consumer._set_aside(record)

    def is_reached(self) -> bool:
        """Whether no record before the end is left; the method may send a request to the group."""
        consumer = self._consumer
        paused = consumer._intake.paused
        active = {p: end for p, end in self._ends.items() if p not in paused}
        if consumer._reader is not None:
            read = consumer._read_so_far()
            return all(read[p] >= end for p, end in active.items())
        worker = consumer._member()
        if consumer._unread.records or worker.undelivered.are_coming:
            return False
        try:
            consumer._settle_soon()
        except FencedMember:
            return False  # A record may be delivered again, because its acknowledgement was late.
        state = consumer._positions.group_state()
        if not self._is_told(state):
            return False  # Partitions of other members may have been assigned to this member.
        found = {o.partition: o for o in state.offsets if o.topic == consumer.topic}
        is_delivered = all(
            p in found and found[p].delivered >= end and found[p].waiting == 0
            for p, end in active.items()
            if p in worker.membership.assigned
        )
        # Meanwhile this member may have got redelivered records.
        if not is_delivered or worker.undelivered.are_coming:
            return False
        return (
            not worker.lease_requests.shares
            or active.keys() <= set(worker.membership.assigned)
            or self._is_in_vain()
        )

    def _is_in_vain(self) -> bool:
        """Whether a request for records of other members' partitions has returned none."""
        is_in_vain = self._has_looked and not self._has_come
        self._has_looked, self._has_come = True, False
        return is_in_vain

    def _is_told(self, state: GroupState) -> bool:
        """Whether the consumer knows its assignment."""
        worker = self._consumer._worker
        assert worker is not None
        own = [m.partitions for m in state.members if m.member == worker.membership.name]
        return [set(partitions) for partitions in own] == [set(worker.membership.assigned)]

    def stall(self) -> None:
        """Note that no record has arrived for a while.

        Raises:
            RequestTimeout: no record has arrived for STALL_S seconds, though some are before the
                end.
        """
        consumer = self._consumer
        why = consumer._intake.trouble()
        if why is None and consumer._reader is not None:
            read, paused = consumer._read_so_far(), consumer._intake.paused
            lost = [p for p, end in self._ends.items() if read[p] < end and p not in paused]
            if lost:
                at, end = read[lost[0]], self._ends[lost[0]]
                why = (
                    f"{consumer.topic}/{lost[0]} has no records from {at} on, but its end was {end}"
                )
        now = consumer._driver.monotonic()
        if why is None:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since > STALL_S:
            raise RequestTimeout(f"no record has arrived for {STALL_S:g} s: {why}")
