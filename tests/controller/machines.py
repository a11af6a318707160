"""Empty machines, for the tests of their drivers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Message
from pymq.core.ready import Append, Compact, Compacted, Ready, StoreEvent, Write, WriteFailed
from pymq.core.types import NEVER, BlockId
from pymq.errors import PymqError
from pymq.store.memory import MemoryStore

Do = Callable[["Scripted", Message], None]


class Scripted:
    """A machine that follows its test's script."""

    def __init__(self) -> None:
        self.out = Ready()
        self.deadline = NEVER
        self.heard: list[tuple[str, Message]] = []
        self.ticks: list[int] = []
        self.events: list[StoreEvent] = []
        self.advanced = 0
        self.on_step: Callable[[str, Message], None] = lambda source, message: None
        self.on_tick: Callable[[int], None] = lambda now: None
        self.on_stored: Callable[[], None] = lambda: None
        self.on_advance: Callable[[], None] = lambda: None

    def step(self, source: str, message: Message, now: int) -> None:
        self.heard.append((source, message))
        self.on_step(source, message)

    def tick(self, now: int) -> None:
        self.ticks.append(now)
        self.deadline = NEVER
        self.on_tick(now)

    def ready(self, now: int) -> Ready | None:
        if not self.out:
            return None
        out, self.out = self.out, Ready()
        return out

    def advance(self, ready: Ready, now: int) -> None:
        self.advanced += 1
        self.on_advance()

    def stored(self, event: StoreEvent, now: int) -> None:
        self.events.append(event)
        self.on_stored()

    def read_failed(self, block: BlockId, error: PymqError, now: int) -> PymqError:
        return error


class CountingStore(MemoryStore):
    """A store that remembers the argument of each ``write``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[Write]] = []
        self.on_compact: Callable[[], None] = lambda: None

    def write(self, writes: Sequence[Write]) -> list[WriteFailed]:
        self.calls.append(list(writes))
        return super().write(writes)

    def compact(self, job: Compact) -> Compacted:
        self.on_compact()
        return super().compact(job)


class Done:
    """An event to wait for."""

    def __init__(self) -> None:
        self.is_done = False
        self.waiters: list[threading.Lock] | None = None

    def finish(self) -> None:
        self.is_done = True
        for waiter in self.waiters or ():
            waiter.release()


def block(number: int) -> BlockId:
    return BlockId("ab" * 16, number, 0)


def append(number: int, offset: int = 0) -> Append:
    """Return the append of one record to the block of partition *number*."""
    batch = EncodedBatch.encode([b"x"], timestamp_ms=0).stamp(offset, 0, 0)
    return Append(block(number), [batch], True)
