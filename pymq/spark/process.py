"""What lives as long as the Python process that Spark has its tasks or its planning done in.

Spark forks such a process for each slot from a daemon, and uses it again for task after task.
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

DAEMON = "pyspark.daemon"

_caches: dict[tuple[int, str], dict[Any, Any]] = {}


def process_cache(name: str) -> dict[Any, Any]:
    """A dictionary that lives as long as this process, and is empty in one that it forks."""
    key = (os.getpid(), name)
    if key not in _caches:
        for other in [other for other in _caches if other[0] != key[0]]:
            del _caches[other]  # What a fork has left here is the parent's.
        _caches[key] = {}
    return _caches[key]


def client(url: str) -> Client:
    """This process's client of a cluster; made at the first call."""
    clients: dict[str, Client] = process_cache("clients")
    found = clients.get(url)
    if found is None or found.closed:
        clients[url] = found = pymq.open(url)
    return found


class Prompt:
    """What comes to a task with this class makes its process answer Spark at once.

    Spark's JVM sends a task in two small pieces. It gives the second to the network when it has
    been told that the first has come (Nagle's algorithm), and the kernel of whoever reads waits
    40 ms for something to send that it could tell it with. What is in the first piece is unpickled
    in between.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        answer()


def answer() -> None:
    """Tell whoever sends to this process of Spark's what has come, and hold nothing back."""
    if not is_daemons() or not hasattr(socket, "TCP_QUICKACK"):
        return  # Other systems have no such option, and most of them no such wait.
    with connections() as found:
        for each in found:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


@contextmanager
def connections() -> Iterator[list[socket.socket]]:
    """The TCP connections of this process, whoever made them (Linux)."""
    with ExitStack() as stack:
        found = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # The directory itself was open while it was listed.
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    each = stack.enter_context(socket.socket(fileno=os.dup(int(name))))
                    if each.family != socket.AF_UNIX and each.type == socket.SOCK_STREAM:
                        found.append(each)
        yield found


def settle() -> None:
    """Have Python look for garbage no more among what is loaded by now; once a process.

    Spark's daemon makes its processes look for garbage after each task, among a million objects of
    pandas and pyarrow that will never be any. That takes 45 ms, as long as reading 150,000 records.
    A process that is not Spark's is left alone.
    """
    if is_daemons() and not (known := process_cache("settled")):
        known[True] = True
        gc.collect()
        gc.freeze()


def is_daemons() -> bool:
    """Whether this is a process that Spark's daemon has forked."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == DAEMON
