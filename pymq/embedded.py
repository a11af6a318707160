"""pymq inside one process: one broker, one zkserver, no server to start."""

from __future__ import annotations

import atexit
import os
import random
import time
import weakref
from typing import TYPE_CHECKING

from pymq.client.client import Client
from pymq.coord.base import Coordinator
from pymq.errors import CorruptMetadata
from pymq.node.broker import Broker
from pymq.node.controller import Controller, ControllerConfig
from pymq.node.driver import Driver
from pymq.node.loop import Loop
from pymq.node.metered import TimedFiles
from pymq.node.meters import Meters
from pymq.node.registration import BrokerConfig
from pymq.replication.solo import Solo
from pymq.store.base import BlockStore
from pymq.store.file import FileStore

if TYPE_CHECKING:
    from pymq.hash.assign import Assignor

BROKER = "broker-0"
ZKSERVER = "zkserver-0"
METADATA = "metadata.db"


def open_folder(path: str | os.PathLike[str]) -> Client:
    """Open a folder, which is made when absent, for this process alone.

    Nothing is removed but what a commit says is gone, and that when it is made: blocks that a crash
    has left of a deleted topic stay, until ``pymq verify --remove-unknown`` finds them.

    Raises:
        StoreLocked: another process has it open.
        StoreError: it cannot be read or written.
        CorruptMetadata: its metadata is damaged.
    """
    folder = os.fspath(path)
    metadata = os.path.join(folder, METADATA)
    files = TimedFiles()
    store = FileStore(folder, files=files)  # first of all: it takes the lock
    try:
        from pymq.coord.sqlite import SqliteCoordinator  # only now: it loads sqlite3

        if not os.path.exists(metadata) and store.blocks():
            raise CorruptMetadata(
                f"{metadata} is missing, but there are blocks: restore it from a backup, "
                "or choose another folder",
                file=metadata,
            )
        backend = SqliteCoordinator.open(metadata)
    except BaseException:
        store.close()
        raise
    return _assemble(store, backend, files)


def open_memory() -> Client:
    """Open a queue that is gone when it is closed."""
    from pymq.coord.memory import MemoryCoordinator
    from pymq.store.memory import MemoryStore  # only now: a folder does without

    return _assemble(MemoryStore(), MemoryCoordinator())


def _assemble(store: BlockStore, backend: Coordinator, files: TimedFiles | None = None) -> Client:
    wall_offset_ms = _wall_ms() - _clock()
    loop = Loop(_clock)
    meters = Meters(loop, version(), files)
    now = _clock()
    controller = Controller(
        ControllerConfig(ZKSERVER, offsets_partitions=1, wall_offset_ms=wall_offset_ms),
        lambda: os.urandom(16).hex(),
        now,
        meters.journal,
    )
    broker = Broker(
        BrokerConfig(BROKER, (ZKSERVER,), wall_offset_ms=wall_offset_ms),
        Solo,
        _assignor,
        random.Random(),
        store.blocks(),
        (),  # One broker has nobody to complete its blocks from.
        now,
        meters.journal,
    )
    meters.add_zkserver(controller, backend)
    meters.add_broker(broker, store)
    driver = Driver(loop)
    try:
        with driver:
            pass  # Leaving the block turns the loop until all is recovered.
    except BaseException:
        backend.close()
        store.close()
        raise

    def close() -> None:
        def last(loop: Loop) -> None:
            broker.shut_down(loop.clock())
            loop.touch(BROKER)

        driver.check_process()
        try:
            driver.close(last)
        finally:
            backend.close()
            store.close()

    client = Client(driver, "client-0", [ZKSERVER], _wall_ms, close)
    client.sources.append(meters.collect)
    keep(client)
    return client


def _assignor(name: str) -> Assignor:
    from pymq.hash.assign import assignor  # only now: the first group needs one

    return assignor(name)


def version() -> str:
    """The version of pymq."""
    from pymq import __version__  # only now: it is still being imported when we are

    return __version__


def _clock() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def keep(client: Client) -> None:
    """Close *client* at the end of the process, unless somebody has done so before."""
    _open_clients.add(client)


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()
os.register_at_fork(after_in_child=_open_clients.clear)  # They are the parent's to close.


@atexit.register
def _close_all() -> None:
    # What lingers in a producer is not lost because somebody forgot to close.
    for client in list(_open_clients):
        client.close()
