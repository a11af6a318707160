"""Sends a client's requests to zkservers, and decides when to refresh metadata.

A client has one router. Producers and consumers get leaders from the router and report stale
metadata to it.

The router sends a request to the zkserver that was active last. If that zkserver does not answer,
or is no longer active, the router sends the request to another zkserver with the same id, until a
zkserver has carried the request out or the timeout is over. The timeout starts again whenever a
zkserver answers that it is working on the request. So a request may be carried out twice: a caller
whose request must not be repeated checks :attr:`Call.is_repeated`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pymq.client.active_controller import ActiveController
from pymq.client.base import Outbox, Waitable
from pymq.client.metadata_cache import MetadataCache
from pymq.core.counts import plural
from pymq.core.message import Answer, GetMetadata, Message, UnderWay
from pymq.core.metadata.descriptions import PartitionLeader, TopicMetadata
from pymq.core.ready import Ready
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER, OFFSETS_TOPIC
from pymq.errors import NotController, PymqError, QuotaExceeded, RequestTimeout

TRY_MS = 500  # timeout of a zkserver's answer: doubles with each try, up to ...
TRY_MAX_MS = 4_000
REFRESH_MS = 50  # pause between two tries to find a leader: doubles up to ...
REFRESH_MAX_MS = 250  # ... and after many of them up to ...
REFRESH_IDLE_MS = 1_000
REFRESH_TRIES = 20
# pause while a leader is unreachable, because a new leader will soon be elected
REFRESH_LOST_MS = 100
RENEW_MS = 30_000  # the greatest age of a topic's metadata while a producer sends to it
LOST_MS = 5_000  # after this long the router tries an unreachable leader again


class Call(Waitable):
    """One request and its answer."""

    __slots__ = (
        "error",
        "fixed",
        "hint",
        "is_repeated",
        "message",
        "peer",
        "refusals",
        "result",
        "timeout_ms",
        "topic",
        "tries",
        "until",
    )

    def __init__(
        self,
        message: Message,
        fixed: str | None,
        until: int,
        topic: str | None = None,
        timeout_ms: int = 0,
    ) -> None:
        super().__init__()
        self.message = message
        # longest wait for the next message after a zkserver has begun the request
        self.timeout_ms = timeout_ms
        self.fixed = fixed  # the broker to ask; None: the active zkserver
        self.until = until  # the time at which the router abandons the call
        self.topic = topic  # the topic whose metadata the request refreshes
        self.peer = fixed or ""  # the node that got the last request
        self.tries = 0  # number of times that the request was sent
        self.refusals = 0  # number of refusals by zkservers that were not active
        self.hint: str | None = None  # the active zkserver, by the answer of another one
        self.is_repeated = False  # whether a server may have carried out an earlier try, too
        self.result: Any = None
        self.error: PymqError | None = None


class Router(Outbox):
    """The state machine for the calls and metadata of one client."""

    def __init__(
        self,
        name: str,
        controllers: Sequence[str],
        touch: Callable[[], None],
        trouble: Callable[[], str] = str,
    ) -> None:
        super().__init__()
        self._trouble = trouble  # returns the transport's problem, or ""
        self._touch = touch  # informs the loop that there is something to send
        self.name = name
        self.metadata = MetadataCache()
        self.controllers = ActiveController(controllers)
        self._ids = 0
        self._unsent: list[int] = []
        self._calls: dict[int, Call] = {}
        # unreachable nodes, each with the time until which the node counts as unreachable
        self._lost: dict[str, int] = {}
        self._refreshing: dict[str, int] = {}  # ids of metadata requests, by topic
        # the time when each topic's metadata was last refreshed
        self._asked_at: dict[str, int] = {}
        self._tries: dict[str, int] = {}  # number of tries to find all leaders of a topic
        # keys are ids of calls, and topics to refresh
        self._timers: TimerHeap[int | str] = TimerHeap()
        self.silent: str | None = None  # the zkserver that did not answer the last request

    @property
    def deadline(self) -> int:
        """When ``tick`` has something to do."""
        return self._timers.due

    # --- calls ----------------------------------------------------------------------------------

    def call(
        self, make: Callable[[int], Message], now: int, timeout_ms: int, peer: str | None = None
    ) -> Call:
        """Send ``make(id)`` to *peer* once, or to the active zkserver until it answers."""
        self._ids += 1
        call = self._calls[self._ids] = Call(
            make(self._ids), peer, now + timeout_ms, timeout_ms=timeout_ms
        )
        self._send(self._ids, call, now)
        return call

    def _send(self, request: int, call: Call, now: int) -> None:
        due = call.until
        call.tries += 1
        call.peer = call.fixed or self.controllers.active
        if call.fixed is None:
            patience = TRY_MS << min((call.tries - 1) // len(self.controllers.names), 10)
            due = min(due, now + min(patience, TRY_MAX_MS))
        self.out.send.append((call.peer, call.message))
        self._timers.set(request, due)

    def step(self, source: str, message: Message, now: int) -> None:
        """Handle an answer."""
        request = getattr(message, "id", 0)
        call = self._calls.get(request)
        if call is None:
            return
        error = getattr(message, "error", None)
        if source == self.silent:
            self.silent = None
        if call.fixed is None and isinstance(error, NotController):
            if source == call.peer:
                self._not_active(request, call, error, now)
            return
        if isinstance(message, UnderWay):
            self._under_way(request, call, source, now)
            return
        if call.topic is None and self._must_wait(request, call, error, now):
            return
        self._end(request, call)
        if call.topic is not None:
            self._refreshed(call.topic, message, now)
            return
        call.error = error
        call.result = message.result if isinstance(message, Answer) else message
        if isinstance(call.result, TopicMetadata):
            self.metadata.learn(call.result)
        call.finish()

    def _end(self, request: int, call: Call) -> None:
        del self._calls[request]
        self._timers.drop(request)
        if call.topic is not None:
            self._refreshing.pop(call.topic, None)

    def _must_wait(self, request: int, call: Call, error: PymqError | None, now: int) -> bool:
        """Whether the client has used up its quota; the router then retries later."""
        if not isinstance(error, QuotaExceeded):
            return False
        due = now + max(error.retry_ms, REFRESH_MS)
        if due >= call.until:
            return False
        call.peer = ""
        self._timers.set(request, due)
        return True

    def _under_way(self, request: int, call: Call, source: str, now: int) -> None:
        """Note that a zkserver is working on a request, and restart its timeout."""
        call.until = max(call.until, now + call.timeout_ms)
        call.peer = source
        self._timers.set(request, now + min(TRY_MAX_MS, call.timeout_ms // 2))

    def _not_active(self, request: int, call: Call, error: PymqError, now: int) -> None:
        """Send the request to another zkserver: the one named as active, or the next zkserver."""
        hint, count = error.details.get("controller"), len(self.controllers.names)
        self.controllers.not_active(call.peer, hint)
        call.refusals += 1
        call.hint = hint if isinstance(hint, str) else None
        if hint is None:
            # The zkserver may have been active until now and have begun the request.
            call.is_repeated = True
        rounds = call.refusals // count
        if rounds == 0:
            self._send(request, call, now)
        else:  # No zkserver is active yet, or the zkservers disagree: wait for the election.
            pause = min(REFRESH_MS << min(rounds - 1, 10), REFRESH_MAX_MS)
            call.peer = ""
            self._timers.set(request, min(call.until, now + pause))

    def tick(self, now: int) -> None:
        """Try another zkserver after a timeout; give up requests whose time is over."""
        for key in self._timers.over(now):
            if isinstance(key, str):
                self._ask(key)
                continue
            call = self._calls[key]
            if call.until <= now:
                self._end(key, call)
                call.error = RequestTimeout(self._silence(call))
                call.finish()
                continue
            if call.peer:
                call.is_repeated = True
                self.silent = call.peer
                self.controllers.not_active(call.peer)
            self._send(key, call, now)

    def _silence(self, call: Call) -> str:
        if call.fixed is not None:
            return f"{call.fixed} did not answer in time"
        names = ", ".join(self.controllers.names)
        who = "no zkserver is active of" if call.refusals else "no answer from"
        if call.refusals and call.hint is not None:
            who, names = "no answer from", f"{call.hint}, which is the active zkserver of {names}"
        trouble = self._trouble()
        return f"{who} {names}, asked {plural(call.tries, 'time')}" + (
            f"; {trouble}" if trouble else ""
        )

    # --- metadata -------------------------------------------------------------------------------

    def leader(self, topic: str, partition: str) -> PartitionLeader | None:
        """Return a partition's leader if known; otherwise refresh the metadata."""
        found = self.metadata.leaders.get((topic, partition))
        if found is not None and found.leader is not None:
            return found
        self.refresh(topic)
        return None

    def lost(self, node: str, is_lost: bool, now: int) -> None:
        """Note that the connection to *node* was lost or is back.

        The node may be dead, so the router refreshes the metadata of its topics until another
        broker leads.
        """
        if not is_lost:
            self._lost.pop(node, None)
            return
        self._lost[node] = now + LOST_MS
        for request, call in self._calls.items():
            if call.fixed is None and call.peer == node:
                self._timers.set(request, now)  # retry at once, as after a timeout
        topics = self.metadata.led_by(node)
        for topic in topics:
            self.refresh(topic)
        if topics:
            # Readers need not wait for a leader: other replicas may have the records.
            self.metadata.announce()

    def is_lost(self, node: str) -> bool:
        """Whether the connection to *node* was lost and is not known to be back."""
        return node in self._lost

    def _is_led(self, found: PartitionLeader, now: int) -> bool:
        return found.leader is not None and self._lost.get(found.leader, 0) <= now

    def why_no_leader(self, topic: str) -> str:
        """The reason why no leader is known, as text for users."""
        if self.silent is not None:
            return f"{self.silent} did not answer"
        return "a zkserver was asked" if topic in self._refreshing else "none was elected yet"

    def refused(self, topic: str, partition: str, asked: str, error: PymqError) -> bool:
        """Note that the broker *asked* is no leader; returns whether another leader is known."""
        key = (topic, partition)
        known = self.metadata.leaders.get(key)
        if known is not None and known.leader is not None and known.leader != asked:
            return True  # Another handle has refreshed the metadata.
        hint = error.details.get("leader")
        if known is not None and isinstance(hint, str) and hint and hint != asked:
            self.metadata.hint(key, hint)
            self.refresh(topic)
            self.metadata.announce()
            return True
        self.distrust(topic, partition)
        return False

    def distrust(self, topic: str, partition: str) -> None:
        """Refresh the metadata, because the leader does not answer or no longer leads."""
        self.metadata.drop_hint((topic, partition))
        self.refresh(topic)

    def coordinator(self, group: str) -> str | None:
        """Return a group's coordinator if known; otherwise refresh the metadata."""
        place = self.metadata.coordinator_of(group)
        if place is not None:
            found = self.metadata.leaders.get(place)
            if found is not None and found.leader is not None:
                return found.leader
        self.refresh(OFFSETS_TOPIC)
        return None

    def refresh(self, topic: str) -> None:
        """Refresh the metadata of *topic*, which is out of date."""
        if topic not in self._refreshing and topic not in self._timers:
            self._ask(topic)

    def renew(self, topic: str, now: int) -> None:
        """Refresh the metadata of *topic* if it is old."""
        if now - self._asked_at.setdefault(topic, now) >= RENEW_MS:
            self._asked_at[topic] = now
            self.refresh(topic)

    def tell(self, make: Callable[[int], Message], until: int) -> Call:
        """Send ``make(id)`` to the active zkserver; the caller checks the result later."""
        self._ids += 1
        call = self._calls[self._ids] = Call(make(self._ids), None, until)
        self._unsent.append(self._ids)
        self._touch()
        return call

    def _ask(self, topic: str) -> None:
        self._ids += 1
        self._calls[self._ids] = Call(GetMetadata(self._ids, topic), None, NEVER, topic)
        self._refreshing[topic] = self._ids
        self._unsent.append(self._ids)
        self._touch()

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work."""
        while self._unsent:
            request = self._unsent.pop()
            if (call := self._calls.get(request)) is not None:
                self._send(request, call, now)
        return super().ready(now)

    def _refreshed(self, topic: str, message: Message, now: int) -> None:
        result = message.result if isinstance(message, Answer) else None
        error = message.error if isinstance(message, Answer) else None
        is_lost = False
        if isinstance(result, TopicMetadata):
            self.metadata.learn(result)
            if all(self._is_led(found, now) for found in result.partitions):
                self._tries.pop(topic, None)
                return
            is_lost = any(found.leader in self._lost for found in result.partitions)
        elif error is not None and not isinstance(error, QuotaExceeded):
            self.metadata.forget(topic)
            if not error.retriable:
                self.metadata.gone[topic] = error
                self._tries.pop(topic, None)
                self.metadata.announce()
                return
        tries = self._tries[topic] = self._tries.get(topic, 0) + 1
        limit = REFRESH_MAX_MS if tries <= REFRESH_TRIES else REFRESH_IDLE_MS
        if is_lost:
            limit = REFRESH_LOST_MS
        pause = min(REFRESH_MS << min(tries - 1, 10), limit)
        if isinstance(error, QuotaExceeded):
            pause = max(pause, error.retry_ms)
        self._timers.set(topic, now + pause)
