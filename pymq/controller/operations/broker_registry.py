"""Handles registrations, heartbeats, deaths and disk failures of brokers."""

from __future__ import annotations

from itertools import islice

import attrs

from pymq.controller.context import ControllerContext
from pymq.controller.operations.roll_triggers import RollTriggers
from pymq.controller.operations.rolls import Rolls
from pymq.controller.state.commit_queues import Later
from pymq.controller.state.image import Draft
from pymq.controller.transitions import broker_restarts, report_transitions, request_plans
from pymq.controller.transitions.partition_sweep import LOOKS_MAX, Sweep
from pymq.core.message import (
    Answer,
    BrokerHeartbeat,
    OfflineReplicas,
    RegisterBroker,
    Result,
)
from pymq.core.metadata.nodes import BrokerNode
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, TopicPartition, check_name
from pymq.errors import NotRegistered, PymqError


class BrokerRegistry:
    """Commits the changes that are necessary when brokers start, stop or fail."""

    def __init__(
        self,
        context: ControllerContext,
        rolls: Rolls,
        triggers: RollTriggers,
        *,
        check_ms: int,
    ) -> None:
        self._commits = context.commits
        self._members = context.members
        self._updates = context.updates
        self._rolls = rolls
        self._triggers = triggers
        self._send = context.send
        self._check_ms = check_ms
        self._wall_ms = context.wall_ms
        self._new_id = context.new_id
        self._check_at = NEVER
        self._registering: dict[str, RegisterBroker] = {}  # registrations not committed yet
        self._was_settled = True

    def begin(self, now: int) -> None:
        """Begin after a take-over, without any live broker."""
        self._members.begin(self._commits.image.brokers, now)
        self._was_settled = self._members.is_settled
        # If brokers never die, no further check is needed, because their registrations cause the
        # same actions.
        self._check_at = NEVER if self._was_settled else now + self._check_ms

    def end(self) -> None:
        """Stop, because this zkserver is no longer active.

        The method also queues the held requests, which this zkserver then refuses.
        """
        self._commits.queues.redo_held()
        self._registering.clear()
        self._members.begin((), 0)
        self._check_at = NEVER

    # --- registering ----------------------------------------------------------------------------

    def beat(self, source: str, m: BrokerHeartbeat, now: int) -> None:
        """Handle a heartbeat; answer an unknown broker with `NotRegistered`."""
        if not self._members.beat(m.name, m.incarnation, now):
            mark("registry.unknown")
            unknown = NotRegistered(f"{m.name} is not registered as incarnation {m.incarnation}")
            self._send(source, Answer(0, error=unknown))

    def register(self, source: str, m: RegisterBroker, now: int) -> None:
        """Register a broker that has started or has found this active zkserver."""
        node = BrokerNode(
            m.name, m.endpoint, m.rack, m.weight, m.storage_id, m.incarnation, kafka=m.kafka
        )
        if self._registering.get(m.name) == m or self._is_told(node):
            mark("registry.asked_again")
            self._members.beat(m.name, m.incarnation, now)
            # This is a retry, which brokers send once a second. Ignore it, because otherwise the
            # zkserver would send all states again after each retry.
            return
        self._registering[m.name] = m
        sweep = Sweep(m.name)
        heard = self._members.heard_by(m.name)
        heard_ms = self._wall_ms(heard) if heard != NEVER else NEVER

        def plan(draft: Draft) -> Later:
            check_name(m.name, "broker name")
            if self._registering.get(m.name) is not m:
                mark("registry.superseded")
                raise NotRegistered(f"{m.name} has restarted since")
            known = draft.image.brokers.get(m.name)
            if (
                known is not None
                and m.incarnation < known.incarnation
                and m.storage_id == known.storage_id
            ):
                mark("registry.old_incarnation")
                raise NotRegistered(
                    f"{m.name} has incarnation {known.incarnation}; register with a higher one",
                    incarnation=known.incarnation,
                )
            request_plans.keep_secret(
                draft, self._new_id
            )  # brokers get the secret together with the states of their partitions
            is_last = broker_restarts.register(draft, node, sweep, heard_ms, self._wall_ms(now))
            return Later.ANSWER if is_last else Later.MORE

        def sliced(now: int) -> None:
            # Late reports of the broker's earlier incarnation must not undo a part of the
            # registration.
            self._members.end(m.name, m.incarnation)
            self._updates.close(m.name)  # the broker's registration will send all states again
            self._updates.tell_all(sweep.commit(), now)

        def done(now: int) -> None:
            self._over(m)
            self._registered(m, now)

        def failed(error: PymqError, now: int) -> None:
            self._over(m)
            self._send(source, Answer(m.id, error=error))

        self._commits.do(plan, done=done, failed=failed, sliced=sliced, is_urgent=True)

    def _is_told(self, node: BrokerNode) -> bool:
        """Whether the zkserver has registered *node* and waits until it confirms all states."""
        known = self._commits.image.brokers.get(node.name)
        return (
            node.name not in self._registering
            and known is not None
            and attrs.evolve(known, is_draining=node.is_draining, number=node.number) == node
            and self._updates.is_telling_all(node.name, node.incarnation)
        )

    def _over(self, m: RegisterBroker) -> None:
        if self._registering.get(m.name) is m:
            del self._registering[m.name]

    def _registered(self, m: RegisterBroker, now: int) -> None:
        self._commits.journal.note("broker_registered", broker=m.name, incarnation=m.incarnation)
        self._members.join(m.name, m.incarnation, now)
        self._updates.open(m.name, m.incarnation, now)
        self._rolls.registered(m.name)
        self._triggers.registered(m.name, now)
        self._commits.queues.redo_held()

    # --- offline replicas -----------------------------------------------------------------------

    def offline(self, m: OfflineReplicas, now: int) -> None:
        """Handle a broker's report of offline replicas."""
        if not m.incarnation or not self._members.is_of(m.broker, m.incarnation):
            mark("registry.offline.other_incarnation")
            return  # the broker repeats the report
        image = self._commits.image
        known = tuple(
            each
            for each in m.replicas
            if image.find(TopicPartition(each.topic, each.partition)) is not None
            and not report_transitions.is_of_another(image, each.topic, each.topic_id)
        )
        new, is_healed = self._members.offline.told(attrs.evolve(m, replicas=known), now)
        if new:
            mark("registry.offline")
            self._out_of_sync(new)
        for name in new:
            why = self._members.offline.why(m.broker, name)
            self._commits.journal.note(
                "replica_offline", broker=m.broker, **name._asdict(), why=why
            )
        self._triggers.consider(new, now)
        if is_healed:
            mark("registry.online_again")
            self._triggers.consider_short(now)

    def _out_of_sync(self, names: list[TopicPartition]) -> None:
        changed: list[TopicPartition] = []
        # two positions in *names*: after the last committed part, and after the planned part
        at = planned = 0

        def plan(draft: Draft) -> Result | Later:
            nonlocal planned
            changed.clear()
            planned = at
            for name in islice(names, at, at + LOOKS_MAX):
                if draft.is_full:
                    break
                planned += 1
                if broker_restarts.offline(draft, self._members, name):
                    changed.append(name)
            return None if planned == len(names) else Later.MORE

        def sliced(now: int) -> None:
            nonlocal at
            at = planned
            self._updates.tell_all(changed, now)

        self._commits.do(plan, sliced=sliced, is_urgent=True)

    # --- timers ---------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Detect dead brokers, and roll or replace the affected partitions."""
        for broker in self._members.expire(now):
            self._commits.journal.note("broker_dead", broker=broker)
            self._updates.close(broker)
            self._died(broker)
            mark("registry.died")
            self._triggers.consider_all(broker, now)
        if self._members.is_settled and not self._was_settled:
            self._was_settled = True
            self._commits.queues.redo_held()
            self._check(now)
        for broker in self._members.given_up(now):
            mark("registry.replaced")
            self._triggers.consider_all(broker, now)
        if given_up := list(self._members.offline.given_up(now)):
            mark("registry.offline.replaced")
            self._triggers.consider(given_up, now)
        if self._check_at <= now:
            self._check(now)

    def _died(self, broker: str) -> None:
        """Remove a dead broker from the in-sync sets of fetch blocks."""
        sweep = Sweep(broker)

        def plan(draft: Draft) -> Result | Later:
            if broker in self._members:  # the broker has registered again
                return None
            return (
                None
                if broker_restarts.died(draft, broker, sweep, self._members.live)
                else Later.MORE
            )

        def sliced(now: int) -> None:
            self._updates.tell_all(sweep.commit(), now)

        # If the commit fails, :meth:`_check` repeats it.
        self._commits.do(plan, sliced=sliced, is_urgent=True)

    def _check(self, now: int) -> None:
        """Consider a roll of each partition that may have too few or the wrong replicas."""
        self._check_at = now + self._check_ms
        self._triggers.consider_short(now)
        self._triggers.resume(now)
        for broker, node in self._commits.image.brokers.items():
            if broker in self._members.dead_since:
                self._died(broker)
            if node.is_draining or broker in self._members.dead_since:
                self._triggers.consider_all(broker, now)
        # a live broker may be available for these partitions by now
        self._triggers.consider(self._members.offline.to_replace(), now)

    @property
    def deadline(self) -> int:
        """The deadline of :meth:`tick`."""
        return min(self._members.deadline, self._members.offline.deadline, self._check_at)
