"""Creates and deletes topics, atomically for clients, in one or several commits."""

from __future__ import annotations

from collections.abc import Callable

from pymq.controller.context import ControllerContext
from pymq.controller.operations.roll_triggers import RollTriggers
from pymq.controller.operations.rolls import Rolls
from pymq.controller.state.commit_queues import Later
from pymq.controller.state.image import Draft
from pymq.controller.transitions import request_plans
from pymq.core.message import CreateTopic, DeleteTopic, Result
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER, TopicPartition
from pymq.errors import PymqError

REMOVE_RETRY_MS = 1_000


class Topics:
    """Carries out the creation and deletion of topics.

    A topic that is too large for one commit is hidden from clients and brokers while it is created
    or removed. A request to create a topic of that name waits until the name is free.
    """

    def __init__(self, context: ControllerContext, rolls: Rolls, triggers: RollTriggers) -> None:
        self.deadline = NEVER
        self._commits = context.commits
        self._members = context.members
        self._updates = context.updates
        self._rolls = rolls
        self._triggers = triggers
        self._new_id = context.new_id
        self._wall_ms = context.wall_ms
        self._created = 0
        self._own: dict[str, None] = {}  # ids of hidden topics with a task in progress
        # Requests that wait for a name, by that name.
        self._waiting: dict[str, dict[tuple[str, int], Callable[[int], None]]] = {}

    def begin(self, now: int) -> None:
        """Begin after a take-over: remove all hidden topics, including half-created ones."""
        self._own.clear()
        self._waiting.clear()
        self._remove_all()

    def end(self) -> None:
        """Stop, because this zkserver is no longer active.

        The method also queues the waiting requests, which this zkserver then refuses.
        """
        for waiting in self._waiting.values():
            for answer in waiting:
                self._commits.do(lambda draft: None, answer=answer)
        self._own.clear()
        self._waiting.clear()
        self.deadline = NEVER

    def tick(self, now: int) -> None:
        """Retry removals that failed."""
        if self.deadline <= now:
            self.deadline = NEVER
            self._remove_all()

    def is_waiting(self, source: str, request: int) -> bool:
        """Whether a request waits for a topic name that is not free yet."""
        return any((source, request) in waiting for waiting in self._waiting.values())

    # --- creating -------------------------------------------------------------------------------

    def create(self, source: str, m: CreateTopic, now: int, *, fewer: bool = False) -> None:
        """Create a topic; with *fewer* the topic gets fewer replicas if there are not enough
        brokers.
        """
        self._created += 1
        # Ids rise, so that groups detect a topic that was deleted and created again.
        epoch, chance = self._commits.image.controller_epoch, self._new_id()[16:]
        topic_id = f"{epoch:08x}{self._created:08x}{chance}"
        making = request_plans.Making(topic_id, self._wall_ms(now), fewer=fewer)
        is_made = is_sliced = False

        def plan(draft: Draft) -> Result | Later:
            nonlocal is_made, is_sliced
            is_made = False
            if m.exist_ok and m.name in draft.image.topics:
                return False
            hidden = draft.image.hidden.get(m.name)
            if hidden is not None and hidden.node.id != topic_id:
                mark("topics.name_is_not_free")
                again = self._waiting.setdefault(m.name, {})
                again[source, m.id] = lambda now: self.create(source, m, now, fewer=fewer)
                return Later.ANSWER
            is_made = request_plans.create_topic(draft, m, self._members.live, making)
            if is_made:
                return True
            self._own[topic_id] = None
            is_sliced = True
            return Later.MORE

        def done(now: int) -> None:
            if not is_made:
                return
            self._updates.tell(m.name, now)
            self._over(topic_id, m.name, now)
            if is_sliced:
                # A chosen broker may have died or been decommissioned between two commits.
                draining = self._commits.image.draining
                for broker in dict.fromkeys((*self._members.dead_since, *draining)):
                    self._triggers.consider_all(broker, now)

        def failed(error: PymqError, now: int) -> None:
            if self._own.pop(topic_id, 0) is None:
                mark("topics.not_made")
                self._remove(m.name, topic_id)

        self._commits.do(plan, answer=(source, m.id), done=done, failed=failed)

    # --- removing -------------------------------------------------------------------------------

    def delete(self, source: str, m: DeleteTopic) -> None:
        """Remove a topic; clients no longer see it after the first commit."""
        topic_id = ""
        brokers: tuple[str, ...] = ()
        names: tuple[str, ...] = ()

        def plan(draft: Draft) -> Result | Later:
            nonlocal topic_id, brokers, names
            hidden = draft.image.hidden.get(m.name)
            if topic_id and hidden is not None and hidden.node.id == topic_id:
                return None if request_plans.remove_topic(draft, hidden) else Later.MORE
            topic = draft.image.topic(m.name)
            brokers, is_all = request_plans.delete_topic(draft, topic)
            topic_id, names = topic.node.id, tuple(topic.partitions)
            return None if is_all else Later.MORE

        def sliced(now: int) -> None:
            nonlocal brokers, names
            self._own[topic_id] = None
            for name in names:
                self._rolls.gone(TopicPartition(m.name, name), now)
            for broker in brokers:
                self._updates.stop(broker, topic_id, now)
            brokers, names = (), ()

        def done(now: int) -> None:
            self._over(topic_id, m.name, now)

        def failed(error: PymqError, now: int) -> None:
            if self._own.pop(topic_id, 0) is None:
                self._remove(m.name, topic_id)

        self._commits.do(plan, answer=(source, m.id), done=done, failed=failed, sliced=sliced)

    def _remove_all(self) -> None:
        for name, topic in self._commits.image.hidden.items():
            if topic.node.id not in self._own:
                self._remove(name, topic.node.id)

    def _remove(self, name: str, topic_id: str) -> None:
        """Remove the rest of a hidden topic."""
        mark("topics.removed_later")
        self._own[topic_id] = None

        def plan(draft: Draft) -> Result | Later:
            hidden = draft.image.hidden.get(name)
            if hidden is None or hidden.node.id != topic_id:
                return None
            return None if request_plans.remove_topic(draft, hidden) else Later.MORE

        def done(now: int) -> None:
            self._over(topic_id, name, now)

        def failed(error: PymqError, now: int) -> None:
            self._own.pop(topic_id, None)
            self.deadline = min(self.deadline, now + REMOVE_RETRY_MS)

        self._commits.do(plan, done=done, failed=failed)

    def _over(self, topic_id: str, name: str, now: int) -> None:
        """Run the requests that have waited for the name of a topic that is complete or removed."""
        self._own.pop(topic_id, None)
        for again in self._waiting.pop(name, {}).values():
            again(now)
