"""Commits the reports of leaders and replicas on the active zkserver."""

from __future__ import annotations

from collections.abc import Callable

from pymq.controller.context import ControllerContext
from pymq.controller.operations.rolls import Rolls
from pymq.controller.state.commit_queues import Later
from pymq.controller.state.image import Draft
from pymq.controller.transitions import report_transitions
from pymq.core.message import (
    AlterIsr,
    BecomeLeader,
    BlockSizes,
    Message,
    Progress,
    ReplicaEnds,
    Result,
    RetireBlocks,
    RollWanted,
    Sealed,
)
from pymq.core.observe.coverage import mark
from pymq.core.types import AckMode, TopicPartition


class Reports:
    """Commits brokers' reports of their partitions."""

    def __init__(self, context: ControllerContext, rolls: Rolls) -> None:
        self._ends = context.ends
        self._commits = context.commits
        self._members = context.members
        self._updates = context.updates
        self._rolls = rolls

    def step(self, m: Message, now: int) -> bool:
        """Handle a report; returns False for any other message."""
        match m:
            case Sealed():
                self._rolls.sealed(m, now)
            case RollWanted():
                self._roll_wanted(m, now)
            case AlterIsr():
                self._alter_isr(m)
            case BecomeLeader():
                self._change(m, lambda draft: report_transitions.become_leader(draft, m))
            case Progress():
                self._progress(m)
            case ReplicaEnds():
                if self._members.is_of(m.broker, m.incarnation):
                    self._ends.note(self._commits.image, m)
            case RetireBlocks():
                self._note(m, lambda draft: report_transitions.retire(draft, m))
            case BlockSizes():
                self._note(m, lambda draft: report_transitions.resize(draft, m))
            case _:
                return False
        return True

    def _roll_wanted(self, m: RollWanted, now: int) -> None:
        name = TopicPartition(m.topic, m.partition)
        image = self._commits.image.find(name)
        if image is None or image.node.acks is AckMode.UNSET:
            return
        # The block's number suffices, because a block is opened only once.
        if image.open_block.number == m.block:
            self._rolls.start(name, now)

    def _change(self, m: AlterIsr | BecomeLeader, plan: Callable[[Draft], None]) -> None:
        """Commit a broker's report of a partition, and send its replicas the new state.

        If the report changes nothing, send the state only to the reporting broker, whose own state
        is out of date.
        """
        name = TopicPartition(m.topic, m.partition)
        is_changed = False

        def plan_it(draft: Draft) -> Result:
            nonlocal is_changed
            if report_transitions.is_of_another(draft.image, m.topic, m.topic_id):
                mark("reports.made_anew")
            else:
                plan(draft)
            is_changed = bool(draft.ops)
            return None

        def done(now: int) -> None:
            if is_changed:
                self._updates.tell(m.topic, now, m.partition)
                if isinstance(m, BecomeLeader):
                    self._rolls.ask_again(name, now)
            else:
                mark("reports.nothing_changed")
                self._updates.tell_one(m.broker, name)

        self._commits.do(plan_it, scope=name, done=done, is_urgent=True)

    def _note(self, m: RetireBlocks | BlockSizes, plan: Callable[[Draft], bool]) -> None:
        """Commit a report about blocks, in several commits if needed."""
        is_changed = False

        def plan_it(draft: Draft) -> Result | Later:
            nonlocal is_changed
            is_changed = False
            if report_transitions.is_of_another(draft.image, m.topic, m.topic_id):
                mark("reports.made_anew")
                return None
            is_all = plan(draft)
            is_changed = bool(draft.ops)
            return None if is_all else Later.MORE

        def sliced(now: int) -> None:
            if is_changed:
                self._updates.tell(m.topic, now, m.partition)

        self._commits.do(plan_it, scope=TopicPartition(m.topic, m.partition), sliced=sliced)

    def _alter_isr(self, m: AlterIsr) -> None:
        def plan(draft: Draft) -> None:
            roll = self._rolls.get(TopicPartition(m.topic, m.partition))
            # A take-over relies on the committed in-sync set, so the leader must not change the set
            # meanwhile.
            if roll is None or not roll.is_takeover:
                report_transitions.alter_isr(draft, m, self._members)

        self._change(m, plan)

    def _progress(self, m: Progress) -> None:
        changed: list[TopicPartition] = []

        def plan(draft: Draft) -> Result | Later:
            changed.clear()
            # A report of another incarnation may describe a disk that was replaced.
            if not self._members.is_of(m.broker, m.incarnation):
                return None
            return None if report_transitions.progress(draft, m, changed) else Later.MORE

        def sliced(now: int) -> None:
            self._updates.tell_all(changed, now)

        names = {TopicPartition(topic, partition) for topic, partition, *_ in m.ends}
        # Most reports concern one partition, and can share a commit with reports about other
        # partitions.
        scope = names.pop() if len(names) == 1 else None
        self._commits.do(plan, scope=scope, sliced=sliced)
