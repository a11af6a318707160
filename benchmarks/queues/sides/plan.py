"""The plan for the workers of one measurement."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """The settings that all workers of a measurement share; their processes get them as JSON."""

    workers: int  # each runs one task at a time
    work_s: float  # the length of a task
    prefetch: int  # tasks that a worker takes at a time, for queues with this setting
    # Celery's pool; for pymq "commit" or "commit each" if the worker waits for syncs
    variant: str = ""
