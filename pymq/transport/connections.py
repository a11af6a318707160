"""How many connections each address has to a node: none is to take all that there is room for.

libzmq has no limit of its own, and says who connects only by the descriptor of the connection. So
a descriptor is looked up as soon as libzmq tells of it, and may by then belong to another one,
which makes a count wrong by one for a moment. A connection whose place another one has taken, and
that says something more, is never let go of by libzmq 4.3.5: it counts until the node ends, since
its descriptor is there until then.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from typing import TYPE_CHECKING

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


def address_of(descriptor: int) -> str:
    """Who is at the other end; empty when nobody is, or not over the network."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        return ""
    try:
        found = socket.socket(fileno=copy)
    except OSError:  # The connection has gone, and the number is that of a file by now.
        os.close(copy)
        return ""
    with found:
        try:
            name = found.getpeername()
        except OSError:
            return ""
    return str(name[0]) if isinstance(name, tuple) else ""
