"""Answers to produce requests that wait until their records are safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from pymq.core.message import Produced, Sequence

Answer = Produced | Sequence
Waiting = tuple[int, str, Answer]  # (which end must be reached, whom, what)


class PendingProduces:
    """The waiting answers of one partition, in the order of the log."""

    __slots__ = ("_committed", "_local")

    def __init__(self) -> None:
        # Created when they are needed, to keep idle partitions small.
        self._committed: deque[Waiting] | None = None  # until it is committed
        self._local: deque[Waiting] | None = None  # until it is on the leader's own disk

    def add(self, end: int, source: str, answer: Answer, *, is_local: bool) -> None:
        """Add an answer that waits until everything before *end* is durable here, or committed."""
        if is_local:
            if self._local is None:
                self._local = deque()
            self._local.append((end, source, answer))
        else:
            if self._committed is None:
                self._committed = deque()
            self._committed.append((end, source, answer))

    @property
    def until_committed(self) -> bool:
        """Whether an answer waits for a commit, and not for the leader's own disk only."""
        return bool(self._committed)

    def due(self, local: int, committed: int) -> Iterable[tuple[str, Answer]]:
        """Take out the answers that may leave now."""
        if not self._committed and not self._local:
            return ()  # the usual case: this runs with every message, also on followers
        return self._due(local, committed)

    def _due(self, local: int, committed: int) -> Iterator[tuple[str, Answer]]:
        for answers, end in ((self._local, local), (self._committed, committed)):
            while answers and answers[0][0] <= end:
                _, source, answer = answers.popleft()
                yield source, answer

    def take(self) -> Iterator[tuple[str, Answer]]:
        """Take out all of them."""
        for answers in (self._local, self._committed):
            while answers:
                _, source, answer = answers.popleft()
                yield source, answer
