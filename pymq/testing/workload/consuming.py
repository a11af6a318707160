"""The consumers of simulated applications: readers, and members of groups that process records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pymq.client.backoff import Backoff
from pymq.client.consumer.reader import Reader
from pymq.client.fetching.consumer_machine import ConsumerMachine
from pymq.client.group.group_member import GroupConsumer
from pymq.core.batch.record import Record
from pymq.core.batch.view import ERROR_HEADER
from pymq.core.delay.record_times import DELAYED_ID, offset_of
from pymq.core.message import BEGIN
from pymq.errors import OffsetOutOfRange, PymqError
from pymq.testing.simulation.world import SECOND
from pymq.testing.workload.queues.cancels import CANCELLED
from pymq.testing.workload.queues.letters import is_redriven

if TYPE_CHECKING:
    from pymq.testing.workload.applications import Application

PATIENCE = 100_000  # microseconds before an application retries after an error

_PATTERN = bytes(range(256)) * 16


def value_of(number: int, size: int) -> bytes:
    """Return the value of a number: it is unique, and contains a checksum."""
    head = b"%d:" % number
    first = number * 31 & 0xFF
    if first + size > len(_PATTERN):
        return head + (_PATTERN[first:] * (size // 256 + 1))[:size]
    return head + _PATTERN[first : first + size]


def number_of(value: bytes) -> int | None:
    """Return the number of a value; None if no application has sent the value, or it is damaged."""
    head, _, rest = value.partition(b":")
    if not head.isdigit() or value_of(int(head), len(rest)) != value:
        return None
    return int(head)


class ConsumingApp(ABC):
    """A consumer of an application, which handles records as soon as they arrive."""

    def __init__(self, app: Application, intake: ConsumerMachine) -> None:
        self.app = app
        self.intake = intake
        self.topic = intake.topic
        with app.driver as loop:
            loop.add(intake.name, intake, tells=True)
            intake.want(self.app.config.get("want", 100), loop.clock())
            loop.touch(intake.name)
        self._wait()

    @property
    def is_up(self) -> bool:
        """Whether the application's process still runs."""
        return self.app.is_up and self.intake.name in self.app.loop.machines

    def _wait(self) -> None:
        arrival = self.intake.arrival()
        arrival.then(lambda: self.app.world.after(self._pause(), self._poll))

    def _pause(self) -> int:
        return 100

    def _poll(self, _: object, __: object) -> None:
        if not self.is_up:
            return
        intake, records = self.intake, []
        if isinstance(intake, GroupConsumer) and intake.chunks and not intake.standing.is_sure():
            with self.app.driver as loop:
                proof = intake.standing.prove(loop.clock())
                loop.touch(intake.name)
            proof.then(lambda: self.app.world.after(self._pause(), self._poll))
            return
        problem = None if intake.chunks else intake.take_problem()
        if problem is not None:
            self.app.service.told(problem, self.topic)
            self.trouble(problem)
        while intake.chunks:
            view = intake.chunks.popleft()
            records += intake.handed_out(view).records()
        self.take(records)
        if problem is None:
            self._want()
        else:
            # Pause, or the run would consist of retries of an unreadable record.
            self.app.world.after(PATIENCE, self._want)

    def _want(self, _: object = None, __: object = None) -> None:
        if not self.is_up:
            return
        intake = self.intake
        with self.app.driver as loop:
            intake.want(self.app.config.get("want", 100), loop.clock())
            loop.touch(intake.name)
        self._wait()

    @abstractmethod
    def take(self, records: Sequence[Record]) -> None:
        """Handle fetched records."""

    def trouble(self, problem: PymqError) -> None:  # noqa: B027 # most can do nothing about it
        """Handle an error."""

    def check(self, record: Record) -> int:
        """Return a record's number, after checking that it was sent to this partition."""
        number = number_of(record.value)
        place = f"{record.topic}/{record.partition} at {record.offset}"
        sent = self.app.history.sent
        if number is None or number >= len(sent):
            self.app.fail("no-silent-corruption", f"{place} holds {record.value[:40]!r}")
            return -1
        if is_redriven(record, sent[number]):
            broken = self.app.history.letters.came_back(record, sent[number])
        elif (sent[number].topic, sent[number].partition) != (record.topic, record.partition):
            self.app.fail("no-invention", f"{place} holds what was sent elsewhere")
            return number
        else:
            broken = self.app.history.routes.read(record, number)
        if broken is not None:
            self.app.fail(*broken)
        return number

    def stop(self) -> None:
        """End the consumer as a crash does."""
        if self.is_up:
            with self.app.driver as loop:
                loop.remove(self.intake.name)


class ReadingApp(ConsumingApp):
    """A reader (PSB): it must get each record once, in order."""

    def __init__(self, app: Application, reader: Reader) -> None:
        self.next: dict[str, int] = {}  # the offset after the last record seen
        self.seen: dict[tuple[str, int], int] = {}  # numbers, by partition and offset
        self.reader = reader
        super().__init__(app, reader)

    def take(self, records: Sequence[Record]) -> None:
        for record in records:
            number = self.check(record)
            self.app.history.reads += 1
            following = self.next.get(record.partition, -1)
            if record.offset < following:
                place = f"{record.topic}/{record.partition}"
                self.app.fail(
                    "reads-in-order", f"{place}: {record.offset} came after {following - 1}"
                )
            self.next[record.partition] = record.offset + 1
            self.seen[record.partition, record.offset] = number

    def seek(self, share: float) -> None:
        """Seek in each partition: 0 is its beginning, 1 the end that the reader knows."""
        for name, cursor in self.reader.cursors.items():
            end = max(cursor.position, 0)
            self.next.pop(name, None)
            self.reader.seek(name, BEGIN if share < 0 else round(share * end))

    def find(self, timestamp_ms: int) -> None:
        """Seek to a time in each partition."""
        for name in self.reader.cursors:
            self.reader.find(name, timestamp_ms).then(partial(self._forget, name))

    def _forget(self, partition: str) -> None:
        self.next.pop(partition, None)

    def trouble(self, problem: PymqError) -> None:
        """Seek to the beginning, because retention has removed the reader's next records, or they
        were lost.
        """
        if isinstance(problem, OffsetOutOfRange):
            for name in self.reader.cursors:
                self.reader.seek(name, BEGIN)
                self.reader.cursors[name].handed = -1
            self.next.clear()
            self.seen.clear()


class WorkingApp(ConsumingApp):
    """A member of a group (PTP): it processes records for a while, then acknowledges them."""

    def __init__(self, app: Application, worker: GroupConsumer) -> None:
        self.worker = worker
        self._given = self._given_at = 0
        super().__init__(app, worker)

    def _want(self, _: object = None, __: object = None) -> None:
        if self.is_up:
            self.worker.pace.took(self._given, self.app.loop.clock() - self._given_at)
            self._given = 0
        super()._want()

    def _pause(self) -> int:
        return 50 + int(self.app.config.get("work_us", 1_000) * self.app.rng.random())

    def _error_of(self, record: Record) -> str:
        """Return the error with which members of this group return a record."""
        return f"{self.worker.config.group} {record.partition}@{record.offset}"

    def _delay_of(self, record: Record) -> int:
        """Return the milliseconds until a returned record may come again."""
        if (found := self.app.config.get("backoff")) is None:
            return self.app.rng.randrange(500)
        first_ms, factor, max_ms = found
        backoff = Backoff(first_ms / 1000, factor, max_ms / 1000, jitter=0.0)
        return backoff.delay_ms(record.delivery_count)

    def _check_error(self, record: Record) -> None:
        """Check that a returned record carries its own error, or none after a crash."""
        told = [text for name, text in record.headers if name == ERROR_HEADER]
        if told and (told != [self._error_of(record).encode()] or record.delivery_count < 2):
            self.app.fail("error-of-its-record", f"{self._error_of(record)} carries {told}")

    def _check_times(self, record: Record, number: int) -> None:
        """Check that a group gets a record only within the record's times, and each delayed record
        once.
        """
        app, sent, wall = self.app, self.app.history.sent[number], self.app.wall_ms()
        place = f"{record.topic}/{record.partition} at {record.offset}"
        if not app.service.has_been_skewed:
            if wall < sent.due_ms:
                app.fail("never-early", f"{place} came {sent.due_ms - wall} ms too early")
            if sent.expires_ms and wall > sent.expires_ms:
                app.fail("never-expired", f"{place} came {wall - sent.expires_ms} ms too late")
        if not sent.due_ms or is_redriven(record, sent):
            return
        id = offset_of(record.headers, DELAYED_ID)
        # Without an idempotent producer, the same number may have two offsets, and one cancelled.
        if sent.cancel == CANCELLED and id == sent.offset:
            app.fail("cancelled-is-absent", f"{place} was cancelled")
        if id is None:
            app.fail("never-early", f"{place} is delayed, and is no copy")
            return
        copies, key = app.history.copies, (self.worker.config.group, number, id)
        if copies.setdefault(key, record.offset) != record.offset and not app.has_lost(record):
            app.fail("delayed-once", f"{number} came in {place}, and in {copies[key]}")

    def _check_route(self, record: Record, number: int) -> None:
        """Check that the topic's route allows this group to get the record."""
        routes, group = self.app.history.routes, self.worker.config.group
        if (broken := routes.delivered(record, number, group)) is not None:
            self.app.fail(*broken)

    def take(self, records: Sequence[Record]) -> None:
        config, rng = self.app.config, self.app.rng
        worker, group = self.worker, self.worker.config.group
        while worker.dead:
            view, _ = worker.dead.popleft()
            worker.settler.handed.out(view)
            self._ack(view.partition, (view.base_offset, view.end_offset))
        if records:
            self._given = len(records)
            self._given_at = self.app.loop.clock()
            worker.ahead.delivered(self._given, self.app.config.get("want", 100), self._given_at)
        for record in records:
            number = self.check(record)
            if number >= 0:
                self._check_times(record, number)
                self._check_route(record, number)
            self._check_error(record)
            dice = rng.random()
            if dice < config.get("forget", 0.0):
                continue
            if dice < config.get("forget", 0.0) + config.get("nack", 0.0):
                span = (record.offset, record.offset + 1)
                delay, error = self._delay_of(record), self._error_of(record)
                worker.settler.nacks.append((record.partition, span, delay, error))
            else:
                key = (group, record.topic, record.partition, record.offset)
                processed = self.app.history.processed
                processed[key] = processed.get(key, 0) + 1
                self._ack(record.partition, record.offset)
        if not worker.settler.is_armed:
            worker.settler.arm(self.app.loop.clock())

    def _ack(self, partition: str, item: int | tuple[int, int]) -> None:
        self.worker.settler.acks.setdefault(partition, deque()).append(item)

    def leave(self) -> None:
        """Leave the group, as a consumer does on close."""
        if not self.is_up:
            return
        with self.app.driver as loop:
            self.worker.close([])
            loop.touch(self.worker.name)
        self.app.world.after(SECOND, lambda a, b: self.stop())
