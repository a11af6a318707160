"""The messages that a gate has for nodes, and the ids of its requests."""

from __future__ import annotations

from collections.abc import Sequence

from pymq.core.message import Message
from pymq.core.ready import Ready
from pymq.core.types import TopicPartition
from pymq.kafka.shared.conversation import Request
from pymq.kafka.shared.watches import watch_request


class GateOutbox:
    """Collects the messages of a turn."""

    def __init__(self, me: str) -> None:
        self._me = me  # the gate's own broker
        self._ready = Ready()
        self._last = 0

    def number(self) -> int:
        """Return the id of the next request."""
        self._last += 1
        return self._last

    def send(self, peer: str, message: Message) -> None:
        """Send a message."""
        self._ready.send.append((peer, message))

    def tell(self, requests: Sequence[Request]) -> None:
        """Send requests whose answers nobody waits for."""
        for peer, make in requests:
            self.send(peer, make(self.number()))

    def watch(self, name: TopicPartition, end: int) -> int:
        """Send a request that waits until a partition ends beyond *end*; returns its id."""
        number = self.number()
        self._ready.send.append((self._me, watch_request(number, name, end)))
        return number

    def take(self) -> Ready | None:
        """Hand over the messages; None if there are none."""
        if not self._ready:
            return None
        ready, self._ready = self._ready, Ready()
        return ready
