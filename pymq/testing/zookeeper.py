"""A real ZooKeeper on this machine, from the jars that come with pyspark; it needs Java 17.

One server, or an ensemble of servers, listens on free ports of 127.0.0.1, with sessions as short as
tests need. The data of a server does not survive a power failure (``forceSync=no``), because tests
do not need that.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from pymq.errors import MissingExtra, PymqError
from pymq.testing.child import Child, Transient, free_ports

__all__ = ["ZooKeeper", "ZooKeeperServer", "find_jars"]

START_S = 30.0  # enough for a busy computer; one server usually takes 0.3 s, three servers 1.5 s
TICK_MS = 200  # tick of the servers; a session lasts at least two ticks

# All jars that a server without TLS loads: 4 of pyspark's 490 MB; the start takes a third of the
# time.
_JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
_STANDALONE = "org.apache.zookeeper.server.ZooKeeperServerMain"
_MEMBER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class DidNotStart(PymqError):
    """A server ended, or did not serve in time; the message contains the end of its log."""

    code = "ZOOKEEPER_DID_NOT_START"


def find_jars() -> list[Path]:
    """Return the jars of a ZooKeeper server. Raises :class:`MissingExtra`, which names the missing
    package.
    """
    if shutil.which("java") is None:
        raise MissingExtra("there is no java: a real ZooKeeper needs Java 17 (openjdk-17-jre)")
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise MissingExtra.of("ZooKeeper's jars come with pyspark", "spark")
    folder = Path(found.origin).parent / "jars"
    jars = [jar for name in _JARS for jar in sorted(folder.glob(f"{name}-[0-9]*.jar"))]
    if len(jars) != len(_JARS):
        raise MissingExtra(f"{folder} holds only {[jar.name for jar in jars]} of ZooKeeper's jars")
    return jars


class ZooKeeperServer(Child):
    """One server process; it keeps its data and port over a restart."""

    def __init__(
        self, folder: Path, host: str, port: int, config: Sequence[str], java: Sequence[str]
    ) -> None:
        self.host = host
        self.port = port
        self.address = f"{host}:{port}"
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(self.address, [*java, str(folder / "zoo.cfg")], folder / "log", folder)
        lines = [*config, f"dataDir={folder / 'data'}", f"clientPort={port}"]
        (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")

    def mode(self) -> str | None:
        """Return the server's role: standalone, leader or follower.

        None while the server does not serve.
        """
        try:
            with socket.create_connection((self.host, self.port), timeout=1.0) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while got := connection.recv(4096):
                    answer += got
        except OSError:
            return None
        for line in answer.decode(errors="replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ").strip()
        return None

    def check(self) -> None:
        """Raise :class:`DidNotStart` if the process has ended."""
        if not self.is_running:
            raise DidNotStart(f"ZooKeeper at {self.address} ended: {self.log()[-2_000:]}")


class ZooKeeper(Transient):
    """*count* servers with their data below *folder*: a single one, or an ensemble.

    Use the servers in a ``with`` block.

    *java* are additional options for each server's Java, such as ``-Djute.maxbuffer=65536``. *host*
    is the address on this computer at which the servers listen. In a folder that was used before,
    the servers continue with its data, on other ports.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        count: int = 1,
        *,
        tick_ms: int = TICK_MS,
        java: Sequence[str] = (),
        host: str = "127.0.0.1",
    ) -> None:
        command = [
            *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"),
            *("-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.forceSync=no", *java),
            *("-cp", os.pathsep.join(map(str, find_jars()))),
            _STANDALONE if count == 1 else _MEMBER,
        ]
        ports = free_ports(3 * count)
        config = [
            *(f"tickTime={tick_ms}", f"clientPortAddress={host}", "admin.enableServer=false"),
            *("4lw.commands.whitelist=srvr", "maxClientCnxns=0", "maxSessionTimeout=60000"),
            *("initLimit=20", "syncLimit=10"),
        ]
        if count > 1:
            config += [
                f"server.{n + 1}=127.0.0.1:{ports[count + n]}:{ports[2 * count + n]}"
                for n in range(count)
            ]
        self.servers: list[ZooKeeperServer] = []
        for n in range(count):
            # this folder is also the server's working directory
            folder_n = Path(folder).resolve() / f"zookeeper-{n + 1}"
            self.servers.append(ZooKeeperServer(folder_n, host, ports[n], config, command))
            (folder_n / "data").mkdir(exist_ok=True)
            (folder_n / "data" / "myid").write_text(f"{n + 1}\n")

    @property
    def hosts(self) -> str:
        """The servers' addresses, as in ``zookeeper://HOSTS/root``."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Start all servers and wait until they serve."""
        for server in self.servers:
            server.start()
        self.wait()

    def wait(self, timeout_s: float = START_S) -> None:
        """Wait until every server that runs also serves."""
        end = time.monotonic() + timeout_s
        for server in self.servers:
            while server.is_running and server.mode() is None:
                if time.monotonic() > end:
                    raise DidNotStart(f"{server.address} does not serve: {server.log()[-2_000:]}")
                time.sleep(0.02)  # poll, because a server gives no signal when it begins to serve
        if not any(server.is_running for server in self.servers):
            self.servers[0].check()

    def leader(self) -> ZooKeeperServer:
        """Return the leading server. Raises :class:`DidNotStart` if there is none."""
        for server in self.servers:
            if server.mode() in ("leader", "standalone"):
                return server
        raise DidNotStart("no server of the ensemble leads")

    def close(self) -> None:
        """Kill all servers."""
        for server in self.servers:
            server.kill()
