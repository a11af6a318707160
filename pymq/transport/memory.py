"""A transport in memory, for nodes in one process, each with its own loop.

This transport encodes and copies nothing, so no other transport can be faster. The contract is that
of all transports; for example, messages to a node that does not exist are lost.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from pymq.core.message import Message
from pymq.core.types import node_of
from pymq.errors import Closed, ForkedError
from pymq.transport.base import ANONYMOUS, Arrival, Gate
from pymq.transport.bell import Bell

SCHEME = "memory:"
# most waiting messages for a node; bytes are not counted, since nodes share their memory
WAITING_MAX = 100_000
SHARE = 1_000  # most messages that one ``poll`` returns


class MemoryNetwork:
    """A set of nodes that reach each other."""

    def __init__(self) -> None:
        self.nodes: dict[str, MemoryTransport] = {}

    def join(self, node: str, gate: Gate | None = None) -> MemoryTransport:
        """Make the transport of *node*; it replaces an earlier one of this name."""
        made = self.nodes[node] = MemoryTransport(self, node, gate)
        return made


class MemoryTransport:
    """The transport of one node on a :class:`MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, node: str, gate: Gate | None) -> None:
        self.node = node
        self.endpoint = SCHEME + node
        self.dropped = 0  # messages lost for any reason
        # not used, because all nodes are known
        self.on_stranger: Callable[[str], None] | None = None
        # not used, because there are no connections
        self.on_lost: Callable[[str, bool], None] | None = None
        self._network = network
        self._gate = gate
        self._bell = Bell()
        self._inbox: deque[Arrival] = deque()
        # receivers of messages since the last flush
        self._flushable: dict[MemoryTransport, None] = {}
        self._is_closed = False
        self._pid = os.getpid()

    def fileno(self) -> int:
        """Return a descriptor that is readable when a message has arrived."""
        return self._bell.fileno()

    def learn(self, node: str, endpoint: str) -> None:
        """Do nothing, because all nodes of the network know each other."""
        self._check()

    def send(self, peer: str, source: str, message: Message) -> None:
        """Put *message* into the inbox of the node of *peer*."""
        self._check()
        nodes = self._network.nodes
        target = nodes.get(peer) or nodes.get(node_of(peer))
        if target is None or len(target._inbox) >= WAITING_MAX:
            self.dropped += 1
            return
        target._inbox.append((peer, source, message))
        self._flushable[target] = None

    def flush(self) -> None:
        """Wake the nodes to which this node has sent messages."""
        self._check()
        if self._flushable:
            for target in self._flushable:
                target._bell.ring()
            self._flushable.clear()

    def poll(self) -> list[Arrival]:
        """Take messages from the inbox."""
        self._check()
        self._bell.clear()
        inbox, taken = self._inbox, []
        for _ in range(min(len(inbox), SHARE)):
            arrival = inbox.popleft()
            if self._gate is None or self._is_let_in(self._gate, arrival):
                taken.append(arrival)
        if inbox:
            self._bell.ring()
        return taken

    def _is_let_in(self, gate: Gate, arrival: Arrival) -> bool:
        peer, source, message = arrival
        answers = gate(ANONYMOUS, source, message)
        if answers is None:
            return True
        self.dropped += 1
        for answer in answers:
            self.send(source, peer, answer)
        return False

    def close(self) -> None:
        """Leave the network; later messages for this node are lost."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        if self._network.nodes.get(self.node) is self:
            del self._network.nodes[self.node]
        self._inbox.clear()

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError("this transport belongs to the parent process; open a new one here")
        if self._is_closed:
            raise Closed("the transport was closed")
