"""A whole cluster on this machine: zkservers and brokers on 127.0.0.1, each in its own process.

:func:`run` starts the processes, waits until all are ready, and stops them at the end. The
zkservers listen from ``port`` on, the brokers from ``port + 10`` on.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import attrs

BROKERS_FROM = 10  # difference between the ports of the first broker and the first zkserver


@attrs.frozen
class LocalCluster:
    """The settings of a local cluster."""

    data: Path
    """The folder of all data: a folder for each broker, and the coordinator backend's file."""
    brokers: int = 3
    port: int = 7878
    coordinator: str | None = None
    """``zookeeper://HOSTS/ROOT``, with two zkservers, or ``sqlite:PATH``, with one zkserver.

    The default is ``zkserver.db`` in the folder.
    """
    http: str | None = None
    """``HOST:PORT`` where the first zkserver serves the page."""
    curve_dir: Path | None = None
    """The folder of keys of ``zkserver``, ``broker-0``, ``broker-1`` and so on."""

    @property
    def zkservers(self) -> list[str]:
        """The addresses of the zkservers, ``HOST:PORT``."""
        is_shared = (self.coordinator or "").startswith("zookeeper:")
        return [f"127.0.0.1:{self.port + i}" for i in range(2 if is_shared else 1)]

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"zmq+tcp://{','.join(self.zkservers)}"


def run(cluster: LocalCluster, stop: threading.Event, say: Callable[[str], None]) -> int:
    """Start all nodes, wait for *stop*, and stop them; returns 1 if a node did not start.

    *say* prints a line. If a node ends later, the others continue, and the node may be started
    again by hand.
    """
    cluster.data.mkdir(parents=True, exist_ok=True)
    coordinator = cluster.coordinator or f"sqlite:{cluster.data / 'zkserver.db'}"
    zkservers = "tcp://" + ",".join(cluster.zkservers)
    common = {} if cluster.curve_dir is None else {"curve-dir": cluster.curve_dir}
    ended: list[str] = []
    with ExitStack() as stack:
        nodes = []
        for i, address in enumerate(cluster.zkservers):
            page = {"http": cluster.http} if cluster.http and i == 0 else {}
            own: dict[str, object] = {"listen": f"tcp://{address}", "coordinator": coordinator}
            nodes.append(_start("zkserver", stack, ended, say, **own, **common, **page))
        for i in range(cluster.brokers):
            name = f"broker-{i}"
            listen = f"tcp://127.0.0.1:{cluster.port + BROKERS_FROM + i}"
            own = {"name": name, "listen": listen, "data": cluster.data / name}
            nodes.append(_start("broker", stack, ended, say, zkserver=zkservers, **own, **common))
        for is_ready in nodes:
            while not is_ready.wait(0.1) and not stop.is_set():
                pass
        if ended and not stop.is_set():
            say(f"{', '.join(ended)} did not start; the lines above say why")
            return 1
        if not stop.is_set():
            say(f"cluster is ready: {cluster.url}")
        stop.wait()
    say("cluster is stopped")
    return 0


def _start(
    kind: str,
    stack: ExitStack,
    ended: list[str],
    say: Callable[[str], None],
    **options: object,
) -> threading.Event:
    """Start one node, which stops when the stack is closed; the event is set when the node is
    ready.

    If the node ends, its name is added to *ended*.
    """
    arguments = [part for name, found in options.items() for part in (f"--{name}", str(found))]
    process = subprocess.Popen(
        [sys.executable, "-m", "pymq", kind, *arguments], stderr=subprocess.PIPE, text=True
    )
    is_ready = threading.Event()

    def follow() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            say(line.rstrip("\n"))
            if '"ready"' in line:
                is_ready.set()
        ended.append(str(options.get("name", options["listen"])))
        is_ready.set()

    thread = threading.Thread(target=follow)
    thread.start()
    stack.callback(thread.join)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return is_ready
