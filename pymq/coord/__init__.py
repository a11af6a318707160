"""Coordinator backends store the metadata tree of the zkservers."""

from __future__ import annotations

from collections.abc import Callable

from pymq.coord.base import Coordinator
from pymq.coord.memory import MemoryCoordinator
from pymq.errors import MissingExtra

__all__ = ["Coordinator", "open"]


def open(
    url: str, *, wake: Callable[[], None] | None = None, timeout_s: float = 10.0
) -> Coordinator:
    """Open a session on the coordinator at *url* (:mod:`pymq.coord.address` has its forms).

    The backend calls *wake*, from any thread, when ``poll`` has new events; *wake* must not block.
    Backends in this process answer within ``submit`` and never call *wake*.

    A remote backend must be reachable within *timeout_s*. If that is 0, this call does not wait,
    and the first event is :class:`~pymq.core.metadata.coordination.Suspended`.

    Raises:
        ConfigError: *url* is invalid.
        MissingExtra: the backend needs a package that is not installed.
        StoreError: an SQLite file cannot be used; see :class:`pymq.coord.sqlite.SqliteTree`.
        Disconnected: the backend could not be reached in time.
        AuthorizationFailed: the backend refuses access.
    """
    # Imported on demand, because an application that makes its own backend has no address to parse.
    from pymq.coord.address import MemoryAddress, SqliteAddress, parse

    address = parse(url)
    if isinstance(address, MemoryAddress):
        return MemoryCoordinator()
    if isinstance(address, SqliteAddress):
        from pymq.coord.sqlite import SqliteCoordinator  # on demand: it loads sqlite3

        return SqliteCoordinator.open(address.path)
    try:
        from pymq.coord.zookeeper.coordinator import (
            ZookeeperCoordinator,  # on demand: it loads kazoo
        )
    except ImportError as error:
        raise MissingExtra.of("ZooKeeper needs kazoo", "zookeeper") from error
    return ZookeeperCoordinator(address, wake=wake, timeout_s=timeout_s)
