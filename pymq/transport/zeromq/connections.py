"""Counts and limits the connections to a node, by address and by principal.

libzmq has no limit of its own, and identifies a connection only by its descriptor. This module
looks a descriptor up when libzmq reports it. By then the descriptor may belong to another
connection, so a count may be wrong by one for a moment. If a peer replaces its connection by a new
one with the same routing id, and then sends more on the old one, libzmq 4.3.5 never closes the old
one: it counts until the node ends, because its descriptor stays open until then.

| a connection | when | then |
|---|---|---|
| is new | libzmq accepts it | libzmq closes it if it has not proved its key in handshake_ms |
| is known | it has sent a packet | it counts for its principal |
| is silent | it has sent none and is older than handshake_ms + 1 s | it has proved its key |

Limits:

* New connections: NEW_MAX or half of the total. The total leaves descriptors for files. If either
  limit is exceeded, the oldest new connection is closed. By then a proper client has sent a packet,
  and a client that connects again and again only replaces its own connections.
* Silent connections count for no principal, because libzmq does not report to whom they belong.
  Silent connections may use half of the total. If the total is used up and they have more than
  half, the one that was silent for longest is closed; its client may connect again.
* The known connections of one principal may use at most half of the total.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import zmq

from pymq.descriptors import soft_limit
from pymq.transport.base import FILES, LEAST, NEW_MAX, TELL_S
from pymq.transport.zeromq.monitor_event import monitor_event

if TYPE_CHECKING:
    from pymq.transport.zeromq.sockets import Socket

SETTLED_S = 1.0  # so long after handshake_ms, an open connection has completed its handshake
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED


class Connections:
    """The connections to a ROUTER, by address and by principal."""

    def __init__(
        self,
        router: Socket,
        handshake_ms: int = 3_000,
        limit: Callable[[], int] = soft_limit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.turned_away = 0  # connections closed because there were too many, ...
        # ... reported at most every TELL_S
        self.on_crowded: Callable[[int], object] = lambda count: None
        self._told_at = float("-inf")
        self._watched = router
        self._limit = limit
        self._clock = clock
        self._settled_s = handshake_ms / 1000 + SETTLED_S
        self._addresses: dict[int, str] = {}  # addresses of connections, by descriptor
        self._counts: Counter[str] = Counter()
        self._new: dict[int, tuple[Origin, float]] = {}  # (connection, time), oldest first
        self._silent: dict[int, Origin] = {}  # handshake completed, no packet yet, oldest first
        self._going: set[int] = set()  # closed by this node, but not yet by libzmq
        self._known: dict[int, str] = {}  # principals of connections that have sent a packet
        self._principals: Counter[str] = Counter()
        # Do not use pyzmq's monitor socket: if its event queue were full, libzmq's thread would
        # block.
        address = f"inproc://monitor-{id(self)}"
        router.monitor(address, _EVENTS)
        self.socket = router.context.socket(zmq.PAIR)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVHWM, 0)
        self.socket.connect(address)
        # libzmq's descriptor signals events only after a first poll that found none.
        self.socket.poll(0)

    def count(self, address: str) -> int:
        """Return the number of open connections of an address."""
        self.note()
        return self._counts[address]

    def of(self, principal: str) -> int:
        """Return the number of a principal's connections that have sent a packet."""
        return self._principals[principal]

    def share(self, most: int) -> int:
        """Return the limit of a principal: *most*, or less if there are few descriptors."""
        return min(most, self._room // 2)

    @property
    def _room(self) -> int:
        """The number of connections that leaves enough descriptors for files."""
        return max(LEAST, self._limit() - FILES)

    def __len__(self) -> int:
        return len(self._addresses)

    def note(self) -> None:
        """Handle libzmq's pending events of connections."""
        while True:
            try:
                event, value = monitor_event(self.socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            self.heard(event, value)

    def heard(self, event: int, descriptor: int) -> None:
        """Handle a connection that was accepted, or that ended and whose descriptor is closed."""
        # Also remove the old entry of an accepted connection: libzmq may not have reported the end
        # of the earlier one with this descriptor, which would then count forever.
        address = self._addresses.pop(descriptor, None)
        if address is not None:
            _less(self._counts, address)
        self._new.pop(descriptor, None)
        self._silent.pop(descriptor, None)
        self._going.discard(descriptor)
        if (principal := self._known.pop(descriptor, None)) is not None:
            _less(self._principals, principal)
        if event == zmq.EVENT_ACCEPTED:
            origin = came_from(descriptor)
            address = self._addresses[descriptor] = origin.address
            self._counts[address] += 1
            self._new[descriptor] = origin, self._clock()
            self._make_room()

    def speaks(self, descriptor: int, principal: str, most: int) -> bool:
        """Handle a packet from a connection; return whether its principal may have this connection.

        If the principal already has *most* connections, this one is closed.
        """
        if descriptor in self._known:
            return True
        self.note()  # the connection's event may not have been read yet
        found = self._new.pop(descriptor, None)
        self._silent.pop(descriptor, None)
        if principal:  # without keys there are no principals
            most = self.share(most)
        if self._principals[principal] >= most and descriptor in self._addresses:
            return not self._turn_away(found[0] if found is not None else came_from(descriptor))
        if descriptor in self._addresses:
            self._known[descriptor] = principal
            self._principals[principal] += 1
        return True

    def _make_room(self) -> None:
        """Close new or silent connections while there are too many."""
        most = self._room
        settled = self._clock() - self._settled_s
        while self._new:
            descriptor, (origin, since) = next(iter(self._new.items()))
            if since < settled:
                del self._new[descriptor]
                self._silent[descriptor] = origin
                continue
            # libzmq closes a connection some time after it was cut. Until then leave the connection
            # out of the count, or another connection would be closed in its place.
            count = len(self._addresses) - len(self._going)
            if len(self._new) <= min(NEW_MAX, most // 2) and count <= most:
                return
            if len(self._silent) > most // 2 and count > most:
                descriptor, origin = next(iter(self._silent.items()))
            self._new.pop(descriptor, None)
            self._silent.pop(descriptor, None)
            if self._turn_away(origin):
                self._going.add(descriptor)

    def _turn_away(self, origin: Origin) -> bool:
        is_cut = cut(origin)
        self.turned_away += is_cut
        now = self._clock()
        if is_cut and now - self._told_at >= TELL_S:
            self._told_at = now
            self.on_crowded(self.turned_away)
        return is_cut

    def close(self) -> None:
        """Stop watching; to be called before the watched socket is closed."""
        self._watched.disable_monitor()
        self.socket.close(0)


def _less(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


class Origin(NamedTuple):
    """The origin of a connection: its descriptor and its peer's address."""

    descriptor: int
    name: object  # from getpeername(); None if there is no peer

    @property
    def address(self) -> str:
        """The peer's IP address; empty if there is no peer or no network connection."""
        return str(self.name[0]) if isinstance(self.name, tuple) else ""


NOWHERE = Origin(-1, None)


def source_of(frame: zmq.Frame) -> int:
    """Return the descriptor of a frame's connection; -1 if libzmq does not know it."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def came_from(descriptor: int) -> Origin:
    """Return the connection that has a descriptor now."""
    with _borrowed(descriptor) as found:
        return Origin(descriptor, _name(found))


def cut(origin: Origin) -> bool:
    """Close a connection if its descriptor still belongs to it; return whether it was closed.

    libzmq has no call for this, so the socket is shut down. libzmq then notices that the peer is
    gone, and drops the packets for it.
    """
    with _borrowed(origin.descriptor) as found:
        if found is None or origin.name is None or _name(found) != origin.name:
            return False
        try:
            found.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        return True


def address_of(descriptor: int) -> str:
    """Return the peer's IP address; empty if there is no peer or no network connection."""
    return came_from(descriptor).address


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket | None]:
    """The socket of a descriptor, which stays libzmq's; None if there is none.

    The function needs no new descriptor, because perhaps no descriptor is free.
    """
    try:
        found = socket.socket(fileno=descriptor)
    except (OSError, ValueError):  # the connection is closed, and its number may belong to a file
        yield None
        return
    try:
        yield found
    finally:
        found.detach()


def _name(found: socket.socket | None) -> object:
    try:
        return None if found is None else found.getpeername()
    except OSError:
        return None
