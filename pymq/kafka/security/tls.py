"""TLS of the door: a socket that decrypts, with the methods that the door calls.

The folder of certificates is that of :mod:`pymq.transport.tcp.certificates`. Without a users file a
client has to prove a certificate of an authority in ``ca.pem``, whose common name is its principal;
with one it authenticates by SASL, and a certificate is not requested.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable

from pymq.core.batch.columns import Buffer
from pymq.errors import PymqError
from pymq.transport.tcp.certificates import Certificates, read_certificate

SEND_BYTES = 256 << 10  # most bytes that are given to TLS at once


class TlsSocket:
    """A server's side of a TLS connection; no method waits."""

    def __init__(self, made: ssl.SSLSocket) -> None:
        self._socket = made
        self._is_shaking = True
        self.principal = ""  # of the client's certificate, if it was requested

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def recv_into(self, buffer: memoryview) -> int:
        """Receive decrypted bytes, 0 at the end; the first calls continue the handshake.

        Raises:
            BlockingIOError: nothing has arrived.
            OSError: the handshake has failed, or the connection is broken.
        """
        filled = 0
        try:
            if self._is_shaking:
                self._shake()
            # TLS returns one record at a time; the selector does not signal those that it holds.
            while filled < len(buffer):
                count = self._socket.recv_into(buffer[filled:])
                filled += count
                if not count:
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not filled:
                raise BlockingIOError from None
        return filled

    def _shake(self) -> None:
        self._socket.do_handshake()
        self._is_shaking = False
        certificate = self._socket.getpeercert()
        if certificate:
            try:
                self.principal = read_certificate(certificate).principal
            except PymqError as error:
                raise OSError(error.message) from None

    def sendmsg(self, parts: list[Buffer]) -> int:
        """Send as many bytes as there is room for.

        Raises:
            BlockingIOError: there is no room.
        """
        # After a refused call, TLS has to get at least the same bytes again. So the number of parts
        # depends on their sizes only, and the door only appends parts meanwhile.
        size, count = 0, 0
        for part in parts:
            if count and size + len(part) > SEND_BYTES:
                break
            size, count = size + len(part), count + 1
        data = b"".join(parts[:count]) if count > 1 else parts[0]
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class DoorTls:
    """Wraps the connections of a door.

    Args:
        folder: with the certificates.
        asks_certificates: whether clients have to prove a certificate.

    Raises:
        ConfigError: a file is missing or invalid.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        asks_certificates: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._certificates = Certificates(folder)
        self._asks = asks_certificates
        self._clock = clock

    def wrap(self, found: socket.socket) -> TlsSocket:
        """Begin TLS on an accepted connection.

        Raises:
            OSError: the connection is gone.
        """
        self._certificates.refresh(self._clock())
        context = self._certificates.server if self._asks else self._certificates.anonymous
        return TlsSocket(
            context.wrap_socket(found, server_side=True, do_handshake_on_connect=False)
        )
