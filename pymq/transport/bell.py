"""A descriptor that any thread can make readable, to wake a thread that waits for it."""

from __future__ import annotations

import os


class Bell:
    """Is readable from :meth:`ring` to :meth:`clear`; a second ring has no further effect."""

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
        """Return the descriptor, which is readable while it rings."""
        return self._read

    def ring(self) -> None:
        """Make the descriptor readable; any thread may call this."""
        # The mark is set before the write and cleared after the read. So there may be a needless
        # ring, but the mark is never set without one. If a thread finds the mark set, it has queued
        # its work before the reader looks for work.
        if not self._is_rung:
            self._is_rung = True
            os.write(self._write, b"\1\0\0\0\0\0\0\0")

    def clear(self) -> None:
        """Stop ringing; the reader calls this before it looks for work."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass
        self._is_rung = False

    def __del__(self) -> None:
        # Close the descriptors only here: a ringing thread holds a reference to this object, so it
        # never writes to a descriptor number that was closed and now belongs to another file.
        os.close(self._read)
        if self._write != self._read:
            os.close(self._write)
