"""A descriptor that any thread can make readable, to wake another one that waits for it."""

from __future__ import annotations

import os


class Bell:
    """Rings until it is cleared; ringing it twice is ringing it once."""

    __slots__ = ("_is_rung", "_read", "_write")

    def __init__(self) -> None:
        self._is_rung = False
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """Readable while it rings."""
        return self._read

    def ring(self) -> None:
        """Make it readable. Any thread may."""
        # Marked before it is written and cleared after it is read: so it may ring for nothing, but
        # it is never marked without ringing. Whoever finds it marked has left what he rings for
        # before it was looked at.
        if not self._is_rung:
            self._is_rung = True
            os.write(self._write, b"\1\0\0\0\0\0\0\0")

    def clear(self) -> None:
        """Stop ringing; to be called before one looks at what it rang for."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass
        self._is_rung = False

    def __del__(self) -> None:
        # Not sooner: a thread that rings holds it, and would else write to whatever has got the
        # number of the descriptor by then.
        os.close(self._read)
        if self._write != self._read:
            os.close(self._write)
