"""Subscriptions of readers, which expire when the reader is silent.

A group's subscription is permanent. A reader renews its subscription periodically; otherwise the
zkserver removes the subscription. The subscription's node is ephemeral, so it disappears when its
zkserver stops; the reader's next renewal creates the node again.
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

SILENCE_MS = 35_000  # readers renew every 10 s
LOOK_MS = 5_000  # interval of checks

Key = tuple[str, str]  # topic and name


class Subscribers:
    """The subscriptions; a reader's subscription expires."""

    def __init__(self, commits: Transactions) -> None:
        self._commits = commits
        self._attention = PausableClock(LOOK_MS)
        # the time when each reader's subscription expires, on the pausable clock
        self._until: dict[Key, int] = {}
        self._due: list[tuple[int, Key]] = []  # next check of each reader, on that clock

    def begin(self, now: int) -> None:
        """Begin after a take-over; readers get the full time to renew."""
        self.end()
        for topic in self._commits.image.topics.values():
            for node in topic.subscriptions.values():
                if node.group is None:
                    self._heard((node.topic, node.name), now)

    def end(self) -> None:
        """Stop, because this zkserver is no longer active."""
        self._until.clear()
        self._due.clear()

    def subscribe(self, source: str, m: Subscribe, now: int) -> None:
        """Create or renew a subscription."""

        def done(now: int) -> None:
            if m.group is None:
                self._heard((m.topic, m.name), now)

        self._commits.do(
            partial(request_plans.subscribe, m=m, source=source), answer=(source, m.id), done=done
        )

    def unsubscribe(self, source: str, m: Unsubscribe) -> None:
        """Remove a subscription."""

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
        """Remove the subscriptions of silent readers."""
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
        """The earliest deadline of :meth:`tick`."""
        return self._attention.when(self._due[0][0] if self._due else NEVER)


def _removal(key: Key) -> Callable[[Draft], None]:
    def plan(draft: Draft) -> None:
        # Build the node inside the plan, because clients choose the names, and errors of a plan
        # become answers.
        draft.delete(paths.subscription(*key))

    return plan
