"""The listening socket of a node."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator

from pymq.errors import ConfigError
from pymq.transport.base import OnRefused, Tuning
from pymq.transport.tcp.certificates import Certificates
from pymq.transport.tcp.connection import Connection, State
from pymq.transport.tcp.crowd import Crowd
from pymq.transport.tcp.endpoints import parse_endpoint

BACKLOG = 1024
ACCEPTED = 64  # connections that are accepted in one poll
REST_S = 1.0  # pause before new connections, after the process had no descriptors left


class TcpListener:
    """The socket that listens, at *bound*, and the limits of its connections.

    With certificates, the listener admits only peers with a certificate of a trusted authority, and
    only under their own names. Without certificates it admits every peer, so it listens only on
    this machine, unless *insecure*.

    Raises:
        ConfigError: without certificates the node would be open to the network, or the endpoint
            cannot be bound.
    """

    def __init__(
        self,
        listen: str,
        tuning: Tuning,
        certificates: Certificates | None,
        *,
        insecure: bool,
        on_refused: OnRefused | None,
    ) -> None:
        endpoint = parse_endpoint(listen)
        if endpoint.is_tls and certificates is None:
            raise ConfigError(f"{listen} needs certificates; give their folder (tls_dir)")
        if not endpoint.is_tls and certificates is not None:
            raise ConfigError(f"{listen} takes no certificates; tls://HOST:PORT does")
        if certificates is None and not insecure and not endpoint.is_local:
            raise ConfigError(
                f"{listen} is open to the network, and there are no certificates: give their "
                "folder (tls_dir), or say insecure to let anybody do anything"
            )
        self._certificates = certificates
        self._on_refused = on_refused
        self._rests_until = 0.0
        self.crowd = Crowd(tuning, has_principals=certificates is not None)
        try:
            (family, _, _, _, address), *_ = socket.getaddrinfo(
                endpoint.host, endpoint.port, type=socket.SOCK_STREAM
            )
            self.socket = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            raise ConfigError(f"cannot listen at {listen}: {error}") from error
        self.socket.setblocking(False)
        self.bound = endpoint._replace(port=self.socket.getsockname()[1])

    def check_own(self, node: str, endpoint: str) -> None:
        """Check that peers will accept this node's certificate.

        Raises:
            ConfigError: peers will refuse the certificate.
        """
        certificates = self._certificates
        if certificates is None:
            return
        own = certificates.own(parse_endpoint(endpoint).host)
        if not own.may_be(node):
            raise ConfigError(
                f"the certificate in {certificates.folder} is that of {own.principal}, and "
                f"{node} needs one of its own name, and of the organization pymq:nodes"
            )

    def accept(self) -> Iterator[Connection]:
        """Accept the connections that wait, up to a limit."""
        for _ in range(ACCEPTED):
            try:
                found, (host, *_) = self.socket.accept()
            except BlockingIOError:
                return
            except OSError:
                # The process has no descriptors left: accept no connections for a while.
                self._rests_until = time.monotonic() + REST_S
                return
            found.setblocking(False)
            made = Connection(found, State.GREETING, time.monotonic(), str(host))
            if self._certificates is not None:
                try:
                    made.wrap(self._certificates.server, None)
                except (OSError, ssl.SSLError):
                    found.close()  # the peer has gone already
                    continue
            yield made

    @property
    def is_resting(self) -> bool:
        """Whether no connections are accepted for a while."""
        return self._rests_until > 0

    def has_rested(self, now: float) -> bool:
        """Whether connections are accepted again from now on."""
        if not 0 < self._rests_until <= now:
            return False
        self._rests_until = 0.0
        return True

    def refused(self, principal: str, source: str) -> None:
        """Report a refused connection."""
        if self._on_refused is not None:
            self._on_refused(principal, source)

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()
