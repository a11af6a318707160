"""How many connections each address has to a node: none is to take all that there is room for.

libzmq has no limit of its own, and says who connects only by the descriptor of the connection. So
a descriptor is looked up as soon as libzmq tells of it, and may by then belong to another one,
which makes a count wrong by one for a moment. A connection whose place another one has taken, and
that says something more, is never let go of by libzmq 4.3.5: it counts until the node ends, since
its descriptor is there until then.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

if TYPE_CHECKING:
    from pymq.transport.sockets import Socket


class Connections:
    """The connections to a ROUTER, by the addresses that they come from."""

    def __init__(self, router: Socket) -> None:
        self._watched = router
        self._addresses: dict[int, str] = {}  # by descriptor
        self._counts: Counter[str] = Counter()
        self.socket = router.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        # Its descriptor tells of nothing until the first time that nothing was found.
        self.socket.poll(0)

    def count(self, address: str) -> int:
        """How many connections an address has now."""
        self.note()
        return self._counts[address]

    def note(self) -> None:
        """Take in what has become of connections."""
        while self.socket.poll(0):
            event = recv_monitor_message(self.socket)
            self.heard(event["event"], event["value"])

    def heard(self, event: int, descriptor: int) -> None:
        """A connection was accepted, or has ended: then libzmq has closed its descriptor."""
        # Also where it is accepted: a descriptor is one connection's, should libzmq have told
        # nothing of the end of the one before. Else its address would have one more for ever.
        address = self._addresses.pop(descriptor, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]
        if event == zmq.EVENT_ACCEPTED:
            address = self._addresses[descriptor] = address_of(descriptor)
            self._counts[address] += 1

    def close(self) -> None:
        """Stop; before the socket that is watched is closed."""
        self._watched.disable_monitor()
        self.socket.close(0)


class Origin(NamedTuple):
    """Where a connection comes from: its descriptor, and who is at the other end of that."""

    descriptor: int
    name: object  # as getpeername() has it; None when nobody is there


NOWHERE = Origin(-1, None)


def source_of(frame: zmq.Frame) -> int:
    """The descriptor of the connection that a frame has come by; -1 when libzmq does not know."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def came_from(descriptor: int) -> Origin:
    """The connection that has a descriptor now."""
    with _borrowed(descriptor) as found:
        return Origin(descriptor, _name(found))


def cut(origin: Origin) -> bool:
    """End a connection, if it is still the one that it was; returns whether it was.

    libzmq has no call for that. It finds that the other side has gone, and lets go of all that
    waits for it.
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
    """Who is at the other end; empty when nobody is, or not over the network."""
    with _borrowed(descriptor) as found:
        name = _name(found)
    return str(name[0]) if isinstance(name, tuple) else ""


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket | None]:
    """The socket of a descriptor that is libzmq's, and stays so; None when there is none.

    It takes no descriptor of its own: there may be none left.
    """
    try:
        found = socket.socket(fileno=descriptor)
    except (OSError, ValueError):  # The connection has gone, and the number may be that of a file.
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
