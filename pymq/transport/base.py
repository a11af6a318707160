"""The contract of a transport; :func:`pymq.testing.check_transport` proves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from pymq.core.message import Message
from pymq.errors import MissingExtra

Arrival = tuple[str, str, Message]  # (for whom, from whom, what), as the loop takes it

# Asked for each message that has arrived: (principal, from whom, the message). None lets it in;
# else these answers are sent back instead, or nothing.
Gate = Callable[[str, str, Message], Sequence[Message] | None]

ANONYMOUS = ""  # the principal of a connection that has not proved who it is
CLIENT_PREFIX = "client-"  # so nodes of clients are called, each with a number of its own


class Quotas(Protocol):
    """What principals may be sent, and what may be written for them."""

    def fetch_wait_ms(self, principal: str) -> int:
        """How long until *principal* may be sent more records; 0 when it may."""
        ...

    def produce_wait_ms(self, principal: str) -> int:
        """How long until more may be written for *principal*; 0 when it may."""
        ...

    def produced(self, principal: str, size: int) -> None:
        """Count what was written for *principal* beside what it has sent."""
        ...


class Transport(Protocol):
    """Carries the messages of one node, which is a process or a thread with a loop of its own.

    **Names.** Machines are addressed by name: ``broker-1`` is a node and its main machine,
    ``client-7.producer1`` is another machine of the node ``client-7``. A node that is called by its
    endpoint, as ``tcp://10.0.0.1:7878``, is found without being known; every other one must have
    been told of by ``learn``, or have sent something itself.

    **What is promised.** What arrives is what was sent, to the machine that it was meant for, and
    the source that it names is at the node from which it came. What one node sends to another
    arrives in the order of ``send`` and at most once, as long as the connection stands. Payload is
    handed on by reference: whoever sends does not change it afterwards.

    **What is not.** Anything may get lost, without a word: the other node may not be there, may be
    slow, may be replaced by another one of its name. When a connection breaks, a run of messages is
    lost and those after it may arrive. Machines ask again; a transport does not.

    **Bounds.** What waits for a peer that does not take it is bounded, by number and by bytes. What
    is beyond is lost and counted. A peer that lets what it has asked for pile up is not heard until
    it has taken it.

    **Threads.** ``send``, ``flush``, ``poll``, ``learn`` and ``close`` are for one thread at a
    time; another one may go on after a lock was handed over. ``fileno`` may be waited for by any
    thread, at any time.

    **Processes.** A transport belongs to the process that made it: in a forked child everything but
    ``close`` raises ``ForkedError``, and ``close`` does nothing there.
    """

    # Told of each node for which there is something to send and of which nobody knows where it is,
    # again and again; it is to see to it that ``learn`` is called.
    on_stranger: Callable[[str], None] | None

    # Told of each node to which a connection was lost, as far as a transport notices: its name and
    # True, and when it is there again, its name and False. It is called within ``poll``.
    on_lost: Callable[[str, bool], None] | None

    @property
    def node(self) -> str:
        """The name of this node."""
        ...

    @property
    def endpoint(self) -> str:
        """Where other nodes reach this one; empty when it does not listen."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when ``poll`` has something; now and then for nothing.

        It may miss what came before the last ``flush`` or ``poll``: who is about to wait polls
        once more after his last ``flush``.
        """
        ...

    def learn(self, node: str, endpoint: str) -> None:
        """From now on *node* is to be found at *endpoint*."""
        ...

    def send(self, peer: str, source: str, message: Message) -> None:
        """Send *message* from machine *source*, which is here, to machine *peer*. Never waits.

        It need not leave before ``flush``.
        """
        ...

    def flush(self) -> None:
        """Let everything leave that can. Never waits.

        What cannot yet leaves at a later flush or poll; ``fileno`` is readable when it is time.
        """
        ...

    def poll(self) -> list[Arrival]:
        """Hand over what has arrived, in order; empty when nothing has. Does not wait.

        It hands over a bounded share of what there is: if that is full, there may be more.
        """
        ...

    def close(self) -> None:
        """Let go of everything. May be repeated.

        What was flushed still arrives where this node has connected to, if that goes quickly;
        whoever has connected to this one may lose it.
        """
        ...


@contextmanager
def zmq_needed() -> Iterator[None]:
    """Around the import of a module that loads pyzmq.

    Raises:
        MissingExtra: pyzmq is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "zmq":
            raise
        raise MissingExtra("clusters need pyzmq: pip install 'pymq-log[zmq]'") from error
