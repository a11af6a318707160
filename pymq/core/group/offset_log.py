"""The offsets of groups, as records of one partition of the internal topic ``__consumer_offsets``.

A new coordinator loads these records once. A roll moves no data, so older blocks may be on other
brokers. After loading, the coordinator writes all changes of a turn in one batch. The newest record
of a key counts, so compaction keeps the log short.

If the coordinator has loaded offsets from another broker, it writes these offsets again and then
retires the earlier blocks. So groups do not depend on a broker that no longer hosts the partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import attrs

from pymq.core import cbor
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.columns import Headers
from pymq.core.batch.record import EncodedBatch
from pymq.core.group.consumer_group import ConsumerGroup
from pymq.core.group.leases import Leases
from pymq.core.message import (
    BEGIN,
    ClassicDone,
    Fetch,
    Fetched,
    Message,
    Produce,
    Produced,
    Settled,
)
from pymq.core.observe.coverage import mark
from pymq.core.time.pausable_clock import PausableClock
from pymq.core.types import NEVER, OFFSETS_TOPIC, AckMode
from pymq.errors import CorruptBatch, OffsetOutOfRange, PymqError, ReplicaNotAvailable

OFFSET_KEY = 1  # number in a record's key for its type and version
TOMBSTONE = ("pymq.tombstone", b"")  # marks a deletion for compaction
DELIVERIES = "pymq.deliveries"  # a header: delivery counts of unacknowledged ranges
# a header: the errors with which members last returned unacknowledged ranges
ERRORS = "pymq.errors"
NOTE = "pymq.note"  # a header: the text that a Kafka client has committed with the offset
DELAYS = "pymq.delays"  # a header: the times from which on returned ranges may be delivered again
RANGES_MAX = 512  # most acknowledged ranges above the committed offset that are stored
ERRORS_MAX = 20  # most different errors that are stored, since each commit writes all of them
# bytes loaded at a time: about 350 batches of commits, which take 10 to 20 ms
LOAD_BYTES = 64 << 10
RETRY_MS = 200
ASK_MS = 1_000  # timeout of a fetch from another broker
PATIENCE_MS = 1_000  # how long requests wait for the offsets to be loaded before they are refused

Name = tuple[str, str, str]  # group, topic, partition
Stored = Settled | ClassicDone  # answers that wait for a write


class GroupHost(Protocol):
    """The broker, as far as a group coordinator needs it."""

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer."""
        ...

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at *now*."""
        ...

    def offsets_step(
        self, index: int, message: Produce | Fetch, now: int, holder: str | None = None
    ) -> None:
        """Send a request to partition *index* of the offsets topic; answers come to ``step``.

        The request goes to this broker's own replica, or to *holder*, a broker with records that
        this broker lacks.
        """
        ...

    def offsets_end(self, index: int) -> int:
        """The end of the partition's log, including records that may not be committed yet."""
        ...

    def offsets_since(self, index: int, offset: int) -> None:
        """Allow the partition to retire all blocks before *offset*."""
        ...


class OffsetLog:
    """Loads and writes the committed offsets of *groups*; sends answers after the write."""

    def __init__(
        self,
        index: int,
        host: GroupHost,
        groups: dict[str, ConsumerGroup],
        clock: PausableClock,
        first_request: int,
    ) -> None:
        self.is_loaded = False
        self.retry_at = NEVER
        self.patience_until = NEVER  # when requests that wait for the offsets are refused
        self._index = index
        self._host = host
        self._groups = groups
        self._clock = clock  # the clock of leases
        self._changed: dict[Name, None] = {}  # offsets to be written, in order
        self._unanswered: list[tuple[str, Stored]] = []
        self._writing: list[tuple[str, Stored]] | None = None
        self._written: dict[Name, None] = {}
        self._must_sync = False  # a member waits for a durable commit
        self._is_syncing = False
        # the last offset that was written without a sync, or by another coordinator
        self._loose: Name | None = None
        # the last request id; greater than the ids of former coordinators
        self._requests = first_request
        self._asked = 0  # while loading: the id of the last fetch ...
        self._at = BEGIN  # ... its offset ...
        # ... and the broker that got the request; None: this broker
        self._holder: str | None = None
        self._tries = 0
        self._target = 0  # the offset at which loading ends
        self._is_borrowed = False  # some offsets are stored only on other brokers

    # --- reading --------------------------------------------------------------------------------

    def begin(self, now: int) -> None:
        """Begin to load the partition, up to the end of its log.

        The whole log may be committed, but a new leader does not know that yet (Raft, section 8).
        """
        self._target = self._host.offsets_end(self._index)
        self.patience_until = now + PATIENCE_MS
        self.load(BEGIN, now)

    def load(self, offset: int, now: int, holder: str | None = None) -> None:
        """Fetch the next part from *offset* on, from this broker or the broker *holder*."""
        self._requests += 1
        self._asked, self._at, self._holder = self._requests, offset, holder
        # Wait for the high watermark, unless the log is empty.
        wait = RETRY_MS if holder is None and self._target else 0
        fetch = Fetch(self._requests, OFFSETS_TOPIC, str(self._index), offset, LOAD_BYTES, wait)
        if holder is not None:
            self.retry_at = now + ASK_MS
        self._host.offsets_step(self._index, fetch, now, holder)

    def loaded(self, m: Fetched, now: int) -> bool:
        """Handle a loaded part; returns whether it was the last one."""
        if self.is_loaded or m.id != self._asked:
            return False
        holder, self.retry_at = self._holder, NEVER
        if holder is None and isinstance(m.error, ReplicaNotAvailable):
            # A roll moves no data: older blocks are on former replicas.
            holders = m.error.details.get("brokers")
            if isinstance(holders, (list, tuple)) and holders:
                mark("group.load_elsewhere")
                self._tries += 1
                self.load(m.offset, now, str(holders[self._tries % len(holders)]))
                return False
        if m.error is not None or (holder is not None and not m.data):
            if isinstance(m.error, OffsetOutOfRange):
                # Retention removed records during the load, so begin again.
                self._at = BEGIN
                self._groups.clear()
            self.retry_at = now + RETRY_MS
            return False
        offset = m.offset
        try:
            for batch in split(m.data):
                self._replay(batch.verify(), now)
                offset = batch.end_offset
        except CorruptBatch:
            mark("group.load_corrupt")  # Another holder may have a sound copy of this batch.
            self._at, self.retry_at = offset, now + RETRY_MS
            return False
        # Only the local replica knows the real end of the log.
        if holder is not None or offset < max(m.high_watermark, self._target):
            self._is_borrowed = self._is_borrowed or holder is not None
            self.load(offset, now)
            return False
        self._done()
        return True

    def _done(self) -> None:
        self.is_loaded = True
        self.patience_until = NEVER
        if self._is_borrowed:
            for group in self._groups.values():
                for topic, partition in group.offsets.leases:
                    self.changed(group.name, topic, partition)

    def _replay(self, batch: EncodedBatch, now: int) -> None:
        if batch.header.is_control:
            return
        ahead, time = self._ahead(now), self._clock.at(now)
        written = batch.header.max_timestamp
        for key, item, headers in zip(batch.keys, batch.values, batch.headers, strict=True):
            kind, name, topic, partition = cbor.loads(key or b"")
            if kind != OFFSET_KEY:
                continue
            # This record may be synced on the former leader's disk only.
            self._loose = name, topic, partition
            group = self._groups.setdefault(name, ConsumerGroup(name))
            if TOMBSTONE in headers:
                group.offsets.drop_offset(topic, partition)
                if group.is_empty:
                    del self._groups[name]
            else:
                # Records of older versions lack the third item, the topic's id.
                committed, done, *topic_id = cbor.loads(item)
                known = dict(headers)
                counted = cbor.loads(known[DELIVERIES]) if DELIVERIES in known else ()
                failed = cbor.loads(known[ERRORS]) if ERRORS in known else ()
                delayed = cbor.loads(known[DELAYS]) if DELAYS in known else ()
                leases = Leases(
                    committed,
                    [(a, b) for a, b in done],
                    [(a, b, n) for a, b, n in counted],
                    [(a, b, error) for error, spans in failed for a, b in spans],
                    # The wall clock of the former coordinator may have been ahead: limit the wait
                    # to the time that was left when the delay was written.
                    [(a, b, min(due + ahead, time + due - written)) for a, b, due in delayed],
                )
                note = str(known.get(NOTE, b""), "utf-8")
                belongs_to = topic_id[0] if topic_id else ""
                group.offsets.set_offset(topic, partition, leases, belongs_to, note)

    # --- writing --------------------------------------------------------------------------------

    def changed(self, group: str, topic: str, partition: str) -> None:
        """Mark an offset as changed."""
        self._changed[group, topic, partition] = None

    def note_counts(self, group: ConsumerGroup, names: Iterable[tuple[str, str]]) -> None:
        """Mark the offsets of partitions whose delivery counts have changed."""
        for name in names:
            leases = group.offsets.leases.get(name)
            if leases is not None and leases.has_counted:
                leases.has_counted = False
                self.changed(group.name, *name)

    def answer(self, source: str, answer: Stored, *, durable: bool) -> None:
        """Queue an answer until all changes so far are written."""
        self._unanswered.append((source, answer))
        self._must_sync = self._must_sync or durable

    def waiting(self) -> list[tuple[str, Stored]]:
        """The answers that wait for a write."""
        return [*(self._writing or ()), *self._unanswered]

    @property
    def last_request(self) -> int:
        """The highest request id in use."""
        return self._requests

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write or answer while no write is in progress."""
        if self._writing is not None or self.retry_at != NEVER:
            return False
        return bool(self._changed or self._unanswered)

    def flush(self, now: int) -> None:
        """Write all offsets that have changed since the last write, in one batch.

        The batch is synced if a member waits for a durable commit; otherwise the topic's ``fsync``
        option decides.
        """
        self._is_syncing, self._must_sync = self._must_sync or self._is_borrowed, False
        if self._is_syncing and self._loose is not None:
            self._changed[self._loose] = None  # Syncing this batch syncs all earlier ones.
        if not self._changed:
            for source, answer in self._unanswered:
                self._host.reply(source, answer, now)
            self._unanswered = []
            return
        self._written, self._changed = self._changed, {}
        self._writing, self._unanswered = self._unanswered, []
        self._requests += 1
        produce = Produce(
            self._requests,
            OFFSETS_TOPIC,
            str(self._index),
            # wait for all in-sync replicas, so that a failure of the leader loses no offset
            AckMode.RAFT,
            self._encode(now),
            self._is_syncing,
        )
        self._host.offsets_step(self._index, produce, now)

    def _encode(self, now: int) -> EncodedBatch:
        keys: list[bytes | None] = []
        values, headers = list[bytes](), list[Headers]()
        ahead, time = self._ahead(now), self._clock.at(now)
        for name, topic, partition in self._written:
            group = self._groups.get(name)
            leases = group.offsets.leases.get((topic, partition)) if group is not None else None
            keys.append(cbor.dumps([OFFSET_KEY, name, topic, partition]))
            done = leases.spans.done_ranges()[:RANGES_MAX] if leases else ()
            item: list[Any] = [leases.committed if leases else 0, [list(r) for r in done]]
            if group is not None and leases is not None:
                topic_id = group.offsets.topic(topic).id_of(partition)
                item += [topic_id] if topic_id else []
            values.append(cbor.dumps(item))
            if leases is None:
                headers.append((TOMBSTONE,))
                continue
            delays = [[a, b, due - ahead] for a, b, due in leases.spans.delays(time)]
            found = _unacknowledged(leases, delays)
            assert group is not None
            if note := group.offsets.notes.get((topic, partition)):
                found += ((NOTE, note.encode()),)
            headers.append(found)
        return EncodedBatch.encode(
            values, timestamp_ms=self._host.wall_ms(now), keys=keys, headers=headers
        )

    def _ahead(self, now: int) -> int:
        """How far the clock of leases is ahead of the wall clock."""
        return self._clock.at(now) - self._host.wall_ms(now)

    def stored(self, m: Produced, now: int) -> None:
        """Handle the answer to the write in progress."""
        if self._writing is None or m.id != self._requests:
            return  # The answer belongs to a write of the former coordinator.
        answers, self._writing = self._writing, None
        error: PymqError | None = m.error
        for source, answer in answers:
            settled = answer if error is None else attrs.evolve(answer, error=error)
            self._host.reply(source, settled, now)
        if error is not None:
            mark("group.not_stored")
            # Write these offsets again after a pause. After a crash before that write, their
            # records are delivered again.
            self._changed = {**self._written, **self._changed}
            self.retry_at = now + RETRY_MS
        else:
            self._loose = None if self._is_syncing else next(reversed(self._written))
            if self._is_borrowed:
                mark("group.offsets_moved")
                self._is_borrowed = False
                self._host.offsets_since(self._index, m.base_offset)
        self._written = {}

    def tick(self, now: int) -> None:
        """Retry a write that has failed."""
        if now < self.retry_at:
            return
        self.retry_at = NEVER
        if not self.is_loaded:
            mark("group.load_again")
            self.load(self._at, now)


def _unacknowledged(leases: Leases, delays: list[list[int]]) -> Headers:
    """Return the delivery counts, errors and delays of unacknowledged ranges, as headers.

    Older versions ignore unknown headers, so they can read the record.
    """
    counts = [list(each) for each in leases.spans.counts()[:RANGES_MAX]]
    by_error = dict[str, list[list[int]]]()
    for start, end, error in leases.spans.errors()[:RANGES_MAX]:
        if error in by_error or len(by_error) < ERRORS_MAX:
            by_error.setdefault(error, []).append([start, end])
    errors = [[*each] for each in by_error.items()]
    found = ((DELIVERIES, counts), (ERRORS, errors), (DELAYS, delays[:RANGES_MAX]))
    return tuple((name, cbor.dumps(ranges)) for name, ranges in found if ranges)
