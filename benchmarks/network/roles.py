"""Roles over the network: each runs in a fresh process, and all begin together.

A role is a generator function. The code before its ``yield`` prepares the role (connects, makes
records, warms up); the code after it is measured; the return value is the result.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple

from benchmarks.model import Measures

Role = Callable[..., Generator[None, None, Any]]
READY_S = 60
DONE_S = 240


class Finished(NamedTuple):
    """The start and end of a role's measured part, by the clock that all processes share, and the
    role's result.
    """

    start: float
    end: float
    found: Any

    @property
    def seconds(self) -> float:
        """The length of the measured part."""
        return self.end - self.start


class RoleFailed(Exception):
    """A role raised an error; the message names it."""


class Actor:
    """A role in a separate process; leaving the ``with`` block ends the process, at any point."""

    def __init__(self, role: Role, *arguments: object) -> None:
        # A fork would pass on the sockets and threads of the measuring process.
        context = multiprocessing.get_context("spawn")
        self._mine, theirs = context.Pipe()
        self._process = context.Process(target=_act, args=(theirs, role, arguments), daemon=True)
        self._name = getattr(role, "__name__", repr(role))
        self._is_abandoned = False
        self._process.start()
        theirs.close()

    def __enter__(self) -> Actor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.join(5 if error is None and not self._is_abandoned else 0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def ready(self) -> None:
        """Wait until the role is prepared."""
        self._receive(READY_S)

    def go(self) -> None:
        """Start the measured part."""
        self._mine.send("go")

    def abandon(self) -> None:
        """Do not wait for the role's result: the end of the ``with`` block stops the role."""
        self._is_abandoned = True

    def result(self) -> Finished:
        """Wait until the role is done."""
        finished = self._receive(DONE_S)
        assert isinstance(finished, Finished)
        return finished

    def _receive(self, seconds: float) -> object:
        if not self._mine.poll(seconds):
            raise RoleFailed(f"{self._name} said nothing for {seconds} s")
        try:
            said = self._mine.recv()
        except EOFError:
            self._process.join(5)
            raise RoleFailed(f"{self._name} ended with {self._process.exitcode}") from None
        if isinstance(said, Exception):
            raise RoleFailed(f"{self._name}: {type(said).__name__}: {said}")
        return said


def _act(line: Any, role: Role, arguments: Sequence[object]) -> None:
    try:
        play = role(*arguments)
        next(play)
        line.send("ready")
        line.recv()
        start = time.monotonic()
        try:
            next(play)
        except StopIteration as stop:
            line.send(Finished(start, time.monotonic(), stop.value))
        else:
            raise RuntimeError("a role yields once")
    except Exception as error:
        # Some exceptions of client libraries cannot be pickled.
        line.send(RuntimeError(f"{type(error).__name__}: {error}"))
    line.close()
    # exit at once: client libraries would log long complaints at the end of the process
    os._exit(0)


def play(*cast: tuple[Any, ...]) -> list[Finished]:
    """Run roles, each given as ``(role, *arguments)``, at the same time; start them one after the
    other.
    """
    with ExitStack() as stack:
        actors = [stack.enter_context(Actor(*part)) for part in cast]
        for actor in actors:
            actor.ready()
        for actor in actors:
            actor.go()
        return [actor.result() for actor in actors]


def alone(name: str, count: int, *part: Any) -> Measures:
    """Return the rate at which one role handles *count* records."""
    (done,) = play(part)
    return {name: count / done.seconds}


def both(count: int, consume: tuple[Any, ...], produce: tuple[Any, ...]) -> Measures:
    """Return the rate of *count* records from the first send to the last receive."""
    consumed, produced = play(consume, produce)
    return {"both": count / (consumed.end - produced.start)}


def paced(count: int, pause_s: float, send: Callable[[bytes], object]) -> list[int]:
    """Send one record at a time, each with its send time; return the time of each *send* in ns.

    *send* takes a record of 100 B and returns when the answer has come.
    """
    found = []
    due = time.monotonic()
    for _ in range(count):
        due += pause_s
        time.sleep(max(0.0, due - time.monotonic()))
        start = time.monotonic_ns()
        send(start.to_bytes(8, "big") + bytes(92))
        found.append(time.monotonic_ns() - start)
    return found


def percentiles(nanoseconds: Sequence[int]) -> Measures:
    """Return the reported percentiles of latencies, in milliseconds."""
    ordered = sorted(nanoseconds)
    last = len(ordered) - 1
    return {
        "p50": ordered[last * 50 // 100] / 1e6,
        "p99": ordered[last * 99 // 100] / 1e6,
    }


class HandLoop:
    """An event loop that is advanced explicitly, so that a role can stop between preparation and
    measurement.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run the loop until *work* is done."""
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        """Close the loop; a role does not need to, because its process ends."""
        self._loop.close()
