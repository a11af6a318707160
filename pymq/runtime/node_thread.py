"""Runs the loop of a node in its own thread; waits for messages, timers and requests."""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from pymq.core.types import NEVER
from pymq.errors import Closed
from pymq.runtime.loop import Loop
from pymq.runtime.network_driver import Arrivals, Net
from pymq.transport.bell import Bell

T = TypeVar("T")

RUN_MS = 20  # limit of one run of the loop before new messages are handled


class Sockets(Protocol):
    """Sockets beside the transport's, which the node's thread serves between two turns."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`take` has something to do."""
        ...

    def take(self, loop: Loop) -> bool:
        """Give the loop's machines what has arrived; returns whether there was anything."""
        ...

    def flush(self) -> None:
        """Send what the machines have made."""
        ...

    def shut(self) -> None:
        """Close them."""
        ...


class NodeThread:
    """Runs the loop of a broker or zkserver.

    *note* gets all arrived messages before the loop gets them.
    """

    def __init__(
        self, loop: Loop, net: Net, note: Callable[[Arrivals], None] | None = None
    ) -> None:
        self.loop = loop
        self._net = net
        self._note = note
        self.idle_s = 0.0  # total idle time
        self.sockets: Sockets | None = None  # set before the thread runs
        self._bell = Bell()
        self._questions: deque[Callable[[], None]] = deque()  # queued by any thread
        self._is_stopped = False
        self._is_over = False
        self._has_jobs = threading.Event()
        self._worker: threading.Thread | None = None

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Run the loop in this thread until :meth:`stop`, or until *until* returns True."""
        loop, net, clock = self.loop, self._net, self.loop.clock
        waiting = select.poll()
        waiting.register(self._bell.fileno(), select.POLLIN)
        waiting.register(net.fileno(), select.POLLIN)
        sockets = self.sockets
        if sockets is not None:
            waiting.register(sockets.fileno(), select.POLLIN)
        is_woken = True
        try:
            while not self._is_stopped and not (until is not None and until()):
                if self._questions:
                    self._answer()
                arrivals = net.poll()
                if arrivals:
                    if self._note is not None:
                        self._note(arrivals)
                    loop.take(arrivals)
                if sockets is not None and sockets.take(loop):
                    is_woken = True
                if arrivals or is_woken or loop.has_work or loop.deadline <= clock():
                    is_woken = False
                    # Limit the run: if the coordinator backend answers at once, a zkserver with a
                    # large change has work in each turn, but it handles heartbeats only between two
                    # runs.
                    loop.run(within_ms=RUN_MS)
                    if sockets is not None:
                        sockets.flush()
                    if loop.jobs.waiting:
                        self._begin_jobs()
                    continue  # wait only after a poll that follows the last flush
                due = loop.deadline
                # A loop checks deadlines once a millisecond, even overdue ones.
                ms = None if due >= NEVER else max(1, due - clock())
                began = time.monotonic()
                woken_by = waiting.poll(ms)
                self.idle_s += time.monotonic() - began
                for found, _ in woken_by:
                    if found == self._bell.fileno():
                        self._bell.clear()
                        is_woken = True  # the coordinator backend may have woken the thread
        finally:
            self._is_stopped = self._is_over = True  # from now on `ask` raises at once
            self._answer()
            self._has_jobs.set()
            if self._worker is not None:
                self._worker.join()

    def ask(self, question: Callable[[], T], timeout: float) -> T:
        """Call *question* in the node's thread between two turns, and return its result.

        Any other thread may call this; it waits for at most *timeout* seconds.

        Raises:
            TimeoutError: no turn has ended in time.
            Closed: the node has ended.
        """
        answer: Future[T] = Future()

        def find_out() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # The caller has timed out.
            try:
                answer.set_result(question())
            except Exception as error:  # the caller gets the error
                answer.set_exception(error)

        self._questions.append(find_out)
        self._bell.ring()
        if self._is_over:
            try:
                self._questions.remove(find_out)
            except ValueError:
                pass  # the node's thread has answered the question while it stopped
            else:
                raise Closed("the node has ended")
        try:
            return answer.result(timeout)
        finally:
            answer.cancel()

    def _answer(self) -> None:
        while self._questions:
            try:
                self._questions.popleft()()
            except IndexError:
                return  # the caller has withdrawn the question

    def wake(self) -> None:
        """Make the loop run a turn soon; any thread and signal handlers may call this."""
        self._bell.ring()

    def poke(self, name: str) -> None:
        """Make the loop drive machine *name* soon; any thread may call this."""
        self.loop.poke(name)
        self._bell.ring()

    def stop(self) -> None:
        """Make ``run`` return; any thread and signal handlers may call this."""
        self._is_stopped = True
        self._bell.ring()

    def _begin_jobs(self) -> None:
        if self._worker is None:
            # Long jobs run in their own thread, so that the loop does not wait for them.
            self._worker = threading.Thread(target=self._work, name="pymq-jobs", daemon=True)
            self._worker.start()
        self._has_jobs.set()

    def _work(self) -> None:
        while True:
            self._has_jobs.wait()
            self._has_jobs.clear()
            while self.loop.jobs.waiting and not self._is_stopped:
                self.loop.jobs.run_one()
                self._bell.ring()
            if self._is_stopped:
                return
