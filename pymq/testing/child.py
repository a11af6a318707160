"""A process that tests start, stop, kill and start again, and what lives as long as a block."""

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
    """Is started at the beginning of a ``with`` block, and closed at its end or if that fails."""

    @abstractmethod
    def start(self) -> None:
        """Bring it about."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing of it."""

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
    """One process; it has the same command whenever it is started, and its log is one file."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, cwd: Path | None = None
    ) -> None:
        self.name = name
        self.is_paused = False
        self.process: subprocess.Popen[bytes] | None = None
        self._command = list(command)
        self._log = log
        self._cwd = cwd
        self._position = 0  # of the log, where this life of it began

    @property
    def is_running(self) -> bool:
        """Whether its process is there, be it stopped."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it; does not wait until it is ready."""
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
        """What it has printed since it was started last."""
        if not self._log.exists():
            return ""
        return self._log.read_bytes()[self._position :].decode(errors="replace")

    def kill(self) -> None:
        """End it as ``kill -9`` does, and wait until it is gone."""
        self.is_paused = False
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def pause(self) -> None:
        """Stop it in the middle of whatever it does (SIGSTOP)."""
        self.signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)
        self.is_paused = False

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)


def environment() -> dict[str, str]:
    """Of a process that imports what this one imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOCALHOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
