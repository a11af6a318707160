"""A descriptor that any thread can make readable, to wake another thread that waits for it."""

from __future__ import annotations

import os


class Bell:
    """A descriptor that is readable from :meth:`ring` to :meth:`clear`."""

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
        """Return the descriptor."""
        return self._read

    def ring(self) -> None:
        """Make the descriptor readable, unless it already is; any thread may call this."""
        # The flag is set before the write and cleared after the read. So there may be a needless
        # ring, but the flag is never set without a ring. A thread that finds the flag set has
        # queued its work before the reader looks for work.
        if not self._is_rung:
            self._is_rung = True
            os.write(self._write, b"\1\0\0\0\0\0\0\0")

    def clear(self) -> None:
        """Make the descriptor unreadable; the reader calls this before it looks for work."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass
        self._is_rung = False

    def __del__(self) -> None:
        # Close the descriptors only here. A ringing thread holds a reference to this object, so it
        # never writes to a closed descriptor whose number now belongs to another file.
        os.close(self._read)
        if self._write != self._read:
            os.close(self._write)
