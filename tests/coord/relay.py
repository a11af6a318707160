"""A relay to ZooKeeper that cuts its connection after a number of answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType


class Relay:
    """Forwards the bytes between a server and its clients.

    :meth:`cut_after` ends the connection.
    """

    def __init__(self, hosts: str) -> None:
        host, _, port = hosts.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._left: int | None = None  # number of answers until the cut, if there is one
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def hosts(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def is_cut(self) -> bool:
        """Whether the cut has happened."""
        with self._lock:
            return self._left is None

    def cut_after(self, answers: int) -> None:
        """Forward *answers* more answers, then end the connection once."""
        with self._lock:
            self._left = answers

    def __enter__(self) -> Relay:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # this wakes a thread that waits in accept()
        self._threads[0].join()  # no new connection is possible from here on
        self._listener.close()
        for each in self._open:
            _end(each)
        for thread in self._threads:
            thread.join()
        for each in self._open:
            each.close()

    def _start(self, work: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=work, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._open += [client, server]
            self._start(self._ask, client, server)
            self._start(self._answer, client, server)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with client.makefile("rb", buffering=0) as asked:
            try:
                while data := asked.read(65536):
                    server.sendall(data)
            except OSError:
                pass  # the thread of the other direction has closed both sockets
        _end(client, server)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with server.makefile("rb") as answers:
            try:
                while len(head := answers.read(4)) == 4:
                    if self._is_over():
                        break
                    client.sendall(head + answers.read(int.from_bytes(head, "big")))
            except OSError:
                pass  # the thread of the other direction has closed both sockets
        _end(client, server)

    def _is_over(self) -> bool:
        with self._lock:
            if self._left is None:
                return False
            self._left -= 1
            if self._left >= 0:
                return False
            self._left = None
            return True


def _end(*ends: socket.socket) -> None:
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the server has ended already
