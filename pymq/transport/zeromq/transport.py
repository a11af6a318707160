"""The transport between processes over ZeroMQ: a bound ROUTER socket, and a DEALER for each peer.

The transport starts no thread and never waits; the thread that runs the node's loop polls it. All
messages for a peer between two flushes share a packet. Payload goes from the file, or from the
producer's batch, to the socket without a copy.

========================================  ==========================================================
a peer that has connected to this node    gets answers over that connection
any other peer with a known endpoint      gets a connection from this node
========================================  ==========================================================

ZeroMQ does not report a lost peer. A DEALER accepts no packets while it is not connected, so
packets wait in this process for a limited time. The ROUTER refuses packets for a routing id that is
not connected.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from functools import partial

import zmq

from pymq.core.message import Message
from pymq.errors import InvalidRequest
from pymq.transport import wire
from pymq.transport.base import Arrival, Gate, OnRefused, TransportQuotas, Tuning
from pymq.transport.curve.key_ring import KeyRing
from pymq.transport.packets import (
    HEADER_WEIGHT,
    HELLO,
    SHARE_BYTES,
    SHARE_MESSAGES,
    SHARE_PACKETS,
    SILENT_S,
    PacketTransport,
)
from pymq.transport.peers import make_identity
from pymq.transport.zeromq.connections import came_from, cut, source_of
from pymq.transport.zeromq.dialer import Dialer
from pymq.transport.zeromq.in_flight import send_tracked
from pymq.transport.zeromq.listener import Listener
from pymq.transport.zeromq.peers import Peer, PeerLink, Peers
from pymq.transport.zeromq.sockets import (
    EVENTS,
    MORE,
    READABLE,
    SCHEMES,
    check_endpoint,
    make_context,
    reachable,
    receive_packet,
    send_frames,
)
from pymq.transport.zeromq.zap import user_id


class ZmqTransport(PacketTransport[Peer]):
    """The transport of one node; see :class:`pymq.transport.base.Transport`.

    Args:
        node: the node's name; by default its endpoint.
        listen: the endpoint to bind, if any.
        advertise: the endpoint under which peers find the node; by default the bound one.
        gate: see :data:`pymq.transport.base.Gate`.
        on_stranger: called with nodes that have waiting messages but no known endpoint.
        keys: the node talks only to peers that have proved one of these keys with CurveZMQ. Without
            keys the node listens on this machine only, unless *insecure* is set.
        on_refused: called with refused connections.
        on_send: called with a principal and a message for that principal; returns the message
            without the parts that the principal may not see.
        quotas: limits of the bytes sent to principals.
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
        keys: KeyRing | None = None,
        insecure: bool = False,
        on_refused: OnRefused | None = None,
        on_send: Callable[[str, Message], Message] | None = None,
        quotas: TransportQuotas | None = None,
    ) -> None:
        tuning = tuning or Tuning()
        self._peers = Peers()
        super().__init__(
            self._peers,
            lambda peer: cut(peer.came_from),
            gate=gate,
            on_stranger=on_stranger,
            tuning=tuning,
            on_send=on_send,
            quotas=quotas,
        )
        self.endpoint = ""
        self._keys = keys
        self._keys_version = keys.version if keys is not None else 0
        context = self._context = make_context()
        selector = self._selector = selectors.DefaultSelector()
        self._door: Listener | None = None
        try:
            if listen is not None:
                door = self._door = Listener(
                    listen,
                    context,
                    selector,
                    tuning,
                    keys=keys,
                    insecure=insecure,
                    on_refused=on_refused,
                )
                self.endpoint = check_endpoint(advertise or reachable(door.bound))
            self.node = node or self.endpoint
            identity = make_identity(self.node)
            if keys is not None and listen is not None:
                keys.check_own(self.node, self.endpoint)
        except BaseException:
            selector.close()
            context.destroy(linger=0)
            raise
        self._dialer = Dialer(identity, context, selector, tuning, keys, partial(self._lose, 0))
        # sockets to read, each with whether the selector has reported it
        self._unread: dict[PeerLink | None, bool] = {}
        # whether the last poll found packets, and whether the last two polls found several
        self._has_taken = self._is_burst = False
        self._swept_at = time.monotonic()

    # --- endpoints ------------------------------------------------------------------------------

    @property
    def on_lost(self) -> Callable[[str, bool], None] | None:
        """See :class:`pymq.transport.base.Transport`; this covers connections that this node has
        made.
        """
        return self._dialer.on_lost

    @on_lost.setter
    def on_lost(self, told: Callable[[str, bool], None] | None) -> None:
        self._dialer.on_lost = told

    def fileno(self) -> int:
        """Return a descriptor that is readable when any socket has news."""
        return self._selector.fileno()

    def learn(self, node: str, endpoint: str) -> None:
        """Set the endpoint of *node*."""
        self._check()
        if node == self.node or not endpoint.startswith(SCHEMES):
            # the node is this node, does not listen, or has an endpoint of an unknown scheme
            return
        if not self._peers.learn(node, endpoint):
            return
        if (peer := self._peers.by_name.get(node)) is not None:
            if peer.link is not None and peer.link.endpoint != endpoint:
                self._dialer.hang_up(peer)
            if peer.waiting:
                self._pump(peer, time.monotonic())

    def _connect(self, peer: Peer) -> PeerLink | None:
        endpoint = self._peers.endpoint(peer)
        if endpoint is None:
            if self.on_stranger is not None:
                self.on_stranger(peer.name)
            return None
        if (link := self._dialer.call(peer, endpoint)) is not None:
            peer.greeted_at = time.monotonic()
            peer.waiting.appendleft((peer.greeted_at, 0, wire.encode([("", "", HELLO)])))
        return link

    # --- sending --------------------------------------------------------------------------------

    def _pump(self, peer: Peer, now: float) -> None:
        """Send the waiting packets of a peer as far as its socket accepts them."""
        waiting = peer.waiting
        while waiting:
            if peer.route is None:
                link = peer.link or self._connect(peer)
                if link is None:
                    break
                socket, unread = link.socket, link
            else:
                assert self._door is not None
                socket, unread = self._door.socket, None
            _, size, frames = waiting[0]
            tracker = None
            # Even a failed send may reset the descriptor's signal for unread packets.
            self._unread.setdefault(unread, False)
            try:
                if peer.route is not None:
                    socket.send(peer.route, MORE)
                if peer.is_client and peer.flight.is_over(size):
                    tracker = send_tracked(socket, frames)
                else:
                    send_frames(socket, frames)
            except zmq.Again:
                break
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self.dropped += self._peers.forget_route(peer)
                continue
            waiting.popleft()
            peer.waiting_bytes -= size
            if peer.is_client:
                peer.flight.add(size, tracker, now)
        if waiting:
            self._blocked[peer] = None
            # otherwise the peer is connected but slow, and will read the packets
            if peer.route is None:
                self.dropped += peer.expire(now - self.tuning.waiting_ms / 1000)
        else:
            self._blocked.pop(peer, None)

    # --- statistics -----------------------------------------------------------------------------

    @property
    def turned_away(self) -> int:
        """Number of connections that were closed because there were too many."""
        crowd = self._door.connections if self._door is not None else None
        return crowd.turned_away if crowd is not None else 0

    def tell_when_crowded(self, told: Callable[[int], object]) -> None:
        """Call *told* with the number of closed surplus connections when it rises, rate-limited."""
        if self._door is not None and self._door.connections is not None:
            self._door.connections.on_crowded = told

    # --- receiving ------------------------------------------------------------------------------

    def poll(self) -> list[Arrival]:
        """Return the messages that have arrived, and send more of the waiting packets."""
        self._check()
        if self._keys is not None:
            self._look_at_keys(self._keys)
        unread = self._unread
        news: list[Callable[[], None]] = []
        for key, _ in self._selector.select(0):
            if key.data is None or type(key.data) is PeerLink:
                unread[key.data] = True
            else:
                news.append(key.data)
        for tell in news:
            tell()  # this call may close a link; _take_in skips closed links
        arrivals: list[Arrival] = []
        self._take_in_some(arrivals)
        now = time.monotonic()
        self._pump_blocked(now)
        if now - self._swept_at > SILENT_S / 6:
            self._sweep(now)
        if self._dirty:
            self.flush()
        if not arrivals:
            # A send in this method may have reset the signal for unread packets.
            self._take_in_some(arrivals)
        return arrivals

    def _take_in_some(self, arrivals: list[Arrival]) -> None:
        """Receive packets until there is a message for a local machine, or no more packets.

        Afterwards the caller waits for the descriptor, which does not signal the same packets
        twice.
        """
        while self._unread and self._take_in(arrivals) and not arrivals:
            if self._dirty:
                self.flush()

    def _take_in(self, arrivals: list[Arrival]) -> bool:
        """Receive packets from the sockets that may have packets; return whether there were any."""
        # A read without a packet costs as much as a read with one. Usually the node sends an answer
        # next, and then has to read the socket again. So outside of bursts, receive only one
        # packet.
        packets = SHARE_PACKETS if self._is_burst else 1
        left = [packets, SHARE_BYTES]
        unread, self._unread = self._unread, {}
        for link, is_expected in unread.items():
            # otherwise an earlier packet has closed the link
            if link is None or link.peer.link is link:
                self._drain(link, arrivals, left, is_expected)
        taken = packets - left[0]
        self._is_burst = taken > 1 or (taken > 0 and self._has_taken)
        self._has_taken = taken > 0
        return self._has_taken

    def _drain(
        self, link: PeerLink | None, arrivals: list[Arrival], left: list[int], is_expected: bool
    ) -> None:
        """Receive the packets of one socket, until it is empty or the limit *left* is reached."""
        if link is None:
            assert self._door is not None
            socket = self._door.socket
        else:
            socket = link.socket
        before = len(arrivals)
        while left[0] > 0 and left[1] > 0 and len(arrivals) - before < SHARE_MESSAGES:
            # This check costs half as much as the exception.
            if not is_expected:
                events = socket.getsockopt(EVENTS)
                if not events & READABLE:  # type: ignore[operator]  # it is a number
                    return
            is_expected = False
            packet = receive_packet(socket, from_router=link is None)
            if packet is None:
                return
            left[0] -= 1
            left[1] -= len(packet.header) * HEADER_WEIGHT + packet.size
            if link is not None:
                self._take(link.peer, packet.header, packet.frames, arrivals, is_new=False)
                continue
            is_new = packet.identity not in self._peers.by_route
            if (peer := self._sender(packet.identity, packet.last)) is not None:
                self._take(peer, packet.header, packet.frames, arrivals, is_new=is_new)
        self._unread[link] = False

    def _look_at_keys(self, keys: KeyRing) -> None:
        """Close connections whose key was revoked or is no longer the expected one."""
        keys.refresh(time.monotonic())
        if keys.version == self._keys_version:
            return
        self._keys_version = keys.version
        for peer in list(self._peers.by_name.values()):
            self._dialer.check(peer)
            if peer.route is not None and keys.principal(peer.key) != peer.principal:
                # Do not fence the peer, because a key may be missing for a moment while key files
                # are copied.
                self.dropped += self._peers.forget_route(peer)

    def _sender(self, identity: bytes, part: zmq.Frame) -> Peer | None:
        """Return the sender of a packet with a routing id; None if the packet is refused."""
        door = self._door
        assert door is not None
        peer = self._peers.by_route.get(identity)
        # Check the key of each packet, because the key may have been revoked meanwhile, and a
        # client can choose any routing id.
        shown = "" if self._keys is None else user_id(part)
        if peer is None or shown != peer.key:
            try:
                peer = door.admit(self.node, self._peers, identity, shown)
            except InvalidRequest as error:
                self._lose(1, f"{identity!r:.100}: {error}")
                return None
        number = source_of(part)
        if not door.speaks(number, peer.principal):
            self._lose(1, f"{peer.principal or peer.name} has reached its limit of connections")
            return None
        # libzmq keeps the client's routing id after a reconnect
        if number != peer.came_from.descriptor:
            peer.came_from = came_from(number)
        return peer

    def _forget(self, peer: Peer) -> int:
        return self._peers.forget_route(peer)

    def _sweep(self, now: float) -> None:
        """Send Alive over silent connections to this node, because only a send detects a lost
        connection.
        """
        self._swept_at = now
        self._peers.forget_idle()
        for peer in list(self._peers.by_route.values()):
            if now - peer.heard_at > SILENT_S:
                self._add(peer, "", "", wire.Alive())

    # --- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all sockets; flushed packets have ``linger_ms`` to leave."""
        if self._is_closed or self._pid != os.getpid():
            return
        try:
            self.flush()
        finally:
            self._is_closed = True
            self._selector.close()
            self._context.destroy(linger=self.tuning.linger_ms)
