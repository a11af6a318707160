"""A cluster of real processes on this machine.

Tests can kill them, stop them, cut them off and fill their disks.

Each node is a script, started as a user would start it; *scripts* is a folder that holds
``zkserver.py`` and ``broker.py``, such as pymq's ``examples``. The coordinator is a ZooKeeper of
one or more servers, or a file. Linux only: signals, ``tmpfs`` and network namespaces are real.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pymq.errors import PymqError
from pymq.testing.child import LOCALHOST, Child, Transient, free_ports
from pymq.testing.zookeeper import ZooKeeper
from tests.simulator.namespaces import Namespaces

__all__ = ["Disk", "NodeFailed", "NodeProcess", "ProcessCluster"]

START_S = 60.0  # time limit for the start of one process, on a machine with other load
STOP_S = 30.0
SESSION_MS = 1_500  # session of zkservers at ZooKeeper, after which another zkserver takes over


class NodeFailed(PymqError):
    """A process ended, or missed its time limit; the message has the end of its log."""

    code = "NODE_FAILED"


class NodeProcess(Child):
    """One process of a node; after a restart it has the same options."""

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until the node's log says that it is ready.

        Raises :class:`NodeFailed` if the node ends, or takes too long.
        """
        until = time.monotonic() + timeout_s
        while not any(line.get("event") == "ready" for line in self.lines()):
            if not self.is_running:
                raise NodeFailed(f"{self.name} has ended: {self.log()[-2_000:]}")
            if time.monotonic() > until:
                raise NodeFailed(f"{self.name} is not ready in time: {self.log()[-2_000:]}")
            time.sleep(0.02)  # the line is in a file, and nothing signals that the file has grown

    def lines(self) -> list[dict[str, Any]]:
        """The structured lines of the node's output."""
        whole = [line for line in self.log().splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in whole if line.startswith("{")]

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End the node in an orderly way, by SIGTERM.

        Raises :class:`NodeFailed` if the node fails or takes longer.
        """
        self.signal(signal.SIGTERM)
        assert self.process is not None
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise NodeFailed(f"{self.name} does not stop: {self.log()[-2_000:]}") from None
        if status:
            raise NodeFailed(f"{self.name} stopped with {status}: {self.log()[-2_000:]}")


class Disk:
    """A small file system in memory for one broker's folder; only root can mount it."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self._filler = folder / "filler"
        folder.mkdir(parents=True, exist_ok=True)
        options = f"size={size_bytes},mode=0755"
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "pymq-testing", str(folder)], check=True
        )

    @staticmethod
    def why_not() -> str | None:
        """The reason why such a file system cannot be used here; None if it can."""
        if os.geteuid() != 0 or shutil.which("mount") is None:
            return "mounting a small file system needs root, and mount"
        return None

    def fill(self) -> None:
        """Take all space that is left, to the last byte."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Free the space again."""
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount the file system and remove all of its files."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


class ProcessCluster(Transient):
    """Brokers and zkservers as processes below *folder*. Use it in a ``with`` block.

    Args:
        folder: for data and logs.
        scripts: where ``zkserver.py`` and ``broker.py`` are.
        zookeepers: the number of ZooKeeper servers; 0 for a file, which one zkserver can use.
        namespaces: with them each node has a separate network, whose links can be cut.
        disk_bytes: brokers that get a :class:`Disk` of that size, by name.
        arguments: more of the command line of each node.
        kafka: whether the brokers listen for Kafka's clients, on this machine.
    """

    def __init__(
        self,
        folder: Path,
        scripts: Path,
        *,
        brokers: int = 3,
        zkservers: int = 2,
        zookeepers: int = 1,
        namespaces: Namespaces | None = None,
        disk_bytes: dict[str, int] | None = None,
        arguments: Sequence[str] = (),
        kafka: bool = False,
    ) -> None:
        self._folder = folder
        self._arguments = arguments
        self._kafka = kafka
        self.bootstrap = ""  # of the brokers, for Kafka's clients
        self._scripts = scripts
        self._namespaces = namespaces
        self._stack = ExitStack()
        self._disk_bytes = disk_bytes or {}
        self._brokers, self._zkservers, self._zookeepers = brokers, zkservers, zookeepers
        self.disks: dict[str, Disk] = {}
        self.nodes: dict[str, NodeProcess] = {}
        self.zookeeper: ZooKeeper | None = None
        self._endpoints: dict[str, str] = {}
        self.url = ""  # URL for pymq.open

    @property
    def brokers(self) -> list[str]:
        """The names of the brokers."""
        return [f"broker-{i}" for i in range(self._brokers)]

    def endpoint(self, zkserver: str) -> str:
        """The endpoint of a zkserver."""
        return self._endpoints[zkserver]

    @property
    def zkservers(self) -> list[str]:
        """The names of the zkservers here; clients know them by their endpoints."""
        return [f"zkserver-{i}" for i in range(self._zkservers)]

    def start(self) -> None:
        """Start all nodes and wait until they are ready."""
        self._make()
        for node in self.nodes.values():
            node.start()
        self.wait_ready()

    def _make(self) -> None:
        coordinator = self._start_coordinator()
        names = [*self.zkservers, *self.brokers]
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        at = {name: f"{self._address(name)}:{ports[name]}" for name in names}
        kafka = dict(zip(self.brokers, free_ports(len(self.brokers)), strict=True))
        self.bootstrap = ",".join(f"{LOCALHOST}:{port}" for port in kafka.values())
        zkservers = "tcp://" + ",".join(at[name] for name in self.zkservers)
        self.url = f"zmq+{zkservers}"
        self._endpoints = {name: f"tcp://{at[name]}" for name in self.zkservers}
        for name in self.zkservers:
            self._add(name, "zkserver.py", listen=f"tcp://{at[name]}", coordinator=coordinator)
        for name in self.brokers:
            data = self._folder / name
            if size := self._disk_bytes.get(name):
                self.disks[name] = Disk(data, size)
                self._stack.callback(self.disks[name].close)
            options = {"listen": f"tcp://{at[name]}", "data": str(data)}
            if self._kafka:
                options["kafka"] = f"{LOCALHOST}:{kafka[name]}"
            self._add(name, "broker.py", name=name, zkserver=zkservers, **options)

    def _start_coordinator(self) -> str:
        if not self._zookeepers:
            assert self._zkservers == 1, "a file belongs to one zkserver"
            return f"sqlite:{self._folder / 'zkserver.db'}"
        host = self._namespaces.host if self._namespaces is not None else LOCALHOST
        made = ZooKeeper(self._folder, self._zookeepers, host=host)
        self.zookeeper = self._stack.enter_context(made)
        return f"zookeeper://{made.hosts}/pymq?session_ms={SESSION_MS}"

    def _address(self, name: str) -> str:
        return self._namespaces.add(name) if self._namespaces is not None else LOCALHOST

    def _add(self, node: str, script: str, **options: str) -> None:
        command = [sys.executable, str(self._scripts / script)]
        command += [part for name, found in options.items() for part in (f"--{name}", found)]
        command += self._arguments
        if self._namespaces is not None:
            # The bridge reaches no other machine.
            command = self._namespaces.command(node, [*command, "--insecure"])
        self.nodes[node] = NodeProcess(node, command, self._folder / f"{node}.log")

    def wait_ready(self) -> None:
        """Wait until all running nodes have said that they are ready."""
        for node in self.nodes.values():
            if node.is_running:
                node.wait_ready()

    def wait_for(
        self, predicate: Callable[[], bool], what: str, timeout_s: float = START_S
    ) -> None:
        """Wait until *predicate* becomes true, checking it often.

        Raises :class:`NodeFailed` at the time limit.
        """
        until = time.monotonic() + timeout_s
        while not predicate():
            if time.monotonic() > until:
                raise NodeFailed(f"not in time: {what}")
            time.sleep(0.05)  # the condition is in other processes, which cannot wake this thread

    def data(self, broker: str) -> Path:
        """A broker's folder."""
        return self._folder / broker

    def wipe(self, broker: str) -> None:
        """Remove everything on a broker's disk; the broker must not run."""
        assert not self.nodes[broker].is_running
        shutil.rmtree(self.data(broker), ignore_errors=True)

    def calm(self) -> None:
        """End all faults, start nodes that are down, and wait until they are ready."""
        if self._namespaces is not None:
            self._namespaces.heal()
        for disk in self.disks.values():
            disk.free()
        if self.zookeeper is not None:
            for server in self.zookeeper.servers:
                if not server.is_running:
                    server.start()
            self.zookeeper.wait()
        for node in self.nodes.values():
            if node.is_paused:
                node.resume()
            if not node.is_running:
                node.start()
        self.wait_ready()

    def stop(self) -> None:
        """Stop brokers, then zkservers, in order; each must end with status 0."""
        for name in (*self.brokers, *self.zkservers):
            self.nodes[name].stop()

    def close(self) -> None:
        """Kill all processes that are left."""
        for node in self.nodes.values():
            node.kill()
        self._stack.close()
