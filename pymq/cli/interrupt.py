"""Makes Ctrl-C end a command at a safe point, never in the middle of a write."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Within its ``with`` block, SIGINT and SIGTERM only set a flag.

    A second signal raises ``KeyboardInterrupt`` at once, for users who do not want to wait. Outside
    the main thread, the ``with`` block does nothing, because only the main thread gets signals.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._may_raise = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked or self._may_raise:
            self.is_asked = True
            raise KeyboardInterrupt
        self.is_asked = True

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """Wait for outside input; the first interrupt ends the wait at once.

        Raises:
            KeyboardInterrupt: the user has interrupted the wait.
        """
        self._may_raise = True
        try:
            if self.is_asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._may_raise = False
