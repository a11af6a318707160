"""Runs the loop of a client of a cluster, in the application's threads if possible.

The thread that holds the driver's lock uses the transport. So the sending thread writes a record to
the socket without a thread switch, and the waiting thread receives its own answer. While the loop
is idle, one thread, the *watcher*, polls the transport's descriptor without the lock. The watcher
is the first sleeping application thread, or the background thread if there is none. The background
thread stays asleep while application threads run the loop, since each wake-up would take the GIL
from them.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pymq.core.message import Message
from pymq.core.types import NEVER
from pymq.runtime.driver import HOT_MS, Driver
from pymq.runtime.loop import Loop
from pymq.transport.bell import Bell

Arrivals = Sequence[tuple[str, str, Message]]
ROUNDS_MAX = 50  # rounds of polling and turning in one call
# longest sleep of the background thread while an application thread is the watcher
BLIND_MAX_MS = 500
POLL_MAX_MS = 1 << 30  # limit of the system call; a longer sleep repeats the call


class Net(Protocol):
    """The part of a transport that the driver needs; see :class:`pymq.transport.base.Transport`."""

    def fileno(self) -> int: ...

    def poll(self) -> Arrivals: ...

    def flush(self) -> None: ...


class NetworkDriver(Driver):
    """Runs a loop whose messages are sent over *net*.

    *note* gets all arrived messages before the loop gets them.
    """

    def __init__(self, loop: Loop, net: Net, note: Callable[[Arrivals], None]) -> None:
        super().__init__(loop)
        self._net = net
        self._note = note
        self._has_more = False  # the transport may have more messages
        self._turned_at = 0.0  # the time when an application thread last ran the loop
        self._watching = threading.Lock()  # the watcher holds this lock ...
        # ... and sleeps until this one is released
        self._watcher: threading.Lock | None = None
        self._watcher_id = 0  # the watcher's thread
        self._bell = Bell()  # wakes the watcher
        self._both = select.poll()
        self._both.register(self._bell.fileno(), select.POLLIN)
        self._both.register(net.fileno(), select.POLLIN)
        self._sleep = self._wake = _Sleep(self, net)

    # --- turning --------------------------------------------------------------------------------

    def _turns(self, is_enough: Callable[[], bool] | None) -> None:
        net, loop = self._net, self.loop
        me = threading.get_ident()
        if me != self._background_id():
            self._turned_at = time.monotonic()
        self._has_more = True
        for number in range(ROUNDS_MAX):
            arrivals = net.poll()
            if arrivals:
                self._note(arrivals)
                loop.take(arrivals)
            # Check deadlines only in the first round, since a loop checks them once a millisecond.
            if not number or arrivals or loop.has_work or self._errands:
                super()._turns(is_enough)
            else:
                # The last poll was after the last flush, so the descriptor signals the next
                # message.
                self._has_more = False
                break
        watcher = self._watcher
        if watcher is not None and not watcher.locked() and me != self._watcher_id:
            self._bell.ring()  # Wake the watcher, because this thread has done its work.

    def arm(self, due: int, name: str | None = None) -> None:
        """Note the deadline *due* of machine *name*; drives the machine at once if it is due.

        Unlike a write to a disk, sending does not block, and another thread would cost two thread
        switches.
        """
        if name is None or due > self.loop.clock() or not self.turn(name):
            super().arm(due)

    def _is_idle(self) -> bool:
        # The waiting thread has usually just sent its request, and has polled without getting an
        # answer. Polling again would cost as much as receiving the answer.
        loop = self.loop
        return not (
            self._has_more or self._errands or loop.has_work or loop.deadline <= loop.clock()
        )

    def _background_id(self) -> int | None:
        return self._thread.ident if self._thread is not None else None

    def _has_work(self) -> bool:
        # While other threads run the loop, the background thread stays awake, so that they need not
        # wake it for deadlines, which would cost a thread switch each time.
        return self._has_more or self._is_turned() or super()._has_work()

    def _look_again(self) -> None:
        if self._thread is None:
            self._start()  # Answers may arrive while no thread waits for them.
        if self._has_more:
            self._wake.set()
        super()._look_again()

    def _wake_all(self) -> None:
        super()._wake_all()
        self._bell.ring()

    # --- waiting --------------------------------------------------------------------------------

    def sleep(self, waiter: threading.Lock, timeout: float | None) -> bool:
        """Sleep until the held lock *waiter* is released; returns False after *timeout* seconds."""
        if not self._watching.acquire(blocking=False):
            return super().sleep(waiter, timeout)
        try:
            self._sleepers[waiter] = None
            self._watcher_id = threading.get_ident()
            self._watcher = waiter
            in_time = self._watch(waiter, timeout)
        finally:
            self._watcher = None
            self._sleepers.pop(waiter, None)
            self._watching.release()
            if self._sleepers:
                self._wake.set()  # other threads still wait, and none of them is the watcher
            else:
                self._sleep.look_up()
        self._check()
        return in_time

    def _watch(self, waiter: threading.Lock, timeout: float | None) -> bool:
        loop, until = self.loop, None if timeout is None else time.monotonic() + timeout
        while self.problem is None and not self._is_closed:
            if waiter.acquire(blocking=False):
                return True
            left = NEVER if until is None else (until - time.monotonic()) * 1000
            if left <= 0:
                return False
            due = min(left, loop.deadline - loop.clock(), POLL_MAX_MS)
            for found, _ in self._both.poll(max(0.0, due) + 0.5):
                if found == self._bell.fileno():
                    self._bell.clear()
            if waiter.locked():
                with self:
                    pass  # Leaving the ``with`` block polls the transport and runs the loop.
        return waiter.acquire(blocking=False)

    def is_watched(self) -> bool:
        """Whether application threads poll the transport themselves."""
        return self._watcher is not None or self._is_turned()

    def _is_turned(self) -> bool:
        return self.hot_ms() > 0

    def hot_ms(self) -> float:
        """Return for how many more milliseconds the background thread leaves the loop to other
        threads.
        """
        return HOT_MS - (time.monotonic() - self._turned_at) * 1000


class _Sleep:
    """The background thread's sleep, which polls the transport unless another thread is the
    watcher.
    """

    def __init__(self, driver: NetworkDriver, net: Net) -> None:
        self._driver = driver
        self._bell = Bell()
        self._alone = select.poll()
        self._alone.register(self._bell.fileno(), select.POLLIN)
        self._both = select.poll()
        self._both.register(self._bell.fileno(), select.POLLIN)
        self._both.register(net.fileno(), select.POLLIN)
        self._blind_ms = HOT_MS
        self._blind_until = 0.0

    def set(self) -> None:
        self._bell.ring()

    def clear(self) -> None:
        self._bell.clear()

    def wait(self, timeout: float | None) -> bool:
        ms = POLL_MAX_MS if timeout is None else min(timeout * 1000, POLL_MAX_MS)
        if not self._driver.is_watched():
            self._blind_ms = HOT_MS
            return bool(self._both.poll(ms))
        ms = min(ms, self._blind_ms)
        self._blind_until = time.monotonic() + ms / 1000
        self._blind_ms = min(2 * self._blind_ms, BLIND_MAX_MS)
        found = self._alone.poll(ms)
        # The application's thread handles all deadlines. Taking the lock from that thread would
        # cost a thread switch and contention for the GIL.
        while not found and (ms := self._driver.hot_ms()) > 0:
            found = self._alone.poll(ms + 0.5)
        self._blind_until = 0.0
        return bool(found)

    def look_up(self) -> None:
        """End the sleep early, since there is no other watcher any more."""
        if self._blind_until > time.monotonic() + HOT_MS / 1000:
            self._blind_ms = HOT_MS
            self._bell.ring()
