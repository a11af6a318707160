"""Controlled shutdown: the active zkserver elects other leaders before a broker stops."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pymq.controller.context import ControllerContext
from pymq.controller.operations.rolls import Rolls
from pymq.controller.state.commit_queues import Later
from pymq.controller.state.image import Draft
from pymq.controller.state.roll_candidates import Candidates
from pymq.controller.transitions import broker_restarts, takeover
from pymq.controller.transitions.partition_sweep import LOOKS_MAX, Sweep
from pymq.core.message import Answer, ControlledShutdown
from pymq.core.metadata.nodes import BlockNode
from pymq.core.observe.coverage import mark
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import NotRegistered, PymqError
from pymq.replication.quorum import majority


class Departures:
    """Moves leadership away from brokers that are about to stop."""

    def __init__(self, context: ControllerContext, rolls: Rolls) -> None:
        self._commits = context.commits
        self._members = context.members
        self._updates = context.updates
        self._rolls = rolls
        self._send = context.send
        # newest request number, by broker and incarnation
        self._asked: dict[tuple[str, int], int] = {}
        self._candidates = Candidates(self._roll)  # partitions led by a broker that is stopping

    def end(self) -> None:
        """Stop, because this zkserver is no longer active; waiting brokers get no answer."""
        self._asked.clear()
        self._candidates.clear()

    @property
    def deadline(self) -> int:
        """The deadline of :meth:`tick`."""
        return self._candidates.deadline

    def tick(self, now: int) -> None:
        """Begin more rolls for brokers that lead many partitions."""
        if self._candidates.deadline <= now:
            self._candidates.tick(now)

    def step(self, source: str, m: ControlledShutdown, now: int) -> None:
        """Handle a broker's request to stop.

        The answer is the number of the broker's partitions that others could lead.
        """
        if not self._members.leave(m.broker, m.incarnation):
            unknown = NotRegistered(f"{m.broker} is not registered as incarnation {m.incarnation}")
            self._send(source, Answer(m.id, error=unknown))
            return
        # The broker repeats the request ten times a second, and uses only the latest answer.
        key = (m.broker, m.incarnation)
        is_asked, self._asked[key] = key in self._asked, m.id
        if is_asked:
            mark("departures.asked_again")
            return
        sweep = Sweep(m.broker)
        led: list[TopicPartition] = []
        rest: Iterator[TopicPartition] | None = None  # hosted partitions still to check

        def plan(draft: Draft) -> Later:
            nonlocal rest
            if not self._members.is_leaving(m.broker, m.incarnation):
                # The broker is dead or has restarted, and leaders wait for it again.
                mark("departures.called_off")
                raise NotRegistered(f"{m.broker} is not about to stop as {m.incarnation}")
            live = [name for name in self._members.live if name not in self._members.leaving]
            # Leaders on other brokers must not wait for this broker, either.
            if not broker_restarts.died(draft, m.broker, sweep, live) or draft.ops:
                return Later.MORE
            if rest is None:
                rest = iter(self._hosted(m.broker))
            some = list(islice(rest, LOOKS_MAX))
            led.extend(name for name in some if self._is_led(name, m.broker))
            return Later.MORE if len(some) == LOOKS_MAX else Later.ANSWER

        def sliced(now: int) -> None:
            self._updates.tell_all(sweep.commit(), now)

        def done(now: int) -> None:
            self._candidates.add(led, now)
            self._send(source, Answer(self._asked.pop(key, m.id), len(led)))

        def failed(error: PymqError, now: int) -> None:
            self._asked.pop(key, None)

        self._commits.do(plan, done=done, failed=failed, sliced=sliced, is_urgent=True)

    def _roll(self, name: TopicPartition, now: int) -> None:
        """Roll a fetch block to another leader; Raft leaders transfer their leadership."""
        found = self._commits.image.find(name)
        block = found.open_block if found is not None else None
        if block is None or block.acks is AckMode.RAFT:
            return
        if block.leader in self._members.leaving:
            mark("departures.rolled")
            self._rolls.start(name, now)

    def _hosted(self, broker: str) -> tuple[TopicPartition, ...]:
        hosting = self._commits.image.hosting
        return hosting.opened(broker) if hosting.leads[broker] else ()

    def _is_led(self, name: TopicPartition, broker: str) -> bool:
        """Whether a broker leads a partition that another broker could lead."""
        found = self._commits.image.find(name)
        block = found.open_block if found is not None else None
        return block is not None and block.leader == broker and self._has_other(block, broker)

    def _has_other(self, block: BlockNode, broker: str) -> bool:
        members = self._members
        others = [
            name
            for name in takeover.survivors(self._commits.image, block)
            if name != broker and name in members and name not in members.leaving
        ]
        if block.acks is AckMode.RAFT:
            return len(block.replicas) > 1 and len(others) >= majority(len(block.replicas)) - 1 > 0
        return any(name in block.in_sync for name in others)
