"""The door of a simulated broker: the real door and gate, on simulated sockets.

:class:`~pymq.kafka.door.KafkaDoor` gets a selector and sockets whose bytes come from
:mod:`pymq.testing.simulation.kafka.streams`. All else is as in a real broker: the thread of the
loop takes what has arrived, lets the loop turn, and sends the answers
(:mod:`pymq.runtime.node_thread`). Each time that answers leave is an effect of the process, at
which it may die.
"""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pymq.core.batch.columns import Buffer
from pymq.core.batch.kafka.batch import crc32c_function
from pymq.core.message import Message
from pymq.core.ready import Ready
from pymq.kafka import connection as limits
from pymq.kafka.door import KafkaDoor, KafkaListener
from pymq.kafka.frames import RequestHead
from pymq.kafka.gate import KafkaGate
from pymq.testing.simulation import probe
from pymq.testing.simulation.kafka.streams import StreamEnd, StreamNetwork
from pymq.testing.simulation.process import dice
from pymq.testing.simulation.world import Violation

if TYPE_CHECKING:
    from pymq.testing.simulation.nodes import BrokerHost

PORT = 9092
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


def address_of(broker: str) -> str:
    """Return the address at which a broker listens for Kafka's clients."""
    return f"{broker}:{PORT}"


class StreamSocket:
    """A server's end of a stream, with the methods of a socket that the door calls."""

    def __init__(self, end: StreamEnd, number: int, door: SimulatedDoor) -> None:
        self._end = end
        self._number = number
        self._door = door

    def fileno(self) -> int:
        """Return a number that no other socket of the broker has."""
        return self._number

    def setblocking(self, flag: bool) -> None:
        """Do nothing: simulated sockets do not wait."""

    def setsockopt(self, *options: int) -> None:
        """Do nothing: there is no algorithm that collects small writes."""

    def recv_into(self, buffer: memoryview) -> int:
        """Receive bytes that have arrived."""
        self._door.check_reading(self)
        data = self._end.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def sendmsg(self, parts: list[Buffer]) -> int:
        """Send as much as there is room for."""
        self._door.boundary()
        count = self._end.write(b"".join(parts), self._door.lag)
        if not count:
            raise BlockingIOError
        return count

    def close(self) -> None:
        """Close the stream.

        Raises:
            Violation: the client is still there; simulated clients do nothing for which a gate may
                close their connection.
        """
        end = self._end
        if not end.has_ended and not end.is_reset and not end.peer.is_closed:
            what = f"{end.owner} closes the connection of {end.peer.owner}"
            raise Violation("sound-clients-stay-connected", what)
        end.close()

    @property
    def events(self) -> int:
        """What the socket is ready for."""
        end = self._end
        return (_READ if end.is_readable else 0) | (_WRITE if end.is_writable else 0)


class ListeningSocket:
    """Accepts the streams to one address."""

    def __init__(self, door: SimulatedDoor) -> None:
        self._door = door
        self.backlog: deque[StreamEnd] = deque()

    def fileno(self) -> int:
        """Return a number that no other socket of the broker has."""
        return 0

    def setblocking(self, flag: bool) -> None:
        """Do nothing: simulated sockets do not wait."""

    def accept(self) -> tuple[StreamSocket, tuple[str, int]]:
        """Accept a stream.

        Raises:
            BlockingIOError: none has come.
        """
        if not self.backlog:
            raise BlockingIOError
        end = self.backlog.popleft()
        return self._door.socket(end), (end.peer.owner, 0)

    def close(self) -> None:
        """Do nothing: the end of the process closes the socket."""

    @property
    def events(self) -> int:
        """What the socket is ready for."""
        return _READ if self.backlog else 0


class StreamSelector(selectors.BaseSelector):
    """Selects simulated sockets that are ready, in the order of their registration."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a socket."""
        key = selectors.SelectorKey(fileobj, fileobj.fileno(), events, data)
        assert key.fd not in self._keys
        self._keys[key.fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Stop watching a socket."""
        return self._keys.pop(fileobj.fileno())

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a socket for other events; it keeps its place."""
        key = self._keys[fileobj.fileno()]
        key = self._keys[key.fd] = selectors.SelectorKey(fileobj, key.fd, events, data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the sockets that are ready; never waits."""
        found = [(key, self._ready(key)) for key in self._keys.values()]
        return [(key, events) for key, events in found if events]

    def is_ready(self) -> bool:
        """Whether a socket is ready."""
        return any(self._ready(key) for key in self._keys.values())

    def _ready(self, key: selectors.SelectorKey) -> int:
        socket: Any = key.fileobj
        ready: int = socket.events & key.events
        return ready

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return the watched sockets by their numbers."""
        return self._keys


class WatchedGate(KafkaGate):
    """A gate whose messages to and from its own broker are shown to the checkers.

    These messages stay inside the process, so the network does not show them.
    """

    host: BrokerHost
    name: str

    def ready(self, now: int) -> Ready | None:
        """Hand over the messages for nodes."""
        out = super().ready(now)
        for peer, message in out.send if out is not None else ():
            if peer == self.host.name:
                for tap in self.host.on_send.get(type(message), ()):
                    tap(self.host, peer, self.name, message)
                for tap in self.host.on_receive.get(type(message), ()):
                    tap(self.host, peer, self.name, message)
        return out

    def step(self, source: str, message: Message, now: int) -> None:
        """Handle an answer of a node."""
        if source == self.host.name:
            for tap in self.host.on_send.get(type(message), ()):
                tap(self.host, self.name, source, message)
        super().step(source, message, now)


class SimulatedDoor:
    """The door and the gate of one incarnation of a broker."""

    def __init__(self, host: BrokerHost, streams: StreamNetwork) -> None:
        assert host.loop is not None
        self._host = host
        self._loop = host.loop
        self._sockets = 0
        rng = dice(host, "kafka")
        self.name = f"{host.name}.kafka"
        self.gate = WatchedGate(
            host.name,
            host.zkservers,
            {},
            crc32c_function(),
            host.wall_ms,
            lambda: f"{rng.getrandbits(128):032x}",
            auto_create=False,
            asks_brokers=True,
        )
        self.gate.host, self.gate.name = host, self.name
        self._listener = ListeningSocket(self)
        self._selector = StreamSelector()
        self.door = KafkaDoor(
            [KafkaListener(self.name, self.gate, cast(Any, self._listener))],
            lambda: None,
            selector=cast(Any, self._selector),
            clock=lambda: host.clock() / 1000,
        )
        self.gate.failed = self._failed
        self._loop.add(self.name, self.gate)
        streams.listen(address_of(host.name), self._accepted)

    def _failed(self, head: RequestHead, error: Exception) -> None:
        where = f"API {head.key} version {head.version}"
        raise Violation("no-broken-handler", f"{self._host.name}, {where}: {error!r}") from error

    # --- sockets --------------------------------------------------------------------------------

    def socket(self, end: StreamEnd) -> StreamSocket:
        """Return a socket for an accepted stream."""
        self._sockets += 1
        end.notify = self._woken
        return StreamSocket(end, self._sockets, self)

    def _accepted(self, end: StreamEnd) -> None:
        end.notify = self._woken
        self._listener.backlog.append(end)
        self._woken()

    def _woken(self) -> None:
        """Something has happened at a socket: the process takes a turn, if it runs."""
        if self._host.loop is self._loop:
            self._loop.touch(self.name)
            self._host.wake()

    @property
    def lag(self) -> int:
        """How far the present turn is behind the world's time."""
        return self._host.lag

    def boundary(self) -> None:
        """Note that bytes are about to leave."""
        self._host.boundary("KafkaBytes")

    def check_reading(self, socket: StreamSocket) -> None:
        """Check that the door reads only from connections with room for more requests.

        Raises:
            Violation: the connection is full.
        """
        connection = probe.kafka_connection(self.door, socket)
        if connection is None or not connection.is_full:
            return
        waiting = connection.queued_bytes - connection.sent_bytes
        # A connection is full from the turn on in which the door hands its requests over.
        if waiting >= limits.OUT_BYTES_MAX or len(connection.slots) >= limits.REQUESTS_MAX:
            what = f"{len(connection.slots)} requests, {waiting} bytes of answers"
            raise Violation("full-is-not-read", f"{self._host.name} reads on with {what}")

    # --- turns ----------------------------------------------------------------------------------

    def take(self) -> None:
        """Receive what has arrived, and hand it to the gate."""
        self.door.take(self._loop)

    def flush(self) -> None:
        """Send the answers."""
        self.door.flush()

    @property
    def has_more(self) -> bool:
        """Whether a socket is ready, because a round reads only so much."""
        return self._selector.is_ready() or self.door.has_input

    def continue_soon(self) -> None:
        """Take another turn as soon as the present one is over."""
        self._loop.touch(self.name)
        self._host.wake_soon()
