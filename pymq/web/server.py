"""HTTP, as much of it as a page and a scraper need: bounded in every way, in threads of its own."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pymq.client.base import Handle
from pymq.errors import ConfigError
from pymq.web.app import App, Request, Response, refuse
from pymq.web.gate import LOCAL

CONNECTIONS_MAX = 64
IDLE_S = 15.0  # a connection that says nothing for so long is ended
BODY_MAX = 64 << 10
CLOSE_S = 5.0  # how long requests that are being answered are waited for
log = logging.getLogger("pymq.http")


class Server(Handle):
    """Serves *app* at *listen* until it is closed; a context manager.

    *token* is only for :attr:`url`.

    Raises:
        ConfigError: *listen* is not ``HOST:PORT``, is the network's, or is taken.
    """

    def __init__(
        self,
        listen: str,
        app: App,
        *,
        token: str = "",
        cert: str | os.PathLike[str] | None = None,
        insecure: bool = False,
    ) -> None:
        host, port = parse_listen(listen)
        if not is_local(host) and not insecure and (cert is None or app.is_open):
            raise ConfigError(
                f"{listen} is open to the network: that takes a certificate, and tokens to let "
                "people in with. Listen at 127.0.0.1, or say insecure to do without"
            )
        self.app = app
        app.checks_host = is_local(host)
        app.is_secure = cert is not None
        self._token = token
        tls = None if cert is None else _load(cert)
        try:
            self._http = _Http(host, port, app, tls)
        except OSError as error:
            raise ConfigError(f"{listen} cannot be listened to: {error.strerror}") from error
        self.port: int = self._http.server_address[1]
        self.host = host
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.2,), name="pymq-http", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it is, as ``http://127.0.0.1:8080/``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.app.is_secure else ''}://{host}:{self.port}/"

    @property
    def url(self) -> str:
        """What to open in a browser: the token is in a part that is never sent or logged."""
        return f"{self.address}#token={self._token}" if self._token else self.address

    def close(self) -> None:
        """Answer nobody any more; may be repeated."""
        self._http.shutdown()
        self._thread.join()
        self.app.close()
        self._http.end()


def parse_listen(listen: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[HOST]:PORT``.

    Raises:
        ConfigError: it is not that.
    """
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{listen!r} is not HOST:PORT, as 127.0.0.1:8080 is")
    return host, int(port)


def _load(cert: str | os.PathLike[str]) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        tls.load_cert_chain(cert)
    except OSError as error:
        raise ConfigError(f"{cert} is no certificate with its key in PEM: {error}") from error
    return tls


def is_local(host: str) -> bool:
    """Whether only this machine can connect to *host*."""
    return host in LOCAL or host.startswith("127.")


class _Http(ThreadingHTTPServer):
    """A bounded number of threads, which are waited for."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, host: str, port: int, app: App, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.app = app
        self._live: dict[threading.Thread, socket.socket] = {}
        self._guard = threading.Lock()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer would look the host's name up, which may take long and is used nowhere.
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "pymq", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="pymq-http-request"
        )
        thread.daemon = True
        with self._guard:
            is_full = len(self._live) >= CONNECTIONS_MAX
            if not is_full:
                self._live[thread] = request
        if is_full:
            self.shutdown_request(request)  # It may come again.
        else:
            thread.start()

    def _serve(self, connection: Any, client_address: Any) -> None:
        me = threading.current_thread()
        try:
            if self._tls is not None:
                # Here, where nobody else waits for who says nothing.
                connection.settimeout(IDLE_S)
                connection = self._tls.wrap_socket(connection, server_side=True)
                with self._guard:
                    self._live[me] = connection
            self.process_request_thread(connection, client_address)
        except OSError as error:
            log.debug("no TLS with %s: %s", client_address, error)
            connection.close()
        finally:
            with self._guard:
                self._live.pop(me, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection from %s has failed", client_address)  # its browser went away

    def end(self) -> None:
        """Let go of all connections."""
        self.server_close()
        with self._guard:
            live = dict(self._live)
        for connection in live.values():
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # It is gone already.
        for thread in live:
            thread.join(CLOSE_S)


class _Handler(BaseHTTPRequestHandler):
    """Turns HTTP into requests of the app."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    server: _Http

    def do_GET(self) -> None:
        self._do(b"")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or int(length) > BODY_MAX:
            self.close_connection = True
            self._answer(refuse(413, f"a body has a length, of at most {BODY_MAX} bytes"))
            return
        self._do(self.rfile.read(int(length)))

    def _do(self, body: bytes) -> None:
        try:
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=20))
        except ValueError:
            self._answer(refuse(400, "that is no address"))
            return
        headers = {name.lower(): text for name, text in self.headers.items()}
        port = self.server.server_port
        request = Request(self.command, parts.path, query, headers, body, port)
        self._answer(self.server.app.answer(request))

    def _answer(self, response: Response) -> None:
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
