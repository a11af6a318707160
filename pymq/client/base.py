"""What every handle of a client needs: something to wait for, and somebody who turns the loop."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import isnan
from types import TracebackType
from typing import Protocol, Self, TypeVar, cast

from pymq.core.message import Message
from pymq.core.ready import Ready
from pymq.core.types import NEVER
from pymq.errors import ConfigError, PymqError

_T = TypeVar("_T")


def check_timeout(found: object, name: str = "timeout") -> None:
    """Whether *found* says how long to wait: seconds, or None or infinity for as long as it takes.

    Raises:
        ConfigError: it does not.
    """
    if found is None:
        return
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    if not is_number or isnan(cast(float, found)):
        raise ConfigError(
            f"{name}={found!r} must be a number of seconds, or None to wait as long as it takes"
        )


class Waitable:
    """Something that will be done. It has no lock, until somebody waits for it."""

    __slots__ = ("_callbacks", "is_done", "waiters")

    def __init__(self) -> None:
        self.is_done = False
        self.waiters: list[threading.Lock] | None = None
        self._callbacks: list[Callable[[], None]] | None = None

    def finish(self) -> None:
        """Mark it done and wake whoever waits; doing it twice changes nothing."""
        if self.is_done:
            return
        self.is_done = True
        if self.waiters is not None:
            for waiter in self.waiters:
                waiter.release()
        while self._callbacks:
            _call(self._callbacks.pop(0))

    def wake(self, waiter: threading.Lock) -> None:
        """Release *waiter* too, once it is done; the caller turns the loop."""
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(waiter)

    def then(self, callback: Callable[[], None]) -> None:
        """Call *callback* once it is done, from whatever thread finishes it."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)
        if self.is_done:
            # Whoever finished it may have been through with the callbacks before this one came.
            try:
                self._callbacks.remove(callback)
            except ValueError:
                return
            _call(callback)


def _call(callback: Callable[[], None]) -> None:
    """Run a callback of the application, whose errors are not the loop's."""
    try:
        callback()
    except Exception:
        import logging  # only now: most callbacks fail never, and logging takes long to load

        logging.getLogger("pymq").exception("a callback of the application failed")


class Machine(Protocol):
    """What a loop drives; see :class:`pymq.runtime.loop.Machine`."""

    @property
    def deadline(self) -> int: ...

    def step(self, source: str, message: Message, now: int) -> None: ...

    def tick(self, now: int) -> None: ...

    def ready(self, now: int) -> Ready | None: ...

    def advance(self, ready: Ready, now: int) -> None: ...


class Loop(Protocol):
    """The loop, for a handle that has the right to touch machines."""

    clock: Callable[[], int]

    def add(self, name: str, machine: Machine, *, tells: bool = False) -> None: ...

    def remove(self, name: str) -> None: ...

    def touch(self, name: str) -> None: ...

    def rearm(self, name: str) -> None: ...


class Driver(Protocol):
    """Who turns the loop; see :class:`pymq.runtime.driver.Driver`."""

    @property
    def loop(self) -> Loop: ...

    def __enter__(self) -> Loop: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def wait(self, what: Waitable, timeout: float | None) -> bool: ...

    def turn(self, name: str) -> bool: ...

    def poke(self, name: str) -> None: ...

    def push(self, name: str) -> None: ...

    def arm(self, due: int, name: str | None = None) -> None: ...

    def sleep(self, waiter: threading.Lock, timeout: float | None) -> bool: ...

    def monotonic(self) -> float: ...

    def pause(self, seconds: float) -> None: ...

    def soon(self, errand: Callable[[Loop], None]) -> None: ...

    def check_process(self) -> None: ...


class Handle(ABC):
    """Something with a resource: ``with`` closes it."""

    @abstractmethod
    def close(self) -> None:
        """Let go."""

    def _forgo(self) -> None:  # noqa: B027 # most have nothing to forgo
        """The block under ``with`` has failed: what it did last is not to count as done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._forgo()
        try:
            self.close()
        except PymqError as second:
            # The first error is the one to raise; this one is told beside it.
            if error is None:
                raise
            error.add_note(f"and on closing the {type(self).__name__.lower()}: {second}")


class Outbox:
    """The half of every client machine that is the same: one Ready, handed out when asked for."""

    def __init__(self) -> None:
        self.out = Ready()
        self.due = NEVER
        self._requests = 0

    def number(self) -> int:
        """The number of a new request: it and its answer carry it."""
        self._requests += 1
        return self._requests

    def post(self, peer: str, message: Message) -> None:
        """Have a message sent with the next Ready."""
        self.out.send.append((peer, message))

    @property
    def deadline(self) -> int:
        """When ``tick`` has something to do."""
        return self.due

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work."""
        if not self.out:
            return None
        out, self.out = self.out, Ready()
        return out

    def advance(self, ready: Ready, now: int) -> None:
        """Clients keep nothing on disk, so there is nothing to learn from it."""


def weakly(method: weakref.WeakMethod[Callable[[], list[_T]]]) -> Callable[[], list[_T]]:
    """Call *method* as long as its object is there; then there is nothing."""

    def call() -> list[_T]:
        found = method()
        return found() if found is not None else []

    return call
