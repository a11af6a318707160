"""Keeps a table in processes that die one after the other: ``python -m tests.table.dying``.

Each forked process sends some records, opens the view, and is killed by SIGKILL at one step of a
commit (a call of Python or C in the modules of the format), or some microseconds after the start of
the commit. The next process first compares the table with the log.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import pyarrow as pa

import pymq
from pymq.table.format.base import TableFormat, TableOrigin, TableState
from pymq.table.view import TableView, table_view
from tests.table.reading import exists, left_by_a_crash, log, read, rows

TOPIC = "numbers"
COUNT = 40  # records that each process sends
MODULES = ("pymq/table/format/", "site-packages/deltalake/", "site-packages/pyiceberg/")


class Trap:
    """A table format whose process dies in a commit or a compaction."""

    def __init__(self, inner: TableFormat, step: int | None, after_us: int | None) -> None:
        self._inner = inner
        self._step = step
        self._after_us = after_us
        self.steps = 0

    def load(self, partitions: Sequence[str]) -> TableState | None:
        return self._inner.load(partitions)

    def create(self, origin: TableOrigin, schema: pa.Schema) -> None:
        self._watched(self._inner.create, origin, schema)

    def append(self, rows: pa.Table, positions: Mapping[str, int]) -> None:
        self._watched(self._inner.append, rows, positions)

    def compact(self) -> bool:
        return bool(self._watched(self._inner.compact))

    def close(self) -> None:
        self._inner.close()

    def _watched(self, do: Callable[..., Any], *args: Any) -> Any:
        if self._after_us is not None:
            # By default this signal ends the process at once, even while a thread runs C code.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, self._after_us / 1e6)
            self._after_us = None
        if self._step is None:
            return do(*args)
        sys.setprofile(self._count)
        try:
            return do(*args)
        finally:
            sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, arg: object) -> None:
        """Die at the wanted step: before or after a call in the modules of the format."""
        if not any(part in frame.f_code.co_filename for part in MODULES):
            return
        if self.steps == self._step:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1


def view(location: str, format: Any, mq: pymq.Client) -> TableView:
    return table_view(
        TOPIC,
        location,
        format,
        url=mq,
        schema="n long",
        commit_bytes=2000,  # several commits for each process
        file_bytes=1 << 20,
        compact_files=2,
    )


def compare(location: str, format: str, mq: pymq.Client, *, is_crashed: bool) -> int:
    """Check that the table has the first records of each partition, each once; return the number of
    rows.
    """
    if not exists(location, format):
        return 0
    is_merging = is_crashed and format == "parquet"
    table = left_by_a_crash(location) if is_merging else read(location, format)
    found = rows(table, "partition", "offset", "n")
    ends = {partition: offset + 1 for partition, offset, _ in found}
    wanted = [
        (each.partition, each.offset, json.loads(each.value)["n"])
        for each in log(mq, TOPIC)
        if each.offset < ends.get(each.partition, 0)
    ]
    assert found == wanted, (len(found), len(wanted), ends)
    return len(found)


def live(queue: str, location: str, format: str, step: int | None, after_us: int | None) -> int:
    """Send records and keep the table; return the number of steps of the commits."""
    with pymq.open(queue) as mq:
        compare(location, format, mq, is_crashed=True)
        with mq.producer() as producer:
            values = [b'{"n":%d}' % random.randrange(1 << 40) for _ in range(COUNT)]
            producer.send_many(TOPIC, values, keys=values).result()
        with view(location, format, mq) as kept:
            kept._table = trap = Trap(kept._table, step, after_us)
            kept.sync()
        assert compare(location, format, mq, is_crashed=False) == len(log(mq, TOPIC))
    return trap.steps


def lives(queue: str, location: str, format: str, step: int | None, after_us: int | None) -> bool:
    """Do the same in a separate process; return whether it was killed."""
    child = os.fork()
    if not child:
        status = 1
        try:
            live(queue, location, format, step, after_us)
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGALRM), status
        return True
    assert os.WEXITSTATUS(status) == 0, "see above"
    return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("queue")
    parser.add_argument("location")
    parser.add_argument("format")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stride", type=int, default=1, help="steps between two deaths")
    parser.add_argument("--heals", action="store_true", help="after each death one survives")
    parser.add_argument("--random-us", type=int, help="die at a random time below this one")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    killed = number = survived = 0
    # With a fixed stride the processes die at later and later steps, until a process has fewer
    # steps.
    while killed < args.kills and survived < 3:
        if args.random_us is None:
            was_killed = lives(args.queue, args.location, args.format, number * args.stride, None)
            survived = 0 if was_killed else survived + 1
        else:
            after = rng.randrange(1, args.random_us)
            was_killed = lives(args.queue, args.location, args.format, None, after)
        killed, number = killed + was_killed, number + 1
        if args.heals:  # Otherwise unmerged files pile up, and each merge takes longer.
            assert not lives(args.queue, args.location, args.format, None, None)
        assert number < 20 * args.kills, "they do not die"
    assert not lives(args.queue, args.location, args.format, None, None)
    json.dump({"killed": killed, "processes": number + 1}, sys.stdout)


if __name__ == "__main__":
    main()
