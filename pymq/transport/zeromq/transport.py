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
import selectors
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq

from pymq.core.message import Message
from pymq.core.partition.fetch_limits import Loads
from pymq.errors import Closed, ForkedError, InvalidRequest, RecordTooLarge
from pymq.transport import wire
from pymq.transport.base import Arrival, Gate, Quotas
from pymq.transport.curve.key_ring import KeyRing
from pymq.transport.shapes import Buffer
from pymq.transport.zeromq.connections import came_from, cut, source_of
from pymq.transport.zeromq.dialer import Dialer
from pymq.transport.zeromq.in_flight import send_tracked
from pymq.transport.zeromq.listener import Listener
from pymq.transport.zeromq.peers import Peer, PeerLink, Peers, make_identity
from pymq.transport.zeromq.sockets import (
    EVENTS,
    LAST,
    MORE,
    READABLE,
    SCHEMES,
    Tuning,
    check_endpoint,
    make_context,
    reachable,
    send_frames,
)
from pymq.transport.zeromq.zap import OnRefused, user_id

if TYPE_CHECKING:
    from pymq.transport.zeromq.sockets import Socket

SHARE_PACKETS = 128  # that one poll takes in: what others send waits for as long, or ...
SHARE_BYTES = 16 << 20  # of payload, which nobody looks into, or ...
# ... of headers: to decode so much takes some tenths of a second, whatever is in them.
SHARE_HEADER_BYTES = 2 << 20
SHARE_MESSAGES = 4_096  # ... or of these, each of which a machine takes some 20 us for
_HEADER_WEIGHT = SHARE_BYTES // SHARE_HEADER_BYTES
SILENT_S = 60.0  # whoever has said nothing for so long is asked whether he is there
LOOK_S = 1.0  # between two looks at who takes nothing
GREET_S = 1.0  # who was greeted so lately is not greeted because it greets


class ZmqTransport:
    """The transport of one node; see :class:`pymq.transport.base.Transport`.

    It listens at *listen*, if that is given, and tells others to find it at *advertise*. *node* is
    then its endpoint, if it has no other name. *on_stranger* is told of nodes for which there is
    something to send and of which nobody knows where they are.

    With *keys* nothing is said to, and nothing heard of, who has not proved with CurveZMQ to be who
    is expected. *on_refused* is told of connections that were not let in, and *on_send* of what is
    sent to whom, and it returns what of it that one may see; *quotas* tell what principals may
    still be sent.
    Without, only this machine may be listened to, unless it is *insecure* knowingly.
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
        quotas: Quotas | None = None,
    ) -> None:
        self.tuning = tuning or Tuning()
        self.endpoint = ""
        self.dropped = 0  # messages and packets, for whatever reason
        self.cut = 0  # connections of clients that took nothing
        self.problem = ""  # what was wrong with the last packet that was refused, by us or of ours
        self._gate = gate
        self.on_stranger = on_stranger
        self._keys = keys
        self._keys_version = keys.version if keys is not None else 0
        self._on_send = on_send
        self._quotas = quotas
        self._pid = os.getpid()
        self._is_closed = False
        self._context = make_context()
        self._selector = selectors.DefaultSelector()
        self._router: Socket | None = None
        self._door: Listener | None = None
        try:
            if listen is not None:
                door = self._door = Listener(
                    listen,
                    self._context,
                    self._selector,
                    self.tuning,
                    keys=keys,
                    insecure=insecure,
                    on_refused=on_refused,
                )
                self._router = door.socket
                self.endpoint = check_endpoint(advertise or reachable(door.bound))
            self.node = node or self.endpoint
            identity = make_identity(self.node)
            if keys is not None and listen is not None:
                keys.check_own(self.node, self.endpoint)
        except BaseException:
            self._selector.close()
            self._context.destroy(linger=0)
            raise
        self._dialer = Dialer(
            identity, self._context, self._selector, self.tuning, keys, self._note_problem
        )
        self._peers = Peers()
        self._dirty: dict[Peer, None] = {}  # with a packet that is being put together
        self._blocked: dict[Peer, None] = {}  # with packets that could not leave
        self._loaded: dict[Peer, None] = {}  # clients with something that has not left the process
        self._looked_at = 0.0  # when it was seen last whether they take it
        # Sockets to look at, whatever is readable; and whether something is expected there.
        self._unread: dict[PeerLink | None, bool] = {}
        self._has_taken = False  # the last poll has found something; ...
        self._is_burst = False  # ... and so has the one before, or it has found a lot
        self._swept_at = time.monotonic()

    # --- who is where ---------------------------------------------------------------------------

    @property
    def on_lost(self) -> Callable[[str, bool], None] | None:
        """See :class:`pymq.transport.base.Transport`; of connections that this node makes."""
        return self._dialer.on_lost

    @on_lost.setter
    def on_lost(self, told: Callable[[str, bool], None] | None) -> None:
        self._dialer.on_lost = told

    def fileno(self) -> int:
        """Readable when something has happened at any socket."""
        return self._selector.fileno()

    def learn(self, node: str, endpoint: str) -> None:
        """From now on *node* is to be found at *endpoint*."""
        self._check()
        if node == self.node or not endpoint.startswith(SCHEMES):
            return  # It is here; or it does not listen, or not in a way that we know.
        if not self._peers.learn(node, endpoint):
            return
        peer = self._peers.by_name.get(node)
        if peer is not None:
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
        link = self._dialer.call(peer, endpoint)
        if link is not None:
            peer.greeted_at = time.monotonic()
            peer.waiting.appendleft((peer.greeted_at, 0, wire.encode([("", "", _hello())])))
        return link

    # --- sending --------------------------------------------------------------------------------

    def send(self, peer: str, source: str, message: Message) -> None:
        """Put a message into the packet for its peer."""
        self._check()
        found, to = self._peers.find(peer)
        if found.waiting_bytes > self.tuning.waiting_bytes:
            self.dropped += 1
            return
        if self._on_send is not None:
            message = self._on_send(found.principal, message)
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
            now = time.monotonic()
            self._seal(peer, packet, now)
            self._pump(peer, now)

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
        if peer.is_client:
            self._loaded[peer] = None

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
            _, size, frames = waiting[0]
            tracker = None
            # To send, even in vain, may use up the sign that there is something to be read.
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

    # --- what clients have not taken yet (:class:`pymq.core.partition.fetch_limits.FetchOutbox`) --

    def loads(self) -> Loads:
        """How much has not left the process, by principal and connection."""
        found, now = Loads(), time.monotonic()
        for peer in list(self._loaded):
            if size := self._unsent(peer, now):
                found.add(peer.principal or peer.name, peer.name, size)
        return found

    def owner(self, source: str) -> tuple[str, str]:
        """The principal of a machine, or its node if that has none; and its node."""
        peer = self._peers.find(source)[0]
        return peer.principal or peer.name, peer.name

    def is_there(self, connection: str) -> bool:
        """Whether a node is connected, or can be connected to."""
        peer = self._peers.by_name.get(connection)
        return peer is not None and (
            peer.route is not None
            or peer.link is not None
            or self._peers.endpoint(peer) is not None
        )

    def wait_ms(self, account: str) -> int:
        """How long until the quota of a principal lets it be sent something; 0 when it does."""
        return self._quotas.fetch_wait_ms(account) if self._quotas is not None else 0

    def write_wait_ms(self, account: str) -> int:
        """How long until the quota of a principal lets more be written for it; 0 when it does."""
        return self._quotas.produce_wait_ms(account) if self._quotas is not None else 0

    def wrote(self, account: str, size: int) -> None:
        """Count what was written for a principal beside what it has sent."""
        if self._quotas is not None:
            self._quotas.produced(account, size)

    def _unsent(self, peer: Peer, now: float) -> int:
        size = peer.waiting_bytes + peer.flight.look(now)
        if not size:
            del self._loaded[peer]
        return size

    def _cut_stalled(self, now: float) -> None:
        """End the connections of clients that have taken nothing for long of what is for them."""
        self._looked_at = now
        for peer in list(self._loaded):
            if not self._unsent(peer, now) or peer.route is None:
                continue
            if now - peer.flight.moved_at > self.tuning.stalled_ms / 1000 and cut(peer.came_from):
                self.cut += 1
                self._lose(self._peers.forget_route(peer), f"{peer.name} took nothing for too long")

    @property
    def turned_away(self) -> int:
        """Connections that were ended because there were too many."""
        crowd = self._door.connections if self._door is not None else None
        return crowd.turned_away if crowd is not None else 0

    def tell_when_crowded(self, told: Callable[[int], object]) -> None:
        """Have *told* called with how many were turned away, now and then, when more are."""
        if self._door is not None and self._door.connections is not None:
            self._door.connections.on_crowded = told

    def waiting(self) -> tuple[int, int, int]:
        """Peers, packets that wait for them, and the bytes of those."""
        peers = self._peers.by_name.values()
        return (
            sum(peer.link is not None or peer.route is not None for peer in peers),
            sum(len(peer.waiting) for peer in peers),
            sum(peer.waiting_bytes for peer in peers),
        )

    # --- receiving ------------------------------------------------------------------------------

    def poll(self) -> list[Arrival]:
        """Take in what has arrived, and let more leave of what was waiting."""
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
            tell()  # It may close a link, which is then not read any more.
        arrivals: list[Arrival] = []
        self._take_in_some(arrivals)
        now = time.monotonic()
        if self._blocked:
            for peer in list(self._blocked):
                self._pump(peer, now)
        if self._loaded and now - self._looked_at > LOOK_S:
            self._cut_stalled(now)
        if now - self._swept_at > SILENT_S / 6:
            self._sweep(now)
        if self._dirty:
            self.flush()
        if not arrivals:
            self._take_in_some(arrivals)  # What was sent here may have used up the sign of it.
        return arrivals

    def _take_in_some(self, arrivals: list[Arrival]) -> None:
        """Take in packets until there is a message for somebody here, or there are no more.

        Who gets nothing waits at the descriptor, which tells of nothing that it has told before.
        """
        while self._unread and self._take_in(arrivals) and not arrivals:
            if self._dirty:
                self.flush()

    def _take_in(self, arrivals: list[Arrival]) -> bool:
        """Take in packets of the sockets that may have some; returns whether there were any."""
        # To be told that there is no more costs as much as a packet, and as a rule an answer is
        # sent next, after which it must be asked once more: so one packet will do, for once.
        packets = SHARE_PACKETS if self._is_burst else 1
        left = [packets, SHARE_BYTES]
        unread, self._unread = self._unread, {}
        for link, is_expected in unread.items():
            if link is None or link.peer.link is link:  # else another packet has ended it
                self._drain(link, arrivals, left, is_expected)
        taken = packets - left[0]
        self._is_burst = taken > 1 or (taken > 0 and self._has_taken)
        self._has_taken = taken > 0
        return self._has_taken

    def _drain(
        self, link: PeerLink | None, arrivals: list[Arrival], left: list[int], is_expected: bool
    ) -> None:
        """Take in the packets of one socket, until it has no more or *left* is used up."""
        socket = self._router if link is None else link.socket
        assert socket is not None
        before = len(arrivals)
        while left[0] > 0 and left[1] > 0 and len(arrivals) - before < SHARE_MESSAGES:
            # To ask costs half of what the exception does.
            if not is_expected:
                events = socket.getsockopt(EVENTS)
                if not events & READABLE:  # type: ignore[operator]  # it is a number
                    return
            is_expected = False
            try:
                part = socket.recv(LAST, copy=False)
            except zmq.Again:
                return
            identity = b""
            if link is None:
                identity = part.bytes
                part = socket.recv(copy=False)
            header = part.buffer
            frames: list[memoryview] = []
            left[0] -= 1
            left[1] -= len(header) * _HEADER_WEIGHT
            while part.more:
                part = socket.recv(copy=False)
                left[1] -= len(part.buffer)
                # All parts must be taken out, or the next packet would begin with those left.
                if len(frames) <= wire.FRAMES_MAX:
                    frames.append(part.buffer)
            if link is not None:
                self._take(link.peer, header, frames, arrivals, is_new=False)
                continue
            peer = self._peers.by_route.get(identity)
            is_new = peer is None
            # Who it is is asked of each packet: a key may have been revoked since it connected, and
            # a routing id can be anybody's.
            shown = "" if self._keys is None else user_id(part)
            if peer is None or shown != peer.key:
                peer = self._admit(identity, shown)
            if peer is not None:
                number = source_of(part)
                if not self._speaks(number, peer):
                    continue
                # libzmq connects a client anew under the routing id that it had.
                if number != peer.came_from.descriptor:
                    peer.came_from = came_from(number)
                self._take(peer, header, frames, arrivals, is_new=is_new)
        self._unread[link] = False

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
            items = wire.decode(header, frames, peer.header_max)
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
                    # Two who have both connected would answer each other's answers for ever.
                    is_answered = peer.heard_at < peer.greeted_at + GREET_S
                    says_hello = says_hello or (peer.route is not None and not is_answered)
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
            peer.greeted_at = peer.heard_at
            self._add(peer, "", "", _hello())

    def _look_at_keys(self, keys: KeyRing) -> None:
        """Let go of connections whose key was revoked, or that would now need another one."""
        keys.refresh(time.monotonic())
        if keys.version == self._keys_version:
            return
        self._keys_version = keys.version
        for peer in list(self._peers.by_name.values()):
            self._dialer.check(peer)
            if peer.route is not None and keys.principal(peer.key) != peer.principal:
                # Not fenced: keys that are copied are gone for a moment.
                self.dropped += self._peers.forget_route(peer)

    def _speaks(self, number: int, peer: Peer) -> bool:
        """Whether a peer is heard by this connection, or has too many already."""
        assert self._door is not None
        if self._door.speaks(number, peer.principal):
            return True
        self._lose(1, f"{peer.principal or peer.name} has as many connections as it may have")
        return False

    def _admit(self, identity: bytes, key: str) -> Peer | None:
        assert self._door is not None
        try:
            return self._door.admit(self.node, self._peers, identity, key)
        except InvalidRequest as error:
            self._lose(1, f"{identity!r:.100}: {error}")
            return None

    def _sweep(self, now: float) -> None:
        """Find out which connections to us are gone: only sending something tells."""
        self._swept_at = now
        self._peers.forget_idle()
        for peer in list(self._peers.by_route.values()):
            if now - peer.heard_at > SILENT_S:
                self._add(peer, "", "", wire.Alive())

    def _lose(self, count: int, why: str) -> None:
        self.dropped += count
        self.problem = why

    def _note_problem(self, why: str) -> None:
        self.problem = why

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of all sockets; what was flushed has a moment to leave."""
        if self._is_closed or self._pid != os.getpid():
            return
        try:
            self.flush()
        finally:
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
