"""Who turns the loop of a client whose brokers are elsewhere: one of those who wait, as ever.

The transport is used by whoever holds the driver's lock, so a record goes from the thread that
sends it to the socket without a switch of threads, and an answer comes to the thread that waits for
it. While nobody has anything to do, one thread waits at the transport's descriptor, without the
lock: of those who sleep until something is done the first, or else the background thread. It keeps
out of the way while the threads of the application turn the loop themselves, since each time that
it woke up it would take the interpreter from them.
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
ROUNDS_MAX = 50  # of taking in and turning, in one go
BLIND_MAX_MS = 500  # how long the background thread leaves watching to others, at most
POLL_MAX_MS = 1 << 30  # what the system takes; whoever has slept so long sleeps again


class Net(Protocol):
    """What the driver needs of a transport; see :class:`pymq.transport.base.Transport`."""

    def fileno(self) -> int: ...

    def poll(self) -> Arrivals: ...

    def flush(self) -> None: ...


class NetworkDriver(Driver):
    """Turns a loop whose messages come and go over *net*.

    *note* sees all that arrives before the loop does.
    """

    def __init__(self, loop: Loop, net: Net, note: Callable[[Arrivals], None]) -> None:
        super().__init__(loop)
        self._net = net
        self._note = note
        self._has_more = False  # the transport may have more than it has given
        self._turned_at = 0.0  # when a thread of the application turned the loop last
        self._watching = threading.Lock()  # held by the sleeper who waits at the transport, ...
        self._watcher: threading.Lock | None = None  # ... until this lock of his is released
        self._watcher_id = 0  # his thread
        self._bell = Bell()  # wakes him
        self._both = select.poll()
        self._both.register(self._bell.fileno(), select.POLLIN)
        self._both.register(net.fileno(), select.POLLIN)
        self._sleep = self._wake = _Sleep(self, net)

    # --- turning --------------------------------------------------------------------------------

    def _turns(self, is_enough: Callable[[], bool]) -> None:
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
            # What is due is looked at once: a loop does so once a millisecond, and not for nothing.
            if not number or arrivals or loop.has_work or self._errands:
                super()._turns(is_enough)
            else:
                # The last poll came after the last flush, so the descriptor tells of what is next.
                self._has_more = False
                break
        watcher = self._watcher
        if watcher is not None and not watcher.locked() and me != self._watcher_id:
            self._bell.ring()  # What he waits for was done by us.

    def arm(self, due: int, name: str | None = None) -> None:
        """Something is due at *due*, of machine *name*; what is due by now is done here and now.

        Sending makes nobody wait, unlike a disk, and another thread would be two switches away.
        """
        if name is None or due > self.loop.clock() or not self.turn(name):
            super().arm(due)

    def _is_idle(self) -> bool:
        # The thread that waits has sent what it waits for as a rule, and found no answer yet: to
        # look once more costs as much as to take the answer in.
        loop = self.loop
        return not (
            self._has_more or self._errands or loop.has_work or loop.deadline <= loop.clock()
        )

    def _background_id(self) -> int | None:
        return self._thread.ident if self._thread is not None else None

    def _has_work(self) -> bool:
        # While others work, the background thread stays alert, so that nobody need wake it for what
        # is due soon: each time would cost a switch of threads.
        return self._has_more or self._is_turned() or super()._has_work()

    def _look_again(self) -> None:
        if self._thread is None:
            self._start()  # Answers come when they want, and perhaps nobody waits for them.
        if self._has_more:
            self._wake.set()
        super()._look_again()

    def _wake_all(self) -> None:
        super()._wake_all()
        self._bell.ring()

    # --- waiting --------------------------------------------------------------------------------

    def sleep(self, waiter: threading.Lock, timeout: float | None) -> bool:
        """Sleep until *waiter*, which is taken, is released; returns whether it was in time."""
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
                self._wake.set()  # Somebody else still waits, and nobody watches.
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
                    pass  # Leaving takes in what has come, and turns the loop.
        return waiter.acquire(blocking=False)

    def is_watched(self) -> bool:
        """Whether threads of the application see to the network themselves."""
        return self._watcher is not None or self._is_turned()

    def _is_turned(self) -> bool:
        return self.hot_ms() > 0

    def hot_ms(self) -> float:
        """For how long the background thread leaves turning to those that have turned just now."""
        return HOT_MS - (time.monotonic() - self._turned_at) * 1000


class _Sleep:
    """How the background thread sleeps: at the transport too, unless others watch it."""

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
        # Who turns for the application does all that is due. To take the lock from him would cost
        # each of us a switch of threads, and the interpreter's while both want it.
        while not found and (ms := self._driver.hot_ms()) > 0:
            found = self._alone.poll(ms + 0.5)
        self._blind_until = 0.0
        return bool(found)

    def look_up(self) -> None:
        """Nobody watches any more: do not sleep for long without."""
        if self._blind_until > time.monotonic() + HOT_MS / 1000:
            self._blind_ms = HOT_MS
            self._bell.ring()
