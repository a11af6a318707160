"""The driver: decides which thread runs the loop.

A thread that waits for a durable record could hand the work to another thread and sleep. That costs
two thread switches, about 40 us in addition to the disk's 150. So a waiting thread runs the loop
itself, unless another thread already does. While that thread is in the system call, other threads
add their records, and the next turn writes all of them with one write and one sync. A background
thread does the work for which no thread waits: lingering batches, timers, long jobs.

Only the thread that holds the driver's lock may run the loop and use its machines; there is no
other lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pymq.core.types import NEVER
from pymq.errors import Closed, ForkedError, InternalError, PymqError
from pymq.runtime.loop import Loop

HOT_MS = 5  # while there is traffic, the background thread sleeps for this long at a time ...
COOL_TURNS = 40  # ... and after this many idle rounds it sleeps until the next deadline


class Completion(Protocol):
    """Work that threads can wait for."""

    is_done: bool
    waiters: list[threading.Lock] | None  # locks of waiting threads, released when the work is done


class Wake(Protocol):
    """The interface with which the background thread sleeps; an ``Event`` has this interface."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None) -> bool: ...


def _is_done(what: Completion) -> bool:
    # Another thread may finish the work at any time, which a type checker cannot know.
    return what.is_done


def stopped_by(problem: BaseException) -> PymqError:
    """Return the error for callers of a loop that was stopped by *problem*."""
    if isinstance(problem, Exception):
        return InternalError(
            f"{type(problem).__name__} stopped the loop: {problem}; records that were "
            "acknowledged are safe; open a new client, and please report this"
        )
    return Closed(
        f"{type(problem).__name__} stopped the client in the middle of its work; records that were "
        "acknowledged are safe; open a new client"
    )


class Driver:
    """Runs a loop on behalf of any number of threads."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.problem: BaseException | None = None  # the error that stopped the loop, if any
        self._lock = threading.Lock()
        self._wake: Wake = threading.Event()
        self._errands: deque[Callable[[Loop], None]] = deque()  # callbacks from any thread
        # one entry for each thread that waits for the driver's lock
        self._queueing: deque[None] = deque()
        self._sleepers: dict[threading.Lock, None] = {}
        # the time until which the background thread sleeps, in the loop's milliseconds
        self._asleep_until = 0
        # whether the background thread sleeps only briefly, so that no deadline has to wake it
        self._is_hot = False
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._pid = os.getpid()

    # --- for callers in any thread ----------------------------------------------------------------

    def __enter__(self) -> Loop:
        """Take the driver's lock.

        Leaving the ``with`` block runs the loop until no work is left.
        """
        self._check()
        is_taken = False
        try:
            try:
                # Locks are not fair: without this, a thread that runs the loop repeatedly would
                # keep the lock.
                self._queueing.append(None)
                is_taken = self._take(blocking=True)
            finally:
                self._queueing.pop()
            if self._is_closed:
                raise Closed("the client was closed")
        except BaseException:
            if is_taken:
                self._lock.release()
            raise
        return self.loop

    def __exit__(self, *_: object) -> None:
        try:
            self._run()
        finally:
            self._lock.release()
            self._look_again()

    def _take(self, *, blocking: bool) -> bool:
        """Take the lock; returns whether this succeeded. Ctrl-C never leaves the lock taken.

        Python raises KeyboardInterrupt before a Python function begins, within a waiting C
        function, or right after a C function. So a single C function takes the lock and records
        this, and the caller begins its ``try`` before it calls anything else.
        """
        taken: list[bool] = []
        try:
            taken.extend(map(self._lock.acquire, (blocking,)))
        except BaseException:
            if True in taken:
                self._lock.release()
            raise
        return taken[0]

    def wait(self, what: Completion, timeout: float | None) -> bool:
        """Wait until *what* is done, and run the loop meanwhile if no other thread does.

        *timeout* is in seconds; None waits without limit. Returns whether *what* is done.
        """
        if _is_done(what):
            return True
        self._check()
        if not self._is_idle() and not self._queueing and self._take(blocking=False):
            try:
                self._run(lambda: what.is_done)
            finally:
                self._lock.release()
                self._look_again()
            if _is_done(what):
                return True
        waiter = threading.Lock()
        waiter.acquire()
        if what.waiters is None:
            what.waiters = []
        what.waiters.append(waiter)
        # A finishing thread first marks the work as done and then releases the waiters, so no
        # wake-up is lost.
        if _is_done(what):
            return True
        self._hurry()
        self.sleep(waiter, timeout)
        if not _is_done(what) and self._is_closed:
            raise Closed("the client was closed")
        return _is_done(what)

    def _is_idle(self) -> bool:
        """Whether a turn of the loop would certainly have no work now."""
        return False

    def sleep(self, waiter: threading.Lock, timeout: float | None) -> bool:
        """Sleep until *waiter*, a locked lock, is released; returns False after *timeout* seconds.

        A thread that waits for another thread's work sleeps here; an error that stops the loop
        wakes it.
        """
        self._sleepers[waiter] = None
        in_time = False
        try:
            if self.problem is None and not self._is_closed:
                seconds = -1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX))
                in_time = waiter.acquire(timeout=seconds)
        finally:
            self._sleepers.pop(waiter, None)
        self._check()
        return in_time

    def monotonic(self) -> float:
        """The clock of timeouts, in seconds."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Pause before a retry."""
        waiter = threading.Lock()
        waiter.acquire()
        self.sleep(waiter, seconds)  # The pause also ends if an error stops the loop.

    def turn(self, name: str) -> bool:
        """Run the loop for machine *name*, unless another thread runs it.

        Returns whether there was any work.
        """
        if self.problem is not None or self._pid != os.getpid():
            self._check()
        if self._queueing or not self._take(blocking=False):
            return False
        try:
            if self._is_closed:
                raise Closed("the client was closed")
            self.loop.touch(name)
            self._run()
        finally:
            self._lock.release()
            self._look_again()
        return True

    def poke(self, name: str) -> None:
        """Ask the thread that runs the loop to drive machine *name* soon; does not wait."""
        self.loop.poke(name)
        # A thread that holds the lock checks for work once more after releasing the lock.
        if not self._lock.locked():
            self._hurry()

    def push(self, name: str) -> None:
        """Drive machine *name* in this thread if possible, otherwise soon in another thread."""
        if not self.turn(name):
            self.poke(name)

    def arm(self, due: int, name: str | None = None) -> None:
        """Note the deadline *due* of machine *name*, beyond which no thread may sleep."""
        if self._thread is None:
            self._start()
        if due < self._asleep_until:
            self._wake.set()

    def soon(self, errand: Callable[[Loop], None]) -> None:
        """Run *errand* in the next thread that runs the loop, at the latest the background thread.

        This method never waits, so an event loop may call it. Errands run in order.
        """
        self._check()
        self._errands.append(errand)
        if self._is_closed and errand in self._errands:  # otherwise close() has run the errand
            self._errands.clear()
            raise Closed("the client was closed")
        if self._thread is None:
            self._start()
        self._wake.set()

    def _hurry(self) -> None:
        if self._thread is None:
            self._start()
        if self.loop.has_work or self.loop.deadline < self._asleep_until:
            self._wake.set()

    def check_process(self) -> None:
        """Refuse to work in a forked child.

        Raises:
            ForkedError: this process is a forked child.
        """
        if self._pid != os.getpid():
            raise ForkedError("this client belongs to the parent process; open a new one here")

    def _check(self) -> None:
        self.check_process()
        if self.problem is not None:
            raise stopped_by(self.problem) from self.problem

    # --- turns of the loop ------------------------------------------------------------------------

    def _run(self, is_enough: Callable[[], bool] | None = None) -> None:
        try:
            self._turns(is_enough)
        except BaseException as error:
            # A machine has broken one of its invariants, or was interrupted in the middle of a
            # step, so its state can no longer be trusted.
            self.problem = error
            self._wake_all()
            raise

    def _turns(self, is_enough: Callable[[], bool] | None) -> None:
        """Run the loop until *is_enough* returns True.

        Without *is_enough*, this method returns only when another thread wants the lock.
        """
        if self._errands:
            # If these errands add others, the others run after the turns below.
            for _ in range(len(self._errands)):
                self._errands.popleft()(self.loop)
        self.loop.run(is_enough, queueing=self._queueing if is_enough is None else ())

    def _wake_all(self) -> None:
        for waiter in list(self._sleepers):
            if self._sleepers.pop(waiter, waiter) is None and waiter.locked():
                waiter.release()

    def _look_again(self) -> None:
        # A thread that has added work during these turns relies on this last check.
        loop = self.loop
        if (
            loop.has_work
            or loop.jobs.waiting
            or self._errands
            # While there is traffic, the thread wakes soon anyway. Asking all machines for their
            # deadlines after each request would cost more than handling a deadline 5 ms late.
            or (not self._is_hot and loop.deadline < self._asleep_until)
        ):
            if self._thread is None:
                self._start()
            self._wake.set()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._is_closed:
                thread = threading.Thread(target=self._background, name="pymq-loop", daemon=True)
                thread.start()
                self._thread = thread

    def _background(self) -> None:
        loop, idle = self.loop, 0
        while self.problem is None:
            self._wake.clear()
            if self._queueing:
                # Waiting threads have priority; their turns do this work, too.
                self._wake.wait(HOT_MS / 1000)
            # If another thread runs the loop, that thread does the due work, and checks again
            # afterwards. If this thread waited for the lock, it would take the lock from a thread
            # that sends one record after the other, which would cost two thread switches.
            had_work = is_taken = not self._lock.acquire(blocking=False)
            if not is_taken:
                try:
                    if self._is_closed:
                        return
                    had_work = self._has_work()
                    self._run()
                except BaseException:  # kept in ``problem`` and raised to the next caller
                    return
                finally:
                    self._lock.release()
            while loop.jobs.waiting:
                loop.jobs.run_one()
                had_work = True
            idle = 0 if had_work else idle + 1
            now = loop.clock()
            is_hot = idle <= COOL_TURNS
            until = NEVER if is_taken else loop.deadline
            if is_hot:
                until = min(until, now + HOT_MS)
            self._is_hot = is_hot
            self._asleep_until = until
            # A deadline that was set before this line has not woken this thread, so check once
            # more.
            if is_taken or (not loop.has_work and loop.deadline >= until):
                self._wake.wait(None if until >= NEVER else max(0, until - now) / 1000)
            self._asleep_until = 0
            self._is_hot = False

    def _has_work(self) -> bool:
        loop = self.loop
        return bool(loop.has_work or self._errands or loop.deadline <= loop.clock())

    def close(self, last: Callable[[Loop], None]) -> None:
        """Run *last*, and run the loop once more; afterwards no thread runs it."""
        # In a forked child, a thread that does not exist there may hold the lock.
        self.check_process()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self.problem is None:
                self._run()  # run errands first, because threads wait for their results
                last(self.loop)
                self._run()
            self._wake_all()  # wake the waiting threads, because their work will no longer be done
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
