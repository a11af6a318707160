"""Answers to produce requests that wait until their records are safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pymq.core.batch.record import EncodedBatch
from pymq.core.message import Produced, Sequence
from pymq.core.values import value
from pymq.errors import PymqError


@value
class DelayedAppended:
    """Informs the delay scheduler: a batch with delayed records or copies is committed."""

    id: int
    batch: EncodedBatch | None = None
    # set only while it is unknown whether the batch will be committed
    error: PymqError | None = None


Waited = Produced | Sequence | DelayedAppended
Waiting = tuple[int, str, Waited]  # (the offset to reach, the receiver, the answer)


class PendingProduces:
    """The waiting answers of one partition, in the order of the log."""

    __slots__ = ("committed", "local")

    def __init__(self) -> None:
        # answers that wait until their records are committed; None until there is one, to keep idle
        # partitions small
        self.committed: deque[Waiting] | None = None
        # answers that wait until their records are on the leader's own disk
        self.local: deque[Waiting] | None = None

    def add(self, end: int, source: str, answer: Waited, *, is_local: bool) -> None:
        """Add an answer that waits for *end* to be on this disk (*is_local*) or committed."""
        if is_local:
            if self.local is None:
                self.local = deque()
            self.local.append((end, source, answer))
        else:
            if self.committed is None:
                self.committed = deque()
            self.committed.append((end, source, answer))

    def due(self, local: int, committed: int) -> list[tuple[str, Waited]]:
        """Take out the answers that may leave now."""
        found = []
        for answers, end in ((self.local, local), (self.committed, committed)):
            while answers and answers[0][0] <= end:
                _, source, answer = answers.popleft()
                found.append((source, answer))
        return found

    def take(self) -> Iterator[tuple[str, Waited]]:
        """Take out all answers."""
        for answers in (self.local, self.committed):
            while answers:
                _, source, answer = answers.popleft()
                yield source, answer
