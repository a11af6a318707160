"""Nodes in processes of their own, over ZeroMQ: one ROUTER that is bound, a DEALER for each peer.

No thread is started and nothing waits here: whoever turns the node's loop polls. All messages for a
peer that gather between two flushes share a packet, and payload goes from the file, or from the
producer's batch, to the socket without being copied.

Nothing tells us that a peer is gone: a DEALER takes nothing while it is not connected, so what is
for it waits for a while; a ROUTER refuses what is for nobody. A node that has connected to us is
answered the same way; one that has not is connected to, if it is known where it is.
"""

from __future__ import annotations

import os
import re
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq

from pymq.core.message import Message
from pymq.core.values import Factory, define
from pymq.errors import Closed, ConfigError, ForkedError, InvalidRequest, RecordTooLarge
from pymq.transport import wire
from pymq.transport.base import ANONYMOUS, Arrival, Gate, node_of
from pymq.transport.shapes import Buffer
from pymq.transport.sockets import (
    SCHEMES,
    Tuning,
    check_endpoint,
    descriptor,
    make_context,
    make_dealer,
    make_router,
    reachable,
)

if TYPE_CHECKING:
    from pymq.transport.sockets import Socket

COPY_MAX = 65_536  # bytes of a frame up to which libzmq's copy costs less than sharing
SHARE_PACKETS = 512  # that one poll takes in, or ...
SHARE_BYTES = 16 << 20
NAMES_KEPT = 10_000  # names of machines that are not looked up anew each time
SILENT_S = 60.0  # whoever has said nothing for so long is asked whether he is there
FENCED_KEPT = 1_000
_IDENTITY = re.compile(rb"(?:[A-Za-z0-9._-]{1,220}|(?:tcp|ipc)://[!-~]{1,220})/[0-9a-f]{16}")

Frames = list[Buffer]


@define
class Peer:
    """Another node: how it can be reached, and what waits for it."""

    name: str
    packet: wire.Packet | None = None  # that is being put together
    waiting: deque[tuple[float, int, Frames]] = Factory(deque)  # (since when, bytes, a packet)
    waiting_bytes: int = 0
    link: Link | None = None  # a connection that we have made
    route: bytes | None = None  # a connection that it has made, by its routing id
    heard_at: float = 0.0
    principal: str = ANONYMOUS


@define
class Link:
    """A connection that we have made."""

    endpoint: str
    socket: Socket
    peer: Peer


class ZmqTransport:
    """The transport of one node; see :class:`pymq.transport.base.Transport`.

    It listens at *listen*, if that is given, and tells others to find it at *advertise*. *node* is
    then its endpoint, if it has no other name. *on_stranger* is told of nodes for which there is
    something to send and of which nobody knows where they are.
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
    ) -> None:
        self.tuning = tuning or Tuning()
        self.endpoint = ""
        self.dropped = 0  # messages and packets, for whatever reason
        self.problem = ""  # what was wrong with the last packet that was refused, by us or of ours
        self._gate = gate
        self.on_stranger = on_stranger
        self._pid = os.getpid()
        self._is_closed = False
        self._context = make_context()
        self._selector = selectors.DefaultSelector()
        self._router: Socket | None = None
        try:
            if listen is not None:
                self._router, bound = make_router(self._context, listen, self.tuning)
                self._selector.register(descriptor(self._router), selectors.EVENT_READ, None)
                self.endpoint = check_endpoint(advertise or reachable(bound))
            self.node = node or self.endpoint
            self._identity = f"{self.node}/{os.urandom(8).hex()}".encode()
            if not _IDENTITY.fullmatch(self._identity):
                raise ConfigError(f"{self.node!r} cannot be the name of a node")
        except BaseException:
            self._selector.close()
            self._context.destroy(linger=0)
            raise
        self._peers: dict[str, Peer] = {}
        self._routes: dict[bytes, Peer] = {}
        self._fenced: dict[bytes, None] = {}  # routing ids whose nodes have been replaced
        self._endpoints: dict[str, str] = {}
        self._names: dict[str, tuple[Peer, str]] = {}  # of machines: the node's, and the rest
        self._dirty: dict[Peer, None] = {}  # with a packet that is being put together
        self._blocked: dict[Peer, None] = {}  # with packets that could not leave
        self._unread: dict[Link | None, None] = {}  # sockets to look at, whatever is readable
        self._swept_at = time.monotonic()

    # --- who is where ---------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when something has happened at any socket."""
        return self._selector.fileno()

    def learn(self, node: str, endpoint: str) -> None:
        """From now on *node* is to be found at *endpoint*."""
        self._check()
        if node == self.node or self._endpoints.get(node) == endpoint:
            return
        if not endpoint.startswith(SCHEMES):
            return  # It does not listen, or not in a way that we know.
        self._endpoints[node] = endpoint
        self._names.clear()
        peer = self._peers.get(node)
        if peer is not None:
            if peer.link is not None and peer.link.endpoint != endpoint:
                self._unlink(peer)
            if peer.waiting:
                self._pump(peer, time.monotonic())

    def _find(self, machine: str) -> tuple[Peer, str]:
        """The peer of a machine, and the machine's name there."""
        known = self._names.get(machine)
        if known is not None:
            return known
        if "://" in machine or machine in self._endpoints or machine in self._peers:
            found = self._peer(machine), ""
        else:
            node = node_of(machine)
            found = self._peer(node), machine[len(node) + 1 :]
        if len(self._names) >= NAMES_KEPT:
            self._names.clear()
        self._names[machine] = found
        return found

    def _peer(self, node: str) -> Peer:
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = Peer(node)
            self._names.clear()  # It may be the node of machines that were taken for another's.
        return peer

    def _connect(self, peer: Peer) -> Link | None:
        endpoint = peer.name if "://" in peer.name else self._endpoints.get(peer.name)
        if endpoint is None:
            if self.on_stranger is not None:
                self.on_stranger(peer.name)
            return None
        socket = make_dealer(self._context, endpoint, self._identity, self.tuning)
        link = peer.link = Link(endpoint, socket, peer)
        self._selector.register(descriptor(socket), selectors.EVENT_READ, link)
        peer.waiting.appendleft((time.monotonic(), 0, wire.encode([("", "", _hello())])))
        return link

    def _unlink(self, peer: Peer) -> None:
        if peer.link is not None:
            self._selector.unregister(descriptor(peer.link.socket))
            peer.link.socket.close(0)
            self._unread.pop(peer.link, None)
            peer.link = None

    # --- sending --------------------------------------------------------------------------------

    def send(self, peer: str, source: str, message: Message) -> None:
        """Put a message into the packet for its peer."""
        self._check()
        found, to = self._find(peer)
        if found.waiting_bytes > self.tuning.waiting_bytes:
            self.dropped += 1
            return
        self._add(found, to, source[len(self.node) + 1 :], message)

    def _add(self, peer: Peer, to: str, source: str, message: Message | wire.Link) -> None:
        packet = peer.packet
        if packet is None:
            packet = peer.packet = wire.Packet()
            self._dirty[peer] = None
        try:
            packet.add(to, source, message)
        except RecordTooLarge as error:
            self._lose(1, str(error))
        if packet.is_full:
            self._seal(peer, packet, time.monotonic())

    def _seal(self, peer: Peer, packet: wire.Packet, now: float) -> None:
        peer.packet = None
        try:
            frames = packet.seal()
        except RecordTooLarge as error:
            self._lose(len(packet.rows) - 1, str(error))
            return
        size = len(frames[0]) + packet.size
        peer.waiting.append((now, size, frames))
        peer.waiting_bytes += size

    def flush(self) -> None:
        """Let everything leave that can."""
        self._check()
        if not self._dirty:
            return
        now = time.monotonic()
        while self._dirty:
            peer, _ = self._dirty.popitem()
            if peer.packet is not None:
                self._seal(peer, peer.packet, now)
            self._pump(peer, now)

    def _pump(self, peer: Peer, now: float) -> None:
        """Send what waits for a peer, as far as it goes."""
        waiting = peer.waiting
        while waiting:
            if peer.route is None:
                link = peer.link or self._connect(peer)
                if link is None:
                    break
                socket, unread = link.socket, link
            else:
                assert self._router is not None
                socket, unread = self._router, None
            try:
                if peer.route is not None:
                    socket.send(peer.route, zmq.SNDMORE | zmq.NOBLOCK)
                _send(socket, waiting[0][2])
            except zmq.Again:
                break
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self._forget_route(peer)
                continue
            peer.waiting_bytes -= waiting.popleft()[1]
            # Sending may have used up the sign that there is something to be read.
            self._unread[unread] = None
        if waiting:
            self._blocked[peer] = None
            self._expire(peer, now)
        else:
            self._blocked.pop(peer, None)

    def _expire(self, peer: Peer, now: float) -> None:
        """What has waited for too long helps nobody: whoever sent it has asked again by now."""
        waiting, since = peer.waiting, now - self.tuning.waiting_ms / 1000
        is_slow = peer.route is not None  # it is there, and behind: what waits is still wanted
        while waiting and waiting[0][0] < since and not is_slow:
            peer.waiting_bytes -= waiting.popleft()[1]
            self.dropped += 1

    # --- receiving ------------------------------------------------------------------------------

    def poll(self) -> list[Arrival]:
        """Take in what has arrived, and let more leave of what was waiting."""
        self._check()
        unread = self._unread
        for key, _ in self._selector.select(0):
            unread[key.data] = None
        arrivals: list[Arrival] = []
        if unread:
            self._unread = {}
            left = [SHARE_PACKETS, SHARE_BYTES]
            for link in unread:
                self._drain(link, arrivals, left)
        now = time.monotonic()
        if self._blocked:
            for peer in list(self._blocked):
                self._pump(peer, now)
        if now - self._swept_at > SILENT_S / 6:
            self._sweep(now)
        if self._dirty:
            self.flush()
        return arrivals

    def _drain(self, link: Link | None, arrivals: list[Arrival], left: list[int]) -> None:
        """Take in the packets of one socket, until it has no more or *left* is used up."""
        socket = self._router if link is None else link.socket
        assert socket is not None
        while left[0] > 0 and left[1] > 0:
            try:
                part = socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            identity = b""
            if link is None:
                identity = part.bytes
                part = socket.recv(copy=False)
            header = part.buffer
            frames: list[memoryview] = []
            left[0] -= 1
            while part.more:
                part = socket.recv(copy=False)
                left[1] -= len(part.buffer)
                # All parts must be taken out, or the next packet would begin with those left.
                if len(frames) <= wire.FRAMES_MAX:
                    frames.append(part.buffer)
            if link is not None:
                self._take(link.peer, header, frames, arrivals, is_new=False)
                continue
            peer = self._routes.get(identity)
            is_new = peer is None
            if peer is None:
                peer = self._admit(identity)
            if peer is not None:
                self._take(peer, header, frames, arrivals, is_new=is_new)
        self._unread[link] = None

    def _take(
        self,
        peer: Peer,
        header: Buffer,
        frames: list[memoryview],
        arrivals: list[Arrival],
        *,
        is_new: bool,
    ) -> None:
        """Take in one packet."""
        if peer.waiting_bytes > self.tuning.waiting_bytes:
            self._lose(1, f"{peer.name} does not take what it has asked for")
            return
        try:
            items = wire.decode(header, frames)
        except InvalidRequest as error:
            self._lose(1, f"{peer.name}: {error}")
            self._add(peer, "", "", wire.Refused(error))
            return
        me, name, gate = self.node, peer.name, self._gate
        says_hello = is_new  # It may have said so to the one who was here before us.
        peer.heard_at = time.monotonic()
        for to, source, message in items:
            if isinstance(message, (wire.Hello, wire.Refused, wire.Alive)):
                if isinstance(message, wire.Refused):
                    self._lose(1, f"{name} has refused a packet: {message.error}")
                elif isinstance(message, wire.Hello):
                    says_hello = says_hello or peer.route is not None
                continue
            origin = f"{name}.{source}" if source else name
            answers = gate(peer.principal, origin, message) if gate is not None else None
            if answers is None:
                arrivals.append((f"{me}.{to}" if to else me, origin, message))
                continue
            self.dropped += 1
            for answer in answers:
                self._add(peer, source, to, answer)
        if says_hello:
            self._add(peer, "", "", _hello())

    def _admit(self, identity: bytes) -> Peer | None:
        """The peer that has connected to us under a routing id; None if it is not to be heard."""
        problem = ""
        if not _IDENTITY.fullmatch(identity):
            problem = "a routing id is NODE/ and 16 hex digits"
        elif identity in self._fenced:
            problem = "another process has connected under the name of this node"
        elif (node := identity[:-17].decode()) == self.node:
            problem = f"{node} is here"
        else:
            peer = self._peer(node)
            if peer.route is not None:
                self._fence(peer.route)
            peer.route = identity
            self._routes[identity] = peer
            return peer
        self._lose(1, f"{identity!r:.100}: {problem}")
        assert self._router is not None
        try:
            self._router.send(identity, zmq.SNDMORE | zmq.NOBLOCK)
            _send(self._router, wire.encode([("", "", wire.Refused(InvalidRequest(problem)))]))
        except zmq.ZMQError:
            pass  # It has gone, or does not listen: so it stays without an explanation.
        return None

    def _fence(self, identity: bytes) -> None:
        self._routes.pop(identity, None)
        self._fenced[identity] = None
        if len(self._fenced) > FENCED_KEPT:
            del self._fenced[next(iter(self._fenced))]

    def _forget_route(self, peer: Peer) -> None:
        """A connection that a peer has made is gone."""
        if peer.route is not None:
            self._routes.pop(peer.route, None)
            peer.route = None
        if peer.link is None and peer.name not in self._endpoints and "://" not in peer.name:
            # It comes back by itself, or never; what was for it is lost with the connection.
            self.dropped += len(peer.waiting)
            peer.waiting.clear()
            peer.waiting_bytes = 0
            self._peers.pop(peer.name, None)
            self._names.clear()

    def _sweep(self, now: float) -> None:
        """Find out which connections to us are gone: only sending something tells."""
        self._swept_at = now
        for peer in list(self._routes.values()):
            if now - peer.heard_at > SILENT_S:
                self._add(peer, "", "", wire.Alive())

    def _lose(self, count: int, why: str) -> None:
        self.dropped += count
        self.problem = why

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of all sockets; what was flushed has a moment to leave."""
        if self._is_closed or self._pid != os.getpid():
            return
        self.flush()
        self._is_closed = True
        self._selector.close()
        self._context.destroy(linger=self.tuning.linger_ms)

    def _check(self) -> None:
        if self._is_closed:
            raise Closed("the transport was closed")
        if self._pid != os.getpid():
            raise ForkedError("this transport belongs to the parent process; open a new one here")


def _hello() -> wire.Hello:
    return wire.Hello(software="pymq")


def _send(socket: Socket, frames: Frames) -> None:
    """Send the parts of a packet; the first one may be refused, and those after it are not."""
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        flags = zmq.NOBLOCK if index == last else zmq.NOBLOCK | zmq.SNDMORE
        socket.send(frame, flags, copy=len(frame) <= COPY_MAX)
