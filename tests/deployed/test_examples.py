"""From nothing to real data on three brokers, by the commands of the documentation."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pymq.testing.child import environment, free_ports
from tests.deployed.processes import ROOT
from tests.transport.keys import make_keys


def run(script: str, *options: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / script), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("coordinator", ["sqlite", "zookeeper"])
def test_a_local_cluster(coordinator: str, tmp_path: Path) -> None:
    """One command starts it; two more send real data through raft and read all of it; it stops."""
    # The two zkservers and the three brokers take ports from here on.
    port = free_ports(1)[0] % 20_000 + 10_000
    command = [sys.executable, str(ROOT / "examples" / "local_cluster.py")]
    command += ["--data", str(tmp_path / "cluster"), "--port", str(port)]
    if coordinator == "sqlite":
        command += ["--coordinator", f"sqlite:{tmp_path / 'zkserver.db'}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("cluster is ready"):
                break
        count = 1 if coordinator == "sqlite" else 2
        servers = ",".join(f"127.0.0.1:{port + i}" for i in range(count))
        url = f"zmq+tcp://{servers}"
        assert said[-1] == f"cluster is ready: {url}\n", said
        rest = threading.Thread(target=lambda: said.extend(process.stdout or ()))
        rest.start()
        assert "sent 20000 flights" in run("produce.py", "--url", url, "--limit", "20000")
        assert "read 20000 flights" in run("consume.py", "--url", url, "--group", "a")
        assert "read 0 flights" in run("consume.py", "--url", url, "--group", "a")
        process.terminate()
        assert process.wait(60) == 0
        rest.join()
        assert said[-1] == "cluster is stopped\n"
        assert sum('"stopped"' in line for line in said) == 3 + count
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.mark.timeout(300)
def test_a_local_cluster_with_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    nodes = ("zkserver", "broker-0", "broker-1", "broker-2")
    make_keys(keys, "alice", nodes=nodes)
    names = ", ".join(f'"{node}"' for node in nodes)
    (keys / "policy.toml").write_text(
        f'superusers = ["alice"]\n[[rule]]\nprincipal = [{names}]\n'
        'operations = ["ClusterAction"]\nresources = ["cluster"]\n'
    )
    port = free_ports(1)[0] % 20_000 + 10_000
    command = [sys.executable, str(ROOT / "examples" / "local_cluster.py")]
    command += ["--data", str(tmp_path / "cluster"), "--port", str(port)]
    command += ["--coordinator", f"sqlite:{tmp_path / 'zkserver.db'}", "--curve-dir", str(keys)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("cluster is ready: "):
                break
        rest = threading.Thread(target=process.stdout.read)
        rest.start()
        alice = ["--url", f"zmq+tcp://127.0.0.1:{port}", "--curve-dir", str(keys)]
        alice += ["--principal", "alice"]
        assert "sent 100 flights" in run("produce.py", *alice, "--limit", "100")
        assert "read 100 flights" in run("consume.py", *alice)
        process.terminate()
        assert process.wait(60) == 0
        rest.join()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.timeout(300)
@pytest.mark.zookeeper
def test_a_local_cluster_is_started_again(tmp_path: Path) -> None:
    """On the same folder it has what it had, though its ZooKeeper is at another port."""
    port = free_ports(1)[0] % 20_000 + 10_000
    command = [sys.executable, str(ROOT / "examples" / "local_cluster.py")]
    command += ["--data", str(tmp_path / "cluster"), "--port", str(port)]
    for life in range(2):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
        assert process.stdout is not None
        try:
            said: list[str] = []
            for line in process.stdout:
                said.append(line)
                if line.startswith("cluster is ready: "):
                    break
            url = said[-1].removeprefix("cluster is ready: ").strip()
            assert url.startswith("zmq+tcp://"), said
            rest = threading.Thread(target=process.stdout.read)
            rest.start()
            if life == 0:
                run("produce.py", "--url", url, "--limit", "1000")
            assert "read 1000 flights" in run("consume.py", "--url", url, "--group", f"g{life}")
            process.terminate()
            assert process.wait(60) == 0
            rest.join()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def test_a_cluster_that_does_not_start_is_not_said_to_be_ready(tmp_path: Path) -> None:
    """A broker whose port was taken was missing in a cluster that was said to be ready."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1] - 10  # of the first zkserver; brokers come 10 later
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
    for name in ("zkserver", "broker", "produce", "consume"):
        lines = (ROOT / "examples" / f"{name}.py").read_text().splitlines()
        assert 20 <= len(lines) <= 60, name
