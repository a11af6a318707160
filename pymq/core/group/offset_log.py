"""The offsets of groups, as records of one partition of the internal topic ``__consumer_offsets``.

They are read once, when a coordinator takes over, from the brokers that hold them: its own may have
got the partition by a roll, which moves no data. From then on they are written: each turn one batch
of all that has changed. Of a key the newest record counts, so that compaction keeps the rest short.

What had to be read elsewhere is written once more, and what lies before that may go: the groups
must not depend for ever on a broker that has nothing to do with them any more.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from pymq.core import cbor
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.columns import Headers
from pymq.core.batch.record import EncodedBatch
from pymq.core.group.leases import Leases
from pymq.core.group.membership import ConsumerGroup
from pymq.core.message import BEGIN, Fetch, Fetched, Message, Produce, Produced, Settled
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, OFFSETS_TOPIC, AckMode
from pymq.errors import CorruptBatch, OffsetOutOfRange, PymqError, ReplicaNotAvailable

OFFSET_KEY = 1  # kind and version of a record's key
TOMBSTONE = ("pymq.tombstone", b"")  # what compaction takes for a deletion
DELIVERIES = "pymq.deliveries"  # a header: how often was delivered what is not acknowledged
RANGES_MAX = 512  # ranges acknowledged above the committed offset that are kept
LOAD_BYTES = (
    64 << 10
)  # that are read at a time: some 350 batches of commits, which take 10 to 20 ms
RETRY_MS = 200
ASK_MS = 1_000  # how long another broker has to answer
PATIENCE_MS = 1_000  # requests wait so long for the offsets to be read, then they are refused

Name = tuple[str, str, str]  # group, topic, partition


class GroupHost(Protocol):
    """What a coordinator needs of the broker around it."""

    def reply(self, source: str, message: Message, now: int) -> None:
        """Send an answer."""
        ...

    def wall_ms(self, now: int) -> int:
        """The wall clock's milliseconds at *now*."""
        ...

    def offsets_step(
        self, index: int, message: Produce | Fetch, now: int, holder: str | None = None
    ) -> None:
        """Hand a request to partition *index* of the offsets topic; answers come to ``step``.

        It is that of this broker, or of another one that holds what is missing here.
        """
        ...

    def offsets_end(self, index: int) -> int:
        """Where the partition's log ends; everything before it may turn out to be committed."""
        ...

    def offsets_since(self, index: int, offset: int) -> None:
        """All that counts of the partition is at *offset* and behind it."""
        ...


class OffsetLog:
    """What is committed of *groups*, and who waits until it is."""

    def __init__(
        self, index: int, host: GroupHost, groups: dict[str, ConsumerGroup], first_request: int
    ) -> None:
        self.is_loaded = False
        self.retry_at = NEVER
        self.patience_until = NEVER  # who waits for the offsets then is to try again later
        self._index = index
        self._host = host
        self._groups = groups
        self._changed: dict[Name, None] = {}  # to be written; keeps its order
        self._unanswered: list[tuple[str, Settled]] = []
        self._writing: list[tuple[str, Settled]] | None = None
        self._written: dict[Name, None] = {}
        self._must_sync = False  # somebody waits until what was acknowledged is durable
        self._is_syncing = False
        self._loose: Name | None = None  # what was written last, without a sync or by others
        self._requests = first_request  # ids that no coordinator before has used
        self._asked = 0  # the id of what was asked last while loading ...
        self._at = BEGIN  # ... from which offset on ...
        self._holder: str | None = None  # ... and of whom: None is this broker
        self._tries = 0
        self._target = 0  # reading ends there
        self._is_borrowed = False  # something that counts is with other brokers only

    # --- reading --------------------------------------------------------------------------------

    def begin(self, now: int) -> None:
        """Read what the partition holds.

        All of it: what a leader before has committed counts, also while this one, new as it is,
        does not know yet that it is committed (Raft, section 8).
        """
        self._target = self._host.offsets_end(self._index)
        self.patience_until = now + PATIENCE_MS
        self.load(BEGIN, now)

    def load(self, offset: int, now: int, holder: str | None = None) -> None:
        """Read on from *offset*, here or from another broker that holds what is missing here."""
        self._requests += 1
        self._asked, self._at, self._holder = self._requests, offset, holder
        # For the high watermark; where the log is empty, all of it has been read.
        wait = RETRY_MS if holder is None and self._target else 0
        fetch = Fetch(self._requests, OFFSETS_TOPIC, str(self._index), offset, LOAD_BYTES, wait)
        if holder is not None:
            self.retry_at = now + ASK_MS
        self._host.offsets_step(self._index, fetch, now, holder)

    def loaded(self, m: Fetched, now: int) -> bool:
        """Take in a part of what the partition holds; whether that was the last one."""
        if self.is_loaded or m.id != self._asked:
            return False
        holder, self.retry_at = self._holder, NEVER
        if holder is None and isinstance(m.error, ReplicaNotAvailable):
            # A roll moves no data: the older blocks are with those that led before.
            holders = m.error.details.get("brokers")
            if isinstance(holders, (list, tuple)) and holders:
                mark("group.load_elsewhere")
                self._tries += 1
                self.load(m.offset, now, str(holders[self._tries % len(holders)]))
                return False
        if m.error is not None or (holder is not None and not m.data):
            if isinstance(m.error, OffsetOutOfRange):
                self._at = BEGIN  # What was read is gone, and what took it back may be, too.
                self._groups.clear()
            self.retry_at = now + RETRY_MS
            return False
        offset = m.offset
        try:
            for batch in split(m.data):
                self._replay(batch.verify())
                offset = batch.end_offset
        except CorruptBatch:
            mark("group.load_corrupt")  # Another holder may have it sound.
            self._at, self.retry_at = offset, now + RETRY_MS
            return False
        # Where the end is, only this broker's own replica is asked.
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
                for topic, partition in group.leases:
                    self.changed(group.name, topic, partition)

    def _replay(self, batch: EncodedBatch) -> None:
        if batch.header.is_control:
            return
        for key, item, headers in zip(batch.keys, batch.values, batch.headers, strict=True):
            kind, name, topic, partition = cbor.loads(key or b"")
            if kind != OFFSET_KEY:
                continue
            self._loose = name, topic, partition  # The leader before has synced it, if anybody.
            group = self._groups.setdefault(name, ConsumerGroup(name))
            if TOMBSTONE in headers:
                group.drop_offset(topic, partition)
                if group.is_empty:
                    del self._groups[name]
            else:
                # The third, the topic's id, is not in what was written before it was known.
                committed, done, *topic_id = cbor.loads(item)
                counts = next((item for found, item in headers if found == DELIVERIES), None)
                counted = cbor.loads(counts) if counts is not None else ()
                leases = Leases(
                    committed, [(a, b) for a, b in done], [(a, b, n) for a, b, n in counted]
                )
                group.set_offset(topic, partition, leases, *topic_id)

    # --- writing --------------------------------------------------------------------------------

    def changed(self, group: str, topic: str, partition: str) -> None:
        """An offset is to be written."""
        self._changed[group, topic, partition] = None

    def answer(self, source: str, answer: Settled, *, durable: bool) -> None:
        """Answer once what has changed until now is written."""
        self._unanswered.append((source, answer))
        self._must_sync = self._must_sync or durable

    def waiting(self) -> list[tuple[str, Settled]]:
        """Who waits for what is not known to be written."""
        return [*(self._writing or ()), *self._unanswered]

    @property
    def last_request(self) -> int:
        """The highest id that it has used."""
        return self._requests

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write, or to answer, and no write is under way."""
        if self._writing is not None or self.retry_at != NEVER:
            return False
        return bool(self._changed or self._unanswered)

    def flush(self, now: int) -> None:
        """Write every offset that changed since the last time, in one batch.

        It is synced if somebody waits for that; else that is up to the topic's ``fsync``.
        """
        self._is_syncing, self._must_sync = self._must_sync or self._is_borrowed, False
        if self._is_syncing and self._loose is not None:
            self._changed[self._loose] = None  # Syncing this syncs all that was written before.
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
            AckMode.RAFT,  # by all in sync: an offset must not go with the leader
            self._encode(now),
            self._is_syncing,
        )
        self._host.offsets_step(self._index, produce, now)

    def _encode(self, now: int) -> EncodedBatch:
        keys: list[bytes | None] = []
        values, headers = list[bytes](), list[Headers]()
        for name, topic, partition in self._written:
            group = self._groups.get(name)
            leases = group.leases.get((topic, partition)) if group is not None else None
            keys.append(cbor.dumps([OFFSET_KEY, name, topic, partition]))
            done = leases.done_ranges()[:RANGES_MAX] if leases else ()
            item: list[Any] = [leases.committed if leases else 0, [list(r) for r in done]]
            if group is not None and leases is not None:
                topic_id = group.topic(topic).id_of(partition)
                item += [topic_id] if topic_id else []
            values.append(cbor.dumps(item))
            if leases is None:
                headers.append((TOMBSTONE,))
            elif counts := leases.counts()[:RANGES_MAX]:
                # A header, so that a pymq that counts anew with each coordinator can read the rest.
                headers.append(((DELIVERIES, cbor.dumps([list(each) for each in counts])),))
            else:
                headers.append(())
        return EncodedBatch.encode(
            values, timestamp_ms=self._host.wall_ms(now), keys=keys, headers=headers
        )

    def stored(self, m: Produced, now: int) -> None:
        """The offsets partition has answered the write under way."""
        if self._writing is None or m.id != self._requests:
            return  # It was written by the coordinator before this one.
        answers, self._writing = self._writing, None
        error: PymqError | None = m.error
        for source, answer in answers:
            settled = answer if error is None else attrs.evolve(answer, error=error)
            self._host.reply(source, settled, now)
        if error is not None:
            mark("group.not_stored")
            # They are tried again after a while; until then a crash would deliver again.
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
        """Try again what has failed."""
        if now < self.retry_at:
            return
        self.retry_at = NEVER
        if not self.is_loaded:
            mark("group.load_again")
            self.load(self._at, now)
