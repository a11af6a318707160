"""Rolls: seal the open block, commit its end together with the next block, tell the brokers.

It is the one way in which anything about a partition changes. A *planned* roll asks the leader,
which answers once all that it has taken in is committed; of a Raft block every live replica is
asked, and whoever leads answers. In a *take-over* the leader of a fetch block is gone: every live
replica stops following and says where its copy ends. One of them at least must be of the committed
in-sync set, for only those are known to have all that was committed; copies of one fetch block
differ in nothing but their length, so the longest one is the end, whoever has it.

Nothing of a roll is kept but what is committed. Every step can be repeated by another zkserver:
sealing twice does nothing, and the commit holds once. Whoever finds his block sealed and not rolled
asks for a roll again.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from pymq.core.marks import mark
from pymq.core.message import Answer, Seal, Sealed
from pymq.core.metadata import BlockNode
from pymq.core.types import AckMode, TopicPartition
from pymq.core.values import Factory, define
from pymq.errors import (
    NotController,
    NotLeader,
    PymqError,
    StaleEpoch,
    StoreError,
    StoreFull,
    UnknownTopic,
)
from pymq.node import blocks
from pymq.node.commits import Commits, Send
from pymq.node.image import Draft, PartitionImage
from pymq.node.membership import Members
from pymq.node.notices import Notices
from pymq.node.placement import Wanted, has_storage, is_better

NEVER = 1 << 62
SEAL_RETRY_MS = 500  # the first time; then twice as long each time
SEAL_RETRY_MAX_MS = 4_000


@define
class Caller:
    """An administrator who waits for a roll, and how to begin anew with what he wants."""

    source: str
    request: int
    again: Callable[[int], None]


@define
class Roll:
    """A roll under way: the open block is being sealed for what is *wanted* next."""

    name: TopicPartition
    block: int
    epoch: int
    wanted: Wanted
    is_takeover: bool = False
    is_unclean: bool = False
    is_committing: bool = False
    answers: dict[str, Sealed] = Factory(dict)  # of a take-over
    decide_at: int = NEVER  # of a take-over: from when on it does with the answers that it has
    is_late: bool = False  # that time has come
    retry_at: int = NEVER
    wait_ms: int = SEAL_RETRY_MS
    caller: Caller | None = None
    behind: list[Caller] = Factory(list)  # who wants something else once this is over

    @property
    def due(self) -> int:
        """When there is something to do."""
        return min(self.retry_at, self.decide_at)


class Rolls:
    """All rolls that the active zkserver has under way."""

    def __init__(
        self,
        commits: Commits,
        members: Members,
        notices: Notices,
        send: Send,
        *,
        takeover_ms: int,
        replace_ms: int,
        wall_ms: Callable[[int], int],
    ) -> None:
        self.unclean = 0  # how many blocks were sealed so, for the metrics
        self._commits = commits
        self._members = members
        self._notices = notices
        self._send = send
        self._takeover_ms = takeover_ms
        self._replace_ms = replace_ms
        self._wall_ms = wall_ms
        self._rolls: dict[TopicPartition, Roll] = {}
        self._due: list[tuple[int, int, TopicPartition]] = []  # perhaps out of date
        self._armings = 0

    @property
    def is_busy(self) -> bool:
        """Whether a roll is under way."""
        return bool(self._rolls)

    def get(self, name: TopicPartition) -> Roll | None:
        """The roll of a partition that is under way."""
        return self._rolls.get(name)

    def end_all(self, error: NotController) -> None:
        """This zkserver rolls nothing any more."""
        rolls, self._rolls = self._rolls, {}
        self._due.clear()
        for roll in rolls.values():
            for caller in (*([roll.caller] if roll.caller else ()), *roll.behind):
                self._send(caller.source, Answer(caller.request, error=error))

    # --- beginning ------------------------------------------------------------------------------

    def start(
        self, name: TopicPartition, wanted: Wanted, now: int, caller: Caller | None = None
    ) -> None:
        """Roll a partition; *caller* is answered once it is done."""
        roll = self._rolls.get(name)
        if roll is None:
            image = self._commits.image.partition(*name)
            number, epoch = image.open_block.number, image.node.epoch + 1
            roll = self._rolls[name] = Roll(name, number, epoch, wanted, caller=caller)
            self._ask(roll, now)
        elif caller is not None and not self.wait(name, caller):
            # What an administrator wants goes before a roll that is under way for its own sake.
            mark("rolls.caller_goes_first")
            roll.wanted, roll.caller = wanted, caller

    def wait(self, name: TopicPartition, caller: Caller) -> bool:
        """Have *caller* begin anew after a roll that is not to be changed any more, if one is."""
        roll = self._rolls.get(name)
        if roll is None or (roll.caller is None and not roll.is_committing):
            return False
        mark("rolls.caller_waits")
        roll.behind.append(caller)
        return True

    def gone(self, name: TopicPartition, now: int) -> None:
        """The partition was deleted."""
        roll = self._rolls.get(name)
        if roll is not None:
            self._end(roll, UnknownTopic(f"topic {name.topic!r} was deleted"), now)

    def consider(self, name: TopicPartition, now: int) -> None:
        """Roll a partition if something about its replicas should be otherwise, and can be."""
        image = self._commits.image.find(name)
        roll = self._rolls.get(name)
        if image is None or image.node.acks is AckMode.UNSET:
            return
        if roll is not None:
            if not roll.is_committing:
                self._ask(roll, now)
            return
        block = image.open_block
        live = [broker for broker in block.replicas if broker in self._members]
        if block.acks is AckMode.RAFT:
            voters = [broker for broker in live if self._is_same_disk(block, broker)]
            can_seal = len(voters) > len(block.replicas) // 2
        elif self._has_leader(block):
            can_seal = block.leader in live
        else:
            can_seal = bool(self._targets(name, image))
        must = block.acks is not AckMode.RAFT and not self._has_leader(block)
        if can_seal and (must or self._is_better(name, now)):
            self.start(name, Wanted(), now)

    def consider_all(self, broker: str, now: int) -> None:
        """Consider all partitions of which a broker has the open block."""
        for name in self._commits.image.hosting.opened(broker):
            self.consider(name, now)

    def consider_short(self, now: int) -> None:
        """Consider all partitions that have fewer replicas than they should."""
        for name in list(self._commits.image.short):
            self.consider(name, now)

    def _is_better(self, name: TopicPartition, now: int) -> bool:
        return is_better(self._commits.image, self._members, name, now, self._replace_ms)

    def _has_leader(self, block: BlockNode) -> bool:
        """Whether a fetch block has a leader that is not known to be dead."""
        return block.leader is not None and self._members.may_live(block.leader)

    # --- asking ---------------------------------------------------------------------------------

    def _ask(self, roll: Roll, now: int) -> None:
        """Have the block sealed, by whoever can; again, if he has not answered."""
        image = self._commits.image.find(roll.name)
        if image is None or image.open_block.number != roll.block:
            gone = StaleEpoch if image is not None else UnknownTopic
            self._end(roll, gone(f"{roll.name} is not what it was"), now)
            return
        block = image.open_block
        is_raft = block.acks is AckMode.RAFT
        if not (is_raft or roll.is_takeover or self._has_leader(block)):
            roll.is_takeover = True
            mark("rolls.takeover")
            self._renumber(roll, roll.epoch + 1)
        if image.node.epoch >= roll.epoch:
            mark("rolls.renumbered")
            self._renumber(roll, image.node.epoch + 1)
        if is_raft:
            targets = [b for b in block.replicas if b in self._members]
        elif roll.is_takeover:
            targets = self._targets(roll.name, image)
        else:
            targets = [b for b in block.replicas if b == block.leader and b in self._members]
        self._notices.flush(now)  # Whoever is asked must know what the block is.
        epoch = self._commits.image.controller_epoch
        seal = Seal(epoch, *roll.name, roll.block, roll.epoch, roll.is_takeover)
        for broker in targets:
            if broker not in roll.answers:
                self._send(broker, seal)
        # Without anybody to ask it goes on when somebody registers.
        roll.retry_at = now + roll.wait_ms if targets else NEVER
        roll.wait_ms = min(2 * roll.wait_ms, SEAL_RETRY_MAX_MS)
        self._arm(roll)
        self._decide(roll, now)

    def _renumber(self, roll: Roll, epoch: int) -> None:
        """What was answered at an older epoch does not count."""
        roll.epoch = epoch
        roll.answers.clear()
        roll.decide_at, roll.is_late = NEVER, False

    def _targets(self, name: TopicPartition, image: PartitionImage) -> list[str]:
        """Who is to be asked in a take-over; nobody if it could not succeed."""
        block = image.open_block
        live = [b for b in block.replicas if b in self._members and self._is_same_disk(block, b)]
        if any(broker in block.in_sync for broker in live):
            return live
        if any(self._members.may_live(broker) for broker in block.in_sync):
            return []
        allowed = self._commits.image.topics[name.topic].node.config.unclean_election
        return [b for b in block.replicas if b in self._members] if allowed else []

    def _is_same_disk(self, block: BlockNode, broker: str) -> bool:
        return has_storage(self._commits.image, block, broker)

    # --- being answered -------------------------------------------------------------------------

    def sealed(self, m: Sealed, now: int) -> None:
        """A broker says where its block ends, or why it cannot be sealed."""
        name = TopicPartition(m.topic, m.partition)
        roll, image = self._rolls.get(name), self._commits.image.find(name)
        if not self._members.is_of(m.broker, m.incarnation):
            mark("rolls.other_incarnation")
            return  # What it had may be gone; it was asked again when it registered.
        if image is None or image.open_block.number != m.block:
            mark("rolls.rolled_since")
            return  # It has been rolled since.
        block = image.open_block
        if m.broker not in block.replicas or (m.error is None and m.end < block.start):
            return
        if roll is None:
            if m.error is None:
                mark("rolls.orphaned_seal")
                # Sealed for a zkserver that is gone: nothing can be appended until it is rolled.
                self.start(name, Wanted(), now)
            return
        if (roll.block, roll.epoch) != (m.block, m.epoch) or roll.is_committing:
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
        """The block cannot be sealed by *broker*."""
        if block.acks is AckMode.RAFT:
            if len(block.replicas) > 1 and broker != block.leader:
                mark("rolls.follower_in_trouble")
                return  # A follower in trouble is no reason to give up.
        elif isinstance(error, StoreError) and not isinstance(error, StoreFull):
            others = [b for b in block.in_sync if b != broker and b in self._members]
            if others:  # The leader's copy is lost, and nobody else will ever say so.
                mark("rolls.leader_in_trouble")
                roll.is_takeover = True
                self._renumber(roll, roll.epoch + 1)
                self._ask(roll, now)
                return
        self._end(roll, error, now)

    def _decide(self, roll: Roll, now: int) -> None:
        """End a take-over if enough is known."""
        image = self._commits.image.find(roll.name)
        answers = [m for m in roll.answers.values() if m.error is None]
        if not roll.is_takeover or roll.is_committing or image is None or not answers:
            return
        block = image.open_block
        is_clean = any(m.broker in block.in_sync for m in answers)
        if not is_clean:
            targets = self._targets(roll.name, image)
            if not targets or any(broker in block.in_sync for broker in targets):
                mark("rolls.must_wait")
                return  # Somebody who must have all may yet answer.
        if not roll.is_late and any(
            b not in roll.answers and self._members.may_live(b) and self._is_same_disk(block, b)
            for b in block.replicas
        ):
            if roll.decide_at == NEVER:
                mark("rolls.decides_later")
                roll.decide_at = max(now + self._takeover_ms, self._members.settles_at)
                self._arm(roll)
            return
        best = max(answers, key=lambda m: (m.end, m.broker in block.in_sync, m.broker))
        roll.is_unclean = not is_clean
        self._commit(roll, best, tuple(m.broker for m in answers if m.end >= best.end), now)

    def _commit(self, roll: Roll, m: Sealed, holders: tuple[str, ...], now: int) -> None:
        roll.is_committing = True
        roll.retry_at = roll.decide_at = NEVER
        wanted, is_unclean, wall_ms = roll.wanted, roll.is_unclean, self._wall_ms(now)

        def plan(draft: Draft) -> None:
            blocks.roll(draft, m, holders, wanted, self._members, wall_ms, is_unclean=is_unclean)

        def done(now: int) -> None:
            self.unclean += is_unclean
            self._notices.tell(roll.name.topic, now, roll.name.partition)
            self._end(roll, None, now)

        def failed(error: PymqError, now: int) -> None:
            self._failed(roll, error, now)

        # The members that it looks at are no part of the tree, but then they are but hints.
        self._commits.do(plan, scope=roll.name, done=done, failed=failed)

    def _failed(self, roll: Roll, error: PymqError, now: int) -> None:
        """The commit was not done: try again for the block's sake, but let nobody wait for it."""
        if isinstance(error, (StaleEpoch, LookupError)):
            self._end(roll, error, now)
            return
        mark("rolls.commit_failed")
        self._answer(roll, error)
        roll.is_committing = False
        roll.wanted = Wanted()
        roll.retry_at = now + roll.wait_ms
        self._arm(roll)

    def _end(self, roll: Roll, error: PymqError | None, now: int) -> None:
        if self._rolls.get(roll.name) is roll:
            del self._rolls[roll.name]
        self._answer(roll, error)
        for caller in roll.behind:
            caller.again(now)

    def _answer(self, roll: Roll, error: PymqError | None) -> None:
        caller, roll.caller = roll.caller, None
        if caller is not None:
            result = None if error is not None else True
            self._send(caller.source, Answer(caller.request, result, error))

    # --- what happens to brokers and blocks -----------------------------------------------------

    def registered(self, broker: str, now: int) -> None:
        """A broker is alive, perhaps after a restart: what it had answered is void."""
        for name in self._commits.image.hosting.opened(broker):
            roll = self._rolls.get(name)
            if roll is not None:
                roll.answers.pop(broker, None)
                roll.wait_ms = SEAL_RETRY_MS
        self.consider_all(broker, now)
        self.consider_short(now)

    def died(self, broker: str, now: int) -> None:
        """A broker is dead: its fetch blocks need another leader."""
        self.consider_all(broker, now)

    def led(self, name: TopicPartition, now: int) -> None:
        """A Raft block has another leader, who is to be asked now."""
        roll = self._rolls.get(name)
        if roll is not None and not roll.is_committing:
            self._ask(roll, now)

    # --- time -----------------------------------------------------------------------------------

    def _arm(self, roll: Roll) -> None:
        if roll.due < NEVER:
            self._armings += 1
            heappush(self._due, (roll.due, self._armings, roll.name))

    def tick(self, now: int) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= now:
            due, _, name = heappop(self._due)
            roll = self._rolls.get(name)
            if roll is None or roll.due != due:
                continue
            if roll.decide_at <= now:
                mark("rolls.decides_late")
                roll.decide_at, roll.is_late = NEVER, True
                self._decide(roll, now)
            if roll.retry_at <= now:
                self._ask(roll, now)
            else:
                self._arm(roll)

    @property
    def deadline(self) -> int:
        """When :meth:`tick` has something to do, at the earliest."""
        while self._due:
            due, _, name = self._due[0]
            roll = self._rolls.get(name)
            if roll is not None and roll.due == due:
                return due
            heappop(self._due)
        return NEVER
