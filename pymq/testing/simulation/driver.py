"""The driver of a simulated client: a waiting call runs the whole simulated world."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import TracebackType

from pymq.client.base import Waitable
from pymq.errors import Closed
from pymq.runtime.loop import Loop
from pymq.testing.simulation.nodes import ClientHost
from pymq.testing.simulation.world import SECOND, Violation


class SimDriver:
    """The driver of a client whose waiting advances virtual time; there are no threads."""

    def __init__(self, host: ClientHost, patience_s: float) -> None:
        assert host.loop is not None
        self.loop: Loop = host.loop
        self._host = host
        self._world = host.world
        self._patience_s = patience_s
        self._thread = threading.get_ident()
        self._depth = 0
        self._is_running = False

    # --- access to machines -----------------------------------------------------------------------

    def __enter__(self) -> Loop:
        self._check()
        self._depth += 1
        return self.loop

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._look()

    def turn(self, name: str) -> bool:
        """Run the loop once for machine *name*, unless the loop is already running."""
        self._check()
        if self._host.is_turning or self._host.is_paused or self._depth:
            self.loop.touch(name)
            return False
        self.loop.touch(name)
        self._look()
        return True

    def poke(self, name: str) -> None:
        """Run machine *name* soon."""
        self.loop.poke(name)
        self._world.after(0, self._look_later)

    def push(self, name: str) -> None:
        """Run machine *name*: now if possible, else soon."""
        if not self.turn(name):
            self.poke(name)

    def arm(self, due: int, name: str | None = None) -> None:
        """Note that a machine has a deadline at *due*, in the loop's milliseconds."""
        self._host.rearm()

    def check_process(self) -> None:
        """Do nothing: a simulated client is never forked."""

    def soon(self, errand: Callable[[Loop], None]) -> None:
        """Run *errand* soon."""
        self._check()
        self._world.after(0, self._run_errand, errand)

    def _run_errand(self, errand: Callable[[Loop], None], _: object) -> None:
        if self._host.loop is self.loop:
            errand(self.loop)
            self._look()

    def _look_later(self, _: object, __: object) -> None:
        self._look()

    def _look(self) -> None:
        if self.loop.has_work:
            self._host.wake()
        self._host.rearm()

    # --- waiting ----------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Return the virtual time in seconds."""
        return self._world.now / SECOND

    def pause(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._run(lambda: False, seconds)

    def wait(self, what: Waitable, timeout: float | None) -> bool:
        """Run the world until *what* is done; return whether it is done."""
        self._check()
        if not what.is_done:
            self._look()
            self._run(lambda: what.is_done, timeout)
            if not what.is_done:
                self._check()
        return what.is_done

    def sleep(self, waiter: threading.Lock, timeout: float | None) -> bool:
        """Run the world until the held lock *waiter* is released."""
        self._check()
        self._run(lambda: not waiter.locked(), timeout)
        return not waiter.locked()

    def _run(self, is_done: Callable[[], bool], timeout: float | None) -> None:
        if self._host.is_turning or self._depth:
            raise RuntimeError("a callback of the loop cannot wait: nothing would go on meanwhile")
        world = self._world
        seconds = self._patience_s if timeout is None else max(0.0, timeout)
        until = world.now + math.ceil(seconds * SECOND)  # at least 1, because time must pass
        is_over = world.run_until(lambda: is_done() or self._host.loop is None, until)
        if not is_over and timeout is None:
            raise Violation(
                "no-stuck-call",
                f"a call without a timeout has waited for {seconds:g} virtual seconds",
            )

    def _check(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError("a simulated client belongs to the thread that made it")
        if self._host.loop is not self.loop:
            raise Closed("the client was closed, or its process has crashed")

    def close(self) -> None:
        """Run the loop once more and end the process."""
        if self._host.loop is self.loop:
            self._look()
            self._host.die()
