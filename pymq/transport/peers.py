"""The peers of a transport: their endpoints and their waiting packets."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from pymq.core.types import CLIENT_PREFIX, node_of
from pymq.core.values import Factory, define
from pymq.errors import ConfigError
from pymq.transport import wire
from pymq.transport.base import ANONYMOUS
from pymq.transport.shapes import Buffer

_IDENTITY = re.compile(
    rb"(?:[A-Za-z0-9._-]{1,220}|(?:tcp|ipc|pymq|tls)://[!-~]{1,220})/[0-9a-f]{16}"
)
NAMES_KEPT = 10_000  # names of machines in the cache
FENCED_KEPT = 1_000

Frames = list[Buffer]


def make_identity(node: str) -> bytes:
    """Make an identity for this process of *node*; it is unique.

    Raises:
        ConfigError: *node* is not a valid name of a node.
    """
    identity = f"{node}/{os.urandom(8).hex()}".encode()
    if not _IDENTITY.fullmatch(identity):
        raise ConfigError(f"{node!r} cannot be the name of a node")
    return identity


def node_of_identity(identity: bytes) -> str | None:
    """Return the node in an identity; None if the identity is invalid."""
    return identity[:-17].decode() if _IDENTITY.fullmatch(identity) else None


@define
class BasePeer(ABC):
    """Another node and its waiting packets; each transport adds its connections."""

    name: str
    packet: wire.Packet | None = None  # the packet that is being built
    waiting: deque[tuple[float, int, Frames]] = Factory(deque)  # (time, bytes, packet)
    waiting_bytes: int = 0
    heard_at: float = 0.0
    greeted_at: float = float("-inf")
    principal: str = ANONYMOUS
    refused_until: float = 0.0  # this node does not connect again before this time
    header_max: int = wire.HEADER_BYTES_MAX  # limit of the headers of the peer's packets
    # whether the peer is a client, not a broker or a zkserver
    is_client: bool = False

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether there is a connection, or one is being made."""

    @property
    @abstractmethod
    def has_come(self) -> bool:
        """Whether the peer itself has made a connection that still exists."""

    @property
    @abstractmethod
    def moved_at(self) -> float:
        """When bytes last left for the peer, or when none were waiting."""

    @abstractmethod
    def in_flight(self, now: float) -> int:
        """Return the bytes that the transport has taken and the system has not."""

    def expire(self, since: float) -> int:
        """Drop packets from before *since*, because their senders have already retried.

        Returns the number of dropped packets.
        """
        count = 0
        while self.waiting and self.waiting[0][0] < since:
            self.waiting_bytes -= self.waiting.popleft()[1]
            count += 1
        return count

    def lose(self) -> int:
        """Drop all waiting packets; return their number."""
        count = len(self.waiting)
        self.waiting.clear()
        self.waiting_bytes = 0
        return count


P = TypeVar("P", bound=BasePeer)


class PeerTable(Generic[P]):
    """All peers by name, and the endpoints of nodes."""

    def __init__(self, make: Callable[[str], P]) -> None:
        self.by_name: dict[str, P] = {}
        self.fenced: dict[bytes, None] = {}  # identities of processes that were replaced
        self._make = make
        self._endpoints: dict[str, str] = {}
        self._machines: dict[str, tuple[P, str]] = {}  # (peer, name without the node)

    def learn(self, node: str, endpoint: str) -> bool:
        """Set the endpoint of *node*; return whether it has changed."""
        if self._endpoints.get(node) == endpoint:
            return False
        self._endpoints[node] = endpoint
        self._machines.clear()
        return True

    def endpoint(self, peer: BasePeer) -> str | None:
        """Return the endpoint of a peer, if known."""
        return peer.name if "://" in peer.name else self._endpoints.get(peer.name)

    def find(self, machine: str) -> tuple[P, str]:
        """Return the peer of a machine, and the machine's name on that node."""
        known = self._machines.get(machine)
        if known is not None:
            return known
        if "://" in machine or machine in self._endpoints or machine in self.by_name:
            found = self.get(machine), ""
        else:
            node = node_of(machine)
            found = self.get(node), machine[len(node) + 1 :]
        if len(self._machines) >= NAMES_KEPT:
            self._machines.clear()
        self._machines[machine] = found
        return found

    def get(self, node: str) -> P:
        """Return the peer of a node; create the peer if the node is new."""
        peer = self.by_name.get(node)
        if peer is None:
            peer = self.by_name[node] = self._make(node)
            if node.startswith(CLIENT_PREFIX):
                peer.header_max, peer.is_client = wire.CLIENT_HEADER_BYTES_MAX, True
            self._machines.clear()  # cached names may now belong to the new node
        return peer

    def fence(self, identity: bytes) -> None:
        """Refuse an identity from now on: another process has taken its node's name."""
        self.fenced[identity] = None
        if len(self.fenced) > FENCED_KEPT:
            del self.fenced[next(iter(self.fenced))]

    def forget(self, peer: P) -> int:
        """Remove a peer that this node cannot connect to; return the number of lost packets.

        A peer with an endpoint stays: this node connects to it again.
        """
        if peer.is_connected or self.endpoint(peer) is not None:
            return 0
        self.by_name.pop(peer.name, None)
        self._machines.clear()
        return peer.lose()

    def forget_idle(self) -> None:
        """Remove peers without a connection, an endpoint and waiting packets.

        A client that disconnects before it gets its answer leaves such a peer behind.
        """
        gone = [
            peer.name
            for peer in self.by_name.values()
            if not (peer.is_connected or peer.packet or peer.waiting)
            and self._endpoints.get(peer.name) is None
        ]
        for name in gone:
            del self.by_name[name]
        if gone:
            self._machines.clear()
