"""The rolls in progress, in the controller's memory.

============= ==================================================== ==============================
state         meaning                                              next
============= ==================================================== ==============================
`SEALING`     replicas are asked for the open block's end          `COMMITTING` with its end,
                                                                   `WITHDRAWING` or `OVER` with an
                                                                   error
`COMMITTING`  the commit with the end of the block is under way    `OVER`; `SEALING` if it fails
                                                                   and the roll goes on; else
                                                                   `WITHDRAWING`
`WITHDRAWING` the roll has failed, and the administrator's request `SEALING` or `OVER`
              is being removed from the tree
`OVER`        the callers have their answers
============= ==================================================== ==============================

A roll without an administrator's request in the tree skips `WITHDRAWING`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from heapq import heappop, heappush

from pymq.core.message import Answer, Result, Sealed
from pymq.core.metadata.nodes import Loss
from pymq.core.types import NEVER, TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import PymqError

SEAL_RETRY_MS = 500  # the first pause before a retry; doubles with each retry
SEAL_RETRY_MAX_MS = 4_000


class RollState(Enum):
    """The event for which a roll waits."""

    SEALING = auto()
    COMMITTING = auto()
    WITHDRAWING = auto()
    OVER = auto()


TRANSITIONS: Mapping[RollState, frozenset[RollState]] = {
    RollState.SEALING: frozenset({RollState.COMMITTING, RollState.WITHDRAWING, RollState.OVER}),
    RollState.COMMITTING: frozenset({RollState.SEALING, RollState.WITHDRAWING, RollState.OVER}),
    RollState.WITHDRAWING: frozenset({RollState.SEALING, RollState.OVER}),
    RollState.OVER: frozenset(),
}


@define
class Caller:
    """An administrator's request that waits for a roll, and the function that begins the request
    again.
    """

    source: str
    request: int
    again: Callable[[int], None]
    wants_loss: bool = False  # whether the answer names the lost records


@define
class Roll:
    """A roll in progress.

    In a take-over no replica leads, so all live replicas get the seal request.
    """

    name: TopicPartition
    topic_id: str
    block: int
    epoch: int
    is_takeover: bool = False
    is_forced: bool = False  # continue even if records may be lost
    is_unclean: bool = False
    # the wanted leader of the next block, if that broker has all of this block
    leader: str | None = None
    state: RollState = RollState.SEALING
    answers: dict[str, Sealed] = Factory(dict)  # answers in a take-over
    # in a take-over: wait before the decision with the answers received so far
    patience: int = 0
    # the time of the earliest decision, on the clock of BrokerLiveness.listened
    decide_at: int = NEVER
    is_late: bool = False  # whether the time of the decision has passed
    retry_at: int = NEVER
    wait_ms: int = SEAL_RETRY_MS
    callers: list[Caller] = Factory(list)  # answered when the roll is committed
    # whether to remove the requests from the tree; the callers get an error
    is_withdrawn: bool = False
    behind: list[Caller] = Factory(list)  # callers whose requests begin after this roll
    loss: Loss | None = None  # records that the roll has lost, if any

    def move(self, to: RollState) -> None:
        """Change the state, as :data:`TRANSITIONS` allows; only `SEALING` has deadlines."""
        assert to in TRANSITIONS[self.state], f"{self.name}: {self.state.name} to {to.name}"
        self.state = to
        if to is not RollState.SEALING:
            self.retry_at = self.decide_at = NEVER

    @property
    def due(self) -> int:
        """The next deadline of the roll."""
        return min(self.retry_at, self.decide_at)

    @property
    def has_wish(self) -> bool:
        """Whether the roll is for a request that is or was in the tree."""
        return self.is_withdrawn or not all(caller.wants_loss for caller in self.callers)

    def has(self, caller: Caller) -> bool:
        """Whether the same request already waits, so that this one is a retry."""
        known = (caller.source, caller.request)
        return known in [(c.source, c.request) for c in (*self.callers, *self.behind)]

    def answer(self, result: Result, error: PymqError | None) -> list[tuple[str, Answer]]:
        """Return the answers to all callers, and remove the callers.

        A request that was answered with an error must not be carried out later.
        """
        callers, self.callers = self.callers, []
        if error is not None:
            self.is_forced &= not any(caller.wants_loss for caller in callers)
            self.is_withdrawn |= not all(caller.wants_loss for caller in callers)
            return [(c.source, Answer(c.request, error=error)) for c in callers]
        results = [self.loss if caller.wants_loss else result for caller in callers]
        return [(c.source, Answer(c.request, r)) for c, r in zip(callers, results, strict=True)]

    def renumber(self, epoch: int) -> None:
        """Adopt a new epoch, and drop the answers of the old one."""
        self.epoch = epoch
        self.answers.clear()
        self.decide_at, self.is_late = NEVER, False

    def void(self, brokers: Iterable[str], now: int) -> None:
        """Drop the answers of *brokers*, and send the seal request again at once."""
        for broker in brokers:
            self.answers.pop(broker, None)
        self.is_late = self.is_unclean = False
        self.retry_at = now

    def asked(self, now: int, *, anybody: bool) -> None:
        """Set the retry after a request; if no replica is alive, wait for a registration."""
        self.retry_at = now + self.wait_ms if anybody else NEVER
        self.wait_ms = min(2 * self.wait_ms, SEAL_RETRY_MAX_MS)


class Agenda:
    """The deadlines of the rolls."""

    def __init__(self, rolls: Mapping[TopicPartition, Roll]) -> None:
        self._rolls = rolls
        self._due: list[tuple[int, int, TopicPartition]] = []  # a heap; entries may be outdated
        self._armings = 0

    def arm(self, roll: Roll) -> None:
        """Set a roll's deadline."""
        if roll.due < NEVER:
            self._armings += 1
            heappush(self._due, (roll.due, self._armings, roll.name))

    def due(self, now: int) -> Iterator[Roll]:
        """Yield the rolls that are due; the caller calls :meth:`arm` for each again."""
        while self._due and self._due[0][0] <= now:
            due, _, name = heappop(self._due)
            roll = self._rolls.get(name)
            if roll is not None and roll.due == due:
                yield roll

    @property
    def deadline(self) -> int:
        """The deadline of the first roll."""
        while self._due:
            due, _, name = self._due[0]
            roll = self._rolls.get(name)
            if roll is not None and roll.due == due:
                return due
            heappop(self._due)
        return NEVER
