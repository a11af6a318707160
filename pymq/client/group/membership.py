"""Who a consumer is in its group: it joins, stays by heartbeats, and may have to join again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

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
BEAT_MS = 3_000  # at most; a member says three times in a session that it lives

Key = tuple[str, str | int]  # kind of request; partition or number of the request


@define
class WorkerConfig:
    """What a consumer asks of its group; times in milliseconds."""

    group: str
    assignor: str
    ack_wait_ms: int
    max_deliver: int
    reset: int
    max_poll_ms: int = 300_000  # how long the application may not ask for records
    ordered: bool | None = None  # None: records with a key keep its order, others have none
    prefetch: int | None = None  # records that are leased at a time; None: as it keeps up
    session_ms: int = 0  # it is gone when it is silent for longer; 0: SESSION_MS


class Membership:
    """A member of a group, and what the group has assigned to it."""

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
        self.changes: deque[tuple[tuple[str, ...], tuple[str, ...]]] = deque()  # (lost, gained)
        self.is_joined = False
        self.told: tuple[str, ...] = ()  # the partitions that the coordinator was told of last ...
        self._confirmed: tuple[str, ...] = ()  # ... and those that it has answered to
        self.topic_id = ""  # of the topic that we join for
        self.retry_at = 0  # join, at first at once
        self.beat_at = NEVER
        self._new_name = new_name
        self._on_join = on_join  # called with the topic's id whenever we ask to be a member
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
        """Whether the coordinator may take us for a member."""
        return self.is_joined or bool(self._joining)

    def retry(self, now: int, pause: int = RETRY_MS) -> None:
        """Have what waits for the coordinator, or for leaders, looked at again after *pause* ms."""
        if not self.retry_at:
            self.retry_at = now + pause

    def partitions(self) -> tuple[str, ...]:
        """Those that the topic has, as far as we know."""
        known = self._router.topics.get(self.topic)
        return tuple(p.partition for p in known.partitions) if known else self.told

    def is_made_again(self) -> bool:
        """Whether the topic is another one by now than the one that we wanted to join for."""
        known = self._router.topics.get(self.topic)
        return known is not None and self.topic_id not in ("", known.topic_id)

    def join(self, now: int) -> None:
        """Ask to be a member, unless that is under way."""
        if self._joining or self.retry_at > now:
            return
        coordinator = self.coordinator.find()
        known = self._router.topics.get(self.topic)
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
        """Say that we live, and which partitions the topic has, if the coordinator may not know."""
        self.beat_at = now + self._beat_ms
        coordinator = self.coordinator.find()
        if not self.is_joined:
            return
        self._router.refresh(self.topic)  # Partitions may have been added.
        self._timers.drop(("beat", self._beat))
        self._beat, self.told = self._outbox.number(), self.partitions()
        # Who coordinates and knows us has answered us: another one says that we are no member.
        news = self.told if self.told != self._confirmed else ()
        beat = Heartbeat(self._beat, self.group, self.name, news)
        if coordinator is not None:
            self._outbox.post(coordinator, beat)
        self._timers.set(("beat", self._beat), now + self.coordinator.patience_ms)

    def unanswered(self, kind: str, request: int, now: int) -> None:
        """The coordinator let us wait for too long: ask again."""
        if kind == "join" and request == self._joining:
            self._joining = 0
            self.join(now)
        elif kind == "beat" and request == self._beat:
            self.heartbeat(now)

    def is_waiting_for(self, request: int) -> bool:
        """Whether this is the answer to our last request."""
        return bool(request) and request in (self._joining, self._beat)

    def answered(self, m: Assigned, now: int) -> bool:
        """The last request is over; returns whether it was one to join."""
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
        """We are a member, with these partitions; returns those that we lost and those gained."""
        self.is_joined = True
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
        """Say that we go, and what the application has not seen of our leases."""
        coordinator = self.coordinator.find()
        if coordinator is not None and self.is_known:
            leave = Leave(self._outbox.number(), self.group, self.name, tuple(unread))
            self._outbox.post(coordinator, leave)

    def fenced(self) -> None:
        """The coordinator does not know us: we come as another member."""
        self.name = self._new_name()
        self._confirmed = ()
        self.is_joined = False
        self._joining = self._beat = 0
        self.beat_at = NEVER
        self.retry_at = 0

    def lapsed(self) -> tuple[str, ...]:
        """We leave for now, and come as another member; returns the partitions that we lose."""
        self.fenced()
        lost, self.assigned = self.assigned, ()
        if lost:
            self.changes.append((lost, ()))
        return lost

    def left(self) -> None:
        """We are no member any more, and shall not be."""
        self.is_joined = False
        self.beat_at = NEVER
        self.retry_at = 0
