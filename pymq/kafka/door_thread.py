"""The thread of the door of an embedded queue.

The thread waits for all sockets. It gives the received frames to the gates in a turn of the loop,
for which it takes the driver's lock, as any thread of the application does. It sends the answers
after the turn. If another thread runs a turn that makes answers, that thread wakes this one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from pymq.core.types import NEVER
from pymq.errors import PymqError
from pymq.kafka.door import LOOK_S, DoorLoop, KafkaDoor, KafkaListener
from pymq.transport.bell import Bell


class DoorDriver(Protocol):
    """The driver of the loop; see :class:`pymq.runtime.driver.Driver`."""

    def __enter__(self) -> DoorLoop: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def arm(self, due: int, name: str | None = None) -> None: ...


class DoorThread:
    """Runs a door for the loop of *driver*."""

    def __init__(self, driver: DoorDriver, listeners: Sequence[KafkaListener]) -> None:
        self._driver = driver
        self._bell = Bell()
        self.door = KafkaDoor(listeners, self._bell.ring)
        self.door.also(self._bell.fileno())
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="pymq-kafka", daemon=True)
        with driver as loop:
            for listener in listeners:
                loop.add(listener.name, listener.gate)
        driver.arm(NEVER)  # Starts the thread that keeps the loop's timers.
        self._thread.start()

    def close(self) -> None:
        """Close all connections, and stop listening."""
        self._is_closed = True
        self._bell.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._round()
        except PymqError:
            pass  # The queue was closed, or its loop has stopped.
        finally:
            self._shut()

    def _shut(self) -> None:
        self.door.shut()
        try:
            with self._driver as loop:
                self.door.disconnect(loop)
            with self._driver as loop:
                self.door.leave(loop)
        except PymqError:
            pass  # The gates of a stopped loop cannot do anything any more.

    def _round(self) -> None:
        """Wait for sockets, hand the received frames to the gates, and send answers."""
        door = self.door
        if door.collect(LOOK_S):
            self._bell.clear()
        if door.has_input:
            with self._driver as loop:
                door.hand_over(loop)
            due = min(listener.gate.deadline for listener in door.listeners)
            if due < NEVER:
                self._driver.arm(due)
        door.flush()
