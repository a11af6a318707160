"""Assembles an embedded queue: a zkserver and one or more brokers in the user's process.

One loop drives all brokers of a folder, in the thread that waits for a result, so messages between
brokers are passed by reference; only writes to the disks of several brokers use threads.
"""

from __future__ import annotations

import atexit
import os
import random
import re
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from pymq.broker.broker import BrokerMachine
from pymq.broker.registration import BrokerConfig
from pymq.client.client import Client
from pymq.controller.controller import Controller, ControllerConfig
from pymq.coord.base import Coordinator
from pymq.errors import ConfigError, CorruptMetadata
from pymq.monitoring.collector import Collector
from pymq.replication.solo import Solo
from pymq.runtime.driver import Driver
from pymq.runtime.loop import Loop
from pymq.runtime.timed_machines import TimedFiles
from pymq.store.base import BlockStore
from pymq.store.file.file_store import FileStore

if TYPE_CHECKING:
    from pymq.hash.assign import Assignor

BROKER = "broker-"  # prefix of the brokers' names; a number from 0 on follows
ZKSERVER = "zkserver-0"
METADATA = "metadata.db"
REPLICAS = 3  # replicas of the offsets topic, if there are enough brokers
BROKERS_MAX = 100


class EmbeddedNode(NamedTuple):
    """The parameters of a broker in this process."""

    store: BlockStore
    storage_id: str = ""
    incarnation: int = 0


def open_folder(path: str | os.PathLike[str], brokers: int | None = None) -> Client:
    """Open a folder, exclusively for this process; creates a missing folder.

    A single broker keeps its blocks in the folder itself; of several brokers, each has a subfolder.
    *brokers* is the number of brokers; by default the number that the folder has.

    A broker removes blocks only when a commit has deleted them. If a crash has left blocks of a
    deleted topic, these stay until ``pymq verify --remove-unknown`` removes them.

    Raises:
        StoreLocked: another process has the folder open.
        StoreError: the folder cannot be read or written.
        CorruptMetadata: the metadata is damaged.
        ConfigError: the folder has more brokers than *brokers*, or has a single broker and so
            cannot have several.
    """
    folder = os.fspath(path)
    metadata = os.path.join(folder, METADATA)
    found = broker_folders(folder)
    if brokers is not None and brokers < len(found):
        raise ConfigError(f"{folder} holds {len(found)} brokers, and none of them can be left out")
    count = brokers or max(1, len(found))
    files = TimedFiles()
    with ExitStack() as stack:
        parts = [_part(folder, files, stack)] if count == 1 and not found else []
        if not parts:
            parts = _parts(folder, count, files, stack)
        from pymq.coord.sqlite import SqliteCoordinator  # on demand: it loads sqlite3

        if not os.path.exists(metadata) and any(part.store.blocks() for part in parts):
            raise CorruptMetadata(
                f"{metadata} is missing, but there are blocks: restore it from a backup, "
                "or choose another folder",
                file=metadata,
            )
        return assemble(parts, SqliteCoordinator.open(metadata), stack, files)


def broker_folders(folder: str) -> list[str]:
    """Return the brokers' subfolders of an embedded queue's folder; empty for a single broker."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []  # opening the folder reports the error
    # Require two digits, so that other folders are not mistaken for brokers.
    numbers = [
        int(name[len(BROKER) :]) for name in names if re.fullmatch(f"{BROKER}[0-9]{{1,2}}", name)
    ]
    paths = [os.path.join(folder, f"{BROKER}{n}") for n in range(max(numbers, default=-1) + 1)]
    return paths if any(os.path.exists(os.path.join(path, "FORMAT")) for path in paths) else []


def _part(folder: str, files: TimedFiles, stack: ExitStack) -> EmbeddedNode:
    """Return the parameters of the only broker, in the folder itself."""
    store = FileStore(folder, files=files)  # open the store first, because it takes the lock
    stack.callback(store.close)
    return EmbeddedNode(store)


def _parts(folder: str, count: int, files: TimedFiles, stack: ExitStack) -> list[EmbeddedNode]:
    """Return the parameters of several brokers, each with the identity of its disk."""
    from pathlib import Path

    from pymq.nodes.identity import next_identity  # on demand: a single broker needs none

    if os.path.exists(os.path.join(folder, "FORMAT")):
        raise ConfigError(
            f"{folder} holds one broker's blocks and cannot hold several brokers; open another "
            "folder with brokers=, and copy the records"
        )
    parts = []
    for number in range(count):
        name = f"{BROKER}{number}"
        path = os.path.join(folder, name)
        store = FileStore(path, files=files)
        stack.callback(store.close)
        identity = next_identity(Path(path), name)
        parts.append(EmbeddedNode(store, identity.storage_id, identity.incarnation))
    return parts


def open_memory(brokers: int = 1) -> Client:
    """Open a queue in memory; its records are lost when it is closed."""
    from pymq.coord.memory import MemoryCoordinator
    from pymq.store.memory import MemoryStore  # on demand: a folder does not need it

    with ExitStack() as stack:
        parts = [EmbeddedNode(MemoryStore(), str(number)) for number in range(brokers)]
        return assemble(parts, MemoryCoordinator(), stack)


def assemble(
    parts: Sequence[EmbeddedNode],
    backend: Coordinator,
    stack: ExitStack,
    files: TimedFiles | None = None,
) -> Client:
    """Assemble a queue of *parts*; *stack* closes the parts with the client, or after an error
    here.
    """
    stack.callback(backend.close)
    wall_offset_ms = _wall_ms() - _clock()
    loop = Loop(_clock)
    stack.callback(loop.disks.release)
    meters = Collector(loop, version(), files)
    now = _clock()
    config = ControllerConfig(
        ZKSERVER,
        offsets_partitions=1,
        offsets_replicas=min(len(parts), REPLICAS),
        wall_offset_ms=wall_offset_ms,
    )
    controller = Controller(config, lambda: os.urandom(16).hex(), now, meters.journal)
    meters.add_zkserver(controller, backend)
    loop.wall_clock.follow(_wall_ms, controller)
    brokers = [
        _broker(number, part, len(parts) > 1, now, meters) for number, part in enumerate(parts)
    ]
    for broker in brokers:
        loop.wall_clock.follow(_wall_ms, broker)
    driver = Driver(loop)
    with driver:
        pass  # leaving the block runs the loop until recovery has ended
    closing = stack.pop_all()

    def close() -> None:
        def last(loop: Loop) -> None:
            for broker in brokers:
                broker.shut_down(loop.clock())
                loop.touch(broker.me)

        driver.check_process()
        with closing:
            driver.close(last)

    client = Client(driver, "client-0", [ZKSERVER], _wall_ms, close)
    client.sources.append(meters.collect)
    client.embedded_brokers = tuple(broker.me for broker in brokers)
    keep(client)
    return client


def _broker(
    number: int, part: EmbeddedNode, has_others: bool, now: int, meters: Collector
) -> BrokerMachine:
    """Create a broker and add it to the loop."""
    if has_others:
        # on demand: it loads all replicators
        from pymq.replication.factory import replicator as make
    else:
        make = Solo
    store = part.store
    broker = BrokerMachine(
        BrokerConfig(
            f"{BROKER}{number}",
            (ZKSERVER,),
            storage_id=part.storage_id,
            incarnation=part.incarnation,
            wall_offset_ms=_wall_ms() - now,
        ),
        make,
        _assignor,
        random.Random(),
        store.blocks(),
        # A single broker has no other broker from which to repair blocks.
        store.unsealed() if has_others else (),
        now,
        meters.journal,
    )
    meters.add_broker(broker, store)
    return broker


def _assignor(name: str) -> Assignor:
    from pymq.hash.assign import assignor  # on demand: only the first group needs one

    return assignor(name)


def version() -> str:
    """Return the version of pymq."""
    from pymq import __version__  # on demand: pymq's names are imported from modules below it

    return __version__


def _clock() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def keep(client: Client) -> None:
    """Close *client* at the end of the process, if it is still open."""
    _open_clients.add(client)


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()
# only the parent process closes its clients, so a forked child forgets them
os.register_at_fork(after_in_child=_open_clients.clear)


@atexit.register
def _close_all() -> None:
    # Send lingering batches even if the application forgot to close the client.
    for client in list(_open_clients):
        client.close()
