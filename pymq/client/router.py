"""Who leads what, and the requests of a client that are not records.

One router a client: producers and consumers ask it for leaders and let it refresh what turned out
to be out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pymq.client.base import NEVER, Outbox, Waitable
from pymq.core.message import Answer, GetMetadata, Message
from pymq.core.metadata import PartitionLeader, TopicMetadata
from pymq.core.types import OFFSETS_TOPIC
from pymq.errors import NotController, PymqError, RequestTimeout
from pymq.hash.partitioner import key_partition

REFRESH_MS = 50  # between two tries to find a leader, doubled up to ...
REFRESH_MAX_MS = 1_000


class Call(Waitable):
    """One request and its answer."""

    __slots__ = ("error", "peer", "result", "until")

    def __init__(self, peer: str, until: int) -> None:
        super().__init__()
        self.peer = peer
        self.until = until
        self.result: Any = None
        self.error: PymqError | None = None


class Router(Outbox):
    """Calls and metadata of one client, as a machine."""

    def __init__(self, name: str, controllers: Sequence[str], touch: Callable[[], None]) -> None:
        super().__init__()
        self._touch = touch  # tells the loop that there is something to send
        self.name = name
        self.topics: dict[str, TopicMetadata] = {}
        self.gone: dict[str, PymqError] = {}  # topics that there are no more
        self._leaders: dict[tuple[str, str], PartitionLeader] = {}
        self._controllers = list(controllers)
        self._active = 0
        self._ids = 0
        self._calls: dict[int, Call] = {}
        self._refreshing: dict[int, tuple[str, int]] = {}  # by request: topic, tries so far
        self._again: dict[str, tuple[int, int]] = {}  # by topic: when, tries so far
        self._listeners: dict[str, Callable[[], None]] = {}

    @property
    def controller(self) -> str:
        """The zkserver that is taken to be the active one."""
        return self._controllers[self._active]

    # --- calls ----------------------------------------------------------------------------------

    def call(
        self, make: Callable[[int], Message], now: int, timeout_ms: int, peer: str | None = None
    ) -> Call:
        """Send ``make(id)`` to *peer*, by default the active zkserver."""
        self._ids += 1
        call = Call(peer or self.controller, now + timeout_ms)
        self._calls[self._ids] = call
        self.out.send.append((call.peer, make(self._ids)))
        self._rearm()
        return call

    def step(self, source: str, message: Message, now: int) -> None:
        """Take in an answer."""
        request = getattr(message, "id", 0)
        if request in self._refreshing:
            self._refreshed(request, message, now)
        elif (call := self._calls.pop(request, None)) is not None:
            call.error = getattr(message, "error", None)
            call.result = message.result if isinstance(message, Answer) else message
            if isinstance(call.error, NotController):
                self._active = (self._active + 1) % len(self._controllers)
            if isinstance(call.result, TopicMetadata):
                self._learn(call.result)
            call.finish()
        self._rearm()

    def tick(self, now: int) -> None:
        """Give up what was not answered in time; ask again for leaders that are missing."""
        for request in [r for r, call in self._calls.items() if call.until <= now]:
            call = self._calls.pop(request)
            call.error = RequestTimeout(f"{call.peer} did not answer in time")
            call.finish()
        for topic in [t for t, (due, _) in self._again.items() if due <= now]:
            self._ask(topic, self._again.pop(topic)[1])
        self._rearm()

    def _rearm(self) -> None:
        due = min((call.until for call in self._calls.values()), default=NEVER)
        self.due = min(due, min((when for when, _ in self._again.values()), default=NEVER))

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

    def coordinator(self, group: str) -> str | None:
        """The broker that coordinates a group, if that is known; else it is being found out."""
        known = self.topics.get(OFFSETS_TOPIC)
        if known is not None:
            index = key_partition(group.encode(), len(known.partitions))
            if known.partitions[index].leader is not None:
                return known.partitions[index].leader
        self.refresh(OFFSETS_TOPIC)
        return None

    def refresh(self, topic: str, tries: int = 0) -> None:
        """What is known of *topic* is out of date."""
        if topic not in self._again and all(topic != t for t, _ in self._refreshing.values()):
            self._ask(topic, tries)

    def _ask(self, topic: str, tries: int) -> None:
        self._ids += 1
        self._refreshing[self._ids] = (topic, tries)
        self.out.send.append((self.controller, GetMetadata(self._ids, topic)))
        self._touch()

    def _refreshed(self, request: int, message: Message, now: int) -> None:
        topic, tries = self._refreshing.pop(request)
        result = message.result if isinstance(message, Answer) else None
        if isinstance(result, TopicMetadata):
            self._learn(result)
            if all(found.leader is not None for found in result.partitions):
                return
        elif isinstance(message, Answer) and isinstance(message.error, NotController):
            self._active = (self._active + 1) % len(self._controllers)
        elif isinstance(message, Answer) and message.error is not None:
            gone = self.topics.pop(topic, None)
            for partition in gone.partitions if gone is not None else ():
                self._leaders.pop((topic, partition.partition), None)
            if not message.error.retriable:
                self.gone[topic] = message.error
                self._announce()
                return
        pause = min(REFRESH_MS << min(tries, 10), REFRESH_MAX_MS)
        self._again[topic] = (now + pause, tries + 1)

    def _learn(self, found: TopicMetadata) -> None:
        self.gone.pop(found.topic, None)
        if self.topics.get(found.topic) != found:
            before = self.topics.get(found.topic)
            for gone in before.partitions if before is not None else ():
                self._leaders.pop((found.topic, gone.partition), None)
            self.topics[found.topic] = found
            self._leaders.update(((found.topic, p.partition), p) for p in found.partitions)
            self._announce()

    def _announce(self) -> None:
        for callback in list(self._listeners.values()):
            callback()
