"""The contract of a transport; :func:`pymq.testing.check_transport` tests it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from pymq.core.message import Message
from pymq.core.values import value
from pymq.errors import MissingExtra

Arrival = tuple[str, str, Message]  # (receiver, sender, message), in the form that the loop expects

# A function that the transport calls with each arrived message: (principal, sender, message). If it
# returns None, the transport admits the message; otherwise the transport drops the message and
# sends the returned answers back, if any.
Gate = Callable[[str, str, Message], Sequence[Message] | None]

ANONYMOUS = ""  # the principal of a connection that has not proved its identity
NEW_MAX = 2_000  # new connections, which have not sent a packet; each takes some 20 KiB
FILES = 320  # descriptors for other purposes: a store's files, and some more
LEAST = 64  # connections allowed even with few descriptors
TELL_S = 10.0  # interval of reports that connections were turned away


# (the principal or "", the address or identity of the refused connection)
OnRefused = Callable[[str, str], None]


@value
class Tuning:
    """Settings of connections; times in milliseconds."""

    # a connection without a TCP acknowledgement for this long counts as lost
    silence_ms: int = 3_000
    handshake_ms: int = 3_000  # limit of a connection's handshake
    reconnect_ms: int = 20  # the first pause before a reconnect; doubles up to ...
    reconnect_max_ms: int = 1_000
    # packets in libzmq for each peer and direction; further ones wait in the transport, limited in
    # bytes
    packets: int = 64
    linger_ms: int = 500  # time for flushed packets to leave when the transport is closed
    per_address: int = 1_000  # connections of one address, if there are keys
    per_principal: int = 500  # connections of one principal, from all addresses
    waiting_bytes: int = 64 << 20  # most bytes that wait for a peer; more messages are lost
    stalled_ms: int = 10_000  # a client that reads nothing for this long is disconnected
    waiting_ms: int = 1_000  # packets for an unreachable peer are dropped after this time


class TransportQuotas(Protocol):
    """Quotas of principals, for bytes sent to them and bytes written for them."""

    def fetch_wait_ms(self, principal: str) -> int:
        """Return the wait until more records may be sent to *principal*; 0 means now."""
        ...

    def produce_wait_ms(self, principal: str) -> int:
        """Return the wait until more records may be written for *principal*; 0 means now."""
        ...

    def produced(self, principal: str, size: int) -> None:
        """Count bytes written for *principal* in addition to the bytes that it has sent."""
        ...


class Transport(Protocol):
    """Carries the messages of one node: a process, or a thread with its own loop.

    **Names.** Messages go from one state machine to another, by name: ``broker-1`` is a node and
    its main machine, ``client-7.producer1`` is another machine of the node ``client-7``. The name
    of a node may be its endpoint, such as ``tcp://10.0.0.1:7878``. A node knows another node only
    after ``learn``, or after a message from that node.

    **Guarantees.** Messages arrive unchanged at the machine to which they were sent, and their
    source is a machine of the node that sent them. While a connection lasts, messages from one node
    to another arrive in the order of ``send`` and at most once. Payload is passed by reference, so
    the sender must not change payload after ``send``.

    **No guarantees.** Any message may be lost without notice: the other node may be missing or
    slow, or another node may have taken its name. When a connection breaks, some consecutive
    messages are lost, and later messages may still arrive. Machines retry; a transport does not.

    **Bounds.** Messages that wait for a peer are limited in number and bytes. Messages beyond the
    limit are lost and counted. While too many bytes wait for a peer, the transport ignores that
    peer's messages.

    **Threads.** ``send``, ``flush``, ``poll``, ``learn`` and ``close`` must not run in two threads
    at once; threads may take turns under a lock. Any thread may wait for ``fileno`` at any time.

    **Processes.** A transport belongs to the process that made it: in a forked child every method
    except ``close`` raises ``ForkedError``, and ``close`` does nothing.
    """

    # The transport calls this function, repeatedly, with each node that has waiting messages and no
    # known endpoint; the function has to cause a call of ``learn``.
    on_stranger: Callable[[str], None] | None

    # The transport calls this function within ``poll`` with a node's name and True when it notices
    # that the connection to the node is lost, and with False when the connection is restored.
    on_lost: Callable[[str, bool], None] | None

    @property
    def node(self) -> str:
        """The name of this node."""
        ...

    @property
    def endpoint(self) -> str:
        """The endpoint of this node for others; empty if this node does not listen."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that is readable when ``poll`` has messages.

        Sometimes ``poll`` has no messages although the descriptor is readable.

        The descriptor may not signal messages that arrived before the last ``flush`` or ``poll``.
        So after its last ``flush``, a thread must poll once more before it waits.
        """
        ...

    def learn(self, node: str, endpoint: str) -> None:
        """Set the endpoint of *node*."""
        ...

    def send(self, peer: str, source: str, message: Message) -> None:
        """Send *message* from the local machine *source* to machine *peer*. Never waits.

        The message may stay in a buffer until ``flush``.
        """
        ...

    def flush(self) -> None:
        """Pass all buffered messages to the network as far as possible. Never waits.

        A later flush or poll sends the rest; ``fileno`` becomes readable when that is possible.
        """
        ...

    def poll(self) -> list[Arrival]:
        """Return the messages that have arrived, in order, without waiting.

        One call returns a bounded number of messages; there may be more.
        """
        ...

    def close(self) -> None:
        """Close all connections. Closing twice is allowed.

        Flushed messages still arrive at peers to which this node has connected, if the network is
        fast; peers that have connected to this node may lose these messages.
        """
        ...


@contextmanager
def zmq_needed() -> Iterator[None]:
    """Return a context manager for an import that loads pyzmq.

    Raises:
        MissingExtra: pyzmq is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "zmq":
            raise
        raise MissingExtra.of("clusters need pyzmq", "zmq") from error
