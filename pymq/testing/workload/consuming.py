"""What simulated applications consume: readers that see everything, members of groups that work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pymq.client.consumer.reader import Reader
from pymq.client.fetching.consumer_machine import ConsumerMachine
from pymq.client.group.group_member import GroupConsumer
from pymq.core.batch.record import Record
from pymq.core.message import BEGIN
from pymq.errors import OffsetOutOfRange, PymqError
from pymq.testing.simulation.world import SECOND

if TYPE_CHECKING:
    from pymq.testing.workload.applications import Application

PATIENCE = 100_000  # microseconds before an application that got an error asks again

_PATTERN = bytes(range(256)) * 16


def value_of(number: int, size: int) -> bytes:
    """The value that stands for a number: nobody else sends it, and damage to it shows."""
    head = b"%d:" % number
    first = number * 31 & 0xFF
    if first + size > len(_PATTERN):
        return head + (_PATTERN[first:] * (size // 256 + 1))[:size]
    return head + _PATTERN[first : first + size]


def number_of(value: bytes) -> int | None:
    """The number that a value stands for; None if it is not one of ours, or damaged."""
    head, _, rest = value.partition(b":")
    if not head.isdigit() or value_of(int(head), len(rest)) != value:
        return None
    return int(head)


class ConsumingApp(ABC):
    """A consumer of an application: it takes what there is as soon as there is something."""

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
        """Whether it still runs."""
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
            intake.handed_out(view)
            records += view.records()
        self.take(records)
        if problem is None:
            self._want()
        else:
            # Asking on at once for what cannot be read would be all that happens from then on.
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
        """Here they are."""

    def trouble(self, problem: PymqError) -> None:  # noqa: B027 # most can do nothing about it
        """This stands in the way."""

    def check(self, record: Record) -> int:
        """A record's number; it must be one that was sent there."""
        number = number_of(record.value)
        place = f"{record.topic}/{record.partition} at {record.offset}"
        sent = self.app.history.sent
        if number is None or number >= len(sent):
            self.app.fail("no-silent-corruption", f"{place} holds {record.value[:40]!r}")
            return -1
        if (sent[number].topic, sent[number].partition) != (record.topic, record.partition):
            self.app.fail("no-invention", f"{place} holds what was sent elsewhere")
        return number

    def stop(self) -> None:
        """End it without a word, as when it crashes."""
        if self.is_up:
            with self.app.driver as loop:
                loop.remove(self.intake.name)


class ReadingApp(ConsumingApp):
    """A reader of its own (PSB): it must see everything, in order, once."""

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
        """Go to a place in each partition: 0 is its beginning, 1 the end as it is known here."""
        for name, cursor in self.reader.cursors.items():
            end = max(cursor.position, 0)
            self.next.pop(name, None)
            self.reader.seek(name, BEGIN if share < 0 else round(share * end))

    def find(self, timestamp_ms: int) -> None:
        """Go on at a time, in each partition."""
        for name in self.reader.cursors:
            self.reader.find(name, timestamp_ms).then(partial(self._forget, name))

    def _forget(self, partition: str) -> None:
        self.next.pop(partition, None)

    def trouble(self, problem: PymqError) -> None:
        """Retention has overtaken it, or what it had read was lost: it begins anew."""
        if isinstance(problem, OffsetOutOfRange):
            for name in self.reader.cursors:
                self.reader.seek(name, BEGIN)
                self.reader.cursors[name].handed = -1
            self.next.clear()
            self.seen.clear()


class WorkingApp(ConsumingApp):
    """A member of a group (PTP): it works on records for a while, then acknowledges them."""

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

    def take(self, records: Sequence[Record]) -> None:
        config, rng = self.app.config, self.app.rng
        worker, group = self.worker, self.worker.config.group
        while worker.dead:
            view = worker.dead.popleft()
            self._ack(view.partition, (view.base_offset, view.end_offset))
        if records:
            self._given = len(records)
            self._given_at = self.app.loop.clock()
        for record in records:
            self.check(record)
            dice = rng.random()
            if dice < config.get("forget", 0.0):
                continue
            if dice < config.get("forget", 0.0) + config.get("nack", 0.0):
                span = (record.offset, record.offset + 1)
                worker.settler.nacks.append((record.partition, span, rng.randrange(500)))
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
        """Leave the group as a consumer does that is closed."""
        if not self.is_up:
            return
        with self.app.driver as loop:
            self.worker.close([])
            loop.touch(self.worker.name)
        self.app.world.after(SECOND, lambda a, b: self.stop())
