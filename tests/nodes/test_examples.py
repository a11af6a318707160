"""The documentation's commands bring real data to three brokers."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pymq.testing.child import environment, free_ports
from tests.nodes.processes import ROOT
from tests.transport.keys import make_keys


def run(script: str, *options: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / script), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def local_cluster(folder: Path, *options: str) -> Iterator[list[str]]:
    """Run a cluster by one command until it is stopped; yields the endpoints of its zkservers."""
    # The zkservers and the three brokers use the ports from here on.
    port = free_ports(1)[0] % 20_000 + 10_000
    command = [sys.executable, str(ROOT / "examples" / "local_cluster.py"), *options]
    command += ["--data", str(folder / "cluster"), "--port", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=folder
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("cluster is ready"):
                break
        zkservers = [f"127.0.0.1:{port + i}" for i in range(said[-1].count(",") + 1)]
        assert said[-1] == f"cluster is ready: zmq+tcp://{','.join(zkservers)}\n", said
        rest = threading.Thread(target=lambda: said.extend(process.stdout or ()))
        rest.start()
        yield zkservers
        process.terminate()
        assert process.wait(60) == 0
        rest.join()
        assert said[-1] == "cluster is stopped\n"
        assert sum('"stopped"' in line for line in said) == 3 + len(zkservers)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.mark.zookeeper
def test_a_local_cluster(tmp_path: Path) -> None:
    """One command starts a cluster, and two more send real data through raft and read all of it.

    Then the cluster stops.

    Started again on the same folder, the cluster has its data, although its ZooKeeper has another
    port.
    """
    for life in range(2):
        with local_cluster(tmp_path) as zkservers:
            assert len(zkservers) == 2
            url = f"zmq+tcp://{','.join(zkservers)}"
            if life == 0:
                assert "sent 2000 flights" in run("produce.py", "--url", url, "--limit", "2000")
                assert "read 2000 flights" in run("consume.py", "--url", url, "--group", "a")
            assert "read 0 flights" in run("consume.py", "--url", url, "--group", "a")
            if life == 1:
                assert "read 2000 flights" in run("consume.py", "--url", url, "--group", "b")


@pytest.mark.slow
def test_a_local_cluster_with_keys(tmp_path: Path) -> None:
    """A cluster with keys on SQLite, which needs one zkserver and no ZooKeeper, works the
    same way.
    """
    keys = tmp_path / "keys"
    nodes = ("zkserver", "broker-0", "broker-1", "broker-2")
    make_keys(keys, "alice", nodes=nodes)
    names = ", ".join(f'"{node}"' for node in nodes)
    (keys / "policy.toml").write_text(
        f'superusers = ["alice"]\n[[rule]]\nprincipal = [{names}]\n'
        'operations = ["ClusterAction"]\nresources = ["cluster"]\n'
    )
    options = ["--coordinator", f"sqlite:{tmp_path / 'zkserver.db'}", "--curve-dir", str(keys)]
    with local_cluster(tmp_path, *options) as (zkserver,):
        alice = ["--url", f"zmq+tcp://{zkserver}", "--curve-dir", str(keys)]
        alice += ["--principal", "alice"]
        assert "sent 100 flights" in run("produce.py", *alice, "--limit", "100")
        assert "read 100 flights" in run("consume.py", *alice)


def test_a_cluster_that_does_not_start_is_not_said_to_be_ready(tmp_path: Path) -> None:
    """A cluster is ready only when all brokers run; here the port of one is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        # the port of the first zkserver; the brokers' ports begin 10 above it
        port = taken.getsockname()[1] - 10
        command = [sys.executable, str(ROOT / "examples" / "local_cluster.py"), "--brokers", "1"]
        command += ["--data", str(tmp_path / "cluster"), "--port", str(port)]
        command += ["--coordinator", f"sqlite:{tmp_path / 'zkserver.db'}"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, env=environment()
        )
    assert done.returncode == 1
    assert "broker-0 did not start" in done.stdout
    assert "ready: zmq" not in done.stdout
    assert f"cannot listen at tcp://127.0.0.1:{port + 10}" in done.stdout


def test_examples_are_short() -> None:
    for name in ("zkserver", "broker", "local_cluster", "produce", "consume"):
        lines = (ROOT / "examples" / f"{name}.py").read_text().splitlines()
        assert 20 <= len(lines) <= 70, name
