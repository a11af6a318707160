"""The nodes that a ZeroMQ transport knows: where they are, and what waits for each."""

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
NAMES_KEPT = 10_000  # names of machines that are not looked up anew each time
FENCED_KEPT = 1_000

Frames = list[Buffer]


def make_identity(node: str) -> bytes:
    """The routing id of a process of *node*, which no other process has.

    Raises:
        ConfigError: *node* cannot be the name of a node.
    """
    identity = f"{node}/{os.urandom(8).hex()}".encode()
    if not _IDENTITY.fullmatch(identity):
        raise ConfigError(f"{node!r} cannot be the name of a node")
    return identity


def node_of_identity(identity: bytes) -> str | None:
    """The node of whoever connects with a routing id; None if it is no such id."""
    return identity[:-17].decode() if _IDENTITY.fullmatch(identity) else None


@define
class Peer:
    """Another node: how it can be reached, and what waits for it."""

    name: str
    packet: wire.Packet | None = None  # that is being put together
    waiting: deque[tuple[float, int, Frames]] = Factory(deque)  # (since when, bytes, a packet)
    waiting_bytes: int = 0
    link: PeerLink | None = None  # a connection that we have made
    route: bytes | None = None  # a connection that it has made, by its routing id
    heard_at: float = 0.0
    greeted_at: float = float("-inf")
    principal: str = ANONYMOUS
    key: str = ""  # with which it has connected
    refused_until: float = 0.0  # it did not let us in; so long it is not asked again
    header_max: int = wire.HEADER_BYTES_MAX  # that a packet of it may have
    is_client: bool = False  # and no broker or zkserver
    flight: InFlight = Factory(InFlight)  # what libzmq holds for it, if it is a client
    came_from: Origin = NOWHERE  # the connection of its last packet, if it is a client

    def lose(self) -> int:
        """Forget the packets that wait for it; returns how many there were."""
        count = len(self.waiting)
        self.waiting.clear()
        self.waiting_bytes = 0
        return count


@define
class PeerLink:
    """A connection that we have made."""

    endpoint: str
    socket: Socket
    peer: Peer
    key: str = ""  # that the other side has to show
    watch: ConnectionWatch | None = None


class Peers:
    """All peers, by what is known of them: a name, or the routing id of a connection."""

    def __init__(self) -> None:
        self.by_name: dict[str, Peer] = {}
        self.by_route: dict[bytes, Peer] = {}
        self.fenced: dict[bytes, None] = {}  # routing ids whose nodes have been replaced
        self._endpoints: dict[str, str] = {}
        self._machines: dict[str, tuple[Peer, str]] = {}  # the node's peer, and the rest of a name

    def learn(self, node: str, endpoint: str) -> bool:
        """From now on *node* is to be found at *endpoint*; returns whether that is new."""
        if self._endpoints.get(node) == endpoint:
            return False
        self._endpoints[node] = endpoint
        self._machines.clear()
        return True

    def endpoint(self, peer: Peer) -> str | None:
        """Where a peer is to be found, if that is known."""
        return peer.name if "://" in peer.name else self._endpoints.get(peer.name)

    def find(self, machine: str) -> tuple[Peer, str]:
        """The peer of a machine, and the machine's name there."""
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
        """The peer of a node, which need not have been heard of."""
        peer = self.by_name.get(node)
        if peer is None:
            peer = self.by_name[node] = Peer(node)
            if node.startswith(CLIENT_PREFIX):
                peer.header_max, peer.is_client = wire.CLIENT_HEADER_BYTES_MAX, True
            self._machines.clear()  # It may be the node of machines that were taken for another's.
        return peer

    def admit(self, peer: Peer, route: bytes) -> None:
        """A peer has connected to us; an earlier connection of its name is not heard any more."""
        if peer.route is not None and peer.route != route:
            self.by_route.pop(peer.route, None)
            self.fenced[peer.route] = None
            if len(self.fenced) > FENCED_KEPT:
                del self.fenced[next(iter(self.fenced))]
        peer.route = route
        self.by_route[route] = peer

    def forget_idle(self) -> None:
        """Forget peers that are nowhere, and for which nothing waits.

        Each client that goes before it is answered leaves one.
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
        """A connection that a peer has made is gone; returns how many packets went with it."""
        if peer.route is not None:
            self.by_route.pop(peer.route, None)
            peer.route = None
        if peer.link is not None or self.endpoint(peer) is not None:
            return 0
        # It comes back by itself, or never; what was for it is lost with the connection.
        self.by_name.pop(peer.name, None)
        self._machines.clear()
        return peer.lose()
