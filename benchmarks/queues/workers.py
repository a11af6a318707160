"""The processes of workers; ``python -m benchmarks.queues.workers ORDER`` is one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.network.servers import ServerFailed
from benchmarks.queues.board import Board
from benchmarks.queues.sides.plan import Plan
from benchmarks.queues.sides.senders import Sender

SIDES = "benchmarks.queues.sides"
LOG = "workers.log"


class Crew:
    """Running workers, with their board."""

    def __init__(self, board: Board, check: Callable[[], object]) -> None:
        self.board = board
        self._check = check  # raises an error if a worker has ended

    def gather(self) -> None:
        """Wait until all workers are at the gate."""
        self.board.wait_for_workers(self._check)

    def finish(self, tasks: range) -> None:
        """Wait until *tasks* have ended."""
        self.board.wait_for_tasks(tasks, self._check)

    def seconds(self, sender: Sender, tasks: range) -> float:
        """Send *tasks* at once; return the seconds until the last of them has ended."""
        self.board.sent(tasks.start)
        sender.burst(tasks)
        self.finish(tasks)
        return self.board.seconds(tasks)


@contextmanager
def processes(side: str, url: str, folder: Path, plan: Plan, tasks: int) -> Iterator[Crew]:
    """Start the workers of a side, for a number of tasks; kill the workers at the end."""
    file = folder / "board"
    board = Board.make(file, plan.workers, tasks)
    count = 1 if side == "celery" and plan.variant == "prefork" else plan.workers
    orders = [json.dumps([side, url, str(file), index, asdict(plan)]) for index in range(count)]
    with (folder / LOG).open("ab") as log:
        found = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, order],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
            for order in orders
        ]

    def check() -> None:
        if any(process.poll() is not None for process in found):
            tail = (folder / LOG).read_text(encoding="utf-8", errors="replace")[-2000:]
            raise ServerFailed(f"a worker ended: {tail}")

    try:
        yield Crew(board, check)
    finally:
        for process in found:  # the benchmark needs none of their remaining output
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in found:
            process.wait()


def main() -> None:
    """Run one worker until it is killed."""
    side, url, file, index, settings = json.loads(sys.argv[1])
    plan = Plan(**settings)
    module = import_module(f"{SIDES}.{side}_side")
    module.work(url, Board(Path(file), plan.workers), index, plan)


if __name__ == "__main__":
    main()
