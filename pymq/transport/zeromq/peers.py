"""The peers of a ZeroMQ transport: their connections, endpoints and waiting packets."""

from __future__ import annotations

import os
import re
from collections import deque
from typing import TYPE_CHECKING

from pymq.core.types import node_of
from pymq.core.values import Factory, define
from pymq.errors import ConfigError
from pymq.transport import wire
from pymq.transport.base import ANONYMOUS, CLIENT_PREFIX
from pymq.transport.shapes import Buffer
from pymq.transport.zeromq.connections import NOWHERE, Origin
from pymq.transport.zeromq.in_flight import InFlight

if TYPE_CHECKING:
    from pymq.transport.zeromq.connection_watch import ConnectionWatch
    from pymq.transport.zeromq.sockets import Socket

_IDENTITY = re.compile(rb"(?:[A-Za-z0-9._-]{1,220}|(?:tcp|ipc)://[!-~]{1,220})/[0-9a-f]{16}")
NAMES_KEPT = 10_000  # most names of machines in the cache
FENCED_KEPT = 1_000

Frames = list[Buffer]


def make_identity(node: str) -> bytes:
    """Make a unique routing id for this process of *node*.

    Raises:
        ConfigError: *node* is not a valid name of a node.
    """
    identity = f"{node}/{os.urandom(8).hex()}".encode()
    if not _IDENTITY.fullmatch(identity):
        raise ConfigError(f"{node!r} cannot be the name of a node")
    return identity


def node_of_identity(identity: bytes) -> str | None:
    """Return the node in a routing id; None if the id is invalid."""
    return identity[:-17].decode() if _IDENTITY.fullmatch(identity) else None


@define
class Peer:
    """Another node: its connections and its waiting packets."""

    name: str
    packet: wire.Packet | None = None  # the packet that is being built
    waiting: deque[tuple[float, int, Frames]] = Factory(deque)  # (time, bytes, packet)
    waiting_bytes: int = 0
    link: PeerLink | None = None  # the connection that this node has made
    route: bytes | None = None  # routing id of the connection that the peer has made
    heard_at: float = 0.0
    greeted_at: float = float("-inf")
    principal: str = ANONYMOUS
    key: str = ""  # the key that the peer's connection has proved
    refused_until: float = 0.0  # this node does not connect again before this time
    header_max: int = wire.HEADER_BYTES_MAX  # limit of the headers of the peer's packets
    # whether the peer is a client, not a broker or a zkserver
    is_client: bool = False
    flight: InFlight = Factory(InFlight)  # packets in libzmq, if the peer is a client
    came_from: Origin = NOWHERE  # the connection of the peer's last packet, if the peer is a client

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


@define
class PeerLink:
    """A connection that this node has made."""

    endpoint: str
    socket: Socket
    peer: Peer
    key: str = ""  # the key that the peer has to prove
    watch: ConnectionWatch | None = None


class Peers:
    """All peers, by name and by the routing id of their connection."""

    def __init__(self) -> None:
        self.by_name: dict[str, Peer] = {}
        self.by_route: dict[bytes, Peer] = {}
        self.fenced: dict[bytes, None] = {}  # routing ids of processes that were replaced
        self._endpoints: dict[str, str] = {}
        self._machines: dict[str, tuple[Peer, str]] = {}  # (peer, name without the node)

    def learn(self, node: str, endpoint: str) -> bool:
        """Set the endpoint of *node*; return whether it has changed."""
        if self._endpoints.get(node) == endpoint:
            return False
        self._endpoints[node] = endpoint
        self._machines.clear()
        return True

    def endpoint(self, peer: Peer) -> str | None:
        """Return the endpoint of a peer, if known."""
        return peer.name if "://" in peer.name else self._endpoints.get(peer.name)

    def find(self, machine: str) -> tuple[Peer, str]:
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

    def get(self, node: str) -> Peer:
        """Return the peer of a node; create the peer if the node is new."""
        peer = self.by_name.get(node)
        if peer is None:
            peer = self.by_name[node] = Peer(node)
            if node.startswith(CLIENT_PREFIX):
                peer.header_max, peer.is_client = wire.CLIENT_HEADER_BYTES_MAX, True
            self._machines.clear()  # cached names may now belong to the new node
        return peer

    def admit(self, peer: Peer, route: bytes) -> None:
        """Set the connection that a peer has made, and fence an earlier connection of that name."""
        if peer.route is not None and peer.route != route:
            self.by_route.pop(peer.route, None)
            self.fenced[peer.route] = None
            if len(self.fenced) > FENCED_KEPT:
                del self.fenced[next(iter(self.fenced))]
        peer.route = route
        self.by_route[route] = peer

    def forget_idle(self) -> None:
        """Remove peers without a connection, an endpoint and waiting packets.

        A client that disconnects before it gets its answer leaves such a peer behind.
        """
        gone = [
            peer.name
            for peer in self.by_name.values()
            if not (peer.link or peer.route or peer.packet or peer.waiting)
            and self._endpoints.get(peer.name) is None
        ]
        for name in gone:
            del self.by_name[name]
        if gone:
            self._machines.clear()

    def forget_route(self, peer: Peer) -> int:
        """Remove the lost connection of a peer; return the number of packets lost with it."""
        if peer.route is not None:
            self.by_route.pop(peer.route, None)
            peer.route = None
        if peer.link is not None or self.endpoint(peer) is not None:
            return 0
        # Only the peer can reconnect, so packets for it are lost with the connection.
        self.by_name.pop(peer.name, None)
        self._machines.clear()
        return peer.lose()
