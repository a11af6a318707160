"""Carries out administrators' requests on the active zkserver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from pymq.controller.context import ControllerContext
from pymq.controller.operations.roll_state import Caller
from pymq.controller.operations.roll_triggers import RollTriggers
from pymq.controller.operations.rolls import Rolls
from pymq.controller.operations.topics import Topics
from pymq.controller.state.commit_queues import Later
from pymq.controller.state.image import Draft
from pymq.controller.transitions import (
    blocks,
    broker_restarts,
    replica_moves,
    request_plans,
    takeover,
)
from pymq.controller.transitions.blocks import change
from pymq.controller.transitions.placement import BrokerLoad, choose, usable
from pymq.core.counts import clause
from pymq.core.message import (
    AlterTopic,
    CreatePartition,
    CreateTopic,
    Decommission,
    DeleteRecords,
    DeleteTopic,
    Message,
    Reassign,
    Recommission,
    RecoverPartition,
    Result,
    SetPartitionState,
)
from pymq.core.metadata.nodes import Wanted
from pymq.core.types import AckMode, TopicPartition
from pymq.errors import InvalidRequest, NotEnoughBrokers, PartitionUnset


class AdminHandler:
    """Carries out the requests that change topics, partitions and brokers."""

    def __init__(
        self, context: ControllerContext, rolls: Rolls, triggers: RollTriggers, topics: Topics
    ) -> None:
        self._commits = context.commits
        self._members = context.members
        self._updates = context.updates
        self._rolls = rolls
        self._triggers = triggers
        self._topics = topics
        self._wall_ms = context.wall_ms

    def step(self, source: str, m: Message, now: int) -> None:
        """Handle a request; ignores any other message."""
        match m:
            case CreateTopic():
                self._topics.create(source, m, now)
            case CreatePartition():
                self._create_partition(source, m, now)
            case DeleteTopic():
                self._topics.delete(source, m)
            case AlterTopic():
                self._alter_topic(source, m)
            case DeleteRecords():
                self._delete_records(source, m)
            case SetPartitionState():
                self._set_state(source, m, now)
            case Reassign():
                self._reassign(source, m)
            case RecoverPartition():
                self._recover(source, m, now)
            case Decommission():
                self._decommission(source, m)
            case Recommission():
                self._recommission(source, m)
            case _:
                pass

    # --- topics ---------------------------------------------------------------------------------

    def _create_partition(self, source: str, m: CreatePartition, now: int) -> None:
        wall_ms = self._wall_ms(now)

        def plan(draft: Draft) -> Result:
            request_plans.create_partition(draft, m, self._members.live, wall_ms)
            return None

        def done(now: int) -> None:
            # Send the new number of partitions to all brokers of the topic, because keys are hashed
            # over it.
            self._updates.tell(m.topic, now)

        self._commits.do(plan, answer=(source, m.id), done=done)

    def _alter_topic(self, source: str, m: AlterTopic) -> None:
        def plan(draft: Draft) -> Result:
            request_plans.alter_topic(draft, m)
            return None

        def done(now: int) -> None:
            self._updates.tell(m.name, now)
            topic = self._commits.image.topics[m.name]
            if topic.node.config.unclean_election:
                names = [TopicPartition(m.name, name) for name in topic.partitions]
                self._triggers.consider(names, now)

        self._commits.do(plan, answer=(source, m.id), done=done)

    # --- partitions -----------------------------------------------------------------------------

    def _delete_records(self, source: str, m: DeleteRecords) -> None:
        name = TopicPartition(m.topic, m.partition)

        def plan(draft: Draft) -> Result:
            request_plans.delete_records(draft, m)
            return None

        def done(now: int) -> None:
            self._updates.tell_all([name], now)

        self._commits.do(plan, answer=(source, m.id), scope=name, done=done)

    def _roll(
        self,
        source: str,
        m: SetPartitionState | Reassign,
        plan: Callable[[Draft], Result | Wanted],
    ) -> None:
        """Carry out a request that may need a roll; it waits for a roll in progress."""
        name = TopicPartition(m.topic, m.partition)
        caller = Caller(source, m.id, lambda now: self.step(source, m, now))
        wanted: Wanted | None = None
        is_changed = False

        def plan_it(draft: Draft) -> Result | Later:
            nonlocal wanted, is_changed
            wanted, is_changed = None, False
            if self._rolls.wait(name, caller):
                return Later.ANSWER
            result = plan(draft)
            if isinstance(result, Wanted):
                wanted = result
                blocks.want(draft, name, result)
                return Later.ANSWER
            is_changed = bool(draft.ops)
            return result

        def done(now: int) -> None:
            if wanted is not None:
                self._rolls.start(name, now, caller)
            elif is_changed:
                self._updates.tell(m.topic, now, m.partition)

        self._commits.do(plan_it, answer=(source, m.id), scope=name, done=done)

    def _set_state(self, source: str, m: SetPartitionState, now: int) -> None:
        name, wall_ms = TopicPartition(m.topic, m.partition), self._wall_ms(now)

        def plan(draft: Draft) -> Result | Wanted:
            node = draft.image.partition(*name).node
            replicas = node.replicas if m.replicas is None else m.replicas
            if replicas < 1:
                raise InvalidRequest(f"replicas={replicas} must be at least 1")
            if replicas < node.replicas:
                request_plans.check_in_sync(draft.image.topic(m.topic).node.config, replicas)
            is_same_size = replicas == node.replicas
            if node.acks is m.acks and is_same_size:
                # Cancel an earlier request that no zkserver has carried out yet.
                blocks.want(draft, name, None)
                return False
            blocks.check_mode(m.acks)
            if node.acks is AckMode.UNSET or not is_same_size:
                # The partition gets as many replicas as the request names, or the answer is an
                # error.
                brokers = usable(draft.image, self._members.live)
                load = BrokerLoad(draft.image, brokers)
                chosen = choose(draft.image, brokers, load, name, replicas)
                if node.acks is AckMode.UNSET:
                    blocks.open_first(draft, name, m.acks, replicas, chosen, wall_ms)
                    return True
            elif AckMode.RAFT not in (node.acks, m.acks):
                blocks.change_acks(draft, name, m.acks)
                return True
            return Wanted(m.acks, count=replicas)

        self._roll(source, m, plan)

    def _reassign(self, source: str, m: Reassign) -> None:
        def plan(draft: Draft) -> Result | Wanted:
            image = draft.image.partition(m.topic, m.partition)
            if image.node.acks is AckMode.UNSET:
                raise PartitionUnset(f"{m.topic}/{m.partition} has no ack mode and no replicas yet")
            if not m.replicas or len(set(m.replicas)) != len(m.replicas):
                raise InvalidRequest("replicas must name at least one broker, and none twice")
            away = [name for name in m.replicas if name not in self._members]
            if away:
                raise NotEnoughBrokers(f"not alive: {', '.join(away)}")
            leaving = [name for name in m.replicas if draft.image.brokers[name].is_draining]
            if leaving:
                raise InvalidRequest(f"decommissioned: {', '.join(leaving)}")
            if len(m.replicas) < image.node.replicas:
                request_plans.check_in_sync(draft.image.topic(m.topic).node.config, len(m.replicas))
            name = TopicPartition(m.topic, m.partition)
            if set(image.open_block.replicas) != set(m.replicas):
                return Wanted(None, m.replicas, len(m.replicas), m.move_sealed)
            if m.move_sealed and image.node.wanted is None:
                return replica_moves.set_sealed_to(draft, name, m.replicas)
            if m.move_sealed:  # this also cancels an earlier request, as below
                change(draft, name, wanted=None, sealed_to=m.replicas)
                return True
            blocks.want(draft, name, None)
            return False

        self._roll(source, m, plan)

    def _recover(self, source: str, m: RecoverPartition, now: int) -> None:
        """Let a partition continue without lost replicas.

        The answer names records that may be lost.
        """
        name = TopicPartition(m.topic, m.partition)
        again = partial(self._recover, source, m)
        caller = Caller(source, m.id, again, wants_loss=True)
        is_dead = False

        def plan(draft: Draft) -> Result | Later:
            nonlocal is_dead
            image, members = draft.image, self._members
            is_dead = takeover.problem(image, members, name) is not None
            if not is_dead:
                return None  # The partition has a leader or will elect one, so nothing is lost.
            if not members.is_settled or not usable(image, members.live):
                raise NotEnoughBrokers("the zkserver does not know yet which brokers are alive")
            return Later.ANSWER

        def done(now: int) -> None:
            if is_dead:
                self._rolls.start(name, now, caller, is_forced=True)

        self._commits.do(plan, answer=(source, m.id), scope=name, done=done)

    # --- brokers --------------------------------------------------------------------------------

    def _decommission(self, source: str, m: Decommission) -> None:
        names: tuple[TopicPartition, ...] = ()

        def plan(draft: Draft) -> Result:
            nonlocal names
            image = draft.image
            if m.broker not in image.brokers:
                raise _unknown(image.brokers, m.broker)
            names = image.hosting.opened(m.broker)
            rest = [name for name in usable(image, self._members.live) if name != m.broker]
            needed = max(
                (len(image.partition(*name).open_block.replicas) for name in names), default=0
            )
            if needed > len(rest):  # refuse unless all partitions can move
                raise NotEnoughBrokers(
                    f"{clause(needed, 'other live broker', 'is', 'are')} needed for its blocks, "
                    f"but there {'is' if len(rest) == 1 else 'are'} {len(rest)}",
                    needed=needed,
                    available=len(rest),
                )
            broker_restarts.drain(draft, m.broker, True)
            return len(names)

        def done(now: int) -> None:
            self._triggers.consider(names, now)

        self._commits.do(plan, answer=(source, m.id), done=done)

    def _recommission(self, source: str, m: Recommission) -> None:
        def plan(draft: Draft) -> Result:
            if m.broker not in draft.image.brokers:
                raise _unknown(draft.image.brokers, m.broker)
            return broker_restarts.drain(draft, m.broker, False)

        def done(now: int) -> None:
            self._triggers.consider_short(now)

        self._commits.do(plan, answer=(source, m.id), done=done)


def _unknown(brokers: Iterable[str], name: str) -> InvalidRequest:
    there = ", ".join(sorted(brokers)) or "none at all"
    return InvalidRequest(f"there is no broker {name!r}; there are {there}")
