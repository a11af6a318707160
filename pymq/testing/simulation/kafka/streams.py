"""Byte streams between simulated processes, as TCP has them.

A stream loses nothing and keeps the order of its bytes, but not the borders of writes: what one end
writes arrives in pieces of any size. The faults of the links between processes act on streams, too:

===================  ==============================================================================
fault                effect on a stream
===================  ==============================================================================
cut, loss            the bytes wait until they are sent again
clog, slow, tail     the bytes arrive later, and so do all after them
reset                both ends break; bytes under way, and those that were not read, are lost
death of a process   its peers learn it soon, or only when they send to the process that follows
===================  ==============================================================================

A writer that is faster than the reader fills the buffers between them, and then has to wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from math import log

from pymq.testing.simulation.network import Network, NetworkLink
from pymq.testing.simulation.world import World

RETRANSMIT_US = 200_000  # between two attempts to send the same bytes
PIECES_MAX = 4  # of one write
TOLD_SHARE = 0.5  # of the deaths of a process are told to its peers at once
_STREAM = 251  # code of the streams' events in the digest

Notify = Callable[[], None]


def _nothing() -> None:
    """Take note of nothing."""


class StreamEnd:
    """One end of a stream, as a socket that does not wait.

    The owner writes with :meth:`write` and reads with :meth:`read`. The stream calls
    :attr:`notify` when something has arrived, there is room again, or the stream has ended.
    """

    def __init__(self, network: StreamNetwork, owner: str, address: str) -> None:
        self.owner = owner
        self.address = address  # the one that the client has connected to
        self.notify: Notify = _nothing
        self.peer: StreamEnd = self
        self.arrived = bytearray()  # and not read yet
        self.held = 0  # bytes that the peer has written, and that were not read yet
        self.has_ended = False  # the peer has closed its end, and all of its bytes have arrived
        self.is_reset = False
        self.is_closed = False  # by the owner
        self.is_dead = False  # the owner has died
        self.last_at = 0  # when the last piece arrives here
        self.stalled: deque[bytes | None] = deque()  # pieces that wait for a cut link
        self.wants_room = False
        self._network = network

    @property
    def room(self) -> int:
        """The number of bytes that the owner can write now."""
        return max(0, self._network.capacity - self.peer.held)

    @property
    def is_readable(self) -> bool:
        """Whether :meth:`read` has something to return or to raise."""
        return bool(self.arrived) or self.has_ended or self.is_reset

    @property
    def is_writable(self) -> bool:
        """Whether :meth:`write` can take anything, or raises an error."""
        return self.is_reset or self.room > 0

    def write(self, data: bytes, lag: int = 0) -> int:
        """Send as many bytes as there is room for, *lag* microseconds from now; returns how many.

        Raises:
            ConnectionResetError: the stream has broken.
        """
        if self.is_reset or self.is_closed:
            raise ConnectionResetError
        count = min(self.room, len(data))
        self.wants_room = count < len(data)
        if count:
            self.peer.held += count
            self._network.carry(self, data[:count], lag)
        return count

    def read(self, most: int) -> bytes:
        """Return at most *most* of the bytes that have arrived; none at the end of the stream.

        Raises:
            BlockingIOError: nothing has arrived.
            ConnectionResetError: the stream has broken.
        """
        if self.is_reset:
            raise ConnectionResetError
        if not self.arrived:
            if self.has_ended:
                return b""
            raise BlockingIOError
        data = bytes(self.arrived[:most])
        del self.arrived[:most]
        self.held -= len(data)
        if self.peer.wants_room:
            self._network.make_room(self.peer)
        return data

    def close(self) -> None:
        """Close this end; the peer gets what was written, and then the end of the stream."""
        if not self.is_closed:
            self.is_closed = True
            if not self.is_reset and not self.is_dead:
                self._network.carry(self, None, 0)


class StreamNetwork:
    """All streams of a cluster.

    Args:
        capacity: bytes that fit into the buffers of one direction of a stream.
    """

    def __init__(self, world: World, network: Network, capacity: int) -> None:
        self.world = world
        self.capacity = capacity
        self._network = network
        self._rng = world.rng("streams")
        self._listeners: dict[str, Callable[[StreamEnd], None]] = {}
        self._ends: dict[StreamEnd, None] = {}  # of the clients
        network.on_reset.append(self.reset)

    # --- connections ----------------------------------------------------------------------------

    def listen(self, address: str, accept: Callable[[StreamEnd], None]) -> None:
        """Call *accept* with the server's end of each stream to *address*."""
        self._listeners[address] = accept

    def connect(self, owner: str, address: str, notify: Notify) -> StreamEnd:
        """Connect to ``HOST:PORT``; returns the client's end, which can be written to at once.

        If nobody listens there, the stream breaks.
        """
        client = StreamEnd(self, owner, address)
        server = StreamEnd(self, address.rpartition(":")[0], address)
        client.peer, server.peer, client.notify = server, client, notify
        self._ends[client] = None
        server.last_at = at = self.world.now + self._delay(client)
        self.world.at(at, self._accept, server)
        return client

    def _accept(self, server: StreamEnd, _: object) -> None:
        if self._link(server.peer).cuts and not server.peer.is_closed:
            self.world.after(RETRANSMIT_US, self._accept, server)
            return
        accept = self._listeners.get(server.address)
        if accept is None:
            self._break(server.peer, None)
        elif not server.is_reset:
            accept(server)

    def died(self, name: str) -> None:
        """Note that a process has died, with all of its ends."""
        for address in [each for each in self._listeners if each.rpartition(":")[0] == name]:
            del self._listeners[address]
        for client in list(self._ends):
            for end in (client, client.peer):
                if end.owner == name and not end.is_dead:
                    end.is_dead = True
                    if self._rng.random() < TOLD_SHARE:
                        self.world.after(self._delay(end), self._break, end.peer)
        self._sweep()

    def reset(self, name: str, other: str | None) -> None:
        """Break the streams of a process, or only those to one other process."""
        for client in list(self._ends):
            names = (client.owner, client.peer.owner)
            if name in names and (other is None or other in names):
                self._break(client, None)
                self._break(client.peer, None)

    def _break(self, end: StreamEnd, _: object) -> None:
        if end.is_reset:
            return
        end.is_reset = True
        self.world.note(_STREAM, "reset", end.owner, end.address)
        if not end.is_dead:
            end.notify()
        self._sweep()

    def _sweep(self) -> None:
        for client in list(self._ends):
            if all(end.is_reset or end.is_dead for end in (client, client.peer)):
                del self._ends[client]

    # --- bytes ----------------------------------------------------------------------------------

    def _link(self, source: StreamEnd) -> NetworkLink:
        """The link from one end's process to the other's."""
        return self._network.link(source.owner, source.peer.owner)

    def _delay(self, source: StreamEnd) -> int:
        """Draw the time that bytes of *source* take."""
        link, rng = self._link(source), self._rng
        faults = link.faults
        delay = faults.delay_us + int(faults.jitter_us * -log(1 - rng.random()))
        if faults.tail and rng.random() < faults.tail:
            delay *= rng.choice((8, 64, 512))
        if faults.loss and rng.random() < faults.loss:
            delay += RETRANSMIT_US
        return max(delay * link.slow, link.clogged_until - self.world.now)

    def carry(self, source: StreamEnd, data: bytes | None, lag: int) -> None:
        """Carry bytes to the other end, in pieces; None is the end of the stream."""
        target, rng = source.peer, self._rng
        pieces: list[bytes | None] = [data]
        if data is not None and len(data) > 1 and rng.random() < 0.5:
            count = rng.randrange(1, PIECES_MAX)
            cuts = sorted(rng.randrange(1, len(data)) for _ in range(count))
            borders = [0, *cuts, len(data)]
            pieces = [data[a:b] for a, b in pairwise(borders) if a < b]
        for piece in pieces:
            at = max(self.world.now + lag + self._delay(source), target.last_at)
            target.last_at = at
            self.world.at(at, self._arrive, target, piece)

    def _arrive(self, end: StreamEnd, piece: bytes | None) -> None:
        if end.is_reset:
            return
        if end.stalled or self._link(end.peer).cuts:
            if not end.stalled:
                self.world.after(RETRANSMIT_US, self._send_again, end)
            end.stalled.append(piece)
            return
        self._deliver(end, piece)

    def _send_again(self, end: StreamEnd, _: object) -> None:
        if end.is_reset or not end.stalled:
            return
        if self._link(end.peer).cuts:
            self.world.after(RETRANSMIT_US, self._send_again, end)
            return
        while end.stalled and not end.is_reset:
            self._deliver(end, end.stalled.popleft())

    def _deliver(self, end: StreamEnd, piece: bytes | None) -> None:
        if end.is_dead or end.is_closed:
            # The process that follows does not know the stream, and neither does one that has
            # closed it. Nobody answers for a process that is down.
            if end.is_closed or end.address in self._listeners or piece is None:
                self._break(end, None)
                self.world.after(self._delay(end), self._break, end.peer)
            return
        if piece is None:
            end.has_ended = True
        else:
            end.arrived += piece
            self.world.note(_STREAM, end.peer.owner, end.owner, piece)
        end.notify()

    def make_room(self, end: StreamEnd) -> None:
        """Tell the writer *end* that its reader has read something."""
        end.wants_room = False
        self.world.after(self._delay(end.peer), self._notify, end)

    def _notify(self, end: StreamEnd, _: object) -> None:
        if not end.is_dead and not end.is_closed:
            end.notify()
