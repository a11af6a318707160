"""Rolls: seal the open block, commit its end together with the next block, tell the brokers.

A roll is the only way to change a partition.

* A *planned* roll asks the leader to seal, which answers when all its records are committed. For a
  Raft block all live replicas are asked, and the one that leads answers.
* In a *take-over* no replica leads or can be elected. Every live replica stops and reports where
  its copy ends. The best copy's end becomes the block's end, once the replicas that have answered
  are known to hold all committed records between them
  (:mod:`~pymq.controller.transitions.takeover`).

Only the commit of a roll is kept, and another zkserver can repeat every step: sealing twice has no
effect, and the commit succeeds once. A leader whose block is sealed and not rolled requests a roll
again. An administrator's request is noted in the partition's node first. The commit of the roll
carries it out and removes the note, so a zkserver that takes over completes it, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from pymq.controller.operations.broker_updates import BrokerUpdates
from pymq.controller.operations.roll_candidates import TURN_MAX, Candidates
from pymq.controller.operations.roll_state import SEAL_RETRY_MS, Agenda, Caller, Roll
from pymq.controller.state.broker_liveness import BrokerLiveness
from pymq.controller.state.image import Draft
from pymq.controller.state.transactions import Send, Transactions
from pymq.controller.transitions import blocks, report_transitions, takeover
from pymq.controller.transitions.placement import has_storage, is_better, is_manned
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
    """The rolls that the controller has under way."""

    def __init__(
        self,
        commits: Transactions,
        members: BrokerLiveness,
        notices: BrokerUpdates,
        send: Send,
        *,
        takeover_ms: int,
        wall_ms: Callable[[int], int],
    ) -> None:
        self.unclean = 0  # for the metrics: blocks sealed without a complete replica
        self._commits = commits
        self._members = members
        self._notices = notices
        self._send = send
        self._takeover_ms = takeover_ms
        self._wall_ms = wall_ms
        self._rolls: dict[TopicPartition, Roll] = {}
        self._agenda = Agenda(self._rolls)
        self._candidates = Candidates(self._look)

    def __len__(self) -> int:
        """How many rolls are under way."""
        return len(self._rolls)

    @property
    def is_busy(self) -> bool:
        """Whether a roll is under way."""
        return bool(self._rolls)

    def get(self, name: TopicPartition) -> Roll | None:
        """Return the roll of a partition that is under way."""
        return self._rolls.get(name)

    def end_all(self, error: NotController) -> None:
        """End all rolls: this zkserver is no longer active."""
        rolls = list(self._rolls.values())
        self._rolls.clear()
        self._candidates.clear()
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
        """Begin to roll a partition; *caller* is answered once the roll is committed.

        *leader* is to lead the next block, if it has all of the one before.
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
        """Add a caller to a roll that is under way."""
        if roll.is_withdrawing or (roll.callers and (roll.is_committing or not is_forced)):
            self.wait(roll.name, caller)
            return
        if not roll.callers:
            # An automatic roll that is under way carries out the administrator's request, too.
            mark("rolls.caller_goes_first")
            roll.is_withdrawn = False
        roll.callers.append(caller)
        if is_forced and not roll.is_committing:
            # Otherwise the callers of the earlier roll might wait forever.
            mark("rolls.forced")
            roll.is_forced = True
            self._ask(roll, now)

    def resume(self, now: int) -> None:
        """Resume the administrators' requests that are noted in the tree."""
        wanted = self._commits.image.wanted
        self.consider_many([name for name in wanted if name not in self._rolls], now)

    def wait(self, name: TopicPartition, caller: Caller) -> bool:
        """Queue *caller* behind a roll that can no longer be changed, if there is one."""
        roll = self._rolls.get(name)
        if roll is None or not (roll.callers or roll.is_committing):
            return False
        if not roll.has(caller):
            mark("rolls.caller_waits")
            roll.behind.append(caller)
        return True

    def gone(self, name: TopicPartition, now: int) -> None:
        """Take in that the partition was deleted."""
        roll = self._rolls.get(name)
        if roll is not None:
            self._end(roll, UnknownTopic(f"topic {name.topic!r} was deleted"), now)

    def consider(self, name: TopicPartition, now: int) -> None:
        """Roll a partition if its replicas should change, and can."""
        image = self._commits.image.find(name)
        roll = self._rolls.get(name)
        if image is None or image.node.acks is AckMode.UNSET:
            return
        if roll is not None:
            if not roll.is_committing:
                self._ask(roll, now)
            return
        block = image.open_block
        if self._is_leaderless(name, block):
            if takeover.seal_targets(self._commits.image, self._members, name) is not None:
                self.start(name, now)
        elif self._can_seal(name, block) and is_better(self._commits.image, self._members, name):
            self.start(name, now)

    def consider_all(self, broker: str, now: int) -> None:
        """Consider all partitions of which a broker has the open block."""
        self.consider_many(self._commits.image.hosting.opened(broker), now)

    def consider_short(self, now: int) -> None:
        """Consider all under-replicated partitions."""
        self.consider_many(self._commits.image.short, now)

    def consider_many(self, names: Iterable[TopicPartition], now: int) -> None:
        """Consider partitions: some in this turn, the others in the next ones."""
        self._candidates.add(names, now)

    def _look(self, name: TopicPartition, now: int) -> None:
        self.consider(name, now)
        image = self._commits.image
        is_waiting = name in image.wanted and name not in self._rolls
        if is_waiting and is_manned(image, self._members, name):
            mark("rolls.resumed")
            self.start(name, now)

    def _is_leaderless(
        self, name: TopicPartition, block: BlockNode, *, is_forced: bool = False
    ) -> bool:
        """Whether a block has no leader and cannot elect one."""
        image = self._commits.image
        return takeover.is_needed(image, self._members, name, block, is_forced=is_forced)

    def _can_seal(self, name: TopicPartition, block: BlockNode) -> bool:
        """Whether the live replicas have or can elect a leader that can seal the block."""
        if block.acks is not AckMode.RAFT:
            return block.leader is not None and self._members.can_act(block.leader, name)
        able = takeover.able(self._commits.image, self._members, name, block)
        return 2 * len(able) > len(block.replicas)

    # --- seal requests --------------------------------------------------------------------------

    def _ask(self, roll: Roll, now: int) -> None:
        """Send the seal request, or send it again to replicas that have not answered."""
        image = self._commits.image.find(roll.name)
        if image is None or image.open_block.number != roll.block:
            gone = StaleEpoch if image is not None else UnknownTopic
            self._end(roll, gone(f"{roll.name} is not what it was"), now)
            return
        block = image.open_block
        if not roll.is_takeover and self._is_leaderless(roll.name, block, is_forced=roll.is_forced):
            roll.is_takeover = True
            mark("rolls.takeover.raft" if block.acks is AckMode.RAFT else "rolls.takeover")
            roll.renumber(roll.epoch + 1)
        if image.node.epoch >= roll.epoch:
            mark("rolls.renumbered")
            roll.renumber(image.node.epoch + 1)
        targets = self._targets(roll, block)
        self._notices.flush(now)  # A replica must know the block before it can seal it.
        epoch = self._commits.image.controller_epoch
        seal = Seal(epoch, *roll.name, roll.block, roll.epoch, roll.is_takeover, roll.topic_id)
        for broker in targets:
            if broker not in roll.answers:
                self._send(broker, seal)
        roll.asked(now, anybody=bool(targets))
        self._agenda.arm(roll)
        self._decide(roll, now)

    def _targets(self, roll: Roll, block: BlockNode) -> tuple[str, ...]:
        """Return the replicas to ask for the seal."""
        if roll.is_takeover:
            return self._last_hopes(roll) or ()
        if block.acks is AckMode.RAFT:
            return tuple(broker for broker in block.replicas if broker in self._members)
        return tuple(b for b in block.replicas if b == block.leader and b in self._members)

    def _last_hopes(self, roll: Roll) -> tuple[str, ...] | None:
        image = self._commits.image
        return takeover.seal_targets(image, self._members, roll.name, is_forced=roll.is_forced)

    def _is_same_disk(self, block: BlockNode, broker: str) -> bool:
        return has_storage(self._commits.image, block, broker)

    # --- answers of replicas --------------------------------------------------------------------

    def sealed(self, m: Sealed, now: int) -> None:
        """Take in where a replica's block ends, or why the replica cannot seal it."""
        name = TopicPartition(m.topic, m.partition)
        roll, image = self._rolls.get(name), self._commits.image.find(name)
        if not self._members.is_of(m.broker, m.incarnation):
            mark("rolls.other_incarnation")
            # The answer is of an earlier life of the broker; it was asked again when it registered.
            return
        if image is None or image.open_block.number != m.block:
            mark("rolls.rolled_since")
            return  # The block has been rolled since.
        if report_transitions.is_of_another(self._commits.image, m.topic, m.topic_id):
            mark("rolls.made_anew")
            return
        block = image.open_block
        if m.broker not in block.replicas or (m.error is None and m.end < block.start):
            return
        if roll is None:
            if m.error is None:
                mark("rolls.orphaned_seal")
                # It was sealed for an earlier controller: nothing can be appended until the roll.
                self.start(name, now)
            return
        if (roll.block, roll.epoch) != (m.block, m.epoch) or roll.is_committing:
            return
        if m.controller_epoch not in (0, self._commits.image.controller_epoch):
            mark("rolls.told_another")
            return  # The answer is to an earlier controller; the block may have grown since.
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
        """Take in that *broker* cannot seal the block."""
        if block.acks is AckMode.RAFT:
            is_leader = broker == block.leader and not self._can_seal(roll.name, block)
            if len(block.replicas) > 1 and not is_leader:
                mark("rolls.follower_in_trouble")
                return  # The other replicas elect a leader, which is asked then.
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
        if not roll.is_takeover or roll.is_committing or image is None:
            return
        block = image.open_block
        answers = [m for m in roll.answers.values() if m.error is None]
        is_clean = takeover.is_enough(block, [m.broker for m in answers])
        if not is_clean:
            hopes = self._last_hopes(roll)
            if hopes is None or takeover.is_enough(block, hopes) or (hopes and not answers):
                mark("rolls.must_wait")
                return  # A replica that must have all records may still answer.
        if not roll.is_late and any(
            b not in roll.answers
            and self._members.may_live(b)
            and not self._members.offline.has(b, roll.name)
            and self._is_same_disk(block, b)
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
        roll.is_committing = True
        roll.retry_at = roll.decide_at = NEVER
        is_unclean, wall_ms = roll.is_unclean, self._wall_ms(now)

        def plan(draft: Draft) -> None:
            if report_transitions.is_of_another(draft.image, roll.name.topic, roll.topic_id):
                raise StaleEpoch(f"{roll.name} was made anew")  # while the commit waited
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
            self._notices.tell(roll.name.topic, now, roll.name.partition)
            self._end(roll, None, now)

        def failed(error: PymqError, now: int) -> None:
            self._failed(roll, error, now)

        # Live brokers are not part of the tree, but here they are only hints.
        self._commits.do(plan, scope=roll.name, done=done, failed=failed, is_urgent=True)

    def _failed(self, roll: Roll, error: PymqError, now: int) -> None:
        """Take in that the commit failed: retry the roll, and answer its callers with the error."""
        if isinstance(error, (StaleEpoch, LookupError)):
            self._end(roll, error, now)
            return
        if isinstance(error, ReplicaNotAvailable):
            mark("rolls.disk_gone_since")
            roll.is_committing = False
            block = self._commits.image.partition(*roll.name).open_block
            roll.void([b for b in block.replicas if not self._is_same_disk(block, b)], now)
            self._agenda.arm(roll)
            return
        mark("rolls.commit_failed")

        def go_on(now: int) -> None:
            self._tell(roll.answer(None, error))
            roll.is_committing = False
            roll.retry_at = now + roll.wait_ms
            self._agenda.arm(roll)

        self._withdraw(roll, go_on, now)

    def _end(self, roll: Roll, error: PymqError | None, now: int) -> None:
        def over(now: int) -> None:
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

        Else another zkserver could still carry it out. Other requests for the partition wait
        meanwhile, so that they are not removed with it.
        """
        if roll.is_withdrawing:
            return
        if not roll.has_wish:
            then(now)
            return
        roll.is_withdrawing = roll.is_committing = True
        roll.retry_at = roll.decide_at = NEVER

        def plan(draft: Draft) -> None:
            if not report_transitions.is_of_another(draft.image, roll.name.topic, roll.topic_id):
                blocks.want(draft, roll.name, None)

        def done(now: int) -> None:
            roll.is_withdrawing = False
            then(now)

        def failed(error: PymqError, now: int) -> None:
            done(now)  # A replica may come back and answer, but none is alive to be asked.

        self._commits.do(plan, scope=roll.name, done=done, failed=failed, is_urgent=True)

    # --- registrations, deaths and elections ----------------------------------------------------

    def registered(self, broker: str, now: int) -> None:
        """Take in that a broker has registered: its earlier answers are void."""
        for name in self._commits.image.hosting.opened(broker):
            roll = self._rolls.get(name)
            if roll is not None:
                roll.answers.pop(broker, None)
                roll.wait_ms = SEAL_RETRY_MS
        self.consider_all(broker, now)
        self.consider_short(now)
        self.resume(now)

    def died(self, broker: str, now: int) -> None:
        """Take in that a broker is dead: blocks it leads without Raft need another leader."""
        self.consider_all(broker, now)

    def led(self, name: TopicPartition, now: int) -> None:
        """Take in that a Raft block has a new leader: ask it for the seal."""
        roll = self._rolls.get(name)
        if roll is not None and not roll.is_committing:
            self._ask(roll, now)

    # --- timers ---------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Do what is due."""
        if self._candidates.deadline <= now:
            self._candidates.tick(now)
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
        return min(self._agenda.deadline, self._candidates.deadline)
