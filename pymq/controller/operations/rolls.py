"""Rolls: seal the open block, commit its end together with the next block, update the brokers.

A roll is the only way to change a partition.

* In a *planned* roll the leader gets the seal request, and answers when all its records are
  committed. If the block is replicated by Raft, all live replicas get the request, and the leader
  among them answers.
* In a *take-over* no replica leads or can be elected. Each live replica stops and reports the end
  of its copy. When the replicas that have answered are known to hold, together, all committed
  records, the end of the best copy becomes the block's end
  (:mod:`~pymq.controller.transitions.takeover`).

Only the commit of a roll is stored, and a new zkserver can repeat each step: sealing twice has no
effect, and the commit succeeds only once. If a block is sealed but not rolled, its leader requests
the roll again. The zkserver first stores an administrator's request in the partition's node. The
commit of the roll carries the request out and removes it from the node, so a zkserver that takes
over completes the request exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from pymq.controller.context import ControllerContext
from pymq.controller.operations.roll_state import SEAL_RETRY_MS, Agenda, Caller, Roll, RollState
from pymq.controller.state.image import Draft
from pymq.controller.state.roll_candidates import TURN_MAX
from pymq.controller.transitions import blocks, report_transitions, takeover
from pymq.controller.transitions.placement import has_storage
from pymq.core.message import Answer, Seal, Sealed
from pymq.core.metadata.nodes import BlockNode
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, AckMode, TopicPartition
from pymq.errors import (
    NotController,
    NotLeader,
    PymqError,
    ReplicaNotAvailable,
    StaleEpoch,
    StoreError,
    StoreFull,
    UnknownTopic,
)


class Rolls:
    """The rolls of the controller that are in progress."""

    def __init__(
        self,
        context: ControllerContext,
        *,
        takeover_ms: int,
    ) -> None:
        self.unclean = 0  # for the metrics: number of blocks sealed without a complete replica
        self._commits = context.commits
        self._members = context.members
        self._updates = context.updates
        self._send = context.send
        self._takeover_ms = takeover_ms
        self._wall_ms = context.wall_ms
        self._rolls: dict[TopicPartition, Roll] = {}
        self._agenda = Agenda(self._rolls)

    def __len__(self) -> int:
        """Return the number of rolls in progress."""
        return len(self._rolls)

    def __contains__(self, name: TopicPartition) -> bool:
        return name in self._rolls

    def get(self, name: TopicPartition) -> Roll | None:
        """Return the partition's roll in progress, or None."""
        return self._rolls.get(name)

    def end_all(self, error: NotController) -> None:
        """End all rolls, because this zkserver is no longer active."""
        rolls = list(self._rolls.values())
        self._rolls.clear()
        for roll in rolls:
            roll.callers += roll.behind
            self._tell(roll.answer(None, error))

    def _tell(self, answers: list[tuple[str, Answer]]) -> None:
        for peer, answer in answers:
            self._send(peer, answer)

    # --- beginning ------------------------------------------------------------------------------

    def start(
        self,
        name: TopicPartition,
        now: int,
        caller: Caller | None = None,
        *,
        is_forced: bool = False,
        leader: str | None = None,
    ) -> None:
        """Begin to roll a partition; *caller* gets its answer when the roll is committed.

        *leader* will lead the next block, if that broker has the whole previous block.
        """
        roll = self._rolls.get(name)
        if roll is None:
            image = self._commits.image
            topic_id, found = image.topic(name.topic).node.id, image.partition(*name)
            number, epoch = found.open_block.number, found.node.epoch + 1
            roll = Roll(name, topic_id, number, epoch, is_forced=is_forced, leader=leader)
            roll.callers += [caller] if caller is not None else []
            self._rolls[name] = roll
            self._ask(roll, now)
        elif caller is not None and not roll.has(caller):
            self._join(roll, caller, now, is_forced=is_forced)

    def _join(self, roll: Roll, caller: Caller, now: int, *, is_forced: bool) -> None:
        """Add a caller to a roll in progress."""
        is_sealing = roll.state is RollState.SEALING
        if roll.state is RollState.WITHDRAWING or (roll.callers and not (is_sealing and is_forced)):
            self.wait(roll.name, caller)
            return
        if not roll.callers:
            # If an automatic roll is in progress, it also carries out the administrator's request.
            mark("rolls.caller_goes_first")
            roll.is_withdrawn = False
        roll.callers.append(caller)
        if is_forced and is_sealing:
            # Otherwise the callers of the earlier roll might wait forever.
            mark("rolls.forced")
            roll.is_forced = True
            self._ask(roll, now)

    def wait(self, name: TopicPartition, caller: Caller) -> bool:
        """Queue *caller* behind a roll in progress that can no longer be changed.

        Returns whether there is such a roll.
        """
        roll = self._rolls.get(name)
        if roll is None or (roll.state is RollState.SEALING and not roll.callers):
            return False
        if not roll.has(caller):
            mark("rolls.caller_waits")
            roll.behind.append(caller)
        return True

    def gone(self, name: TopicPartition, now: int) -> None:
        """Note that the partition was deleted."""
        roll = self._rolls.get(name)
        if roll is not None:
            self._end(roll, UnknownTopic(f"topic {name.topic!r} was deleted"), now)

    # --- seal requests --------------------------------------------------------------------------

    def _ask(self, roll: Roll, now: int) -> None:
        """Send the seal request, or send it again to replicas that have not answered."""
        image = self._commits.image.find(roll.name)
        if image is None or image.open_block.number != roll.block:
            gone = StaleEpoch if image is not None else UnknownTopic
            self._end(roll, gone(f"{roll.name} has changed since"), now)
            return
        block = image.open_block
        if not roll.is_takeover and takeover.is_needed(
            self._commits.image, self._members, roll.name, block, is_forced=roll.is_forced
        ):
            roll.is_takeover = True
            mark("rolls.takeover.raft" if block.acks is AckMode.RAFT else "rolls.takeover")
            roll.renumber(roll.epoch + 1)
        if image.node.epoch >= roll.epoch:
            mark("rolls.renumbered")
            roll.renumber(image.node.epoch + 1)
        targets = self._targets(roll, block)
        self._updates.flush(now)  # A replica must know the block before sealing it.
        epoch = self._commits.image.controller_epoch
        seal = Seal(epoch, *roll.name, roll.block, roll.epoch, roll.is_takeover, roll.topic_id)
        for broker in targets:
            if broker not in roll.answers:
                self._send(broker, seal)
        roll.asked(now, anybody=bool(targets))
        self._agenda.arm(roll)
        self._decide(roll, now)

    def _targets(self, roll: Roll, block: BlockNode) -> tuple[str, ...]:
        """Return the replicas that get the seal request."""
        if roll.is_takeover:
            return self._last_hopes(roll) or ()
        if block.acks is AckMode.RAFT:
            return tuple(broker for broker in block.replicas if broker in self._members)
        return tuple(b for b in block.replicas if b == block.leader and b in self._members)

    def _last_hopes(self, roll: Roll) -> tuple[str, ...] | None:
        image = self._commits.image
        return takeover.seal_targets(image, self._members, roll.name, is_forced=roll.is_forced)

    # --- answers of replicas --------------------------------------------------------------------

    def sealed(self, m: Sealed, now: int) -> None:
        """Handle a replica's answer: the end of its block, or the error that prevents the seal."""
        name = TopicPartition(m.topic, m.partition)
        roll, image = self._rolls.get(name), self._commits.image.find(name)
        if not self._members.is_of(m.broker, m.incarnation):
            mark("rolls.other_incarnation")
            # The answer is from an earlier incarnation of the broker; the new one got the request
            # when it registered.
            return
        if image is None or image.open_block.number != m.block:
            mark("rolls.rolled_since")
            return  # The block has already been rolled.
        if report_transitions.is_of_another(self._commits.image, m.topic, m.topic_id):
            mark("rolls.made_anew")
            return
        block = image.open_block
        if m.broker not in block.replicas or (m.error is None and m.end < block.start):
            return
        if roll is None:
            if m.error is None:
                mark("rolls.orphaned_seal")
                # The block was sealed for an earlier controller, and accepts no records until the
                # roll.
                self.start(name, now)
            return
        if (roll.block, roll.epoch) != (m.block, m.epoch) or roll.state is not RollState.SEALING:
            return
        if m.controller_epoch not in (0, self._commits.image.controller_epoch):
            mark("rolls.told_another")
            # The answer belongs to an earlier controller's request; the block may have grown since.
            return
        if roll.is_takeover:
            roll.answers[m.broker] = m
            self._decide(roll, now)
        elif m.error is None:
            self._commit(roll, m, (m.broker, *m.holders), now)
        elif not isinstance(m.error, (NotLeader, StaleEpoch)):
            self._refused(roll, block, m.broker, m.error, now)

    def _refused(
        self, roll: Roll, block: BlockNode, broker: str, error: PymqError, now: int
    ) -> None:
        """Note that *broker* cannot seal the block."""
        if block.acks is AckMode.RAFT:
            is_led = takeover.has_leader(self._commits.image, self._members, roll.name, block)
            if len(block.replicas) > 1 and (is_led or broker != block.leader):
                mark("rolls.follower_in_trouble")
                return  # the other replicas elect a leader, which then gets the request
        else:
            others = [b for b in block.in_sync if b != broker and b in self._members]
            is_lost = isinstance(error, StoreError) and not isinstance(error, StoreFull)
            # The leader's copy is lost, or it no longer leads. No other broker would report that.
            if (is_lost and others) or isinstance(error, ReplicaNotAvailable):
                mark("rolls.leader_in_trouble")
                roll.is_takeover = True
                roll.renumber(roll.epoch + 1)
                self._ask(roll, now)
                return
        self._end(roll, error, now)

    def _decide(self, roll: Roll, now: int) -> None:
        """Decide a take-over if enough replicas have answered."""
        image = self._commits.image.find(roll.name)
        if not roll.is_takeover or roll.state is not RollState.SEALING or image is None:
            return
        block = image.open_block
        answers = [m for m in roll.answers.values() if m.error is None]
        is_clean = takeover.is_enough(block, [m.broker for m in answers])
        if not is_clean:
            hopes = self._last_hopes(roll)
            if hopes is None or takeover.is_enough(block, hopes) or (hopes and not answers):
                mark("rolls.must_wait")
                return  # A replica that is known to have all records may still answer.
        if not roll.is_late and any(
            b not in roll.answers
            and self._members.may_live(b)
            and not self._members.offline.has(b, roll.name)
            and has_storage(self._commits.image, block, b)
            for b in block.replicas
        ):
            if roll.decide_at == NEVER:
                mark("rolls.decides_later")
                listened = self._members.listened(now)
                roll.patience = max(listened + self._takeover_ms, self._members.settles_at)
                roll.decide_at = self._members.earliest(roll.patience)
                self._agenda.arm(roll)
            return
        roll.is_unclean = not is_clean
        if not answers:
            mark("rolls.from_nothing")
            nothing = Sealed(*roll.name, roll.block, roll.epoch, "", block.start, past=block.past)
            self._commit(roll, nothing, (), now)
            return
        best = max(answers, key=lambda m: (*takeover.rank(m), m.broker in block.in_sync, m.broker))
        same = tuple(m.broker for m in answers if takeover.rank(m) == takeover.rank(best))
        self._commit(roll, best, same, now)

    def _commit(self, roll: Roll, m: Sealed, holders: tuple[str, ...], now: int) -> None:
        roll.move(RollState.COMMITTING)
        is_unclean, wall_ms = roll.is_unclean, self._wall_ms(now)

        def plan(draft: Draft) -> None:
            if report_transitions.is_of_another(draft.image, roll.name.topic, roll.topic_id):
                raise StaleEpoch(f"{roll.name} was created again")  # while this commit waited
            wanted = None if roll.is_withdrawn else draft.image.partition(*roll.name).node.wanted
            roll.loss = blocks.roll(
                draft,
                m,
                holders,
                wanted,
                self._members,
                wall_ms,
                is_unclean=is_unclean,
                leader=roll.leader,
            )

        def done(now: int) -> None:
            self.unclean += is_unclean
            self._updates.tell(roll.name.topic, now, roll.name.partition)
            self._end(roll, None, now)

        def failed(error: PymqError, now: int) -> None:
            self._failed(roll, error, now)

        # Live brokers are not part of the tree, but the plan uses them only as a hint.
        self._commits.do(plan, scope=roll.name, done=done, failed=failed, is_urgent=True)

    def _failed(self, roll: Roll, error: PymqError, now: int) -> None:
        """Handle a failed commit: retry the roll, and answer its callers with the error."""
        if roll.state is not RollState.COMMITTING:
            return  # The partition has been deleted.
        if isinstance(error, (StaleEpoch, LookupError)):
            self._end(roll, error, now)
            return
        if isinstance(error, ReplicaNotAvailable):
            mark("rolls.disk_gone_since")
            roll.move(RollState.SEALING)
            tree = self._commits.image
            block = tree.partition(*roll.name).open_block
            roll.void([b for b in block.replicas if not has_storage(tree, block, b)], now)
            self._agenda.arm(roll)
            return
        mark("rolls.commit_failed")

        def go_on(now: int) -> None:
            self._tell(roll.answer(None, error))
            roll.move(RollState.SEALING)
            roll.retry_at = now + roll.wait_ms
            self._agenda.arm(roll)

        self._withdraw(roll, go_on, now)

    def _end(self, roll: Roll, error: PymqError | None, now: int) -> None:
        def over(now: int) -> None:
            if roll.state is RollState.OVER:
                return  # the roll was committed during the removal of its request
            roll.move(RollState.OVER)
            if self._rolls.get(roll.name) is roll:
                del self._rolls[roll.name]
            self._tell(roll.answer(True if error is None else None, error))
            behind, roll.behind = roll.behind, []
            for caller in behind:
                caller.again(now)

        if error is None:
            over(now)
        else:
            self._withdraw(roll, over, now)

    def _withdraw(self, roll: Roll, then: Callable[[int], None], now: int) -> None:
        """Remove a failed request from the tree before its callers are answered.

        Otherwise a new zkserver could still carry the request out. Other requests for the partition
        wait meanwhile, so that they are not removed together with this one.
        """
        if roll.state is RollState.WITHDRAWING:
            return
        if not roll.has_wish:
            then(now)
            return
        roll.move(RollState.WITHDRAWING)

        def plan(draft: Draft) -> None:
            if not report_transitions.is_of_another(draft.image, roll.name.topic, roll.topic_id):
                blocks.want(draft, roll.name, None)

        def failed(error: PymqError, now: int) -> None:
            then(now)  # A replica may return and answer, but no live replica can be asked now.

        self._commits.do(plan, scope=roll.name, done=then, failed=failed, is_urgent=True)

    # --- registrations and elections ------------------------------------------------------------

    def registered(self, broker: str) -> None:
        """Note that a broker has registered, so that its earlier answers no longer count."""
        for name in self._commits.image.hosting.opened(broker):
            roll = self._rolls.get(name)
            if roll is not None:
                roll.answers.pop(broker, None)
                roll.wait_ms = SEAL_RETRY_MS

    def ask_again(self, name: TopicPartition, now: int) -> None:
        """Send the seal request again, because the block's replicas or its leader have changed."""
        roll = self._rolls.get(name)
        if roll is not None and roll.state is RollState.SEALING:
            self._ask(roll, now)

    # --- timers ---------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        for roll in islice(self._agenda.due(now), TURN_MAX):
            if roll.decide_at <= now and self._members.listened(now) < roll.patience:
                mark("rolls.decides_later_still")
                roll.decide_at = self._members.earliest(roll.patience)
            if roll.decide_at <= now:
                mark("rolls.decides_late")
                roll.decide_at, roll.is_late = NEVER, True
                self._decide(roll, now)
            if roll.retry_at <= now:
                self._ask(roll, now)
            else:
                self._agenda.arm(roll)

    @property
    def deadline(self) -> int:
        """The earliest deadline of :meth:`tick`."""
        return self._agenda.deadline
