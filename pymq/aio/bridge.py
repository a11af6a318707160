"""Connects asyncio's event loop with pymq's loop; opens and closes handles."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, Self, TypeVar

from pymq.client.base import ClientLoop, Waitable
from pymq.client.client import Client
from pymq.client.consumer.consumer import Consumer
from pymq.client.producer.producer import Producer
from pymq.errors import PymqError

T = TypeVar("T")
P = ParamSpec("P")


class AsyncHandle(ABC):
    """An object with a resource, which ``async with`` closes."""

    @abstractmethod
    async def close(self) -> None:
        """Close the resource."""

    def __reduce__(self) -> Never:
        """Raise an error: neither another process nor a copy can share the resource."""
        name = type(self).__name__
        raise TypeError(
            f"an {name} cannot be pickled or copied, as for another process; open another one there"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except PymqError as second:
            # Raise the first error; this error becomes its note.
            if error is None:
                raise
            error.add_note(f"and on closing it: {second}")


H = TypeVar("H", bound=AsyncHandle)
FORGOTTEN = (
    "this is not open yet; write 'await' before the call, as 'c = await mq.consumer(...)', or "
    "'async with mq.consumer(...) as c'"
)


class Opening(Generic[H]):
    """A handle that is not open yet: ``await`` it, or enter it with ``async with``."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, H]]) -> None:
        self._make = make
        self._made: H | None = None

    def __await__(self) -> Generator[Any, None, H]:
        return self._make().__await__()

    async def __aenter__(self) -> H:
        self._made = await self._make()
        return self._made

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._made is not None:
            await self._made.__aexit__(kind, error, trace)

    # --- errors for a forgotten await -------------------------------------------------------------

    if not TYPE_CHECKING:  # type checkers have their own, better messages

        def __getattr__(self, name: str) -> Never:
            """Raise an error: the handle has no methods before it is open."""
            raise AttributeError(f"no attribute {name!r}: {FORGOTTEN}")

        def __aiter__(self) -> Never:
            """Raise an error: there is nothing to iterate over before the handle is open."""
            raise TypeError(FORGOTTEN)

        def __enter__(self) -> Never:
            """Raise an error: only ``async with`` opens the handle."""
            raise TypeError(FORGOTTEN)

        def __exit__(self, *_: object) -> None:
            """Do nothing; Python looks this method up before :meth:`__enter__`."""


class Bridge:
    """Passes work between asyncio's event loop and the thread that runs pymq's loop."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.driver = client.driver
        self.loop = asyncio.get_running_loop()

    def tell(self, callback: Callable[..., object], *args: object) -> None:
        """Call *callback* in the event loop; any thread may call this method."""
        try:
            self.loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            pass  # The event loop has ended, together with its waiting tasks.

    async def wait(
        self, start: Callable[[ClientLoop], Waitable | None], timeout: float | None = None
    ) -> bool:
        """Run *start* in the background thread, and wait until its result is done.

        Returns False if *timeout* seconds pass before that.
        """
        future: asyncio.Future[None] = self.loop.create_future()

        def errand(loop: ClientLoop) -> None:
            try:
                found = start(loop)
            except Exception as error:  # the error belongs to the caller and must not stop the loop
                self.tell(resolve, future, error)
                return
            if found is None:
                self.tell(resolve, future)
            else:
                found.then(partial(self.tell, resolve, future))

        self.driver.soon(errand)
        return await wait_for(future, timeout)

    async def turn(self, errand: Callable[[ClientLoop], object]) -> None:
        """Run an errand, and wait until pymq's loop has done the work that the errand caused."""
        future: asyncio.Future[None] = self.loop.create_future()

        def begin(loop: ClientLoop) -> None:
            try:
                errand(loop)
            finally:
                # An errand that the first errand queues runs after the loop has done the first
                # one's work.
                self.driver.soon(end)

        def end(loop: ClientLoop) -> None:
            self.tell(resolve, future)

        self.driver.soon(begin)
        await future

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a blocking function in a thread."""
        return await asyncio.to_thread(function, *args, **kwargs)


async def wait_for(future: asyncio.Future[None], timeout: float | None) -> bool:
    """Wait until *future* is done; return False if *timeout* seconds pass before that."""
    if timeout is not None and not future.done():
        # Unlike ``asyncio.wait_for`` this creates no task and cancels nothing.
        await asyncio.wait([future], timeout=max(0.0, timeout))
        if not future.done():
            future.cancel()
            return False
    await future
    return True


async def called(callback: Callable[..., object], *args: object) -> object:
    """Call a function or a coroutine function."""
    found = callback(*args)
    return await found if inspect.isawaitable(found) else found


def close_late(handle: Client | Producer | Consumer) -> None:
    """Close a handle whose opener was cancelled while it opened."""
    try:
        handle.close()
    except PymqError:
        pass  # No caller is left to get the error.


async def in_thread(make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Call *make* in a thread; if the caller is cancelled, call *undo* with the result."""
    running = asyncio.get_running_loop()
    making = running.run_in_executor(None, make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:

        def made(future: asyncio.Future[T]) -> None:
            if not future.cancelled() and future.exception() is None:
                running.run_in_executor(None, undo, future.result())

        making.add_done_callback(made)
        raise


def resolve(future: asyncio.Future[None], error: Exception | None = None) -> None:
    """Wake the task that waits for *future*."""
    if future.done():
        return  # The waiting task was cancelled.
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
