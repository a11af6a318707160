"""Copies sealed blocks to other brokers, a few at a time.

:mod:`~pymq.controller.transitions.rereplication` decides which blocks move, and to which brokers.
:mod:`~pymq.controller.transitions.replica_moves` drafts the change of the tree. This module starts
and cancels the moves. All moves are in the tree, so a new zkserver can continue them.
"""

from __future__ import annotations

from collections import deque

from pymq.controller.context import ControllerContext
from pymq.controller.state.commit_queues import Plan
from pymq.controller.state.image import Draft
from pymq.controller.transitions import replica_moves, rereplication
from pymq.controller.transitions.rereplication import Place
from pymq.core.metadata.nodes import Move
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, TopicPartition
from pymq.errors import PymqError

LOOK_MS = 1_000  # interval of checks while there may be something to do
LIST_MS = 30_000  # interval at which blocks that could not be moved are listed again


class BlockCopying:
    """The moves of sealed blocks that are in progress, and the queue of the next moves."""

    def __init__(
        self,
        context: ControllerContext,
        lost_ms: int,
        at_once: int,
    ) -> None:
        self._commits = context.commits
        self._members = context.members
        self._updates = context.updates
        self._lost_ms = lost_ms  # a broker that is dead for this long counts as lost; 0: never
        self._at_once = at_once  # blocks that are copied at the same time
        self._queue: deque[Place] = deque()
        self._pending: dict[Place, None] = {}  # blocks with a commit in progress
        self._stuck = 0  # number of moves in progress that wait for dead brokers
        self._lost: tuple[str, ...] = ()
        # the state (lost and draining brokers, requests) for which the queue was filled
        self._listed_for: tuple[object, ...] = ()
        self._listed = 0  # number of copies that had to move at that time
        self._list_at = 0
        self._has_begun = False  # whether a move has begun since then
        self._look_at = 0

    def end(self) -> None:
        """Stop, because this zkserver is no longer active."""
        self._queue.clear()
        self._pending.clear()
        self._stuck, self._lost, self._listed_for, self._has_begun = 0, (), (), False
        self._list_at = self._look_at = 0

    def lost(self, now: int) -> tuple[str, ...]:
        """The brokers whose copies are being replaced on other brokers."""
        return tuple(self._members.lost(now, self._lost_ms)) if self._lost_ms else ()

    @property
    def deadline(self) -> int:
        """The deadline of :meth:`tick`."""
        image = self._commits.image
        if self._queue and self._free > 0 and self._members.is_settled:
            return self._look_at - LOOK_MS
        if image.draining or image.moving or image.sealed_to or self._members.dead_since:
            return self._look_at
        # check again, to note that all moves are done
        return self._look_at if any(self._listed_for) else NEVER

    @property
    def _away(self) -> tuple[str, ...]:
        """The brokers that counted as lost at the last check and are not back."""
        return tuple(broker for broker in self._lost if broker not in self._members.live)

    @property
    def _free(self) -> int:
        under_way = len(self._commits.image.moving) - self._stuck
        return self._at_once - under_way - len(self._pending)

    def tick(self, now: int) -> None:
        """Begin the next moves, and cancel those without a reason."""
        if self.deadline > now:
            return
        if now >= self._look_at:
            self._look_at = now + LOOK_MS
            if self._members.is_settled:
                self._look(now)
        live = self._members.live
        while self._queue and self._free > 0:
            place = self._queue.popleft()
            found = rereplication.choose(self._commits.image, live, self._away, place)
            if isinstance(found, Move):
                self._begin(place)

    def _look(self, now: int) -> None:
        image, live = self._commits.image, self._members.live
        self._lost = self.lost(now)
        for place in list(image.moving):
            if rereplication.is_void(image, live, self._lost, place):
                self._cancel(place)
        self._stuck = sum(rereplication.is_stuck(image, live, place) for place in image.moving)
        for name in list(image.sealed_to):
            if rereplication.is_settled(image, name):
                self._settle(name)
        reason = (self._lost, tuple(image.draining), tuple(image.sealed_to))
        there = rereplication.sealed_on_sources(image, self._lost)
        is_idle = not (self._queue or self._pending or image.moving)
        is_over = is_idle and (self._has_begun or there != self._listed)
        if reason == self._listed_for and now < self._list_at and not is_over:
            return
        self._listed_for, self._listed = reason, there
        self._list_at, self._has_begun = now + LIST_MS, False
        self._queue.clear()
        if any(reason):
            self._queue.extend(rereplication.candidates(image, live, self._lost))

    # --- commits --------------------------------------------------------------------------------

    def _begin(self, place: Place) -> None:
        name, number = place
        self._has_begun = True

        def plan(draft: Draft) -> None:
            # Moves that began meanwhile may have changed the best target.
            found = rereplication.choose(draft.image, self._members.live, self._away, place)
            if isinstance(found, Move):
                replica_moves.begin(draft, name, number, found)

        self._do(place, plan)

    def _cancel(self, place: Place) -> None:
        name, number = place
        if place not in self._pending:
            mark("copying.void")
            self._do(place, lambda draft: replica_moves.cancel(draft, name, number))

    def _do(self, place: Place, plan: Plan) -> None:
        self._pending[place] = None

        def done(now: int) -> None:
            self._pending.pop(place, None)
            self._updates.tell(place[0].topic, now, place[0].partition)

        def failed(error: PymqError, now: int) -> None:
            self._pending.pop(place, None)

        self._commits.do(plan, scope=place[0], done=done, failed=failed)

    def _settle(self, name: TopicPartition) -> None:
        def plan(draft: Draft) -> None:
            image = draft.image.find(name)
            if image is not None and rereplication.is_settled(draft.image, name):
                replica_moves.set_sealed_to(draft, name, ())

        self._commits.do(plan, scope=name)
