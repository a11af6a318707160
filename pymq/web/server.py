"""A minimal HTTP server for the page and for scrapers, with bounds on all resources."""

from __future__ import annotations

import errno
import http.client
import logging
import math
import os
import re
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import attrgetter
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pymq.client.base import Handle
from pymq.core.values import define
from pymq.errors import ConfigError
from pymq.web.app import HttpRequest, HttpResponse, WebApp, refuse
from pymq.web.authentication import is_loopback

CONNECTIONS_MAX = 64
IDLE_S = 15.0  # longest silence on a connection, ...
REQUEST_S = 30.0  # ... and longest time until a request is complete
HEAD_MAX = 128 << 10  # bytes of a request line and all headers; one line has at most 64 KiB
BODY_MAX = 64 << 10
CLOSE_S = 5.0  # how long close() waits for requests in progress
ACCEPT_S = 0.1  # pause before the next accept when no descriptors are left
_WANTING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
log = logging.getLogger("pymq.http")


class Server(Handle):
    """Serves *app* at *listen* until it is closed; a context manager.

    *token* is used only for :attr:`url`.

    Raises:
        ConfigError: *listen* is not ``HOST:PORT``, is a network address, or is in use.
    """

    def __init__(
        self,
        listen: str,
        app: WebApp,
        *,
        token: str = "",
        cert: str | os.PathLike[str] | None = None,
        insecure: bool = False,
    ) -> None:
        host, port = parse_listen(listen)
        if not is_loopback(host) and not insecure and (cert is None or app.is_open):
            raise ConfigError(
                f"{listen} is open to the network: that takes a certificate, and tokens to let "
                "people in with. Listen at 127.0.0.1, or say insecure to do without"
            )
        self.app = app
        app.checks_host = is_loopback(host)
        app.is_secure = cert is not None
        self._token = token
        tls = None if cert is None else _load(cert)
        try:
            self._http = _Http(host, port, app, tls)
        except OSError as error:
            raise ConfigError(f"{listen} cannot be listened to: {error.strerror}") from error
        self._pid = os.getpid()
        self.port: int = self._http.server_address[1]
        self.host = host
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.2,), name="pymq-http", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """The server's address, as ``http://127.0.0.1:8080/``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.app.is_secure else ''}://{host}:{self.port}/"

    @property
    def url(self) -> str:
        """The URL for a browser, with the token in the fragment, which is never sent or logged."""
        return f"{self.address}#token={self._token}" if self._token else self.address

    def close(self) -> None:
        """Stop serving; closing twice is allowed. In a forked child, this method does nothing."""
        if self._pid != os.getpid():
            return  # the server thread belongs to the parent
        self._http.shutdown()
        self._thread.join()
        self.app.close()
        self._http.end()


def parse_listen(listen: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` or ``[HOST]:PORT``.

    Raises:
        ConfigError: *listen* has another form.
    """
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if (
        not re.fullmatch("[!-~]+", host)
        or not re.fullmatch("[0-9]{1,5}", port)
        or int(port) > 65535
    ):
        raise ConfigError(f"{listen!r} is not HOST:PORT, as 127.0.0.1:8080 is")
    return host, int(port)


def _load(cert: str | os.PathLike[str]) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        tls.load_cert_chain(cert)
    except OSError as error:
        raise ConfigError(f"{cert} is no certificate with its key in PEM: {error}") from error
    return tls


@define
class _Live:
    """A connection, and the deadline for its request or for reading its answer."""

    connection: socket.socket
    until: float
    is_given_up: bool = False


class _Http(ThreadingHTTPServer):
    """A server with a bounded number of threads, which :meth:`server_close` joins."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, host: str, port: int, app: WebApp, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.app = app
        self._live: dict[threading.Thread, _Live] = {}
        self._guard = threading.Lock()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer would do a reverse lookup of the host, which is slow and not needed.
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "pymq", self.server_address[1]

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _WANTING:
                # The socket stays readable, so without a pause the server would retry in a busy
                # loop.
                # the server polls, because no event signals that a descriptor is free
                time.sleep(ACCEPT_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="pymq-http-request"
        )
        thread.daemon = True
        with self._guard:
            is_full = not self._make_room()
            if not is_full:
                self._live[thread] = _Live(request, time.monotonic() + REQUEST_S)
        if is_full:
            self.shutdown_request(request)  # the client may retry
            return
        try:
            thread.start()
        except RuntimeError:  # the process cannot start more threads
            with self._guard:
                del self._live[thread]
            self.shutdown_request(request)

    def _make_room(self) -> bool:
        """Make room for a connection.

        If the server is full, drop the connection with the earliest deadline.
        """
        live = [found for found in self._live.values() if not found.is_given_up]
        if len(live) < CONNECTIONS_MAX:
            return True
        waited_for = [found for found in live if found.until < math.inf]
        # Threads of dropped connections need a moment to end, so limit their number, too.
        if not waited_for or len(self._live) >= 2 * CONNECTIONS_MAX:
            return False
        oldest = min(waited_for, key=attrgetter("until"))
        oldest.is_given_up = True
        _hang_up(oldest.connection)
        return True

    def _serve(self, connection: Any, client_address: Any) -> None:
        me = threading.current_thread()
        try:
            if self._tls is not None:
                # The handshake runs in this connection's thread, so that a silent client delays no
                # other client.
                connection.settimeout(IDLE_S)
                connection = self._tls.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
                with self._guard:
                    self._live[me].connection = connection
                connection.do_handshake()
            self.process_request_thread(connection, client_address)
        except OSError as error:
            log.debug("no TLS with %s: %s", client_address, error)
            connection.close()
        finally:
            with self._guard:
                self._live.pop(me, None)

    def expect(self, seconds: float) -> None:
        """Set the deadline of this thread's connection for its request, or for reading its
        answer.
        """
        with self._guard:
            self._live[threading.current_thread()].until = time.monotonic() + seconds

    def service_actions(self) -> None:
        """Close connections past their deadline; the server calls this periodically."""
        now = time.monotonic()
        with self._guard:
            late = [live.connection for live in self._live.values() if live.until < now]
        for connection in late:
            _hang_up(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # the browser has closed the connection
        log.debug("a connection from %s has failed", client_address)

    def end(self) -> None:
        """Close all connections."""
        # Shut down, because a forked child also has the socket and would keep the port.
        _hang_up(self.socket)
        self.server_close()
        with self._guard:
            live = dict(self._live)
        for found in live.values():
            _hang_up(found.connection)
        until = time.monotonic() + CLOSE_S
        for thread in live:
            thread.join(max(0.0, until - time.monotonic()))


def _hang_up(connection: socket.socket) -> None:
    try:
        # Shut down only the TCP socket: the connection's thread, perhaps in a handshake, gets an
        # error and closes TLS itself.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        pass  # already closed


class _Bounded:
    """The input of a connection, with a limit for the head of each request."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.read = file.read  # Content-Length limits the size of bodies
        self.close = file.close
        self.closed = False
        self.left = HEAD_MAX

    def readline(self, size: int) -> bytes:
        """Return a line of the head."""
        line: bytes = self._file.readline(size)
        self.left -= len(line)
        if self.left < 0:
            raise http.client.LineTooLong("head")
        return line


class _Handler(BaseHTTPRequestHandler):
    """Parses HTTP requests and passes them to the app."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    server: _Http

    def setup(self) -> None:
        """Prepare the connection's input and output."""
        super().setup()
        self._head = _Bounded(self.rfile)
        self.rfile = self._head  # type: ignore[assignment]  # it has what is used of a file

    def handle_one_request(self) -> None:
        """Read a request within its time and size limits, and answer it."""
        self.server.expect(REQUEST_S)
        self._head.left = HEAD_MAX
        super().handle_one_request()

    def do_GET(self) -> None:
        if self._length() != 0:
            # close the connection: the server would parse the unread body as a request
            self.close_connection = True
        self._do(b"")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        length = self._length()
        if length is None or length > BODY_MAX:
            self.close_connection = True
            self._answer(refuse(413, f"a body has a length, of at most {BODY_MAX} bytes"))
            return
        self._do(self.rfile.read(length))

    def _length(self) -> int | None:
        """Return the length of the body; None if the headers are ambiguous, or the body is far too
        large.

        With an ambiguous length, an attacker could smuggle a request past a proxy.
        """
        found = self.headers.get_all("Content-Length", [])
        if len(found) > 1 or "Transfer-Encoding" in self.headers:
            return None
        text = found[0].strip() if found else ("" if self.command == "POST" else "0")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    def _do(self, body: bytes) -> None:
        self.server.expect(math.inf)  # no deadline while the app works
        try:
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=20))
        except ValueError:
            self._answer(refuse(400, "that is no address"))
            return
        headers = {name.lower(): text for name, text in self.headers.items()}
        port = self.server.server_port
        request = HttpRequest(
            self.command, parts.path, query, headers, body, port, self.client_address[0]
        )
        self._answer(self.server.app.answer(request))

    def _answer(self, response: HttpResponse) -> None:
        self.server.expect(REQUEST_S)  # deadline for the client to read the answer
        self.send_response(response.status)
        for name, text in response.headers:
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def version_string(self) -> str:
        return "pymq"

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)
