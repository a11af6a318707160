"""A real broker's disk fails to sync: how long its partitions stay unwritable."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import pymq
from tests.simulator.history import percentile
from tests.simulator.processes import ProcessCluster

ROOT = Path(__file__).parents[2]
SHIM = Path(__file__).with_name("fail_sync.c")
LIMITS_S = {"raft": 1.0, "leader": 3.0}  # longest pauses, as after a kill -9
WAIT_S = 120.0
Tell = Callable[[str], None]

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("cc") is None, reason="preloading needs a C compiler"),
]


@pytest.fixture
def flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a file.

    All processes started inside the ``with`` fail their syncs of files below the folder in this
    file.
    """
    shim, flag = tmp_path / "fail_sync.so", tmp_path / "fail_sync"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, str(SHIM), "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("FAIL_SYNC", str(flag))
    return flag


def leader_of(mq: pymq.Client, topic: str) -> str | None:
    return mq.describe_topic(topic).partitions[0].leader


def round_of(
    cluster: ProcessCluster, mq: pymq.Client, producer: pymq.Producer, topic: str, flag: Path
) -> float:
    """Fail the disk of the leader and send; returns how long that took, in seconds.

    The broker is killed and restarted afterwards, as after an operator has mended the disk.
    """
    before = producer.send(topic, b"before").result(WAIT_S)
    with mq.consumer(topic, mode="psb", partition="0", offset=before.offset) as reader:
        # Readers see records that all in-sync replicas have; with acks "leader" that may be the
        # leader alone.
        assert [bytes(record.value) for record in reader.poll(timeout=WAIT_S)] == [b"before"]
    failed = leader_of(mq, topic)
    assert failed is not None
    whole = flag.with_suffix(".new")
    whole.write_text(f"{cluster.data(failed)}/")
    began = time.monotonic()
    os.replace(whole, flag)
    assert producer.send(topic, b"meanwhile").exception(WAIT_S) is None
    took = time.monotonic() - began
    assert cluster.nodes[failed].is_running  # the broker was not restarted
    cluster.wait_for(lambda: leader_of(mq, topic) not in (None, failed), "another leads")
    cluster.wait_for(
        lambda: (
            failed in mq.describe_topic(topic).partitions[0].offline
            or failed not in mq.describe_topic(topic).partitions[0].replicas
        ),
        "it is shown as offline",
    )
    flag.unlink()
    cluster.nodes[failed].kill()
    cluster.nodes[failed].start()
    cluster.nodes[failed].wait_ready()
    cluster.wait_for(
        lambda: all(
            len(mq.describe_topic(name).partitions[0].in_sync) == len(cluster.brokers)
            for name in LIMITS_S
        ),
        "all are in sync again",
        WAIT_S,
    )
    return took


def measure(folder: Path, flag: Path, rounds: int, tell: Tell) -> None:
    folder.mkdir()
    with (
        ProcessCluster(folder, ROOT / "examples", zkservers=1, zookeepers=0) as cluster,
        pymq.open(cluster.url) as mq,
    ):
        for topic in LIMITS_S:
            mq.create_topic(topic, replicas=3, acks=pymq.AckMode.of(topic), fsync="always")
        with mq.producer(linger_ms=0, delivery_timeout_s=WAIT_S) as producer:
            for topic, limit in LIMITS_S.items():
                took = [round_of(cluster, mq, producer, topic, flag) for _ in range(rounds)]
                tell(
                    f"{topic}: a disk failed {rounds} times, writable again after "
                    f"{percentile(took, 50):.2f} s (p50), {max(took):.2f} s (worst)"
                )
                assert percentile(took, 99) < limit, took
        for topic in LIMITS_S:
            with mq.consumer(topic, mode="psb", offset="begin") as reader:
                found = [bytes(record.value) for record in reader.until_end()]
            assert found == [b"before", b"meanwhile"] * rounds


@pytest.mark.slow
def test_a_disk_that_fails_to_sync(tmp_path: Path, flag: Path, tell: Tell) -> None:
    """A broker survives a failed sync, and another broker leads as soon as after kill -9."""
    measure(tmp_path / "cluster", flag, 2, tell)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_a_disk_that_fails_to_sync_again_and_again(tmp_path: Path, flag: Path, tell: Tell) -> None:
    measure(tmp_path / "cluster", flag, 100, tell)
