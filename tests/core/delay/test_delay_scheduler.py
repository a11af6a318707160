"""What a scheduler reads to deliver records: each batch once, while its records are due soon."""

from __future__ import annotations

from itertools import count

from pymq.core.batch.header import DELAYED, DELAYED_COPY, NOTE
from pymq.core.batch.record import EncodedBatch
from pymq.core.delay.delay_scheduler import DelayScheduler
from pymq.core.delay.record_times import DELAYED_ID, DELIVER_AT
from pymq.core.message import Fetch, Fetched, Message, Produce, Produced
from pymq.core.pending.pending_produces import DelayedAppended
from pymq.core.types import TopicPartition
from pymq.errors import OffsetOutOfRange

NAME = TopicPartition("t", "0")


class Log:
    """A partition in memory that answers a scheduler's requests in :meth:`run`."""

    def __init__(self, batches: list[EncodedBatch]) -> None:
        self.batches: list[EncodedBatch] = []
        self.log_start = 0
        self.fetched: list[int] = []  # offsets of the fetches
        self._requests: list[Fetch | Produce] = []
        self._ids = count(1)
        for batch in batches:
            self.append(batch)
        self.scheduler = DelayScheduler(NAME, self)
        self.scheduler.begin((0, 0), now=0)

    def append(self, batch: EncodedBatch) -> EncodedBatch:
        self.batches.append(batch.stamp(self.end(NAME), 1, 0))
        return self.batches[-1]

    def run(self, now: int) -> list[bytes]:
        """Let the scheduler work until it waits; return the ids of the delivered records."""
        known = len(self.batches)
        self.scheduler.tick(now)
        while self._requests:
            m = self._requests.pop(0)
            if isinstance(m, Fetch):
                self.fetched.append(m.offset)
                error = OffsetOutOfRange("deleted") if 0 <= m.offset < self.log_start else None
                left = [batch for batch in self.batches if batch.end_offset > max(m.offset, 0)]
                data = b"".join(bytes(part) for b in left[:1] for part in (b.head, b.body))
                answer = Fetched(
                    m.id, *NAME, max(m.offset, 0), self.log_start, self.end(NAME), data, error
                )
                self.scheduler.step(answer, now)
            else:
                batch = self.append(m.batch)
                self.scheduler.step(DelayedAppended(0, batch), now)
                self.scheduler.step(Produced(m.id), now)
        return [
            value
            for batch in self.batches[known:]
            if batch.header.attributes & NOTE == DELAYED_COPY
            for headers in batch.headers
            for name, value in headers
            if name == DELAYED_ID
        ]

    # --- DelayHost ------------------------------------------------------------------------------

    def wall_ms(self, now: int) -> int:
        return now

    def reply(self, source: str, message: Message, now: int) -> None:
        raise AssertionError("no client asked for anything")

    def next_request(self) -> int:
        return next(self._ids)

    def to_partition(
        self, name: TopicPartition, message: Fetch | Produce, now: int, holder: str | None
    ) -> None:
        self._requests.append(message)

    def start(self, name: TopicPartition) -> int:
        return self.log_start

    def end(self, name: TopicPartition) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    def sequence(self, name: TopicPartition) -> int:
        return 0

    def keep_from(self, name: TopicPartition, offset: int, *, is_full: bool = False) -> int:
        return 0


def delayed(*due: int) -> EncodedBatch:
    return EncodedBatch.encode(
        [b"%d" % each for each in due],
        timestamp_ms=0,
        headers=[((DELIVER_AT, b"%d" % each),) for each in due],
        attributes=DELAYED,
    )


def test_a_batch_is_read_once_for_all_its_records_that_are_due_within_a_minute() -> None:
    log = Log([delayed(*range(1_000, 51_000, 500))])
    log.run(now=0)  # it reads the log
    log.fetched.clear()
    found = [id for now in range(0, 60_000, 100) for id in log.run(now)]
    assert found == [b"%d" % number for number in range(100)]
    assert log.fetched == [0]


def test_records_that_are_due_later_are_read_again() -> None:
    log = Log([delayed(1_000, 200_000), delayed(2_000)])
    log.run(now=0)
    log.fetched.clear()
    assert [log.run(now) for now in (1_000, 2_000, 200_000)] == [[b"0"], [b"2"], [b"1"]]
    assert log.fetched == [0, 2, 1]


def test_a_record_that_was_deleted_after_it_was_read_is_not_delivered_from_memory() -> None:
    log = Log([delayed(1_000, 2_000, 3_000)])
    log.run(now=0)
    assert log.run(now=1_000) == [b"0"]
    log.log_start = 2
    log.fetched.clear()
    assert log.run(now=2_000) == []
    assert log.fetched == [1]  # the partition knows what was deleted
    assert log.run(now=3_000) == [b"2"]


def test_a_leader_that_begins_anew_forgets_what_it_has_read() -> None:
    log = Log([delayed(1_000, 2_000)])
    log.run(now=0)
    assert log.run(now=1_000) == [b"0"]
    log.scheduler.restart((0, 0), now=1_500)
    log.run(now=1_500)
    log.fetched.clear()
    assert log.run(now=2_000) == [b"1"]
    assert log.fetched == [1]
