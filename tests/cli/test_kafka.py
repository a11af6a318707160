"""``pymq kafka`` prints its address, serves Kafka's clients, and ends when interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import pymq
from pymq.cli import main

ROOT = Path(__file__).resolve().parents[2]
S = 20


def test_it_serves_a_folder_until_it_is_stopped(tmp_path: Path) -> None:
    ck = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    folder = tmp_path / "queue"
    process = subprocess.Popen(
        [sys.executable, "-m", "pymq", "kafka", str(folder), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        name, _, bootstrap = process.stdout.readline().strip().partition("=")
        assert name == "bootstrap.servers"
        producer = ck.Producer({name: bootstrap, "log_level": 0})
        producer.produce("orders", b"tea")
        assert producer.flush(S) == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()
    with pymq.open(folder) as mq, mq.consumer("orders", mode="reader") as consumer:
        assert [record.value for record in consumer.until_end()] == [b"tea"]


@pytest.mark.parametrize("listen", ["9092", "127.0.0.1", "0.0.0.0:9092", "127.0.0.1:x"])
def test_a_wrong_address_is_refused(listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kafka", "memory:", "--listen", listen]) == 2
    assert "127.0.0.1" in capsys.readouterr().err
