"""The groups of Kafka's clients: classic groups, and groups of the new protocol (KIP-848).

At a time, all members of a group are of one kind: clients of pymq, classic members or reconciled
members. The coordinator refuses requests of the other kinds. Offsets are common to all.
"""

from __future__ import annotations

from pymq.core.group.consumer_group import Assignors
from pymq.core.group.kafka.classic.coordinator import ClassicCoordinator
from pymq.core.group.kafka.reconciled.coordinator import ReconciledCoordinator
from pymq.core.group.lease_manager import GroupContext
from pymq.core.group.request_validation import KafkaRequest
from pymq.core.message import BeatReconciled, DescribeReconciled
from pymq.errors import InvalidRequest, PymqError


class KafkaGroupCoordinator:
    """The groups of Kafka's clients of one coordinator."""

    def __init__(self, context: GroupContext, assignors: Assignors) -> None:
        self._context = context
        self._reconciled = ReconciledCoordinator(context, assignors)
        self._classic = ClassicCoordinator(context, self._reconciled)

    def check_free(self, group: str) -> None:
        """Check that a group has no members that are Kafka's clients.

        Raises:
            InvalidRequest: the group has such members.
        """
        if self._classic.has_members(group) or self._reconciled.has_members(group):
            raise InvalidRequest(f"group {group!r} has members that are Kafka's clients")

    def step(self, source: str, m: KafkaRequest, now: int) -> None:
        """Take in a request."""
        if isinstance(m, BeatReconciled):
            there = self._context.groups.get(m.group)
            is_taken = bool(there and there.members) or self._classic.has_members(m.group)
            answer = self._reconciled.beat(m, is_taken=is_taken)
            self._context.host.reply(source, answer, now)
        elif isinstance(m, DescribeReconciled):
            self._context.host.reply(source, self._reconciled.describe(m), now)
        else:
            self._classic.step(source, m, now)

    def settle(self, group: str) -> None:
        """Drop a group that has neither members nor offsets."""
        self._classic.settle(group)
        self._reconciled.settle(group)

    def kinds(self) -> tuple[tuple[str, str, str], ...]:
        """The groups that Kafka's clients have joined: name, protocol type and state."""
        return (*self._classic.kinds(), *self._reconciled.kinds())

    @property
    def due(self) -> int:
        """When something is due, on the coordinator's clock."""
        return min(self._classic.timers.due, self._reconciled.timers.due)

    def tick(self, now: int) -> None:
        """Do what is due."""
        self._classic.tick(now)
        self._reconciled.tick()

    def resign(self, error: PymqError, now: int) -> None:
        """Answer all requests that wait with *error*: another broker takes over."""
        self._classic.resign(error, now)
        self._reconciled.resign()
