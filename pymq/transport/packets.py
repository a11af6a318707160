"""The work that all transports between processes share: packets are built, checked and counted.

A transport adds its connections: it implements ``_pump``, which sends a peer's waiting packets.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic

from pymq.core.message import Message
from pymq.errors import Closed, ForkedError, InvalidRequest, RecordTooLarge
from pymq.transport import wire
from pymq.transport.base import Arrival, Gate, TransportQuotas, Tuning
from pymq.transport.client_outbox import ClientOutbox
from pymq.transport.peers import P, PeerTable
from pymq.transport.shapes import Buffer

SHARE_PACKETS = 128  # limits of one poll, because other peers have to wait: packets, ...
SHARE_BYTES = 16 << 20  # ... bytes of payload, which is not decoded, ...
# ... bytes of headers, since decoding this many takes some tenths of a second at worst, ...
SHARE_HEADER_BYTES = 2 << 20
SHARE_MESSAGES = 4_096  # ... and messages, since a machine needs about 20 us for each
HEADER_WEIGHT = SHARE_BYTES // SHARE_HEADER_BYTES
SILENT_S = 60.0  # if a peer is silent for this long, check that its connection still exists
HELLO = wire.Hello(software="pymq")
GREET_S = 1.0  # for this long after its own Hello, the node does not answer a Hello of the peer


class PacketTransport(ABC, Generic[P]):
    """The part of a :class:`pymq.transport.base.Transport` above its connections.

    Args:
        peers: the peers of the node.
        cut: ends the connection that a client has made, and returns whether there was one.
        gate: see :data:`pymq.transport.base.Gate`.
        on_stranger: called with nodes that have waiting messages but no known endpoint.
        tuning: the settings of connections.
        on_send: called with a principal and a message for that principal; returns the message
            without the parts that the principal may not see.
        quotas: limits of the bytes sent to principals.
    """

    def __init__(
        self,
        peers: PeerTable[P],
        cut: Callable[[P], bool],
        *,
        gate: Gate | None,
        on_stranger: Callable[[str], None] | None,
        tuning: Tuning,
        on_send: Callable[[str, Message], Message] | None,
        quotas: TransportQuotas | None,
    ) -> None:
        self.tuning = tuning
        self.node = ""
        self.dropped = 0  # messages and packets lost for any reason
        self.cut = 0  # connections closed because the client did not read
        self.problem = ""  # the reason of the last loss or refusal, by this node or a peer
        self.on_stranger = on_stranger
        self.outbox = ClientOutbox(peers, cut, quotas, tuning.stalled_ms)
        self._table = peers
        self._gate = gate
        self._on_send = on_send
        self._pid = os.getpid()
        self._is_closed = False
        self._dirty: dict[P, None] = {}  # peers with a packet that is being built
        self._blocked: dict[P, None] = {}  # peers with packets that could not be sent yet

    # --- sending --------------------------------------------------------------------------------

    def send(self, peer: str, source: str, message: Message) -> None:
        """Append a message to the packet for its peer."""
        self._check()
        found, to = self._table.find(peer)
        if found.waiting_bytes > self.tuning.waiting_bytes:
            self.dropped += 1
            return
        if self._on_send is not None:
            message = self._on_send(found.principal, message)
        self._add(found, to, source[len(self.node) + 1 :], message)

    def _add(self, peer: P, to: str, source: str, message: Message | wire.Link) -> None:
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

    def _seal(self, peer: P, packet: wire.Packet, now: float) -> None:
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
            self.outbox.loaded[peer] = None

    def flush(self) -> None:
        """Send all packets as far as the sockets accept them."""
        self._check()
        if not self._dirty:
            return
        now = time.monotonic()
        while self._dirty:
            peer, _ = self._dirty.popitem()
            if peer.packet is not None:
                self._seal(peer, peer.packet, now)
            self._pump(peer, now)

    @abstractmethod
    def _pump(self, peer: P, now: float) -> None:
        """Send the waiting packets of a peer as far as its connection accepts them."""

    def waiting(self) -> tuple[int, int, int]:
        """Return the numbers of connected peers, of waiting packets, and of their bytes."""
        peers = self._table.by_name.values()
        return (
            sum(peer.is_connected for peer in peers),
            sum(len(peer.waiting) for peer in peers),
            sum(peer.waiting_bytes for peer in peers),
        )

    # --- receiving ------------------------------------------------------------------------------

    def _take(
        self,
        peer: P,
        header: Buffer,
        frames: list[memoryview],
        arrivals: list[Arrival],
        *,
        is_new: bool,
    ) -> None:
        """Decode one packet, and add its messages to *arrivals* if the gate admits them."""
        if peer.waiting_bytes > self.tuning.waiting_bytes:
            self._lose(1, f"{peer.name} does not receive its answers")
            return
        try:
            items = wire.decode(header, frames, peer.header_max)
        except InvalidRequest as error:
            self._lose(1, f"{peer.name}: {error}")
            self._add(peer, "", "", wire.Refused(error))
            return
        me, name, gate = self.node, peer.name, self._gate
        says_hello = is_new  # the peer may have sent its Hello to an earlier process of this node
        peer.heard_at = time.monotonic()
        for to, source, message in items:
            if isinstance(message, (wire.Hello, wire.Refused, wire.Alive)):
                if isinstance(message, wire.Refused):
                    self._lose(1, f"{name} has refused a packet: {message.error}")
                elif isinstance(message, wire.Hello):
                    # Otherwise, if both sides have connected, each would answer the other's answers
                    # forever.
                    is_answered = peer.heard_at < peer.greeted_at + GREET_S
                    says_hello = says_hello or (peer.has_come and not is_answered)
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
            self._add(peer, "", "", HELLO)

    def _pump_blocked(self, now: float) -> None:
        """Send more of the waiting packets, and disconnect clients that do not read."""
        if self._blocked:
            for peer in list(self._blocked):
                self._pump(peer, now)
        if self.outbox.loaded:
            for peer in self.outbox.cut_stalled(now):
                self.cut += 1
                self._lose(self._forget(peer), f"{peer.name} read nothing for too long")

    @abstractmethod
    def _forget(self, peer: P) -> int:
        """Forget the connection that a peer has made; return the number of lost packets."""

    def _lose(self, count: int, why: str) -> None:
        self.dropped += count
        self.problem = why

    def _check(self) -> None:
        if self._is_closed:
            raise Closed("the transport was closed")
        if self._pid != os.getpid():
            raise ForkedError("this transport belongs to the parent process; open a new one here")
