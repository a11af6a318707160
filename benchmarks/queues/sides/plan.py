"""What the workers of one measurement do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """The same for all workers of a measurement; it travels to their processes as JSON."""

    workers: int  # each runs one task at a time
    work_s: float  # the length of a task
    prefetch: int  # tasks that a worker takes at a time, of peers that do not find it by themselves
    variant: str = ""  # Celery's pool; of pymq "commit" or "commit each", if it waits for syncs
