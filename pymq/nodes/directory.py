"""Learns the endpoints of a cluster's nodes from the zkservers' answers, and requests missing ones.

Machines send messages to each other by name. A zkserver's answers to clients contain the endpoints
of brokers, but a broker gets only the names of its peers. So if the transport has a message for a
node without a known endpoint, the directory requests the description of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pymq.client.base import Outbox
from pymq.core.message import Answer, DescribeCluster, Location, Message
from pymq.core.metadata.descriptions import ClusterDescription, TopicMetadata
from pymq.core.types import CLIENT_PREFIX, NEVER
from pymq.errors import NotController
from pymq.transport.base import Arrival

ASK_MS = 250  # shortest time between two requests
KEEP_ASKING_MS = 5_000  # after this long a missing node is forgotten


class Directory(Outbox):
    """A state machine that requests missing endpoints and learns from others' answers."""

    def __init__(
        self,
        name: str,
        controllers: Sequence[str],
        learn: Callable[[str, str], None],
        clock: Callable[[], int],
    ) -> None:
        super().__init__()
        self.name = name
        self._controllers = list(controllers)
        self._learn = learn
        self._clock = clock
        # missing nodes, each with the time until which the directory looks for it
        self._missing: dict[str, int] = {}
        self._ids = 0
        self._asked_at = -NEVER

    def stranger(self, node: str) -> None:
        """Note that the transport has a message for *node*, whose endpoint is unknown."""
        if node.startswith(CLIENT_PREFIX):
            return  # the node is a client that has left; clients have no endpoint
        now = self._clock()
        self._missing[node] = now + KEEP_ASKING_MS
        self.due = min(self.due, max(now, self._asked_at + ASK_MS))

    def note(self, arrivals: Sequence[Arrival]) -> None:
        """Learn endpoints from an arrived message, which may be for another machine."""
        for _, _, message in arrivals:
            if type(message) is Answer:
                self._learn_from(message)

    def _learn_from(self, answer: Answer) -> None:
        result = answer.result
        if isinstance(result, TopicMetadata):
            for partition in result.partitions:
                self._found(partition.leader, partition.endpoint)
            for place in result.brokers:
                self._found(place.name, place.endpoint)
        elif isinstance(result, ClusterDescription):
            for broker in result.brokers:
                self._found(broker.name, broker.endpoint)
        elif isinstance(result, tuple):
            for part in result:
                if isinstance(part, Location):
                    self._found(part.broker, part.endpoint)

    def _found(self, node: str | None, endpoint: str | None) -> None:
        if node and endpoint:
            self._missing.pop(node, None)
            self._learn(node, endpoint)

    def step(self, source: str, message: Message, now: int) -> None:
        """Handle the answer to this machine's own request."""
        if isinstance(message, Answer) and isinstance(message.error, NotController):
            active = message.error.details.get("controller")
            if isinstance(active, str) and active in self._controllers:
                self._turn_to(active)

    def _turn_to(self, controller: str) -> None:
        index = self._controllers.index(controller)
        self._controllers = self._controllers[index:] + self._controllers[:index]
        self.due = min(self.due, self._asked_at + ASK_MS // 5)

    def tick(self, now: int) -> None:
        """Repeat the request while an endpoint is missing, at the next zkserver each time."""
        self.due = NEVER
        for node in [node for node, until in self._missing.items() if until <= now]:
            del self._missing[node]
        if self._missing:
            self._ids += 1
            self.out.send.append((self._controllers[0], DescribeCluster(self._ids)))
            self._controllers.append(self._controllers.pop(0))
            self._asked_at = now
            self.due = now + ASK_MS
