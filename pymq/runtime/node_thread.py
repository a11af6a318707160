"""A node that has a thread for itself: it waits for messages, timers and what others leave."""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from pymq.core.types import NEVER
from pymq.errors import Closed
from pymq.runtime.loop import Loop
from pymq.runtime.network_driver import Arrivals, Net
from pymq.transport.bell import Bell

T = TypeVar("T")

RUN_MS = 20  # of one run of the loop, after which what came from outside is taken in


class NodeThread:
    """Turns the loop of a broker or zkserver.

    *note* sees all that arrives before the loop does.
    """

    def __init__(
        self, loop: Loop, net: Net, note: Callable[[Arrivals], None] | None = None
    ) -> None:
        self.loop = loop
        self._net = net
        self._note = note
        self.idle_s = 0.0  # how long it had nothing to do
        self._bell = Bell()
        self._questions: deque[Callable[[], None]] = deque()  # left by any thread
        self._is_stopped = False
        self._is_over = False
        self._has_jobs = threading.Event()
        self._worker: threading.Thread | None = None

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Turn the loop in this thread until :meth:`stop`, or until *until* holds."""
        loop, net, clock = self.loop, self._net, self.loop.clock
        waiting = select.poll()
        waiting.register(self._bell.fileno(), select.POLLIN)
        waiting.register(net.fileno(), select.POLLIN)
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
                if arrivals or is_woken or loop.has_work or loop.deadline <= clock():
                    is_woken = False
                    # A zkserver whose coordinator answers at once finds work in each turn until a
                    # large change is made. Heartbeats are taken in between two runs only.
                    loop.run(within_ms=RUN_MS)
                    if loop.jobs:
                        self._begin_jobs()
                    continue  # The poll after the last flush is the one that may be waited for.
                due = loop.deadline
                # A loop looks at its deadlines once a millisecond, even at those that are overdue.
                ms = None if due >= NEVER else max(1, due - clock())
                began = time.monotonic()
                woken_by = waiting.poll(ms)
                self.idle_s += time.monotonic() - began
                for found, _ in woken_by:
                    if found == self._bell.fileno():
                        self._bell.clear()
                        is_woken = True  # by the coordinator's backend, perhaps
        finally:
            self._is_stopped = self._is_over = True  # Who asks after this line is told so at once.
            self._answer()
            self._has_jobs.set()
            if self._worker is not None:
                self._worker.join()

    def ask(self, question: Callable[[], T], timeout: float) -> T:
        """The answer to *question*, which the thread that turns the loop looks for, between turns.

        Any other thread may call this; it waits, at most *timeout* seconds.

        Raises:
            TimeoutError: no turn has ended meanwhile.
            Closed: there are no more turns.
        """
        answer: Future[T] = Future()

        def find_out() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # Nobody waits any more.
            try:
                answer.set_result(question())
            except Exception as error:  # it is for whoever has asked
                answer.set_exception(error)

        self._questions.append(find_out)
        self._bell.ring()
        if self._is_over:
            try:
                self._questions.remove(find_out)
            except ValueError:
                pass  # It was answered in the end.
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
                return  # Whoever left it has taken it back.

    def wake(self) -> None:
        """Have the loop turned, soon; any thread may call this, and a signal's handler."""
        self._bell.ring()

    def poke(self, name: str) -> None:
        """Have machine *name* looked at, soon; any thread may call this."""
        self.loop.poke(name)
        self._bell.ring()

    def stop(self) -> None:
        """Let ``run`` come to its end; any thread may call this, and a signal's handler."""
        self._is_stopped = True
        self._bell.ring()

    def _begin_jobs(self) -> None:
        if self._worker is None:
            # What takes long has a thread of its own: nobody is to be kept waiting for it.
            self._worker = threading.Thread(target=self._work, name="pymq-jobs", daemon=True)
            self._worker.start()
        self._has_jobs.set()

    def _work(self) -> None:
        while True:
            self._has_jobs.wait()
            self._has_jobs.clear()
            while self.loop.jobs and not self._is_stopped:
                self.loop.do_job()
                self._bell.ring()
            if self._is_stopped:
                return
