"""The peers of a ZeroMQ transport, by the routing ids of their connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymq.core.values import Factory, define
from pymq.transport.peers import BasePeer, PeerTable
from pymq.transport.zeromq.connections import NOWHERE, Origin
from pymq.transport.zeromq.in_flight import InFlight

if TYPE_CHECKING:
    from pymq.transport.zeromq.connection_watch import ConnectionWatch
    from pymq.transport.zeromq.sockets import Socket


@define
class Peer(BasePeer):
    """Another node: its connections and its waiting packets."""

    link: PeerLink | None = None  # the connection made by this node
    route: bytes | None = None  # routing id of the connection that the peer made
    key: str = ""  # the key that the peer's connection has proved
    flight: InFlight = Factory(InFlight)  # packets in libzmq, if the peer is a client
    came_from: Origin = NOWHERE  # the connection of the peer's last packet, if the peer is a client

    @property
    def is_connected(self) -> bool:
        """See :class:`BasePeer`."""
        return self.link is not None or self.route is not None

    @property
    def has_come(self) -> bool:
        """See :class:`BasePeer`."""
        return self.route is not None

    @property
    def moved_at(self) -> float:
        """See :class:`BasePeer`."""
        return self.flight.moved_at

    def in_flight(self, now: float) -> int:
        """See :class:`BasePeer`."""
        return self.flight.look(now)


@define
class PeerLink:
    """A connection made by this node."""

    endpoint: str
    socket: Socket
    peer: Peer
    key: str = ""  # the key that the peer has to prove
    watch: ConnectionWatch | None = None


class Peers(PeerTable[Peer]):
    """All peers, by name and by the routing id of their connection."""

    def __init__(self) -> None:
        super().__init__(Peer)
        self.by_route: dict[bytes, Peer] = {}

    def admit(self, peer: Peer, route: bytes) -> None:
        """Set the connection that a peer has made, and fence an earlier one of its name."""
        if peer.route is not None and peer.route != route:
            self.by_route.pop(peer.route, None)
            self.fence(peer.route)
        peer.route = route
        self.by_route[route] = peer

    def forget_route(self, peer: Peer) -> int:
        """Remove the lost connection that a peer has made; return the number of lost packets."""
        if peer.route is not None:
            self.by_route.pop(peer.route, None)
            peer.route = None
        return self.forget(peer)
