"""A hostile client with a key beside a well-behaved one, at a broker that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import pymq
from tests.nodes.processes import processes
from tests.transport.keys import make_keys

QUICK, SOAK = 3_000, 300_000
MEMORY = 64 << 20


POLICY = """
[[rule]]
principal = ["zkserver", "broker-0"]
operations = ["ClusterAction"]
resources = ["cluster"]
[[rule]]
principal = "good"
operations = ["All"]
resources = ["cluster", "topic:*", "group:*", "producer:*"]
[[rule]]
principal = "mallory"
operations = ["Read", "Write", "Describe"]
resources = ["topic:big"]
"""


def size_of(mq: pymq.Client, topic: str) -> int:
    (partition,) = mq.describe_topic(topic).partitions
    return partition.end_offset or 0


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read in /proc")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [QUICK, pytest.param(SOAK, marks=pytest.mark.slow)])
def test_a_hostile_client_harms_nobody_who_behaves_well(tmp_path: Path, count: int) -> None:
    folder = tmp_path / "keys"
    keys = make_keys(folder, "good", "mallory", nodes=("zkserver", "broker-0"))
    (folder / "policy.toml").write_text(POLICY)
    with (
        processes(tmp_path, brokers=1, keys=folder) as cluster,
        pymq.open(cluster.url, curve_dir=folder, principal="good") as mq,
    ):
        mq.create_topic("good", replicas=1)
        mq.create_topic("big", replicas=1)
        with mq.producer() as producer:
            for _ in range(30):
                producer.send("big", os.urandom(1_000_000))
            producer.flush()
            producer.send("good", b"first").result(30)
        size = size_of(mq, "big")
        process = cluster.nodes["broker-0"].process
        assert process is not None
        (ready,) = [line for line in cluster.nodes["broker-0"].lines() if line["event"] == "ready"]
        before, most, is_over = resident(process.pid), 0, threading.Event()
        acknowledged: dict[int, bytes] = {}
        took: list[float] = []

        def behave() -> None:
            with mq.producer(linger_ms=0, delivery_timeout_s=60.0) as producer:
                number = 0
                while not is_over.wait(0.01):
                    began, value = time.monotonic(), b"%d" % number
                    meta = producer.send("good", value).result(60)
                    took.append(time.monotonic() - began)
                    acknowledged[meta.offset] = value
                    number += 1

        thread = threading.Thread(target=behave)
        thread.start()
        mallory, broker = keys["mallory"], keys["broker-0"].public
        command = [sys.executable, "-m", "tests.nodes.mallory", ready["endpoint"]]
        command += [mallory.public, mallory.secret, broker, str(count)]
        try:
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attack:
                while attack.poll() is None:
                    most = max(most, resident(process.pid))
                    time.sleep(0.02)  # time between two readings of the broker's memory
                assert attack.stdout is not None
                cuts = int(attack.stdout.read())
        finally:
            is_over.set()
            thread.join()
        assert size_of(mq, "big") > size, "it was let in as mallory"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        cluster.nodes["broker-0"].start()
        cluster.wait_ready()
        with mq.consumer("good", mode="psb") as consumer:
            kept = {record.offset: record.value for record in consumer.until_end()}
        assert acknowledged
        assert {offset: kept.get(offset) for offset in acknowledged} == acknowledged
        assert most - before < MEMORY, f"{(most - before) >> 20} MiB more"
        if count == SOAK:
            slow = sorted(took)[int(0.99 * len(took))]
            assert slow < 0.1, f"p99 {slow:.3f} s of {len(took)}, max {max(took):.3f} s"
            assert cuts, "it takes nothing for so long that it is cut"
