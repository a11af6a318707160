"""Rolls that are under way, as the active zkserver keeps them in mind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush

from pymq.core.message import Answer, Result, Sealed
from pymq.core.metadata.nodes import Loss
from pymq.core.types import NEVER, TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import PymqError

SEAL_RETRY_MS = 500  # the first time; then twice as long each time
SEAL_RETRY_MAX_MS = 4_000


@define
class Caller:
    """An administrator who waits for a roll, and how to begin anew with what he wants."""

    source: str
    request: int
    again: Callable[[int], None]
    wants_loss: bool = False  # is told what was lost instead of that it is done


@define
class Roll:
    """A roll under way: the open block is being sealed."""

    name: TopicPartition
    topic_id: str
    block: int
    epoch: int
    is_takeover: bool = False
    is_forced: bool = False  # goes on even if something may be lost by it
    is_unclean: bool = False
    leader: str | None = None  # who is to lead the next block, if it has all of this one
    is_committing: bool = False
    answers: dict[str, Sealed] = Factory(dict)  # of a take-over
    patience: int = 0  # of a take-over: from when on it does with the answers that it has, ...
    decide_at: int = NEVER  # ... when that may be; its time is that of Members.listened
    is_late: bool = False  # that time has come
    retry_at: int = NEVER
    wait_ms: int = SEAL_RETRY_MS
    callers: list[Caller] = Factory(list)  # are answered once it is done
    is_withdrawn: bool = False  # what was wanted of it, because somebody was told that it failed
    is_withdrawing: bool = False  # it is being taken out of the tree, before anybody is told so
    behind: list[Caller] = Factory(list)  # who wants something else once this is over
    loss: Loss | None = None  # what came of it

    @property
    def due(self) -> int:
        """When there is something to do."""
        return min(self.retry_at, self.decide_at)

    @property
    def has_wish(self) -> bool:
        """Whether somebody wants the roll for what is noted in the tree, or has given that up."""
        return self.is_withdrawn or not all(caller.wants_loss for caller in self.callers)

    def has(self, caller: Caller) -> bool:
        """Whether somebody waits already, and has but asked again because nobody answered."""
        known = (caller.source, caller.request)
        return known in [(c.source, c.request) for c in (*self.callers, *self.behind)]

    def answer(self, result: Result, error: PymqError | None) -> list[tuple[str, Answer]]:
        """What those who wait for it are to be told; nobody waits any more.

        What was told to have failed must not come about later.
        """
        callers, self.callers = self.callers, []
        if error is not None:
            self.is_forced &= not any(caller.wants_loss for caller in callers)
            self.is_withdrawn |= not all(caller.wants_loss for caller in callers)
            return [(c.source, Answer(c.request, error=error)) for c in callers]
        results = [self.loss if caller.wants_loss else result for caller in callers]
        return [(c.source, Answer(c.request, r)) for c, r in zip(callers, results, strict=True)]

    def renumber(self, epoch: int) -> None:
        """What was answered at an older epoch does not count."""
        self.epoch = epoch
        self.answers.clear()
        self.decide_at, self.is_late = NEVER, False

    def void(self, brokers: Iterable[str], now: int) -> None:
        """What *brokers* have told does not count any more; the others are asked at once."""
        for broker in brokers:
            self.answers.pop(broker, None)
        self.is_late = self.is_unclean = False
        self.retry_at = now

    def asked(self, now: int, *, anybody: bool) -> None:
        """The block's replicas were asked; without *anybody* it goes on when one registers."""
        self.retry_at = now + self.wait_ms if anybody else NEVER
        self.wait_ms = min(2 * self.wait_ms, SEAL_RETRY_MAX_MS)


class Agenda:
    """Which of the rolls is to be looked at when."""

    def __init__(self, rolls: Mapping[TopicPartition, Roll]) -> None:
        self._rolls = rolls
        self._due: list[tuple[int, int, TopicPartition]] = []  # perhaps out of date
        self._armings = 0

    def arm(self, roll: Roll) -> None:
        """Look at a roll when it is due."""
        if roll.due < NEVER:
            self._armings += 1
            heappush(self._due, (roll.due, self._armings, roll.name))

    def due(self, now: int) -> Iterator[Roll]:
        """Those that are due; whoever goes through them arms them anew."""
        while self._due and self._due[0][0] <= now:
            due, _, name = heappop(self._due)
            roll = self._rolls.get(name)
            if roll is not None and roll.due == due:
                yield roll

    @property
    def deadline(self) -> int:
        """When one is due, at the earliest."""
        while self._due:
            due, _, name = self._due[0]
            roll = self._rolls.get(name)
            if roll is not None and roll.due == due:
                return due
            heappop(self._due)
        return NEVER
