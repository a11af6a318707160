"""Runs long jobs of a loop's machines (compactions) in another thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pymq.core.ready import Compact, Compacted, StoreEvent
from pymq.errors import PymqError, StoreError
from pymq.runtime.disks import LoopDisks


class BackgroundJobs:
    """The waiting jobs, and the events of finished jobs."""

    def __init__(self, disks: LoopDisks) -> None:
        # pairs (machine, event); any thread may append
        self.done: deque[tuple[str, StoreEvent]] = deque()
        self._disks = disks
        self.waiting: deque[tuple[str, Compact]] = deque()

    def add(self, name: str, jobs: Iterable[Compact]) -> None:
        """Queue jobs of a machine."""
        self.waiting.extend((name, job) for job in jobs)

    def run_one(self) -> None:
        """Run the first job. Any thread may call this at any time."""
        name, job = self.waiting.popleft()
        try:
            event = self._disks.store(name).compact(job)
        except PymqError as error:
            event = Compacted(job.topic, job.partition, (), error)
        except Exception as error:  # the partition gets any exception as an error
            event = Compacted(job.topic, job.partition, (), StoreError(str(error)))
        self.done.append((name, event))
