"""What lives as long as the Python process that Spark has its tasks or its planning done in.

Spark forks such a process for each slot from a daemon, and uses it again for task after task.
"""

from __future__ import annotations

import gc
import os
import sys
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
