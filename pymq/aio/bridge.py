"""What all handles need: the way from an event loop to pymq's loop and back, opening, closing."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from pymq.client.base import Loop, Waitable
from pymq.client.client import Client
from pymq.client.consumer.consumer import Consumer
from pymq.client.producer.producer import Producer
from pymq.errors import PymqError

T = TypeVar("T")
P = ParamSpec("P")


class AsyncHandle(ABC):
    """Something with a resource: ``async with`` closes it."""

    @abstractmethod
    async def close(self) -> None:
        """Let go."""

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
            # The first error is the one to raise; this one is told beside it.
            if error is None:
                raise
            error.add_note(f"and on closing it: {second}")


H = TypeVar("H", bound=AsyncHandle)


class Opening(Generic[H]):
    """A handle that is still to be opened: ``await`` it, or enter it with ``async with``."""

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


class Bridge:
    """The way from an event loop to the thread that turns pymq's loop, and back."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.driver = client.driver
        self.loop = asyncio.get_running_loop()

    def tell(self, callback: Callable[..., object], *args: object) -> None:
        """Call *callback* in the event loop; any thread may say so."""
        try:
            self.loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            pass  # The event loop has ended, and with it everybody who waited.

    async def wait(
        self, start: Callable[[Loop], Waitable | None], timeout: float | None = None
    ) -> bool:
        """Let the background thread *start* something, and wait until it is done.

        Returns False when *timeout* seconds are over.
        """
        future: asyncio.Future[None] = self.loop.create_future()

        def errand(loop: Loop) -> None:
            try:
                found = start(loop)
            except Exception as error:  # It is the caller's, and must not stop the loop.
                self.tell(resolve, future, error)
                return
            if found is None:
                self.tell(resolve, future)
            else:
                found.then(partial(self.tell, resolve, future))

        self.driver.soon(errand)
        return await wait_for(future, timeout)

    async def turn(self, errand: Callable[[Loop], object]) -> None:
        """Do an errand, and wait until pymq's loop has done all that follows from it."""
        future: asyncio.Future[None] = self.loop.create_future()

        def begin(loop: Loop) -> None:
            try:
                errand(loop)
            finally:
                self.driver.soon(end)  # An errand of an errand comes after the turns between them.

        def end(loop: Loop) -> None:
            self.tell(resolve, future)

        self.driver.soon(begin)
        await future

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what may block, in a thread."""
        return await asyncio.to_thread(function, *args, **kwargs)


async def wait_for(future: asyncio.Future[None], timeout: float | None) -> bool:
    """Wait until *future* is done; False when *timeout* seconds are over."""
    if timeout is not None and not future.done():
        # Unlike ``asyncio.wait_for`` this makes no task and cancels nothing.
        await asyncio.wait([future], timeout=max(0.0, timeout))
        if not future.done():
            future.cancel()
            return False
    await future
    return True


async def called(callback: Callable[..., object], *args: object) -> object:
    """Call what may be a coroutine function."""
    found = callback(*args)
    return await found if inspect.isawaitable(found) else found


def close_late(handle: Client | Producer | Consumer) -> None:
    """Close what was opened for somebody who had gone meanwhile."""
    try:
        handle.close()
    except PymqError:
        pass  # Nobody is left to be told.


async def in_thread(make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Call *make* in a thread; if the waiting is cancelled, *undo* what it made."""
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
    """Let go on whoever waits for *future*."""
    if future.done():
        return  # Whoever waited was cancelled.
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
