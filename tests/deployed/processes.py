"""The nodes of a cluster as processes, started from the examples as a user would."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0  # of one process, on a machine that others use too
STOP_S = 30.0


class Process:
    """One node; what it logs is kept in a file."""

    def __init__(self, script: str, options: dict[str, str], folder: Path, name: str) -> None:
        self.options = options
        self._command = [sys.executable, str(ROOT / "examples" / script)]
        for option, found in options.items():
            self._command += [f"--{option}", found]
        self._log = folder / f"{name}.log"
        self._position = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; does not wait until it is ready."""
        self._position = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
            )

    def wait_ready(self) -> dict[str, Any]:
        """Wait for its line that says so; returns that."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            for line in self.lines():
                if line.get("event") == "ready":
                    return line
            assert self.process is not None
            assert self.process.poll() is None, self._log.read_text()
            time.sleep(0.02)  # The line is in a file, which tells nobody that it has grown.
        raise AssertionError(f"not ready in time: {self._log.read_text()}")

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged since it was started last."""
        text = self._log.read_bytes()[self._position :].decode()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def kill(self) -> None:
        """kill -9."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(STOP_S)

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.signal(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait(STOP_S)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Processes:
    """A cluster of one zkserver on SQLite and some brokers."""

    def __init__(self, folder: Path, brokers: int = 3) -> None:
        ports = free_ports(brokers + 1)
        self.zkserver = f"tcp://127.0.0.1:{ports[0]}"
        self.url = f"zmq+{self.zkserver}"
        options = {"listen": self.zkserver, "coordinator": f"sqlite:{folder / 'zkserver.db'}"}
        self.nodes = {"zkserver": Process("zkserver.py", options, folder, "zkserver")}
        for i, port in enumerate(ports[1:]):
            name = f"broker-{i}"
            options = {
                "name": name,
                "listen": f"tcp://127.0.0.1:{port}",
                "zkserver": self.zkserver,
                "data": str(folder / name),
            }
            self.nodes[name] = Process("broker.py", options, folder, name)

    def __enter__(self) -> Processes:
        try:
            for node in self.nodes.values():
                node.start()
            for node in self.nodes.values():
                node.wait_ready()
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

    def close(self) -> None:
        """End all of them."""
        for node in self.nodes.values():
            if node.is_running:
                node.kill()


def environment() -> dict[str, str]:
    """Of a process that imports what we import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
