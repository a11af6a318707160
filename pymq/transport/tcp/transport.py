"""The transport between processes over TCP or TLS: a socket for each peer, and no thread.

The thread that turns the node's loop reads and writes the sockets. So a request needs no switch of
threads in its process, where ZeroMQ needs one in each direction. All messages for a peer between
two flushes share a packet. Payload goes from the file, or from the producer's batch, to the socket
without a copy.

========================================  ==========================================================
a peer that has connected to this node    gets answers over that connection
any other peer with a known endpoint      gets a connection from this node
========================================  ==========================================================

If a connection that this node has made breaks, the node connects again when messages wait for the
peer, after a pause that doubles with each failure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from pymq.core.message import Message
from pymq.errors import InvalidRequest
from pymq.transport.base import Arrival, Gate, OnRefused, TransportQuotas, Tuning
from pymq.transport.packets import (
    HEADER_WEIGHT,
    SHARE_BYTES,
    SHARE_MESSAGES,
    SHARE_PACKETS,
    SILENT_S,
    PacketTransport,
)
from pymq.transport.peers import PeerTable, make_identity
from pymq.transport.tcp.certificates import Certificates
from pymq.transport.tcp.connection import Connection, State, TcpPeer
from pymq.transport.tcp.connections import TcpConnections
from pymq.transport.tcp.endpoints import SCHEMES, parse_endpoint
from pymq.transport.tcp.listener import TcpListener

WRITE_BYTES = 1 << 20  # most bytes of packets given to a connection at once


class TcpTransport(PacketTransport[TcpPeer]):
    """The transport of one node; see :class:`pymq.transport.base.Transport`.

    Args:
        node: the node's name; by default its endpoint.
        listen: the endpoint to bind, if any: ``pymq://HOST:PORT`` or ``tls://HOST:PORT``.
        advertise: the endpoint under which peers find the node; by default the bound one.
        gate: see :data:`pymq.transport.base.Gate`.
        on_stranger: called with nodes that have waiting messages but no known endpoint.
        certificates: needed for ``tls://``. Without them the node listens on this machine only,
            unless *insecure*.
        on_refused: called with refused connections.
        on_send: called with a principal and a message for that principal; returns the message
            without the parts that the principal may not see.
        quotas: limits of the bytes sent to principals.

    Raises:
        ConfigError: an argument is wrong, or the endpoint cannot be bound.
    """

    def __init__(
        self,
        node: str | None = None,
        *,
        listen: str | None = None,
        advertise: str | None = None,
        gate: Gate | None = None,
        on_stranger: Callable[[str], None] | None = None,
        tuning: Tuning | None = None,
        certificates: Certificates | None = None,
        insecure: bool = False,
        on_refused: OnRefused | None = None,
        on_send: Callable[[str, Message], Message] | None = None,
        quotas: TransportQuotas | None = None,
    ) -> None:
        tuning = tuning or Tuning()
        self._peers: PeerTable[TcpPeer] = PeerTable(TcpPeer)
        super().__init__(
            self._peers,
            self._cut,
            gate=gate,
            on_stranger=on_stranger,
            tuning=tuning,
            on_send=on_send,
            quotas=quotas,
        )
        self.endpoint = ""
        door = self._door = None
        if listen is not None:
            door = self._door = TcpListener(
                listen, tuning, certificates, insecure=insecure, on_refused=on_refused
            )
            found = parse_endpoint(advertise) if advertise else door.bound.reachable
            self.endpoint = str(found)
        try:
            self.node = node or self.endpoint
            identity = make_identity(self.node)
            if door is not None:
                door.check_own(self.node, self.endpoint)
        except BaseException:
            if door is not None:
                door.close()
            raise
        self._connections = TcpConnections(
            self.node, identity, self._peers, tuning, certificates, door, self._lose_some
        )
        self._forgot_at = time.monotonic()

    # --- endpoints ------------------------------------------------------------------------------

    @property
    def on_lost(self) -> Callable[[str, bool], None] | None:
        """See :class:`pymq.transport.base.Transport`; this covers connections that this node has
        made.
        """
        return self._connections.on_lost

    @on_lost.setter
    def on_lost(self, told: Callable[[str, bool], None] | None) -> None:
        self._connections.on_lost = told

    def fileno(self) -> int:
        """Return a descriptor that is readable when any socket has news."""
        return self._connections.fileno()

    def learn(self, node: str, endpoint: str) -> None:
        """Set the endpoint of *node*."""
        self._check()
        if node == self.node or not endpoint:
            return  # this node itself, or a node that does not listen
        if not endpoint.startswith(SCHEMES):
            self._lose(
                0, f"{node} listens at {endpoint} with ZeroMQ; use zmq+{endpoint} to reach it"
            )
            return
        if not self._peers.learn(node, endpoint):
            return
        if (peer := self._peers.by_name.get(node)) is not None:
            if peer.link is not None and str(peer.link.endpoint) != endpoint:
                self._connections.drop(peer.link, "")
            peer.refused_until = peer.pause_s = 0.0
            if peer.waiting:
                self._pump(peer, time.monotonic())

    # --- sending --------------------------------------------------------------------------------

    def _pump(self, peer: TcpPeer, now: float) -> None:
        """Send the waiting packets of a peer as far as its connection accepts them."""
        waiting = peer.waiting
        while waiting:
            found = peer.route or peer.link or self._connect(peer, now)
            if found is None or not found.may_send or found.sending_bytes:
                break
            while waiting and found.sending_bytes < WRITE_BYTES:
                _, size, frames = waiting.popleft()
                peer.waiting_bytes -= size
                found.put_packet(frames, now)
            self._connections.write(found, now)
        if not waiting:
            self._blocked.pop(peer, None)
            return
        self._blocked[peer] = None
        # otherwise the peer is connected but slow, and will read the packets
        found = peer.route or peer.link
        if found is None or not found.may_send:
            self.dropped += peer.expire(now - self.tuning.waiting_ms / 1000)

    def _connect(self, peer: TcpPeer, now: float) -> Connection | None:
        endpoint = self._peers.endpoint(peer)
        if endpoint is not None:
            return self._connections.connect(peer, endpoint, now)
        if self.on_stranger is not None:
            self.on_stranger(peer.name)
        return None

    # --- statistics -----------------------------------------------------------------------------

    @property
    def turned_away(self) -> int:
        """Number of connections that were closed because there were too many."""
        return self._door.crowd.turned_away if self._door is not None else 0

    def tell_when_crowded(self, told: Callable[[int], object]) -> None:
        """Call *told* with the number of closed surplus connections when it rises, rate-limited."""
        if self._door is not None:
            self._door.crowd.on_crowded = told

    # --- receiving ------------------------------------------------------------------------------

    def poll(self) -> list[Arrival]:
        """Return the messages that have arrived, and send more of the waiting packets."""
        self._check()
        connections, now = self._connections, time.monotonic()
        connections.refresh(now)
        connections.look()
        arrivals: list[Arrival] = []
        if connections.unread:
            self._take_in(arrivals)
        self._pump_blocked(now)
        connections.sweep(now)
        if now - self._forgot_at > SILENT_S / 6:
            self._forgot_at = now
            self._peers.forget_idle()
        if self._dirty:
            self.flush()
        if connections.unread:
            connections.bell.ring()
        return arrivals

    def _take_in(self, arrivals: list[Arrival]) -> None:
        """Receive packets from the connections that may have some, within the limits of a poll."""
        packets, size, unread = SHARE_PACKETS, SHARE_BYTES, self._connections.unread
        for found in list(unread):
            unread.pop(found, None)  # the connection may have been closed meanwhile
            try:
                while packets > 0 and size > 0 and len(arrivals) < SHARE_MESSAGES:
                    taken = self._take_packet(found, arrivals)
                    if taken is None:
                        break
                    packets -= 1
                    size -= taken
                else:
                    if not found.is_closed:
                        unread[found] = None  # the connection may have more packets
            except (OSError, InvalidRequest) as error:
                self._connections.fail(found, error)

    def _take_packet(self, found: Connection, arrivals: list[Arrival]) -> int | None:
        """Handle a connection's next packet; returns its weighted size, or None if there is none.

        Raises:
            OSError: the connection is broken.
            InvalidRequest: the peer is refused, or its bytes are no packet.
        """
        connections, is_more = self._connections, True
        while not found.is_closed:
            if found.state is State.OPEN:
                packet = found.reader.next()
                if packet is not None:
                    assert found.peer is not None
                    is_new, found.is_new = found.is_new, False
                    self._take(found.peer, packet.header, packet.frames, arrivals, is_new=is_new)
                    return len(packet.header) * HEADER_WEIGHT + packet.size
                if found.reader.is_long:
                    connections.bound(found)
            elif found.state is State.CLOSING:
                connections.skip(found)
                return None
            elif (identity := found.reader.next_greeting()) is not None:
                connections.greeted(found, identity)
                continue
            if not is_more:
                return None
            is_more = connections.read(found)
        return None

    # --- closing ----------------------------------------------------------------------------------

    def _cut(self, peer: TcpPeer) -> bool:
        if peer.route is None:
            return False
        self._connections.drop(peer.route, "")
        return True

    def _forget(self, peer: TcpPeer) -> int:
        return self._peers.forget(peer)

    def _lose_some(self, count: int, why: str) -> None:
        self._lose(count, why or self.problem)

    def close(self) -> None:
        """Close all sockets; flushed packets have ``linger_ms`` to leave."""
        if self._is_closed or self._pid != os.getpid():
            return
        until = time.monotonic() + self.tuning.linger_ms / 1000
        try:
            self.flush()
            while self._connections.linger(until):
                for peer in list(self._blocked):
                    if peer.is_connected:
                        self._pump(peer, time.monotonic())
        finally:
            self._is_closed = True
            self._connections.close()
