"""The base of a client's handles (producers, consumers): waiting, closing, driving the loop."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import isnan
from types import TracebackType
from typing import Never, Protocol, Self, TypeVar, cast

from pymq.core.message import Message
from pymq.core.ready import Ready
from pymq.core.types import NEVER
from pymq.errors import ConfigError, PymqError

_T = TypeVar("_T")


def check_timeout(found: object, name: str = "timeout") -> None:
    """Check a timeout: seconds, or None or infinity to wait without limit.

    Raises:
        ConfigError: the value is not a timeout.
    """
    if found is None:
        return
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    if not is_number or isnan(cast(float, found)):
        raise ConfigError(
            f"{name}={found!r} must be a number of seconds, or None to wait as long as it takes"
        )


class Waitable:
    """Work that a thread can wait for.

    A lock is created only when a thread waits.
    """

    __slots__ = ("_callbacks", "is_done", "waiters")

    def __init__(self) -> None:
        self.is_done = False
        self.waiters: list[threading.Lock] | None = None
        self._callbacks: list[Callable[[], None]] | None = None

    def finish(self) -> None:
        """Mark the work as done and wake the waiting threads; a second call does nothing."""
        if self.is_done:
            return
        self.is_done = True
        if self.waiters is not None:
            for waiter in self.waiters:
                waiter.release()
        while self._callbacks:
            _call(self._callbacks.pop(0))

    def wake(self, waiter: threading.Lock) -> None:
        """Release *waiter*, too, when the work is done; only the thread that runs the loop calls
        this.
        """
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(waiter)

    def then(self, callback: Callable[[], None]) -> None:
        """Call *callback* when the work is done, in the thread that finishes the work."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)
        if self.is_done:
            # The finishing thread may have run all callbacks before this one was added.
            try:
                self._callbacks.remove(callback)
            except ValueError:
                return
            _call(callback)


def _call(callback: Callable[[], None]) -> None:
    """Run a callback of the application; its errors are logged."""
    try:
        callback()
    except Exception:
        import logging  # on demand: logging takes long to import

        logging.getLogger("pymq").exception("a callback of the application failed")


class ClientMachine(Protocol):
    """A state machine that a loop drives; see :class:`pymq.runtime.loop.Machine`."""

    @property
    def deadline(self) -> int: ...

    def step(self, source: str, message: Message, now: int) -> None: ...

    def tick(self, now: int) -> None: ...

    def ready(self, now: int) -> Ready | None: ...

    def advance(self, ready: Ready, now: int) -> None: ...


class ClientLoop(Protocol):
    """The loop, for a handle that holds the driver's lock and so may use machines."""

    clock: Callable[[], int]

    def add(self, name: str, machine: ClientMachine, *, tells: bool = False) -> None: ...

    def remove(self, name: str) -> None: ...

    def touch(self, name: str) -> None: ...

    def rearm(self, name: str) -> None: ...


class ClientDriver(Protocol):
    """The driver that runs the loop; see :class:`pymq.runtime.driver.Driver`."""

    @property
    def loop(self) -> ClientLoop: ...

    def __enter__(self) -> ClientLoop: ...

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

    def soon(self, errand: Callable[[ClientLoop], None]) -> None: ...

    def check_process(self) -> None: ...


class Handle(ABC):
    """A handle that owns a resource: ``with`` closes it."""

    @abstractmethod
    def close(self) -> None:
        """Release the resource."""

    def _forgo(self) -> None:  # noqa: B027 # most have nothing to forgo
        """Do not acknowledge the last record, because the ``with`` block has failed."""

    def __reduce__(self) -> Never:
        """Raise TypeError, since neither another process nor a copy can share the resource."""
        name = type(self).__name__
        raise TypeError(
            f"a {name} cannot be pickled or copied, as for another process; open another one there"
        )

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
            # Raise the first error, with this one as a note.
            if error is None:
                raise
            error.add_note(f"closing the {type(self).__name__.lower()} has failed, too: {second}")


class Outbox:
    """The base of a client's machines: collects their work in one Ready."""

    def __init__(self) -> None:
        self.out = Ready()
        self.due = NEVER
        self._requests = 0

    def number(self) -> int:
        """Return the id of a new request; the answer has the same id."""
        self._requests += 1
        return self._requests

    def post(self, peer: str, message: Message) -> None:
        """Add a message to the next Ready."""
        self.out.send.append((peer, message))

    @property
    def deadline(self) -> int:
        """When ``tick`` has something to do."""
        return self.due

    def ready(self, now: int) -> Ready | None:
        """Hand over the pending work."""
        if not self.out.send:  # A client's other fields are always empty.
            return None
        out, self.out = self.out, Ready()
        return out

    def advance(self, ready: Ready, now: int) -> None:
        """Do nothing: clients write nothing to disk."""


def weakly(method: weakref.WeakMethod[Callable[[], list[_T]]]) -> Callable[[], list[_T]]:
    """Return a function that calls *method*, or returns [] after the method's object is gone."""

    def call() -> list[_T]:
        found = method()
        return found() if found is not None else []

    return call
