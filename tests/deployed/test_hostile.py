"""A client with a key that does harm, beside one that behaves, at a broker that is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zmq

import pymq
from pymq.core import message as msg
from pymq.core.record import RecordBatch
from pymq.core.types import AckMode
from pymq.transport import wire
from pymq.transport.curvefiles import Pair
from tests.deployed.processes import processes
from tests.transport import cbor
from tests.transport.keys import make_keys

QUICK, SOAK = 3_000, 300_000
MEMORY = 64 << 20
SEEDS = 7


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


def connect(context: zmq.Context[Any], endpoint: str, keys: dict[str, Pair]) -> zmq.Socket[Any]:
    """A connection of mallory, who takes one answer and no more."""
    socket: zmq.Socket[Any] = context.socket(zmq.DEALER)
    socket.set(zmq.ROUTING_ID, b"client-evil/0123456789abcdef")
    socket.set(zmq.CURVE_PUBLICKEY, keys["mallory"].public.encode())
    socket.set(zmq.CURVE_SECRETKEY, keys["mallory"].secret.encode())
    socket.set(zmq.CURVE_SERVERKEY, keys["broker-0"].public.encode())
    socket.set(zmq.RCVHWM, 1)
    socket.set(zmq.SNDHWM, 100)
    socket.set(zmq.SNDTIMEO, 2_000)
    socket.connect(endpoint)
    return socket


def size_of(mq: pymq.Client, topic: str) -> int:
    (partition,) = mq.describe_topic(topic).partitions
    return partition.end_offset or 0


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def packet(rng: Random, number: int) -> list[bytes]:
    """One that is damaged, or asks for much and is answered to nobody who reads."""
    kind = rng.randrange(4)
    if kind == 0:
        return [rng.randbytes(rng.randrange(1, 200))]
    if kind == 1:
        return [cbor.write([1, [rng.randrange(200), "", "", rng.randrange(1 << 40)]])]
    ask = msg.Fetch(number, "big", "0", 0, 1 << 30, rng.choice((0, 60_000)))
    if kind == 2:
        parts = [bytes(part) for part in wire.encode([("", "", ask)])]
        damaged = bytearray(parts[0])
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        return [bytes(damaged), *parts[1:]]
    return [bytes(part) for part in wire.encode([("", "", ask)] * rng.randrange(1, 20))]


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
        rng, context, cuts = Random(SEEDS), zmq.Context(), 0
        try:
            socket = connect(context, ready["endpoint"], keys)
            batch = RecordBatch.encode([b"its own"], timestamp_ms=time.time_ns() // 1_000_000)
            own = msg.Produce(0, "big", "0", AckMode.LEADER, batch)
            socket.send_multipart([bytes(part) for part in wire.encode([("", "", own)])])
            cluster.wait_for(lambda: size_of(mq, "big") > size, "it is let in as mallory")
            for number in range(count):
                try:
                    socket.send_multipart(packet(rng, number))
                except zmq.Again:  # Who takes nothing for 10 s is cut, and comes again.
                    socket.close(0)
                    socket = connect(context, ready["endpoint"], keys)
                    cuts += 1
                if number % 100 == 0:
                    most = max(most, resident(process.pid))
            time.sleep(1.0)  # for what is on its way
            most = max(most, resident(process.pid))
        finally:
            is_over.set()
            thread.join()
            context.destroy(linger=0)
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
