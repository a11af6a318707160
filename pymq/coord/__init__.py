"""Coordinator backends: where a zkserver keeps the metadata tree."""

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

    *wake* is called, by any thread, when ``poll`` has something new; it must not block. Backends
    of this process answer within ``submit`` and never call it.

    A backend that is elsewhere must be reached within *timeout_s*; with 0 nobody waits for it, and
    its first event is :class:`~pymq.core.metadata.coordination.Suspended` until it is.

    Raises:
        ConfigError: *url* is not understood.
        MissingExtra: the backend needs a package that is not installed.
        StoreError: an SQLite file cannot be used; see :class:`pymq.coord.sqlite.SqliteTree`.
        Disconnected: the backend could not be reached in time.
        AuthorizationFailed: it does not let us in.
    """
    # Only now: who has made his backend himself has no address to read.
    from pymq.coord.address import MemoryAddress, SqliteAddress, parse

    address = parse(url)
    if isinstance(address, MemoryAddress):
        return MemoryCoordinator()
    if isinstance(address, SqliteAddress):
        from pymq.coord.sqlite import SqliteCoordinator  # only now: it loads sqlite3

        return SqliteCoordinator.open(address.path)
    try:
        from pymq.coord.zookeeper.coordinator import (
            ZookeeperCoordinator,  # only now: it loads kazoo
        )
    except ImportError as error:
        raise MissingExtra("ZooKeeper needs kazoo: pip install 'pymq-log[zookeeper]'") from error
    return ZookeeperCoordinator(address, wake=wake, timeout_s=timeout_s)
