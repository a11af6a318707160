"""Decides which partitions to roll without a request, because their replicas should change.

Partitions become candidates when brokers register, die, lose a disk or are decommissioned. Each
turn considers some candidates, each of them once (:mod:`~pymq.controller.state.roll_candidates`).
"""

from __future__ import annotations

from collections.abc import Iterable

from pymq.controller.context import ControllerContext
from pymq.controller.operations.rolls import Rolls
from pymq.controller.state.roll_candidates import Candidates
from pymq.controller.transitions import takeover
from pymq.controller.transitions.placement import is_better, is_manned
from pymq.core.observe.coverage import mark
from pymq.core.types import AckMode, TopicPartition


class RollTriggers:
    """The partitions that wait to be considered for a roll."""

    def __init__(self, context: ControllerContext, rolls: Rolls) -> None:
        self._commits = context.commits
        self._members = context.members
        self._rolls = rolls
        self._candidates = Candidates(self._look)

    def end(self) -> None:
        """Stop, because this zkserver is no longer active."""
        self._candidates.clear()

    @property
    def deadline(self) -> int:
        """The deadline of :meth:`tick`."""
        return self._candidates.deadline

    def tick(self, now: int) -> None:
        """Consider the next partitions."""
        if self._candidates.deadline <= now:
            self._candidates.tick(now)

    def registered(self, broker: str, now: int) -> None:
        """Note that a broker has registered."""
        self.consider_all(broker, now)
        self.consider_short(now)
        self.resume(now)

    def resume(self, now: int) -> None:
        """Resume the administrators' requests that the tree contains."""
        wanted = self._commits.image.wanted
        self.consider([name for name in wanted if name not in self._rolls], now)

    def consider_all(self, broker: str, now: int) -> None:
        """Consider all partitions whose open block a broker hosts."""
        self.consider(self._commits.image.hosting.opened(broker), now)

    def consider_short(self, now: int) -> None:
        """Consider all under-replicated partitions."""
        self.consider(self._commits.image.short, now)

    def consider(self, names: Iterable[TopicPartition], now: int) -> None:
        """Consider partitions: some in this turn, the others in the next turns."""
        self._candidates.add(names, now)

    def _look(self, name: TopicPartition, now: int) -> None:
        """Roll a partition if its replicas should change, or the tree contains a request for it."""
        image = self._commits.image
        found = image.find(name)
        if found is not None and found.node.acks is not AckMode.UNSET:
            if name in self._rolls:
                self._rolls.ask_again(name, now)
            elif self._should_roll(name):
                self._rolls.start(name, now)
        is_waiting = name in image.wanted and name not in self._rolls
        if is_waiting and is_manned(image, self._members, name):
            mark("rolls.resumed")
            self._rolls.start(name, now)

    def _should_roll(self, name: TopicPartition) -> bool:
        image, members = self._commits.image, self._members
        block = image.partition(*name).open_block
        if takeover.is_needed(image, members, name, block):
            return takeover.seal_targets(image, members, name) is not None
        return takeover.has_leader(image, members, name, block) and is_better(image, members, name)
