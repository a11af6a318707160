"""Connections to a node: how many there are, of whom, and which go when there are too many.

libzmq has no limit of its own, and says who connects only by the descriptor of the connection. So
a descriptor is looked up as soon as libzmq tells of it, and may by then belong to another one,
which makes a count wrong by one for a moment. A connection whose place another one has taken, and
that says something more, is never let go of by libzmq 4.3.5: it counts until the node ends, since
its descriptor is there until then.

| a connection | when | then |
|---|---|---|
| is new | libzmq accepts it | libzmq ends it if it has not proved its key in handshake_ms |
| is known | a packet came by it, or it is older than that | it counts for its principal |

Of those that are new there are a bounded number, and of all so many that descriptors are left for
files. Beyond either the oldest new one is ended: whoever means to say something has said it by
then, and who connects again and again only takes the place of himself.

A connection that has proved its key and says nothing is no principal's for us: libzmq does not tell
which one it is. Such connections may have half of the room. When there is none left and they have
more, the one that has been silent for longest is ended, and may connect again. A principal whose
connections speak has half of the room at most, too.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from pymq.descriptors import soft_limit

if TYPE_CHECKING:
    from pymq.transport.zeromq.sockets import Socket

NEW_MAX = 2_000  # some 20 KiB each
FILES = 320  # descriptors that are not for connections: those that a store has open, and some
LEAST = 64  # connections, however few descriptors there are
TELL_S = 10.0  # between two events that say so
SETTLED_S = 1.0  # after libzmq's own limit, one that is still there has shaken hands
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED


class Connections:
    """The connections to a ROUTER, by the addresses that they come from and by principal."""

    def __init__(
        self,
        router: Socket,
        handshake_ms: int = 3_000,
        limit: Callable[[], int] = soft_limit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.turned_away = 0  # those that were ended because there were too many ...
        self.on_crowded: Callable[[int], object] = lambda count: None  # ... which is told, seldom
        self._told_at = float("-inf")
        self._watched = router
        self._limit = limit
        self._clock = clock
        self._settled_s = handshake_ms / 1000 + SETTLED_S
        self._addresses: dict[int, str] = {}  # by descriptor
        self._counts: Counter[str] = Counter()
        self._new: dict[int, tuple[Origin, float]] = {}  # since when, oldest first
        self._silent: dict[int, Origin] = {}  # have shaken hands and said nothing, oldest first
        self._going: set[int] = set()  # cut to make room, and still open
        self._known: dict[int, str] = {}  # the principals of those by which a packet came
        self._principals: Counter[str] = Counter()
        # Not pyzmq's own: a full queue of events would have libzmq's thread wait for us.
        address = f"inproc://monitor-{id(self)}"
        router.monitor(address, _EVENTS)
        self.socket = router.context.socket(zmq.PAIR)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVHWM, 0)
        self.socket.connect(address)
        # Its descriptor tells of nothing until the first time that nothing was found.
        self.socket.poll(0)

    def count(self, address: str) -> int:
        """How many connections an address has now."""
        self.note()
        return self._counts[address]

    def of(self, principal: str) -> int:
        """How many connections a principal has, as far as they have said something."""
        return self._principals[principal]

    def share(self, most: int) -> int:
        """How many a principal may have that may have *most*, with the descriptors there are."""
        return min(most, self._room // 2)

    @property
    def _room(self) -> int:
        """How many connections leave descriptors for files."""
        return max(LEAST, self._limit() - FILES)

    def __len__(self) -> int:
        return len(self._addresses)

    def note(self) -> None:
        """Take in what has become of connections."""
        while True:
            try:
                event = parse_monitor_message(self.socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            self.heard(event["event"], event["value"])

    def heard(self, event: int, descriptor: int) -> None:
        """A connection was accepted, or has ended: then libzmq has closed its descriptor."""
        # Also where it is accepted: a descriptor is one connection's, should libzmq have told
        # nothing of the end of the one before. Else its address would have one more for ever.
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
        """A packet has come by a connection; whether its principal may have one more.

        It may not if it has *most* already: then this one is ended.
        """
        if descriptor in self._known:
            return True
        self.note()  # It may have been told of just now.
        found = self._new.pop(descriptor, None)
        self._silent.pop(descriptor, None)
        if principal:  # Where there are no keys, nobody is one.
            most = self.share(most)
        if self._principals[principal] >= most and descriptor in self._addresses:
            return not self._turn_away(found[0] if found is not None else came_from(descriptor))
        if descriptor in self._addresses:
            self._known[descriptor] = principal
            self._principals[principal] += 1
        return True

    def _make_room(self) -> None:
        """End new connections, or silent ones, while there are too many of them, or of all."""
        most = self._room
        settled = self._clock() - self._settled_s
        while self._new:
            descriptor, (origin, since) = next(iter(self._new.items()))
            if since < settled:
                del self._new[descriptor]
                self._silent[descriptor] = origin
                continue
            # libzmq closes a connection some time after it was cut: until then it still counts as
            # open, and must not cost the next one its place too.
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
        """Stop; before the socket that is watched is closed."""
        self._watched.disable_monitor()
        self.socket.close(0)


def _less(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


class Origin(NamedTuple):
    """Where a connection comes from: its descriptor, and who is at the other end of that."""

    descriptor: int
    name: object  # as getpeername() has it; None when nobody is there

    @property
    def address(self) -> str:
        """Of whom; empty when nobody is there, or not over the network."""
        return str(self.name[0]) if isinstance(self.name, tuple) else ""


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
    return came_from(descriptor).address


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
