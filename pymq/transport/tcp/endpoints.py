"""Endpoints of the transport over TCP: ``pymq://HOST:PORT``, and ``tls://HOST:PORT`` with TLS.

``tcp://HOST:PORT`` is an endpoint of ZeroMQ, and stays one in metadata and in key files. So packets
over plain TCP have a scheme of their own. In a URL, where ZeroMQ's endpoints begin with ``zmq+``,
``tcp://`` means the same as ``pymq://``.
"""

from __future__ import annotations

import ipaddress
import platform
import re
from typing import NamedTuple

from pymq.errors import ConfigError

PLAIN, TLS = "pymq://", "tls://"
SCHEMES = (PLAIN, TLS)
_ENDPOINT = re.compile(r"(pymq|tls)://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
EVERYWHERE = ("0.0.0.0", "::")  # wildcard addresses, only for comparisons


class TcpEndpoint(NamedTuple):
    """The parts of an endpoint."""

    host: str  # without brackets
    port: int  # 0: any free port
    is_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{TLS if self.is_tls else PLAIN}{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the endpoint."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def reachable(self) -> TcpEndpoint:
        """The endpoint as peers reach it: the wildcard address becomes this host's name."""
        return self._replace(host=platform.node()) if self.host in EVERYWHERE else self


def parse_endpoint(endpoint: str) -> TcpEndpoint:
    """Return the parts of an endpoint.

    Raises:
        ConfigError: the endpoint is invalid; the message shows the valid forms.
    """
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or not int(found[3]) < 65536:
        raise ConfigError(f"{endpoint!r} is no endpoint; use pymq://HOST:PORT or tls://HOST:PORT")
    return TcpEndpoint(found[2].strip("[]"), int(found[3]), found[1] == "tls")
