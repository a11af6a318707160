"""The certificates of a node or a client: a folder with PEM files, as a company's PKI makes them.

* ``ca.pem``: the certificates of the authorities that are trusted.
* ``cert.pem``: the certificate of this node or client, and intermediate ones after it.
* ``key.pem``: the private key of that certificate, without a password.
* ``crl.pem``, optional: the list of revoked certificates.

========================  ==========================================================================
in a certificate          it is
========================  ==========================================================================
common name               the principal to which the policy gives permissions; for a broker its name
organization pymq:nodes   the mark of brokers and zkservers, whose names no client may use
subject alternative names the hosts at which a broker or a zkserver is reached
========================  ==========================================================================

Both sides of each connection prove their certificates (mutual TLS).
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pymq.core.types import CLIENT_PREFIX, check_name
from pymq.core.values import value
from pymq.descriptors import lent
from pymq.errors import ConfigError
from pymq.transport.tcp.endpoints import SCHEMES, parse_endpoint

log = logging.getLogger("pymq.security")

CA, CERT, KEY, CRL = "ca.pem", "cert.pem", "key.pem", "crl.pem"
NODES = "pymq:nodes"  # the organization of brokers and zkservers
REFRESH_S = 1.0  # interval between two checks of the folder
_STEPS = 20  # most steps of a handshake in memory, which takes four


@value
class Certificate:
    """The parts of a verified certificate that pymq uses."""

    principal: str
    is_node: bool
    hosts: tuple[str, ...] = ()

    def may_be(self, node: str) -> bool:
        """Whether the holder may use the name of *node*.

        Without this check any client could get the messages for a broker.
        """
        if node.startswith(CLIENT_PREFIX):
            return True
        if not self.is_node:
            return False
        if node.startswith(SCHEMES):
            return parse_endpoint(node).host in self.hosts
        return node == self.principal


def read_certificate(found: Mapping[str, Any] | None) -> Certificate:
    """Return the parts of a certificate, given as :meth:`ssl.SSLSocket.getpeercert` does.

    Raises:
        ConfigError: its common name cannot be the name of a principal.
    """
    found = found or {}
    subject = {name: text for part in found.get("subject", ()) for name, text in part}
    hosts = [text for kind, text in found.get("subjectAltName", ()) if kind in _HOSTS]
    principal = check_name(subject.get("commonName", ""), "principal")
    return Certificate(principal, subject.get("organizationName") == NODES, tuple(hosts))


class Certificates:
    """The certificates in a folder; they are read again when their files change.

    Raises:
        ConfigError: a file is missing or invalid.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.version = 0  # rises each time the files are read
        self._looked_at = 0.0
        self._complaint = ""  # the last logged error
        self._seen = self._look()
        self._load()

    def own(self, host: str = "") -> Certificate:
        """Return this node's certificate, verified as peers verify it.

        If *host* is given, the certificate must be valid for it.

        Raises:
            ConfigError: peers would refuse the certificate.
        """
        try:
            return self._prove(host)
        except ssl.SSLError as error:
            raise ConfigError(
                f"peers would refuse {self.folder / CERT}: {reason(error)}"
            ) from error

    def refresh(self, now: float) -> None:
        """Read the folder again if the interval is over and files have changed.

        If a file is invalid, the old certificates stay in use and the error is logged.
        """
        if now - self._looked_at < REFRESH_S:
            return
        self._looked_at = now
        try:
            with lent():
                seen = self._look()
                if seen == self._seen:
                    return
                self._load()
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("the old certificates stay in use: %s", error)
            return
        self._seen, self._complaint = seen, ""
        log.info("certificates were read again from %s", self.folder)

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        found: list[tuple[int, int, int] | None] = []
        for name in (CA, CERT, KEY, CRL):
            try:
                stat = (self.folder / name).stat()
            except FileNotFoundError:
                if name != CRL:
                    raise ConfigError(f"{self.folder / name} is missing") from None
                found.append(None)
                continue
            except OSError as error:
                raise ConfigError(f"{self.folder / name}: {error.strerror}") from error
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return tuple(found)

    def _load(self) -> None:
        server = self._context(ssl.PROTOCOL_TLS_SERVER)
        # For clients that prove who they are within the connection.
        anonymous = self._context(ssl.PROTOCOL_TLS_SERVER)
        anonymous.verify_mode = ssl.CERT_NONE
        server.num_tickets = anonymous.num_tickets = 0  # no connection is resumed
        self.client, self.server = self._context(ssl.PROTOCOL_TLS_CLIENT), server
        self.anonymous = anonymous
        self.version += 1

    def _context(self, protocol: int) -> ssl.SSLContext:
        made = ssl.SSLContext(protocol)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.verify_mode = ssl.CERT_REQUIRED
        at = self.folder / CA
        try:
            made.load_verify_locations(at)
            if (self.folder / CRL).exists():
                at = self.folder / CRL
                made.load_verify_locations(at)
                made.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
            at = self.folder / CERT
            # An empty password: without one, OpenSSL asks for it at the terminal.
            made.load_cert_chain(at, self.folder / KEY, password="")
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{at} cannot be used: {reason(error)}") from error
        return made

    def _prove(self, host: str) -> Certificate:
        """Return this node's certificate as a client sees it, by a handshake in memory."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = bool(host)
        client = context.wrap_bio(to_client, to_server, server_hostname=host or None)
        server = self.server.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(_STEPS):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                if side is server:
                    return read_certificate(client.getpeercert())
        raise ConfigError(f"{self.folder}: a handshake with its certificate does not end")


def reason(error: OSError) -> str:
    """Return the cause of an error of TLS in few words."""
    found = getattr(error, "verify_message", None) or getattr(error, "reason", None)
    return str(found or error.strerror or error).replace("_", " ").lower()


_HOSTS = ("DNS", "IP Address")
