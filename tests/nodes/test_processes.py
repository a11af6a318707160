"""A cluster of processes: it takes records, keeps them through kill -9, and stops in order."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import pymq
from pymq.store.block.block_file import Known
from pymq.testing.child import environment
from tests.nodes.processes import ROOT, processes


def test_kill_9_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    """A leader dies during sends; every acknowledged record is read once and in order."""
    with processes(tmp_path) as cluster, pymq.open(cluster.url) as mq:
        mq.create_topic("t", partitions=2, replicas=3, acks="raft")
        victim = mq.describe_topic("t").partitions[0].leader
        assert victim is not None
        acknowledged: dict[str, list[int]] = {"0": [], "1": []}
        slowest = 0.0
        with mq.producer(linger_ms=1) as producer:
            for number in range(300):
                if number == 100:
                    cluster.nodes[victim].kill()
                if number == 200:
                    cluster.nodes[victim].start()
                partition = str(number % 2)
                began = time.monotonic()
                producer.send("t", b"%d" % number, partition=partition).result(60)
                slowest = max(slowest, time.monotonic() - began)
                acknowledged[partition].append(number)
        cluster.nodes[victim].wait_ready()
        with mq.consumer("t", mode="psb") as consumer:
            found: dict[str, list[int]] = {"0": [], "1": []}
            for record in consumer.until_end():
                found[record.partition].append(int(record.value))
        assert found == acknowledged
        assert slowest < 20


def test_everything_is_there_after_an_orderly_end(tmp_path: Path) -> None:
    """SIGTERM ends each process with status 0.

    After a restart the processes serve the same records.
    """
    with processes(tmp_path, brokers=1) as cluster:
        with pymq.open(cluster.url) as mq:
            mq.create_topic("t")
            with mq.producer() as producer:
                producer.send_many("t", [b"%d" % i for i in range(1_000)])
        for name in ("broker-0", "zkserver-0"):
            node = cluster.nodes[name]
            node.stop()
            events = [line["event"] for line in node.lines()]
            assert (events[0], events[-1]) == ("ready", "stopped")
            assert events.count("ready") == 1
        # The broker saved its log ends, so the next start need not search for them.
        notes = cluster.data("broker-0").rglob("*.ckpt")
        assert max(Known.from_bytes(note.read_bytes()).end for note in notes) >= 1_000
        for node in cluster.nodes.values():
            node.start()
        for node in cluster.nodes.values():
            node.wait_ready()
        with pymq.open(cluster.url) as mq, mq.consumer("t", group="g") as consumer:
            found = [int(record.value) for record in consumer.until_end()]
            assert found == list(range(1_000))


def test_clients_go_on_when_everything_restarts(tmp_path: Path) -> None:
    """An open client sees broker and zkserver restart, one after the other, and loses nothing."""
    with processes(tmp_path, brokers=1) as cluster, pymq.open(cluster.url) as mq:
        mq.create_topic("t")
        received: list[int] = []

        def consume() -> None:
            with mq.consumer("t", group="g") as consumer:
                for record in consumer:
                    received.append(int(record.value))
                    consumer.ack(record)
                    if received[-1] == 299:
                        return

        reader = threading.Thread(target=consume)
        reader.start()
        with mq.producer(linger_ms=0) as producer:
            for number in range(300):
                if number in (100, 200):
                    node = cluster.nodes["broker-0" if number == 100 else "zkserver-0"]
                    node.stop()
                    node.start()
                producer.send("t", b"%d" % number).result(60)
        reader.join(60)
        assert not reader.is_alive()
        # Only records without a confirmed acknowledgement are delivered again.
        assert sorted(set(received)) == list(range(300))


def test_what_a_wrong_command_line_says(tmp_path: Path) -> None:
    def run(script: str, *options: str) -> tuple[int, str]:
        command = [sys.executable, str(ROOT / "examples" / script), *options]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=environment()
        )
        return done.returncode, done.stderr

    assert run("broker.py")[0] == 2
    status, text = run("broker.py", "--name", "b", "--listen", "tcp://x", "--zkserver", "nonsense")
    assert (status, "'nonsense' is no list of endpoints" in text) == (2, True), text
    config = tmp_path / "broker.toml"
    config.write_text('name = "b"\nlistne = "tcp://127.0.0.1:0"\n')
    status, text = run("broker.py", "--config", str(config))
    assert (status, "unknown option 'listne'" in text) == (2, True), text
    status, text = run("zkserver.py", "--listen", "tcp://256.0.0.1:5")
    assert (status, "is open to the network, and there are no keys" in text) == (1, True), text
    status, text = run("zkserver.py", "--listen", "tcp://256.0.0.1:5", "--insecure")
    assert (status, "cannot listen at tcp://256.0.0.1:5" in text) == (1, True), text


def test_options_come_from_a_file(tmp_path: Path) -> None:
    config = tmp_path / "zkserver.toml"
    config.write_text('listen = "tcp://127.0.0.1:0"\nsession-ms = 900\n')
    command = [sys.executable, str(ROOT / "examples" / "zkserver.py"), "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert '"event": "ready"' in line
        assert '"endpoint": "tcp://127.0.0.1:' in line
        process.terminate()
        assert '"event": "stopped"' in process.stderr.read()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_nobody_answers() -> None:
    """Without an answer the error names the nodes, and is raised after the timeout."""
    with (
        pymq.open("zmq+tcp://127.0.0.1:1,127.0.0.1:2") as mq,
        pytest.raises(pymq.errors.RequestTimeout, match=r"no answer from tcp://127.0.0.1:1, "),
    ):
        mq.questions.topic_metadata("t", timeout=1.0)
