"""Processes that tests start, stop, kill and restart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Child", "Transient", "environment", "free_ports"]

LOCALHOST = "127.0.0.1"


class Transient(ABC):
    """A resource that a ``with`` block starts, and that the block closes at its end or after a
    failed start.
    """

    @abstractmethod
    def start(self) -> None:
        """Start the resource."""

    @abstractmethod
    def close(self) -> None:
        """Close the resource."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Child:
    """A process; each start runs the same command and appends to the same log file."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, cwd: Path | None = None
    ) -> None:
        self.name = name
        self.is_paused = False
        self.process: subprocess.Popen[bytes] | None = None
        self._command = list(command)
        self._log = log
        self._cwd = cwd
        self._position = 0  # position in the log at the last start

    @property
    def is_running(self) -> bool:
        """Whether the process exists, even if it is stopped."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process, without waiting until it is ready."""
        assert not self.is_running, f"{self.name} runs already"
        self._position = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._cwd,
                env=environment(),
            )

    def log(self) -> str:
        """Return the process's output since its last start."""
        if not self._log.exists():
            return ""
        return self._log.read_bytes()[self._position :].decode(errors="replace")

    def kill(self) -> None:
        """Kill the process (SIGKILL), and wait until it has ended."""
        self.is_paused = False
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def pause(self) -> None:
        """Stop the process at once (SIGSTOP)."""
        self.signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Continue the process (SIGCONT)."""
        self.signal(signal.SIGCONT)
        self.is_paused = False

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        assert self.process is not None
        self.process.send_signal(number)


def environment() -> dict[str, str]:
    """Return the environment for a process with the same import path."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOCALHOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
