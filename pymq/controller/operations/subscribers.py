"""Subscriptions of readers, which end with their reader.

A group's subscription is there for good. A reader says again and again that it still reads; if it
is silent for too long, its application is gone, and its subscription goes too. The node is
ephemeral and so goes with its zkserver as well; the next word of the reader makes it anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

from pymq.controller.state.image import Draft
from pymq.controller.state.transactions import Transactions
from pymq.controller.transitions import request_plans
from pymq.coord import paths
from pymq.core.message import Subscribe, Unsubscribe
from pymq.core.observe.coverage import mark
from pymq.core.time.pausable_clock import PausableClock
from pymq.core.types import NEVER

SILENCE_MS = 35_000  # readers speak up every 10 s
LOOK_MS = 5_000  # how often one looks who is silent

Key = tuple[str, str]  # topic and name


class Subscribers:
    """Who subscribes to what, and until when that holds."""

    def __init__(self, commits: Transactions) -> None:
        self._commits = commits
        self._attention = PausableClock(LOOK_MS)
        self._until: dict[Key, int] = {}  # of readers; in the time of our attention, as below
        self._due: list[tuple[int, Key]] = []  # when to look at whom; once for each

    def begin(self, now: int) -> None:
        """This zkserver has taken over: readers have the time to say that they are there."""
        self.end()
        for topic in self._commits.image.topics.values():
            for node in topic.subscriptions.values():
                if node.group is None:
                    self._heard((node.topic, node.name), now)

    def end(self) -> None:
        """It is active no more."""
        self._until.clear()
        self._due.clear()

    def subscribe(self, source: str, m: Subscribe, now: int) -> None:
        """Record who consumes a topic, or hear that he still does."""

        def done(now: int) -> None:
            if m.group is None:
                self._heard((m.topic, m.name), now)

        self._commits.do(
            partial(request_plans.subscribe, m=m, source=source), answer=(source, m.id), done=done
        )

    def unsubscribe(self, source: str, m: Unsubscribe) -> None:
        """Forget it."""

        def done(now: int) -> None:
            self._until.pop((m.topic, m.name), None)

        self._commits.do(
            partial(request_plans.unsubscribe, m=m, source=source),
            answer=(source, m.id),
            done=done,
        )

    def _heard(self, key: Key, now: int) -> None:
        until = self._attention.look(now) + SILENCE_MS
        if key not in self._until:
            heappush(self._due, (until, key))
        self._until[key] = until

    def tick(self, now: int) -> None:
        """Forget those that are silent."""
        listened = self._attention.look(now)
        while self._due and self._due[0][0] <= listened:
            _, key = heappop(self._due)
            until = self._until.get(key)
            if until is None:
                continue
            if until > listened:
                heappush(self._due, (until, key))
            else:
                mark("subscribers.silent")
                del self._until[key]
                self._commits.do(_removal(key))

    @property
    def deadline(self) -> int:
        """When :meth:`tick` is to look, whether somebody is silent by then or not."""
        return self._attention.when(self._due[0][0] if self._due else NEVER)


def _removal(key: Key) -> Callable[[Draft], None]:
    def plan(draft: Draft) -> None:
        # The path in here: whoever asks has chosen the names, and a draft's errors are answers.
        draft.delete(paths.subscription(*key))

    return plan
