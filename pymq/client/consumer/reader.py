"""The state machine of a reader: a consumer that keeps its own positions (mode PSB)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from functools import partial
from typing import Self

from pymq.client.base import ClientDriver, Waitable
from pymq.client.consumer.time_searches import SearchResult, TimeSearches
from pymq.client.fetching.consumer_machine import FETCH_BYTES, ConsumerMachine, located, wait_ms
from pymq.client.fetching.damage import DamageCheck, sound
from pymq.client.fetching.partition_route import CONFIRMED, PartitionRoute
from pymq.client.fetching.replica_preference import BEHIND_BYTES, NEAR_WAIT_MS, Preference
from pymq.client.router import Router
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.view import RecordBatch
from pymq.core.message import (
    BEGIN,
    END,
    Fetch,
    Fetched,
    Message,
    OffsetFound,
    Range,
    Subscribe,
)
from pymq.core.observe.coverage import mark
from pymq.core.ready import Ready
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER
from pymq.core.values import Factory, define
from pymq.errors import (
    CorruptBatch,
    CorruptBlock,
    OffsetOutOfRange,
    PymqError,
    ReplicaNotAvailable,
    UnknownTopic,
)

SUBSCRIBE_MS = 10_000  # how often a reader renews its subscription
LOOK_MS = 5_000  # how often readers of a whole topic check for new partitions


@define
class Cursor:
    """The position of a reader in one partition."""

    partition: str
    # offset of the next fetch; BEGIN or END until a broker has returned the real offset
    position: int
    route: PartitionRoute
    handed: int = -1  # offset of the next record for the application
    request: int = 0  # id of the fetch in flight
    floor: int = 0  # answers to requests with a smaller id are dropped
    log_start: int = 0
    end: int = 0  # high watermark in the last answer
    bytes: int = 0  # fetched bytes that the application has not got
    records: int = 0  # fetched records that the application has not got
    retry_at: int = 0
    is_reached: bool = False  # the reader has read the record before this position
    # id of the topic to which the position belongs; "": the current topic, whatever its id
    topic_id: str = ""
    # findings about the batch at the position, if a damaged copy has arrived
    damage: DamageCheck = Factory(DamageCheck)

    @classmethod
    def at(cls, topic: str, partition: str, offset: int, preference: Preference) -> Self:
        """Return a cursor that begins at *offset*, which may be BEGIN or END."""
        return cls(partition, offset, PartitionRoute(topic, partition, preference=preference))


class Reader(ConsumerMachine):
    """Reads partitions from its own positions; each reader gets all records (mode PSB)."""

    def __init__(
        self,
        name: str,
        topic: str,
        router: Router,
        driver: ClientDriver,
        partitions: list[str],
        offset: int,
        *,
        is_whole: bool = False,
        rack: str | None = None,
        now: int = 0,
    ) -> None:
        """Read *partitions* from *offset* on; with *is_whole* also partitions that are added later.

        The reader prefers a replica in *rack* to the leader.
        """
        super().__init__(name, topic, router, driver, None)
        self._preference = Preference(name, rack)
        # When partitions are added, the dictionary is replaced, because the application may iterate
        # over it while the loop runs.
        self.cursors = {p: Cursor.at(topic, p, offset, self._preference) for p in partitions}
        self._look_at = now + LOOK_MS if is_whole else NEVER
        self._subscribe_at = now + SUBSCRIBE_MS
        self._searches = TimeSearches(topic, router, self)
        self._ahead_bytes = FETCH_BYTES
        self._credit: int | None = None  # records that may be buffered; None: no limit
        self._record_bytes = 1  # bytes of a record, estimated from the last batch
        self._is_wanted = False
        self._timers: TimerHeap[str] = TimerHeap()  # by partition

    # --- the handle -----------------------------------------------------------------------------

    def limit(self, credit: int) -> None:
        """Buffer at most *credit* records, or a little more, because only whole batches are
        fetched.
        """
        self._credit = credit

    def want(self, records: int, now: int) -> None:
        """Send a fetch for each partition that has no buffered records and no fetch in flight."""
        self._is_wanted = True
        if self.topic in self._router.metadata.gone:
            self._router.refresh(self.topic)  # The topic may have been created again.
        for cursor in self.cursors.values():
            self._fetch(cursor, now)

    def seek(self, partition: str, offset: int) -> None:
        """Continue at *offset* (or BEGIN, END); the reader drops records that it has already
        fetched.
        """
        self._rewind(self.cursors[partition], offset)
        self.cursors[partition].topic_id = ""  # the current topic of that name
        self.problem = None  # The problem belongs to the former position.

    def pause(self, partitions: Iterable[str], unread: list[tuple[str, Range]], now: int) -> None:
        """Stop fetching some partitions; records that the application has not got are fetched
        again.
        """
        for partition in partitions:
            self.paused[partition] = None
            cursor = self.cursors[partition]
            if cursor.handed >= 0:
                self._rewind(cursor, cursor.handed)

    def resume(self, partitions: Iterable[str], now: int) -> None:
        """Undo :meth:`pause`."""
        for partition in partitions:
            self.paused.pop(partition, None)
        if self._is_wanted:
            self.want(1, now)

    def _rewind(self, cursor: Cursor, offset: int) -> None:
        with self.chunks_lock:
            self.chunks = deque(c for c in self.chunks if c.partition != cursor.partition)
            cursor.position, cursor.handed, cursor.request = offset, offset, 0
            cursor.bytes = cursor.records = 0
        cursor.floor, cursor.is_reached = self._requests + 1, False
        cursor.route.forget()
        cursor.damage = DamageCheck()

    def find(self, partition: str, timestamp_ms: int) -> Waitable:
        """Seek to the first record not older than a time; the result is done when a broker has
        answered.
        """
        self._has_news = True  # The next turn sends the request.
        return self._searches.add(partition, timestamp_ms)

    def read_so_far(self, unread: Collection[str]) -> dict[str, int]:
        """The offset of the application's next record in each partition from which it got records.

        *unread* names partitions with records that the consumer holds but has not returned.
        """
        # Copy the positions first: the loop buffers records before it moves a position.
        fetched = {p: c.position for p, c in self.cursors.items()}
        at_hand = {*unread, *(view.partition for view in self.chunks.copy())}
        found = {p: self.cursors[p].handed for p in fetched}
        # If only control records follow the last returned record, they count as read, too.
        for partition in fetched.keys() - at_hand:
            if found[partition] >= 0:
                found[partition] = max(found[partition], fetched[partition])
        return found

    def handed_out(self, chunk: RecordBatch) -> RecordBatch:
        """Note that the application gets the records of *chunk*."""
        cursor = self.cursors[chunk.partition]
        cursor.handed = chunk.end_offset
        cursor.bytes = max(0, cursor.bytes - chunk.size)
        cursor.records = max(0, cursor.records - len(chunk))
        return chunk

    def trouble(self) -> str | None:
        """The reason why no records arrive, as text; None if nothing is wrong."""
        for cursor in self.cursors.values():
            if cursor.partition not in self.paused and (why := cursor.route.why(self._router)):
                return why
        return None

    # --- the machine ----------------------------------------------------------------------------

    def step(self, source: str, message: Message, now: int) -> None:
        """Handle an answer."""
        if self.is_buried:
            return
        if isinstance(message, Fetched):
            cursor = self.cursors.get(message.partition)
            if cursor is not None and message.id >= cursor.floor:
                self._on_fetched(cursor, source, message, now)
        elif isinstance(message, OffsetFound):
            result = self._searches.answered(message, now)
            if result is not None:
                self._end_search(result)

    def _on_fetched(self, cursor: Cursor, source: str, m: Fetched, now: int) -> None:
        if cursor.request != m.id:
            # The reader considered this request lost, and sent it again, perhaps to another broker.
            if m.error is not None or not m.data or m.offset != cursor.position:
                return
            # Answers to earlier requests would contain the same records.
            cursor.floor = self._requests + 1
        is_leader = source == cursor.route.asked and not cursor.route.is_elsewhere
        cursor.request = 0
        self._timers.drop(cursor.partition)
        if m.error is None:
            self._fetched(cursor, m, now, is_leader=is_leader)
        else:
            self._refused(cursor, m, m.error, now, is_leader=is_leader)

    def _fetched(self, cursor: Cursor, m: Fetched, now: int, *, is_leader: bool) -> None:
        if is_leader:
            cursor.log_start, cursor.end = m.log_start, m.high_watermark
        else:  # A follower may not know the log's end yet.
            cursor.log_start = max(cursor.log_start, m.log_start)
            cursor.end = max(cursor.end, m.high_watermark)
        is_new = cursor.handed < 0
        if is_new:  # The request was for the log's start and end.
            known = {BEGIN: m.log_start, END: m.high_watermark}
            cursor.position = known.get(cursor.position, cursor.position)
            cursor.handed = cursor.position
            if all(other.handed >= 0 for other in self.cursors.values()):
                self.started.finish()
        start = cursor.position
        try:
            for batch in split(m.data):
                if batch.end_offset <= cursor.position:
                    continue
                view = sound(batch.at(self.topic, cursor.partition), cursor.position)
                if cursor.damage.is_met:
                    cursor.damage = DamageCheck()
                is_shown = len(view) and not view.is_hidden
                if is_shown:
                    # add the view before moving the position: see Consumer.position
                    self.chunks.append(view)
                    cursor.bytes += view.size
                    cursor.records += len(view)
                    self._record_bytes = max(1, view.size // len(view))
                cursor.position, cursor.is_reached = batch.end_offset, True
                if not (is_shown or cursor.bytes):
                    # The application has got all records before this position.
                    cursor.handed = cursor.position
        except PymqError as error:
            self._damaged(cursor, error, now, has_come=cursor.position > start)
            return
        is_part = cursor.position < max(cursor.end, m.high_watermark)
        cursor.route.is_behind = is_part and len(m.data) >= BEHIND_BYTES
        if m.data or is_leader or is_new:
            cursor.route.came()
        else:
            self._try_later(cursor, cursor.route.refused(self._router, _NOTHING) or 0, now)
        # At the end of the log, the application gets the received records before the next fetch is
        # sent: that fetch would find no records yet, and the next poll sends it anyway. (Followers
        # may not know the log's end.)
        is_at_end = is_leader and cursor.position >= m.high_watermark and bool(self.chunks)
        if not m.data or (self._is_wanted and not is_at_end):
            self._fetch(cursor, now)
        if self.chunks:
            self._is_wanted = False
        self._arrived()

    def _damaged(self, cursor: Cursor, error: PymqError, now: int, *, has_come: bool) -> None:
        """Fetch a damaged batch again, from each replica that may have a sound copy, or give up.

        *has_come* is true if the answer held sound batches before the damaged one.
        """
        mark("reader.damaged")
        is_first, cursor.damage.is_met = not cursor.damage.is_met, True
        pause: int | None = 0
        if has_come:
            cursor.route.came()
        else:
            pause = cursor.route.refused(self._router, error)
            if pause is None and is_first:
                pause = 0  # The batch may have been damaged only in transfer.
        if pause is None:
            self._give_up(cursor, error)
        else:
            self._try_later(cursor, pause, now)
            self._fetch(cursor, now)
        self._arrived()

    def _give_up(self, cursor: Cursor, error: PymqError) -> None:
        """Skip the batch at the position or raise the error, because no replica has a readable
        copy.
        """
        end = error.details.get("end")
        is_damage = isinstance(error, CorruptBlock | CorruptBatch)
        if is_damage and type(end) is int and end > cursor.position:
            # The end of the damage is known, so the reader can continue after it.
            why = cursor.damage.judged(error)
            view = RecordBatch.broken(self.topic, cursor.partition, cursor.position, end, why)
            self.chunks.append(view)
            cursor.bytes += view.size
            cursor.position, cursor.damage = end, DamageCheck()
            self._arrived()
        elif is_damage:
            self.fail(located(error, self.topic, cursor.partition, cursor.position))
        else:
            if isinstance(error, OffsetOutOfRange):
                error.details |= _place(self.topic, cursor)
            self.fail(error)

    def _refused(
        self, cursor: Cursor, m: Fetched, error: PymqError, now: int, *, is_leader: bool
    ) -> None:
        if self._is_made_again(cursor, error):
            why = f"{self.topic}/{cursor.partition}: the topic was deleted and created again"
            why = f"{why}, and offset {cursor.position} is of the deleted topic"
            self.fail(OffsetOutOfRange(why, **_place(self.topic, cursor)))
            return
        cursor.damage.heard(cursor.route.asked, error)
        pause = cursor.route.refused(self._router, error)
        is_short = isinstance(error, OffsetOutOfRange) and is_leader and cursor.is_reached
        if is_short and m.log_start <= cursor.position and cursor.route.tries < CONFIRMED:
            # According to the broker, the log never reached this position. The broker may be a
            # former leader that does not know its successor.
            self._router.refresh(self.topic)
            pause = cursor.route.patience_ms // 2
        if pause is not None:
            self._try_later(cursor, pause, now)
            self._fetch(cursor, now)
            return
        self._give_up(cursor, error)

    def _is_made_again(self, cursor: Cursor, error: PymqError) -> bool:
        """Whether leader and zkserver name the same topic id, and the position has another id."""
        known = self._router.metadata.topics.get(self.topic)
        if known is None or error.details.get("topic_id") != known.topic_id:
            return False
        if cursor.handed < 0:
            cursor.topic_id = known.topic_id  # The cursor has no position yet.
        return cursor.topic_id != known.topic_id

    def _try_later(self, cursor: Cursor, pause: int, now: int) -> None:
        if pause:
            cursor.retry_at = now + pause
            self._timers.set(cursor.partition, cursor.retry_at)

    def _fetch(self, cursor: Cursor, now: int) -> None:
        if cursor.request or cursor.bytes >= self._ahead_bytes or now < cursor.retry_at:
            return
        # most records of one partition in the buffer
        share = 1 << 62 if self._credit is None else max(1, self._credit // len(self.cursors))
        if cursor.records >= share:
            return
        if self.topic in self._router.metadata.gone:
            self.fail(UnknownTopic(f"topic {self.topic!r} was deleted"))
            return
        is_new = cursor.handed < 0  # Resolve BEGIN or END first.
        if cursor.partition in self.paused and not is_new:
            return
        route = cursor.route
        # Any replica knows the log's start; only the leader knows its end.
        peer = route.find(self._router, of_leader=is_new and cursor.position == END)
        if peer is None:
            return
        wait, position = wait_ms(len(self.cursors)), cursor.position
        size = min(FETCH_BYTES, (share - cursor.records) * self._record_bytes)
        if is_new:
            wait, size, position = 0, 0, BEGIN if route.is_elsewhere else END
        elif route.is_elsewhere:
            wait = NEAR_WAIT_MS if route.is_near else 0
        elif route.is_leaders_turn and route.preference.rack is not None:
            # Let a fetch wait at a follower only if the leader has no more records than the
            # follower.
            wait = 0
        if (
            not cursor.topic_id
            and (known := self._router.metadata.topics.get(self.topic)) is not None
        ):
            cursor.topic_id = known.topic_id
        request = cursor.request = self.number()
        fetch = Fetch(
            request,
            self.topic,
            cursor.partition,
            position,
            size,
            wait,
            topic_id=cursor.topic_id,
            any_replica=route.is_elsewhere,
            verify=cursor.damage.is_met,
        )
        self.out.send.append((peer, fetch))
        self._timers.set(cursor.partition, now + wait + route.patience_ms)

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work, and continue partitions that waited for metadata."""
        if self._has_news and not self.is_buried:
            self._has_news = False
            self._grow()
            for cursor in self.cursors.values():
                if cursor.request and cursor.route.has_moved(self._router):
                    # The broker will not answer this request, or will answer that it no longer
                    # leads.
                    cursor.request = 0
                    cursor.retry_at = 0
                    self._fetch(cursor, now)
                elif cursor.handed < 0 or self._is_wanted:
                    self._fetch(cursor, now)
            self._searches.start(now)
        return super().ready(now)

    def _grow(self) -> None:
        """Read partitions that were added to the topic, from their start."""
        known = self._router.metadata.topics.get(self.topic)
        if self._look_at == NEVER or known is None:
            return
        names = [found.partition for found in known.partitions]
        added = [name for name in names if name not in self.cursors]
        if added:
            new = {p: Cursor.at(self.topic, p, BEGIN, self._preference) for p in added}
            self.cursors = {**self.cursors, **new}

    @property
    def deadline(self) -> int:
        """When ``tick`` has something to do."""
        return (
            0
            if self.is_abandoned
            else min(self._searches.due, self._look_at, self._subscribe_at, self._timers.due)
        )

    def tick(self, now: int) -> None:
        """Retry requests that were refused or not answered."""
        if self.is_abandoned:
            self.bury()
            self._searches.due = self._look_at = self._subscribe_at = NEVER
            self._timers.clear()
            return
        if now >= self._look_at:
            self._look_at = now + LOOK_MS
            self._router.refresh(self.topic)
        if now >= self._subscribe_at:
            # A zkserver forgets readers' subscriptions when it stops, so renew this one at the new
            # active zkserver.
            self._subscribe_at = now + SUBSCRIBE_MS
            subscribe = partial(Subscribe, name=self.name, topic=self.topic, mode="psb")
            self._router.tell(subscribe, self._subscribe_at)
        for partition in self._timers.over(now):
            cursor = self.cursors[partition]
            if cursor.request:
                cursor.request = 0
                cursor.route.silent(self._router)
            cursor.retry_at = 0
            self._fetch(cursor, now)
        if now >= self._searches.due:
            for result in self._searches.tick(now):
                self._end_search(result)

    def _end_search(self, result: SearchResult) -> None:
        if result.error is None:
            self.seek(result.search.partition, result.offset)
        else:
            self.fail(result.error)
        result.search.done.finish()


_NOTHING = ReplicaNotAvailable("the broker lacks records that it should have")


def _place(topic: str, cursor: Cursor) -> dict[str, object]:
    """Return the details of an error at a reader's position in a partition."""
    return {"topic": topic, "partition": cursor.partition, "offset": cursor.position}
