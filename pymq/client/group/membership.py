"""A consumer's membership of its group: it joins, sends heartbeats, and joins again if removed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from pymq.client.base import Outbox
from pymq.client.fetching.offset_spans import Span
from pymq.client.fetching.partition_route import RETRY_MAX_MS, RETRY_MS
from pymq.client.group.coordinator_route import CoordinatorRoute
from pymq.client.router import Router
from pymq.core.message import Assigned, Heartbeat, Join, Leave
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER
from pymq.core.values import define
from pymq.errors import StaleEpoch

SESSION_MS = 10_000
BEAT_MS = 3_000  # longest interval of heartbeats; a member sends at least three in a session


class MembershipState(Enum):
    """The state of a consumer as a member of its group."""

    JOINING = "the consumer joins as soon as it knows the coordinator"
    JOINED = "the coordinator has assigned partitions to the consumer"
    LAPSED = "the application did not poll for too long; the consumer joins again at the next poll"
    UNSUBSCRIBED = "the group no longer consumes the topic"
    CLOSED = "the consumer was closed"


TRANSITIONS = {
    # The coordinator may remove a member at any time; the consumer joins again under a new id.
    MembershipState.JOINING: {
        MembershipState.JOINED,
        MembershipState.UNSUBSCRIBED,
        MembershipState.CLOSED,
    },
    MembershipState.JOINED: {
        MembershipState.JOINING,
        MembershipState.LAPSED,
        MembershipState.UNSUBSCRIBED,
        MembershipState.CLOSED,
    },
    MembershipState.LAPSED: {
        MembershipState.JOINING,
        MembershipState.UNSUBSCRIBED,
        MembershipState.CLOSED,
    },
    MembershipState.UNSUBSCRIBED: {MembershipState.CLOSED},
    MembershipState.CLOSED: set(),
}

Key = tuple[str, str | int]  # kind of request; partition or number of the request


@define
class WorkerConfig:
    """The options that a consumer sends to its group; times in milliseconds."""

    group: str
    assignor: str
    ack_wait_ms: int
    max_deliver: int
    reset: int
    max_poll_ms: int = 300_000  # the longest time between two polls
    ordered: bool | None = None  # None: only records with the same key keep their order
    # number of records leased at a time; None: by the application's speed
    prefetch: int | None = None
    session_ms: int = 0  # the group removes a member that is silent for this long; 0: SESSION_MS
    buries_expired: bool = False  # whether expired records become dead letters


class Membership:
    """A consumer's membership, and the partitions that the group has assigned to it."""

    def __init__(
        self,
        topic: str,
        config: WorkerConfig,
        router: Router,
        outbox: Outbox,
        timers: TimerHeap[Key],
        new_name: Callable[[], str],
        on_join: Callable[[str, int], None],
    ) -> None:
        self.topic = topic
        self.config = config
        self.group = config.group
        self.coordinator = CoordinatorRoute(config.group, router)
        self.name = new_name()
        self.assigned: tuple[str, ...] = ()
        self.generation = 0
        # arguments for callbacks that must run: pairs (lost, gained) of partitions
        self.changes: deque[tuple[tuple[str, ...], tuple[str, ...]]] = deque()
        self.state = MembershipState.JOINING
        # whether the state is JOINED; a plain attribute because each turn reads it
        self.is_joined = False
        self.told: tuple[str, ...] = ()  # the partitions last reported to the coordinator ...
        # ... and the reported partitions that the coordinator has confirmed
        self._confirmed: tuple[str, ...] = ()
        self.topic_id = ""  # id of the topic when the consumer joined
        self.retry_at = 0  # the time of the next try to join
        self.beat_at = NEVER
        self._new_name = new_name
        self._on_join = on_join  # called with the topic's id at each join
        self._router = router
        self._outbox = outbox
        self._timers = timers
        self._joining = 0
        self._beat = 0

    @property
    def _beat_ms(self) -> int:
        return min(BEAT_MS, max(1, (self.config.session_ms or SESSION_MS) // 3))

    @property
    def is_known(self) -> bool:
        """Whether the coordinator may know this member."""
        return self.is_joined or bool(self._joining)

    def retry(self, now: int, pause: int = RETRY_MS) -> None:
        """Set a timer of *pause* ms for requests that wait for the coordinator or leaders."""
        if not self.retry_at:
            self.retry_at = now + pause

    def partitions(self) -> tuple[str, ...]:
        """The partitions of the topic, as far as known."""
        known = self._router.metadata.topics.get(self.topic)
        return tuple(p.partition for p in known.partitions) if known else self.told

    def is_named_by_route(self) -> bool:
        """Whether the topic's option ``route`` names this group, as far as known."""
        known = self._router.metadata.topics.get(self.topic)
        route = known.config.route if known is not None else None
        return route is not None and route.startswith(self.config.group + ":")

    def is_made_again(self) -> bool:
        """Whether the topic has been created again since the join began."""
        known = self._router.metadata.topics.get(self.topic)
        return known is not None and self.topic_id not in ("", known.topic_id)

    def join(self, now: int) -> None:
        """Send a join, unless a join is in flight."""
        if self._joining or self.retry_at > now:
            return
        coordinator = self.coordinator.find()
        known = self._router.metadata.topics.get(self.topic)
        if known is None:
            self._router.refresh(self.topic)
        if coordinator is None or known is None:
            return
        c = self.config
        self.told, self.topic_id = self.partitions(), known.topic_id
        self._joining = self._outbox.number()
        join = Join(
            self._joining,
            c.group,
            self.name,
            self.topic,
            self.told,
            c.assignor,
            c.session_ms or SESSION_MS,
            c.ack_wait_ms,
            c.max_deliver,
            c.reset,
            self.topic_id,
            c.ordered,
        )
        self._outbox.post(coordinator, join)
        self._timers.set(("join", self._joining), now + self.coordinator.patience_ms)
        self._on_join(self.topic_id, now)

    def heartbeat(self, now: int) -> None:
        """Send a heartbeat, with the topic's partitions if the coordinator may not know all of
        them.
        """
        self.beat_at = now + self._beat_ms
        coordinator = self.coordinator.find()
        if not self.is_joined:
            return
        self._router.refresh(self.topic)  # The coordinator may know of added partitions.
        self._timers.drop(("beat", self._beat))
        self._beat, self.told = self._outbox.number(), self.partitions()
        # The coordinator may be a new one, so it gets all partitions.
        news = self.told if self.told != self._confirmed else ()
        beat = Heartbeat(self._beat, self.group, self.name, news)
        if coordinator is not None:
            self._outbox.post(coordinator, beat)
        self._timers.set(("beat", self._beat), now + self.coordinator.patience_ms)

    def unanswered(self, kind: str, request: int, now: int) -> None:
        """Handle a missing answer: send the request again."""
        if kind == "join" and request == self._joining:
            self._joining = 0
            self.join(now)
        elif kind == "beat" and request == self._beat:
            self.heartbeat(now)

    def is_waiting_for(self, request: int) -> bool:
        """Whether this is the answer to the last request."""
        return bool(request) and request in (self._joining, self._beat)

    def answered(self, m: Assigned, now: int) -> bool:
        """Finish the last request; returns whether it was a join."""
        is_join = m.id == self._joining
        self._timers.drop(("join" if is_join else "beat", m.id))
        if is_join:
            self._joining = 0
            if isinstance(m.error, StaleEpoch):
                self._router.refresh(self.topic)
        else:
            self._beat = 0
            if m.error is not None and self.is_joined:
                self.beat_at = now + RETRY_MAX_MS
        return is_join

    def assign(self, m: Assigned, now: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Handle the assigned partitions; returns the lost and the gained partitions."""
        self._move(MembershipState.JOINED)
        self._confirmed = self.told
        self.beat_at = now + self._beat_ms
        self.generation = m.generation
        lost = tuple(p for p in self.assigned if p not in m.partitions)
        gained = tuple(p for p in m.partitions if p not in self.assigned)
        if lost or gained:
            self.changes.append((lost, gained))
        self.assigned = m.partitions
        return lost, gained

    def leave(self, unread: list[Span]) -> None:
        """Leave the group, and return the records that the application has not got."""
        coordinator = self.coordinator.find()
        if coordinator is not None and self.is_known:
            leave = Leave(self._outbox.number(), self.group, self.name, tuple(unread))
            self._outbox.post(coordinator, leave)

    def fenced(self) -> None:
        """Join again under a new id, because the coordinator does not know the member."""
        self.name = self._new_name()
        self._confirmed = ()
        if self.is_joined:
            self._move(MembershipState.JOINING)
        self._joining = self._beat = 0
        self.beat_at = NEVER
        self.retry_at = 0

    def lapsed(self) -> tuple[str, ...]:
        """Leave the group until the next poll, then join under a new id; returns the lost
        partitions.
        """
        if self.is_joined:
            self._move(MembershipState.LAPSED)
        self.fenced()
        lost, self.assigned = self.assigned, ()
        if lost:
            self.changes.append((lost, ()))
        return lost

    def rejoin(self) -> None:
        """Join again after :meth:`lapsed`."""
        self._move(MembershipState.JOINING)

    def left(self, state: MembershipState) -> None:
        """End the membership permanently: the consumer is UNSUBSCRIBED or CLOSED."""
        self._move(state)
        self.beat_at = NEVER
        self.retry_at = 0

    def _move(self, to: MembershipState) -> None:
        if to is not self.state:
            assert to in TRANSITIONS[self.state], f"{self.state.name} -> {to.name}"
            self.state = to
            self.is_joined = to is MembershipState.JOINED
