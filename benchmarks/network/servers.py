"""Servers in separate processes, each with its own folder, on free ports of 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

READY_S = 60.0
# the script on the PATH would change to another user
RABBIT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
HOST = "127.0.0.1"


class ServerFailed(Exception):
    """A server did not start; the message ends with its last output."""


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def listens(port: int) -> bool:
    """Return whether a server accepts connections there."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def running(
    command: Sequence[str | Path],
    log: Path,
    is_ready: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run *command*, and end it and all its child processes when the ``with`` block ends.

    Raises:
        ServerFailed: the server ended, or was not ready in time.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=log.parent,  # a server that dies leaves its core file in this folder
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + READY_S
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise ServerFailed(f"{command[0]} did not come up: {tail}")
            time.sleep(0.02)  # there is no event, and the measurement has not begun
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


@contextmanager
def redis(folder: Path, fsync: str = "everysec") -> Iterator[int]:
    """Run Redis with an append-only file; yield its port."""
    (port,) = free_ports(1)
    settings = ["--port", str(port), "--bind", HOST, "--dir", str(folder), "--save", ""]
    settings += ["--appendonly", "yes", "--appendfsync", fsync]
    command = ["redis-server", *settings]
    with running(command, folder / "redis.log", lambda: listens(port)):
        yield port


@contextmanager
def nats(folder: Path, nodes: int = 1, *, is_synced: bool = False) -> Iterator[list[int]]:
    """Run NATS with JetStream on files; yield the ports of its nodes.

    If *is_synced*, the nodes sync each message before they answer, otherwise every two minutes.
    """
    ports, routes = free_ports(nodes), free_ports(nodes)
    known = ",".join(f"nats-route://{HOST}:{port}" for port in routes)
    with ExitStack() as stack:
        for number, (port, route) in enumerate(zip(ports, routes, strict=True)):
            command = ["nats-server", "-js", "-a", HOST, "-p", str(port)]
            command += ["-sd", str(folder / f"js{number}"), "-n", f"n{number}"]
            if is_synced:
                config = folder / f"nats{number}.conf"
                config.write_text("jetstream { sync_interval: always }\n", encoding="ascii")
                command += ["-c", str(config)]
            if nodes > 1:
                command += ["--cluster_name", "bench", "--cluster", f"nats://{HOST}:{route}"]
                command += ["--routes", known]
            log = folder / f"nats{number}.log"
            stack.enter_context(running(command, log, lambda port=port: listens(port)))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        yield ports


class Rabbit:
    """A node of RabbitMQ, with its ports."""

    def __init__(self, number: int) -> None:
        self.port, self.stream, self.dist = free_ports(3)
        self.name = f"bench{number}@localhost"


@contextmanager
def rabbit(folder: Path, nodes: int = 1) -> Iterator[list[Rabbit]]:
    """Run RabbitMQ with streams and quorum queues, as a cluster of *nodes*."""
    (epmd,) = free_ports(1)
    found = [Rabbit(number) for number in range(nodes)]
    home = folder / "home"
    home.mkdir()
    cookie = home / ".erlang.cookie"
    cookie.write_text("pymqbench", encoding="ascii")
    cookie.chmod(0o400)
    plugins = folder / "plugins"
    plugins.write_text("[rabbitmq_stream].\n", encoding="ascii")
    mapper = {"HOME": str(home), "ERL_EPMD_PORT": str(epmd), "ERL_EPMD_ADDRESS": HOST}
    with ExitStack() as stack:
        # Start a separate port mapper, because one started by Erlang would keep running.
        command = ["epmd", "-address", HOST, "-port", str(epmd)]
        stack.enter_context(running(command, folder / "epmd.log", lambda: listens(epmd)))
        for node in found:
            mine = folder / node.name
            mine.mkdir()
            config = mine / "rabbitmq.conf"
            config.write_text(_rabbit_config(node, found), encoding="ascii")
            environment = mapper | {
                "RABBITMQ_NODENAME": node.name,
                "RABBITMQ_DIST_PORT": str(node.dist),
                "RABBITMQ_CONFIG_FILE": str(config),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
                "RABBITMQ_MNESIA_BASE": str(mine / "db"),
                "RABBITMQ_LOG_BASE": str(mine / "log"),
                "RABBITMQ_PID_FILE": str(mine / "pid"),
                "RABBITMQ_CONF_ENV_FILE": str(mine / "none"),
                "RABBITMQ_USE_LONGNAME": "false",
            }
            is_up = lambda node=node: listens(node.port) and listens(node.stream)  # noqa: E731  # it differs from node to node
            stack.enter_context(running([RABBIT], mine / "out.log", is_up, environment))
        yield found


def _rabbit_config(node: Rabbit, all_nodes: Sequence[Rabbit]) -> str:
    lines = [
        f"listeners.tcp.1 = {HOST}:{node.port}",
        f"stream.listeners.tcp.1 = {HOST}:{node.stream}",
        f"stream.advertised_host = {HOST}",
        f"stream.advertised_port = {node.stream}",
        "log.console = true",
        "log.console.level = warning",
        "cluster_formation.peer_discovery_backend = classic_config",
    ]
    for number, each in enumerate(all_nodes, 1):
        lines.append(f"cluster_formation.classic_config.nodes.{number} = {each.name}")
    return "\n".join(lines) + "\n"


def find_program(name: str) -> bool:
    """Return the path of a server's program, if it is installed."""
    return RABBIT.exists() if name == "rabbitmq-server" else shutil.which(name) is not None
