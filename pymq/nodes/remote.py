"""Assembles a client of a cluster, with the same interface as an embedded queue."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from pymq.client.client import Client
from pymq.core.types import CLUSTER_SCHEMES
from pymq.core.values import value
from pymq.errors import ConfigError
from pymq.nodes.clocks import monotonic_ms, wall_ms
from pymq.nodes.directory import Directory
from pymq.nodes.embedded import keep
from pymq.runtime.loop import Loop
from pymq.runtime.network_driver import NetworkDriver
from pymq.transport.base import Transport, zmq_needed

if TYPE_CHECKING:
    from pymq.transport.tcp.transport import TcpTransport
    from pymq.transport.zeromq.transport import ZmqTransport

ZEROMQ, TCP, PLAIN = "zmq+", "tcp://", "pymq://"
OPTIONS = ("curve_dir", "principal", "tls_dir")  # options that a URL may have
Folder = str | os.PathLike[str] | None


@value
class ClusterAddress:
    """The parts of a cluster's URL: its zkservers, and the keys for the connection."""

    controllers: tuple[str, ...]  # endpoints
    curve_dir: str | None = None
    principal: str | None = None
    tls_dir: str | None = None

    @property
    def is_zeromq(self) -> bool:
        """Whether the nodes are reached with ZeroMQ."""
        return uses_zeromq(self.controllers[0])


def parse_url(
    url: str,
    curve_dir: Folder = None,
    principal: str | None = None,
    tls_dir: Folder = None,
) -> ClusterAddress:
    """Parse ``zmq+tcp://HOST:PORT,HOST:PORT?curve_dir=PATH``, or with ``tcp://`` or ``tls://``.

    Arguments take precedence over the URL.

    Raises:
        ConfigError: *url* is not such a URL.
    """
    if not url.startswith(CLUSTER_SCHEMES):
        raise ConfigError(f"{url!r} is no URL of a cluster; zmq+tcp://HOST:PORT is one")
    if url.startswith(TCP):
        url = PLAIN + url.removeprefix(TCP)
    where, options = _options(url.removeprefix(ZEROMQ))
    controllers = tuple(endpoints(where))
    found = _folder(curve_dir or options.get("curve_dir"))
    tls = _folder(tls_dir or options.get("tls_dir"))
    principal = principal or options.get("principal")
    if uses_zeromq(controllers[0]):
        if tls is not None:
            raise ConfigError("tls_dir is for tls://HOST:PORT; with ZeroMQ give curve_dir")
        if found is None and principal is not None:
            raise ConfigError("a principal needs keys: give curve_dir, too")
    else:
        if found is not None or principal is not None:
            raise ConfigError("curve_dir and principal are for ZeroMQ; with TLS give tls_dir")
        if (tls is None) is where.startswith("tls"):
            raise ConfigError("tls://HOST:PORT needs tls_dir, a folder of certificates, no other")
    return ClusterAddress(controllers, found, principal, tls)


def uses_zeromq(endpoint: str) -> bool:
    """Whether an endpoint, as nodes know it, is one of ZeroMQ."""
    return endpoint.startswith(("tcp://", "ipc://"))


def _folder(folder: Folder) -> str | None:
    return None if folder is None else os.fspath(folder)


def open_transport(where: ClusterAddress) -> ZmqTransport | TcpTransport:
    """Create the transport of a client of a cluster.

    Raises:
        ConfigError: there is no such key or certificate.
        MissingExtra: pyzmq is not installed.
    """
    node = f"client-{os.urandom(8).hex()}"
    if not where.is_zeromq:
        from pymq.transport.tcp.transport import TcpTransport  # on demand: it loads ssl

        certificates = None
        if where.tls_dir is not None:
            from pymq.transport.tcp.certificates import Certificates

            certificates = Certificates(where.tls_dir)
        return TcpTransport(node, certificates=certificates)
    with zmq_needed():
        from pymq.transport.curve.key_ring import KeyRing  # on demand: these load zmq
        from pymq.transport.zeromq.transport import ZmqTransport

    keys = None if where.curve_dir is None else KeyRing(where.curve_dir, where.principal)
    return ZmqTransport(node, keys=keys)


def open_cluster(
    url: str,
    *,
    curve_dir: Folder = None,
    principal: str | None = None,
    tls_dir: Folder = None,
) -> Client:
    """Open a cluster by its zkservers: ``zmq+tcp://host:port,host:port`` or ``zmq+ipc://path``.

    With *curve_dir*, or ``?curve_dir=PATH`` at the end of the URL, the client connects as the
    *principal* whose secret key is in that folder.

    ``tcp://host:port`` and ``tls://host:port`` are clusters that listen without ZeroMQ. TLS needs
    *tls_dir*, or ``?tls_dir=PATH``: the folder of certificates
    (:mod:`pymq.transport.tcp.certificates`).

    This function does not wait for a zkserver: if none answers, the first call that needs one
    raises an error.

    Raises:
        ConfigError: the URL is invalid, or there is no such key.
        MissingExtra: pyzmq is not installed.
    """
    where = parse_url(url, curve_dir, principal, tls_dir)
    transport = open_transport(where)
    try:
        return connect(
            transport.node,
            transport,
            where.controllers,
            lambda: transport.problem,
            has_keys=where.curve_dir is not None or where.tls_dir is not None,
        )
    except BaseException:
        transport.close()
        raise


def connect(
    node: str,
    transport: Transport,
    controllers: Sequence[str],
    trouble: Callable[[], str] = str,
    *,
    has_keys: bool = False,
) -> Client:
    """Create a client of the zkservers *controllers* over any transport.

    *trouble* returns the transport's problem, for the error message if no zkserver answers. If
    *has_keys* is set, the client's producers use ids that the cluster assigns.
    """
    loop = Loop(monotonic_ms, transport.send, transport.flush)
    directory = Directory(f"{node}.directory", controllers, transport.learn, monotonic_ms)
    transport.on_stranger = directory.stranger
    loop.add(directory.name, directory)
    driver = NetworkDriver(loop, transport, directory.note)

    def close() -> None:
        driver.check_process()
        try:
            driver.close(lambda loop: None)
        finally:
            transport.close()

    client = Client(
        driver, node, list(controllers), wall_ms, close, trouble=trouble, has_keys=has_keys
    )
    transport.on_lost = client._lost
    keep(client)
    return client


def _options(url: str) -> tuple[str, dict[str, str]]:
    """Split a URL at its question mark."""
    where, _, query = url.partition("?")
    try:
        found = parse_qs(query, strict_parsing=bool(query), errors="strict")
    except ValueError:
        raise ConfigError(f"{query!r} is not NAME=VALUE&NAME=VALUE") from None
    for name, values in found.items():
        if name not in OPTIONS or len(values) != 1:
            raise ConfigError(f"{name!r} in {query!r}: there are {', '.join(OPTIONS)}, once each")
    return where, {name: values[0] for name, values in found.items()}


def endpoints(text: str) -> list[str]:
    """Parse ``tcp://host:port,host:port``; each endpoint may also have the scheme.

    These are endpoints as nodes know them: ``tcp://`` is ZeroMQ, also as ``zmq+tcp://``.

    Raises:
        ConfigError: *text* has another form.
    """
    scheme, separator, rest = text.partition("://")
    parts = [part.strip().removeprefix(f"{scheme}://") for part in rest.split(",")]
    scheme = scheme.removeprefix(ZEROMQ)
    if not separator or scheme not in ("tcp", "ipc", "pymq", "tls") or not all(parts):
        raise ConfigError(f"{text!r} is no list of endpoints; tcp://HOST:PORT,HOST:PORT is one")
    if scheme != "ipc":
        for part in parts:
            host, _, port = part.rpartition(":")
            if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
                raise ConfigError(f"{part!r} is not HOST:PORT")
    found = [f"{scheme}://{part}" for part in parts]
    return list(dict.fromkeys(found))
