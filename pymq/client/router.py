"""Who leads what, and the requests of a client that are not records.

One router a client: producers and consumers ask it for leaders and let it refresh what turned out
to be out of date.

What is for the active zkserver is sent to the one that was active last. If it does not answer, or
says that it is not the active one, the request goes to another, under the same id, until somebody
has carried it out or its time is up. That time begins anew whenever a zkserver says that it is
carrying the request out. So a request may be carried out twice: a caller that asks for something
which cannot be done twice looks at :attr:`Call.is_repeated`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from pymq.client.base import Outbox, Waitable
from pymq.core.message import Answer, GetMetadata, Message, UnderWay
from pymq.core.metadata.nodes import PartitionLeader, TopicMetadata
from pymq.core.ready import Ready
from pymq.core.time.timer_heap import TimerHeap
from pymq.core.types import NEVER, OFFSETS_TOPIC
from pymq.errors import NotController, PymqError, QuotaExceeded, RequestTimeout
from pymq.hash.partitioner import key_partition

TRY_MS = 500  # how long a zkserver has to answer: the first time, then twice as long, up to ...
TRY_MAX_MS = 4_000
REFRESH_MS = 50  # between two tries to find a leader, doubled up to ...
REFRESH_MAX_MS = 250  # ... and after many of them up to ...
REFRESH_IDLE_MS = 1_000
REFRESH_TRIES = 20
REFRESH_LOST_MS = 100  # while a leader cannot be reached: another one is about to be elected
RENEW_MS = 30_000  # so old may be what is known of a topic that somebody sends to
LOST_MS = 5_000  # after which a broker that cannot be reached is asked all the same, if it leads


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
        self.timeout_ms = timeout_ms  # how long it may be unheard of, once it was begun
        self.fixed = fixed  # whom to ask; None: whichever zkserver is active
        self.until = until  # when it is given up
        self.topic = topic  # of which it is to refresh the metadata
        self.peer = fixed or ""  # who was asked last
        self.tries = 0  # times that it was sent
        self.refusals = 0  # by zkservers that were not active
        self.hint: str | None = None  # who is, as they say
        self.is_repeated = False  # it may have been carried out before the try that was answered
        self.result: Any = None
        self.error: PymqError | None = None


Pair = tuple[str, str]  # topic and partition


class Router(Outbox):
    """Calls and metadata of one client, as a machine."""

    def __init__(
        self,
        name: str,
        controllers: Sequence[str],
        touch: Callable[[], None],
        trouble: Callable[[], str] = str,
    ) -> None:
        super().__init__()
        self._trouble = trouble  # what the transport has met with; "" for nothing
        self._touch = touch  # tells the loop that there is something to send
        self.name = name
        self.topics: dict[str, TopicMetadata] = {}
        self.gone: dict[str, PymqError] = {}  # topics that there are no more
        self._leaders: dict[Pair, PartitionLeader] = {}
        self._hinted: dict[Pair, PartitionLeader] = {}  # what metadata said, where we know better
        self._controllers = list(controllers)
        self._active = 0
        self._ids = 0
        self._unsent: list[int] = []
        self._calls: dict[int, Call] = {}
        self._lost: dict[str, int] = {}  # nodes that cannot be reached, and until when that counts
        self._refreshing: dict[str, int] = {}  # requests, by topic
        self._asked_at: dict[str, int] = {}  # when the zkserver was asked about which topic last
        self._tries: dict[str, int] = {}  # to find all leaders of a topic, so far
        self._timers: TimerHeap[int | str] = TimerHeap()  # calls by id; topics to be asked for
        self._listeners: dict[str, Callable[[], None]] = {}
        self.silent: str | None = None  # the zkserver that did not answer when it was asked last

    @property
    def controller(self) -> str:
        """The zkserver that is taken to be the active one."""
        return self._controllers[self._active]

    @property
    def deadline(self) -> int:
        """When ``tick`` has something to do."""
        return self._timers.due

    # --- calls ----------------------------------------------------------------------------------

    def call(
        self, make: Callable[[int], Message], now: int, timeout_ms: int, peer: str | None = None
    ) -> Call:
        """Send ``make(id)`` to *peer*, once, or to the active zkserver, until it is answered."""
        self._ids += 1
        call = self._calls[self._ids] = Call(
            make(self._ids), peer, now + timeout_ms, timeout_ms=timeout_ms
        )
        self._send(self._ids, call, now)
        return call

    def _send(self, request: int, call: Call, now: int) -> None:
        due = call.until
        call.tries += 1
        call.peer = call.fixed or self.controller
        if call.fixed is None:
            patience = TRY_MS << min((call.tries - 1) // len(self._controllers), 10)
            due = min(due, now + min(patience, TRY_MAX_MS))
        self.out.send.append((call.peer, call.message))
        self._timers.set(request, due)

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in an answer."""
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
            self._learn(call.result)
        call.finish()

    def _end(self, request: int, call: Call) -> None:
        del self._calls[request]
        self._timers.drop(request)
        if call.topic is not None:
            self._refreshing.pop(call.topic, None)

    def _must_wait(self, request: int, call: Call, error: PymqError | None, now: int) -> bool:
        """Whether it is to be asked again later, since a quota is used up for the moment."""
        if not isinstance(error, QuotaExceeded):
            return False
        due = now + max(error.retry_ms, REFRESH_MS)
        if due >= call.until:
            return False
        call.peer = ""
        self._timers.set(request, due)
        return True

    def _under_way(self, request: int, call: Call, source: str, now: int) -> None:
        """The zkserver says that it is at work on the request: no reason to give it up."""
        call.until = max(call.until, now + call.timeout_ms)
        call.peer = source
        self._timers.set(request, now + min(TRY_MAX_MS, call.timeout_ms // 2))

    def _not_active(self, request: int, call: Call, error: PymqError, now: int) -> None:
        """Ask another zkserver: the one that is said to be active, or the next one."""
        hint, count = error.details.get("controller"), len(self._controllers)
        if call.peer == self.controller:
            is_known = hint in self._controllers and hint != call.peer
            self._active = (
                self._controllers.index(str(hint)) if is_known else (self._active + 1) % count
            )
        call.refusals += 1
        call.hint = hint if isinstance(hint, str) else None
        if hint is None:
            call.is_repeated = True  # It was active until now, perhaps, and has begun with it.
        rounds = call.refusals // count
        if rounds == 0:
            self._send(request, call, now)
        else:  # Nobody is, or they do not agree: it takes them a while.
            pause = min(REFRESH_MS << min(rounds - 1, 10), REFRESH_MAX_MS)
            call.peer = ""
            self._timers.set(request, min(call.until, now + pause))

    def tick(self, now: int) -> None:
        """Ask another zkserver where one did not answer; give up what has taken too long."""
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
                if call.peer == self.controller:
                    self._active = (self._active + 1) % len(self._controllers)
            self._send(key, call, now)

    def _silence(self, call: Call) -> str:
        if call.fixed is not None:
            return f"{call.fixed} did not answer in time"
        names = ", ".join(self._controllers)
        who = "no zkserver is active of" if call.refusals else "no answer from"
        if call.refusals and call.hint is not None:
            who, names = "no answer from", f"{call.hint}, which is the active zkserver of {names}"
        trouble = self._trouble()
        return f"{who} {names}, asked {call.tries} times" + (f"; {trouble}" if trouble else "")

    # --- metadata -------------------------------------------------------------------------------

    def listen(self, name: str, callback: Callable[[], None]) -> None:
        """Call *callback* whenever metadata has changed, until :meth:`ignore`."""
        self._listeners[name] = callback

    def ignore(self, name: str) -> None:
        """End :meth:`listen`."""
        self._listeners.pop(name, None)

    def leader(self, topic: str, partition: str) -> PartitionLeader | None:
        """Who leads a partition, if that is known; else it is being found out."""
        found = self._leaders.get((topic, partition))
        if found is not None and found.leader is not None:
            return found
        self.refresh(topic)
        return None

    def lost(self, node: str, is_lost: bool, now: int) -> None:
        """The connection to *node* has broken, so it is dead, perhaps; or it is there again.

        Nobody knows yet who leads instead: that is asked for until another one does.
        """
        if not is_lost:
            self._lost.pop(node, None)
            return
        self._lost[node] = now + LOST_MS
        for request, call in self._calls.items():
            if call.fixed is None and call.peer == node:
                self._timers.set(request, now)  # as if it had been silent for too long
        topics = {topic for (topic, _), found in self._leaders.items() if found.leader == node}
        for topic in topics:
            self.refresh(topic)
        if topics:
            self._announce()  # Readers need not wait for an answer: other replicas may have it.

    def is_lost(self, node: str) -> bool:
        """Whether the connection to *node* has broken and is not known to be there again."""
        return node in self._lost

    def replicas(self, topic: str, partition: str) -> tuple[str, ...]:
        """The brokers that can serve reads, as the zkserver told last: the most complete first."""
        found = self._leaders.get((topic, partition))
        return found.replicas if found is not None else ()

    def racks(self, topic: str) -> dict[str, str | None]:
        """The racks of the brokers that hold a topic, by their names."""
        known = self.topics.get(topic)
        return {b.name: b.rack for b in known.brokers} if known is not None else {}

    def _is_led(self, found: PartitionLeader, now: int) -> bool:
        return found.leader is not None and self._lost.get(found.leader, 0) <= now

    def find(self, topic: str, partition: str) -> str | None:
        """The leader of a partition, if it is known; nobody is asked."""
        found = self._leaders.get((topic, partition))
        return found.leader if found is not None else None

    def why_no_leader(self, topic: str) -> str:
        """What keeps us from knowing a leader, for people."""
        if self.silent is not None:
            return f"{self.silent} did not answer"
        return "it is being asked for" if topic in self._refreshing else "none was elected yet"

    def refused(self, topic: str, partition: str, asked: str, error: PymqError) -> bool:
        """A broker that was *asked* is not the leader; returns whether another one is known now."""
        key = (topic, partition)
        known = self._leaders.get(key)
        if known is not None and known.leader is not None and known.leader != asked:
            return True  # Somebody has found out meanwhile.
        hint = error.details.get("leader")
        if known is not None and isinstance(hint, str) and hint and hint != asked:
            self._hinted.setdefault(key, known)
            self._leaders[key] = attrs.evolve(known, leader=hint, endpoint=self._endpoint(hint))
            self.refresh(topic)
            self._announce()
            return True
        self.distrust(topic, partition)
        return False

    def distrust(self, topic: str, partition: str) -> None:
        """The leader does not answer or does not lead: go by what the zkserver says."""
        key = (topic, partition)
        base = self._hinted.pop(key, None)
        if base is not None:
            self._leaders[key] = base
        self.refresh(topic)

    def _endpoint(self, broker: str) -> str | None:
        for known in self.topics.values():
            for found in known.partitions:
                if found.leader == broker:
                    return found.endpoint
        return None

    def coordinator_of(self, group: str) -> tuple[str, str] | None:
        """The offsets partition of a group, as (topic, partition), if the topic is known."""
        known = self.topics.get(OFFSETS_TOPIC)
        if known is None:
            return None
        index = key_partition(group.encode(), len(known.partitions))
        return OFFSETS_TOPIC, known.partitions[index].partition

    def coordinator(self, group: str) -> str | None:
        """The broker that coordinates a group, if that is known; else it is being found out."""
        place = self.coordinator_of(group)
        if place is not None:
            found = self._leaders.get(place)
            if found is not None and found.leader is not None:
                return found.leader
        self.refresh(OFFSETS_TOPIC)
        return None

    def refresh(self, topic: str) -> None:
        """What is known of *topic* is out of date."""
        if topic not in self._refreshing and topic not in self._timers:
            self._ask(topic)

    def renew(self, topic: str, now: int) -> None:
        """Have what is known of *topic* told anew, if it was told long ago."""
        if now - self._asked_at.setdefault(topic, now) >= RENEW_MS:
            self._asked_at[topic] = now
            self.refresh(topic)

    def tell(self, make: Callable[[int], Message], until: int) -> Call:
        """Have ``make(id)`` taken in by the active zkserver; a machine may look what came of it."""
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
            self._learn(result)
            if all(self._is_led(found, now) for found in result.partitions):
                self._tries.pop(topic, None)
                return
            is_lost = any(found.leader in self._lost for found in result.partitions)
        elif error is not None and not isinstance(error, QuotaExceeded):
            self.forget(topic)
            if not error.retriable:
                self.gone[topic] = error
                self._tries.pop(topic, None)
                self._announce()
                return
        tries = self._tries[topic] = self._tries.get(topic, 0) + 1
        limit = REFRESH_MAX_MS if tries <= REFRESH_TRIES else REFRESH_IDLE_MS
        if is_lost:
            limit = REFRESH_LOST_MS
        pause = min(REFRESH_MS << min(tries - 1, 10), limit)
        if isinstance(error, QuotaExceeded):
            pause = max(pause, error.retry_ms)
        self._timers.set(topic, now + pause)

    def forget(self, topic: str) -> None:
        """There is no such topic; of another one of its name the epochs begin anew."""
        known = self.topics.pop(topic, None)
        for partition in known.partitions if known is not None else ():
            self._leaders.pop((topic, partition.partition), None)
            self._hinted.pop((topic, partition.partition), None)

    def _learn(self, found: TopicMetadata) -> None:
        self.gone.pop(found.topic, None)
        before = self.topics.get(found.topic)
        if before == found:
            return
        if before is not None and before.topic_id != found.topic_id:
            self.forget(found.topic)
        self.topics[found.topic] = found
        for partition in found.partitions:
            key = (found.topic, partition.partition)
            known = self._leaders.get(key)
            if known is not None and known.epoch > partition.epoch:
                continue  # It comes from a zkserver that has been replaced, or came late.
            if self._hinted.get(key) == partition:
                continue  # The zkserver does not know yet.
            self._hinted.pop(key, None)
            self._leaders[key] = partition
        self._announce()

    def _announce(self) -> None:
        for callback in list(self._listeners.values()):
            callback()
