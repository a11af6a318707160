"""State and settings of a Python worker process of Spark: cache, client, sockets, garbage.

Spark's daemon forks a process for each slot and reuses it for later tasks.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pymq
from pymq.client.client import Client
from pymq.errors import ConfigError, OffsetOutOfRange, UnknownPartition, UnknownTopic

DAEMON = "pyspark.daemon"
HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"  # read by Spark's workers when they report an error

_caches: dict[tuple[int, str], dict[Any, Any]] = {}


def process_cache(name: str) -> dict[Any, Any]:
    """Return a named dictionary of this process; a forked process starts with an empty one."""
    key = (os.getpid(), name)
    if key not in _caches:
        for other in [other for other in _caches if other[0] != key[0]]:
            del _caches[
                other
            ]  # Entries of another process id were copied from the parent process by fork.
        _caches[key] = {}
    return _caches[key]


def client(url: str) -> Client:
    """Return this process's client of a cluster; the first call opens it."""
    clients: dict[str, Client] = process_cache("clients")
    found = clients.get(url)
    if found is None or found.closed:
        clients[url] = found = pymq.open(url)
    return found


class Prompt:
    """Base class of pickled task input; unpickling it turns delayed TCP ACKs off.

    Spark's JVM sends a task in two small writes. Nagle's algorithm holds the second write back
    until the first is acknowledged, and the worker's kernel delays that ACK by 40 ms. The worker
    unpickles the first write before that, so :meth:`__setstate__` runs in time.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        answer()


def answer() -> None:
    """Set TCP_QUICKACK and TCP_NODELAY on the connections of this worker process."""
    if not is_daemons() or not hasattr(socket, "TCP_QUICKACK"):
        return  # Only Linux has the option; most other systems have no such delay.
    with connections() as found:
        for each in found:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


@contextmanager
def connections() -> Iterator[list[socket.socket]]:
    """Yield all TCP connections of this process (Linux)."""
    with ExitStack() as stack:
        found = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # The list includes the directory's own descriptor.
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    each = stack.enter_context(socket.socket(fileno=os.dup(int(name))))
                    if each.family != socket.AF_UNIX and each.type == socket.SOCK_STREAM:
                        found.append(each)
        yield found


def settle() -> None:
    """Exclude all objects loaded so far from garbage collection; once per process.

    Spark's worker runs a collection after each task, over a million live objects of pandas and
    pyarrow. A collection takes 45 ms, as long as reading 150,000 records. Does nothing outside of
    Spark's workers.
    """
    if is_daemons() and not (known := process_cache("settled")):
        known[True] = True
        gc.collect()
        gc.freeze()


@contextmanager
def one_sentence() -> Iterator[None]:
    """Let Spark show an error in the options, or in a topic they name, without a traceback.

    Spark's planner processes end after an error, so the setting reaches no other error.
    """
    try:
        yield
    except (ConfigError, OffsetOutOfRange, UnknownPartition, UnknownTopic):
        if _main().startswith("pyspark."):
            os.environ[HIDE_TRACEBACK] = "1"
        raise


def is_daemons() -> bool:
    """Whether Spark's daemon forked this process."""
    return _main() == DAEMON


def _main() -> str:
    """Return the module that this process runs; empty for a script."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "" if spec is None else str(spec.name)
