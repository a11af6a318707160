"""Public calls inside a simulated event: a call that waits lets the world go on.

A public call of the client waits for its answer, and the code of an event must not wait. So such
calls run on fibers. Each fiber is a separate thread, and the world's thread hands over to one fiber
at a time.

1. An event resumes a fiber, and the world's thread sleeps.
2. The fiber runs until a call has to wait. It then suspends itself, and the world goes on.
3. A turn of the fiber's process, or the end of the time to wait, resumes the fiber.

Since only one of these threads runs at any time, the seed alone decides the order of all events.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from pymq.runtime.loop import Loop
from pymq.testing.simulation.driver import SimDriver
from pymq.testing.simulation.nodes import ClientHost
from pymq.testing.simulation.world import SECOND, Violation


class Killed(BaseException):
    """The process of a fiber has died: the fiber ends here, without any further effect."""


class Fiber:
    """One piece of *work* on a thread of its own; it runs only between ``resume`` and a wait."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._may_run = threading.Semaphore(0)
        self._has_stopped = threading.Semaphore(0)
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pymq-fiber", daemon=True)
        self.is_done = False

    def resume(self) -> None:
        """Run the fiber until it waits or ends; for the world's thread.

        Raises:
            BaseException: the error with which the work has ended.
        """
        if self.is_done:
            return
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._may_run.release()
        self._has_stopped.acquire()
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def suspend(self) -> None:
        """Let the world go on until it resumes this fiber; for the fiber's thread."""
        self._has_stopped.release()
        self._may_run.acquire()

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is the fiber's."""
        return threading.get_ident() == self._thread.ident

    def _run(self) -> None:
        try:
            self._work()
        except Killed:
            pass
        except BaseException as error:
            self._problem = error
        finally:
            self.is_done = True
            self._has_stopped.release()


class FiberDriver(SimDriver):
    """The driver of a client whose calls wait on fibers, one at a time."""

    def __init__(self, host: ClientHost, patience_s: float) -> None:
        super().__init__(host, patience_s)
        self.fiber: Fiber | None = None  # the fiber that makes calls now
        self._is_done: Callable[[], bool] | None = None  # what the fiber waits for
        self._waits = 0  # number of waits so far, so that a wait ignores the timer of another one

    def __enter__(self) -> Loop:
        # Code that ends because its process has died may still clean up, without any effect.
        if self.fiber is None or not self.fiber.is_here:
            self._check()
        self._depth += 1
        return self.loop

    def _check(self) -> None:
        if self._host.loop is not self.loop and self.fiber is not None and self.fiber.is_here:
            raise Killed
        if self._host.loop is not self.loop:
            super()._check()

    def _run(self, is_done: Callable[[], bool], timeout: float | None) -> None:
        if self._host.is_turning or self._depth or self.fiber is None:
            raise RuntimeError("a callback of the loop cannot wait: nothing would go on meanwhile")
        world = self._world
        seconds = self._patience_s if timeout is None else max(0.0, timeout)
        until = world.now + math.ceil(seconds * SECOND)
        self._waits += 1
        world.at(until, self._resume, self._waits)
        while not is_done() and world.now < until and self._host.loop is self.loop:
            self._is_done = is_done
            self.fiber.suspend()
        self._is_done = None
        self._check()
        if timeout is None and not is_done():
            raise Violation(
                "no-stuck-call",
                f"a call without a timeout has waited for {seconds:g} virtual seconds",
            )

    def _run_errand(self, errand: Callable[[Loop], None], _: object) -> None:
        super()._run_errand(errand, _)
        self.notice()

    def notice(self) -> None:
        """Resume the fiber soon if its wait is over."""
        if self._is_done is not None and self._is_done():
            self._is_done = None
            self._world.after(0, self._resume, self._waits)

    def _resume(self, wait: int, _: object) -> None:
        if wait == self._waits and self.fiber is not None:
            self.fiber.resume()
