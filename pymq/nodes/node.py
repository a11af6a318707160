"""The life cycle of a broker or a zkserver in its process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from pymq.client.base import Handle, check_timeout
from pymq.core.observe.metrics import Metrics
from pymq.monitoring.collector import Collector, TransportStats
from pymq.nodes.security import Access, Http, NodeSecurity
from pymq.runtime.loop import Loop
from pymq.runtime.node_thread import NodeThread, Sockets
from pymq.transport.base import Arrival, Transport

if TYPE_CHECKING:
    from pymq.web.server import Server

DRAIN_RUNS = 10  # runs of the node's loop before it stops


class Node(Handle):
    """The life cycle of brokers and zkservers.

    ``run`` runs the node in the calling thread until ``stop``; ``start`` does the same in a new
    thread. ``close``, or leaving the ``with`` block, ends the node in both cases.
    """

    def __init__(
        self, transport: Transport, loop: Loop, meters: Collector, door: NodeSecurity | None = None
    ) -> None:
        self.transport = transport
        self.loop = loop
        self.journal = meters.journal  # journal of events; add a listener to receive them
        self.on_ready: Callable[[], None] = lambda: None  # the node's thread calls this once
        self._runner = NodeThread(loop, transport, self._note)
        self._sockets: Sockets | None = None
        self._thread: threading.Thread | None = None
        self._is_ready = threading.Event()
        self._problem: BaseException | None = None
        self._is_closed = False
        self._door = door
        self._meters = meters
        self._http: Server | None = None
        if isinstance(transport, TransportStats):
            meters.net = transport
            note = meters.journal.note
            transport.tell_when_crowded(lambda n: note("connections_crowded", turned_away=n))
        if door is not None:
            meters.refused = lambda: door.refused
        meters.idle_s = lambda: self._runner.idle_s

    @property
    def name(self) -> str:
        """The node's name."""
        return self.transport.node

    @property
    def endpoint(self) -> str:
        """The node's endpoint."""
        return self.transport.endpoint

    def run(self) -> None:
        """Run the node in this thread until :meth:`stop`, and then close its resources.

        Raises:
            PymqError: the error that has ended the node.
        """
        try:
            self._runner.run(self._is_over)
            self._drain()
        finally:
            self.close()

    def start(self, timeout: float | None = 30.0) -> Self:
        """Run the node in a new thread; returns when the node is ready, or after *timeout* seconds.

        Raises:
            PymqError: the node ended before it was ready.
        """
        check_timeout(timeout)
        self._thread = threading.Thread(target=self._run, name=f"pymq-{self.name}", daemon=True)
        self._thread.start()
        self._is_ready.wait(timeout)
        if self._problem is not None:
            raise self._problem
        return self

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:  # `start` raises it again
            self._problem = error
        finally:
            self._is_ready.set()

    def _serve(self, sockets: Sockets) -> None:
        """Serve more sockets in the node's thread."""
        self._sockets = self._runner.sockets = sockets

    @property
    def kafka(self) -> str:
        """The address for Kafka's clients, as ``127.0.0.1:9092``; empty without one."""
        return ""

    @property
    def http(self) -> str:
        """The URL of the node's metrics and page, as ``http://127.0.0.1:8080/``; empty without
        HTTP.
        """
        return self._http.address if self._http is not None else ""

    def _open_http(self, http: Http | None, access: Access, page_of: str = "") -> None:
        if http is not None:
            from pymq.nodes.http import open_http  # lazy: most nodes serve no HTTP

            self._http = open_http(http, page_of, access, self._door, self.metrics)

    def metrics(self, timeout: float = 5.0) -> Metrics:
        """Return the node's metrics; any thread may call this while the node runs.

        Raises:
            TimeoutError: the node did not answer within *timeout* seconds.
            Closed: the node has stopped.
        """
        return self._runner.ask(self._meters.collect, timeout)

    def stop(self) -> None:
        """Request an orderly stop; any thread and signal handlers may call this."""
        self._runner.stop()

    def close(self) -> None:
        """Stop the node and close its resources; closing twice is allowed."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self.stop()
            thread.join()
            return
        if not self._is_closed:
            self._is_closed = True
            try:
                if self._http is not None:
                    self._http.close()
                if self._sockets is not None:
                    self._sockets.shut()
                self._let_go()
            finally:
                self.transport.close()
                if self._door is not None:
                    self._door.close()

    def _is_over(self) -> bool:
        """Whether the node has to end by itself; each turn checks this."""
        return False

    def _note(self, arrivals: Sequence[Arrival]) -> None:
        """Inspect arrived messages before the machines get them."""

    def _ready(self) -> None:
        if not self._is_ready.is_set():
            self._is_ready.set()
            self.on_ready()

    def _drain(self) -> None:
        """Carry out the pending sends and writes."""
        for _ in range(DRAIN_RUNS):
            self.loop.run()
            if not self.loop.has_work:
                break
        self.transport.flush()
        if self._sockets is not None:
            self._sockets.flush()

    def _let_go(self) -> None:
        """Close the node's resources."""
