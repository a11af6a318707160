"""E1 and E2: batched puts, with and without a sync for each batch."""

from __future__ import annotations

from functools import partial

from benchmarks.embedded import ours, peers
from benchmarks.model import At, Goal, Job, Measures, Part, Side, batches, random_values
from pymq.client.option_types import Fsync

COUNT = 400_000  # records of 100 B; fewer if the records are larger


def _count(job: Job, size: int) -> int:
    return job.count(COUNT if size <= 100 else COUNT // 4)


def _sqlite(job: Job, size: int, synchronous: str) -> Measures:
    groups = batches(random_values(_count(job, size), size))
    return peers.run_sqlite_put(job, groups, size, synchronous)


def _pymq(job: Job, size: int, *, fsync: Fsync, wait: bool, many: bool) -> Measures:
    groups = batches(random_values(_count(job, size), size))
    return ours.run_put(job, groups, size, fsync=fsync, wait=wait, many=many)


def _durable(size: int, name: str) -> Part:
    ours_of = partial(partial, _pymq, size=size, fsync="always", wait=True)
    sides = (
        Side(
            "sqlite3",
            "WAL, synchronous FULL, executemany of 1,000 a commit",
            partial(_sqlite, size=size, synchronous="FULL"),
        ),
        Side("pymq send_many", 'fsync="always", 1,000 a call, wait for each', ours_of(many=True)),
        Side("pymq send", 'fsync="always", flush after each 1,000', ours_of(many=False)),
    )
    wanted = (2.0, 1.0) if size == 100 else (None, None)
    return Part(name, f"batched put of {size} B, fdatasync a batch of 1,000", sides, _goals(wanted))


def _lazy(size: int, name: str) -> Part:
    ours_of = partial(partial, _pymq, size=size, fsync="os", wait=False)
    sides = (
        Side(
            "sqlite3",
            "WAL, synchronous OFF, executemany of 1,000 a commit",
            partial(_sqlite, size=size, synchronous="OFF"),
        ),
        Side(
            "pymq send_many", 'fsync="os", 1,000 a call, one flush at the end', ours_of(many=True)
        ),
        Side(
            "pymq send", 'fsync="os", one call a record, one flush at the end', ours_of(many=False)
        ),
    )
    wanted = (4.0, 1.2) if size == 100 else (None, None)
    return Part(name, f"batched put of {size} B, no fsync", sides, _goals(wanted))


def _goals(wanted: tuple[float | None, float | None]) -> tuple[Goal, ...]:
    best = (At("sqlite3", "put"),)
    return (
        Goal(At("pymq send_many", "put"), best, at_least=wanted[0]),
        Goal(At("pymq send", "put"), best, at_least=wanted[1]),
    )


PARTS = (
    _durable(100, "E1-put-durable"),
    _durable(1024, "E1-put-durable-1k"),
    _lazy(100, "E2-put"),
    _lazy(1024, "E2-put-1k"),
)
