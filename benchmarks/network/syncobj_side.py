"""PySyncObj: three nodes in memory, a hundred records in a replicated command."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from typing import Any

from benchmarks.model import batches, random_values

# records in one command; larger commands exceed pysyncobj's buffers, are split, and are slower
COMMAND = 100
WINDOW = 20  # commands in flight


def _node(address: str, others: Sequence[str]) -> Any:
    from pysyncobj import SyncObj, SyncObjConf, replicated

    class Log(SyncObj):  # type: ignore[misc]  # it has no types
        def __init__(self) -> None:
            # With default options, pysyncobj waits 100 ms at each step.
            super().__init__(
                address,
                list(others),
                SyncObjConf(autoTickPeriod=0.001, appendEntriesPeriod=0.01, raftMinTimeout=0.4),
            )
            self.count = 0

        @replicated  # type: ignore[untyped-decorator]  # it has no types
        def append(self, values: list[bytes]) -> int:
            self.count += len(values)
            return self.count

    return Log()


def follow(address: str, others: Sequence[str]) -> Generator[None, None, None]:
    """Run a node that only replicates."""
    node = _node(address, others)
    _until(lambda: node._getLeader() is not None)
    yield
    # The measuring process ends this process.
    threading.Event().wait()


def produce(
    address: str, others: Sequence[str], count: int, size: int
) -> Generator[None, None, None]:
    """Send commands of 100 records, 20 in flight, from any node, which forwards them to the
    leader.
    """
    groups = batches(random_values(count, size), COMMAND)
    node = _node(address, others)
    _until(lambda: node.isReady() and node._getLeader() is not None)
    room = threading.Semaphore(WINDOW)
    problems: list[object] = []

    def answered(_: object, error: object) -> None:
        if error:
            problems.append(error)
        room.release()

    yield
    for group in groups:
        room.acquire()
        node.append(list(group), callback=answered)
    for _ in range(WINDOW):
        room.acquire()
    if problems:
        raise RuntimeError(f"{len(problems)} commands failed: {problems[0]}")


def _until(is_so: Any) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("the nodes found no leader")
        time.sleep(0.01)
