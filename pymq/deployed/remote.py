"""A client of a cluster: everything that the embedded one does, with brokers elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pymq.client.client import Client
from pymq.deployed.clocks import monotonic_ms, wall_ms
from pymq.deployed.directory import Directory
from pymq.embedded import keep
from pymq.errors import ConfigError
from pymq.node.loop import Loop
from pymq.node.netdriver import NetDriver
from pymq.transport.base import Transport

SCHEME = "zmq+"


def open_cluster(url: str) -> Client:
    """Open a cluster by its zkservers: ``zmq+tcp://host:port,host:port`` or ``zmq+ipc://path``.

    Nobody is waited for: that none of them answers is the error of the first call that needs one.

    Raises:
        ConfigError: the URL is not one.
        MissingExtra: pyzmq is not installed.
    """
    from pymq.transport.zeromq import ZmqTransport  # only now: it loads zmq

    controllers = endpoints(url.removeprefix(SCHEME))
    node = f"client-{os.urandom(8).hex()}"
    transport = ZmqTransport(node)
    try:
        return connect(node, transport, controllers)
    except BaseException:
        transport.close()
        raise


def connect(node: str, transport: Transport, controllers: Sequence[str]) -> Client:
    """A client over any transport, of the zkservers *controllers*."""
    loop = Loop(monotonic_ms, transport.send, transport.flush)
    directory = Directory(f"{node}.directory", controllers, transport.learn, monotonic_ms)
    transport.on_stranger = directory.stranger
    loop.add(directory.name, directory)
    driver = NetDriver(loop, transport, directory.note)

    def close() -> None:
        driver.check_process()
        try:
            driver.close(lambda loop: None)
        finally:
            transport.close()

    client = Client(driver, node, list(controllers), wall_ms, close)
    keep(client)
    return client


def endpoints(text: str) -> list[str]:
    """Endpoints from ``tcp://host:port,host:port``; the scheme may stand before each.

    Raises:
        ConfigError: it is not that.
    """
    scheme, separator, rest = text.partition("://")
    parts = [part.strip().removeprefix(f"{scheme}://") for part in rest.split(",")]
    if not separator or scheme not in ("tcp", "ipc") or not all(parts):
        raise ConfigError(f"{text!r} is no list of endpoints; tcp://HOST:PORT,HOST:PORT is one")
    if scheme == "tcp":
        for part in parts:
            host, _, port = part.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(f"{part!r} is not HOST:PORT")
    found = [f"{scheme}://{part}" for part in parts]
    return list(dict.fromkeys(found))
