"""``pymq broker``, ``pymq zkserver`` and ``pymq cluster start``, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pymq
from pymq.cli import main
from pymq.testing.child import environment, free_ports

SECONDS = 60.0


@contextmanager
def command(folder: Path, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Run a command in *folder*; at the end it gets SIGINT and must return 0."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pymq", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment(),
    )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait_for(process: subprocess.Popen[str], text: str) -> list[str]:
    """The lines that are printed up to the first one with *text*."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(lines)


def write_and_read(url: str, replicas: int) -> None:
    with pymq.open(url) as mq:
        mq.create_topic("t", replicas=replicas, acks="raft", exist_ok=True)
        with mq.producer() as producer:
            producer.send_many("t", [b"a", b"b"]).result(SECONDS)
        with mq.consumer("t", mode="reader", offset="begin") as reader:
            assert [record.value for record in reader.until_end()][-2:] == [b"a", b"b"]


def test_a_zkserver_and_a_broker(tmp_path: Path) -> None:
    """Options come from the command line and from a file; each node ends at a signal."""
    ports = free_ports(2)
    (tmp_path / "zkserver.toml").write_text('coordinator = "sqlite:zkserver.db"\n')
    zkserver, broker = (f"tcp://127.0.0.1:{port}" for port in ports)
    at = ("--listen", zkserver, "--config", "zkserver.toml")
    own = ("--name", "b", "--listen", broker, "--zkserver", zkserver, "--data", "data")
    with command(tmp_path, "zkserver", *at) as first:
        ready = json.loads(wait_for(first, '"ready"')[-1])
        assert ready["event"] == "ready"
        with command(tmp_path, "broker", *own) as second:
            wait_for(second, '"ready"')
            write_and_read(f"zmq+{zkserver}", 1)
    assert os.listdir(tmp_path / "data")


def test_a_cluster_of_one_command(tmp_path: Path) -> None:
    """A cluster that is started again on the same folder has its records."""
    port = free_ports(1)[0] % 20_000 + 10_000
    for _ in range(2):
        with command(tmp_path, "cluster", "start", "all", "--port", port) as process:
            said = wait_for(process, "cluster is ready")[-1]
            assert said == f"cluster is ready: zmq+tcp://127.0.0.1:{port}\n"
            write_and_read(f"zmq+tcp://127.0.0.1:{port}", 3)
    assert {"broker-0", "broker-1", "broker-2", "zkserver.db"} <= {*os.listdir(tmp_path / "all")}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("broker --name b", "the following arguments are required: --listen, --zkserver, --data"),
        ("broker --nane b", "did you mean --name?"),
        ("broker --config nothing.toml", "nothing.toml: [Errno 2]"),
        ("zkserver --listen nonsense", "nonsense"),
        ("--url data zkserver --listen tcp://127.0.0.1:0", "'pymq zkserver' uses no queue"),
        ("--url data cluster start x", "'pymq cluster start' starts a cluster"),
        ("cluster start x --brokers 0", "--brokers: from 1 to 50, not 0"),
        ("cluster start x --port 65530", "--port: 65530 leaves no ports for the brokers"),
    ],
)
def test_what_is_wrong_is_said(
    typed: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        assert main(typed.split()) == 2
        plain = capsys.readouterr().err
        assert plain.startswith("error: ")
        assert said in plain
        assert main([*typed.split(), "--json"]) == 2
        assert json.loads(capsys.readouterr().err)["error"]["code"] == "CONFIG_ERROR"
    finally:
        os.chdir(before)
    assert not (tmp_path / "x").exists()
