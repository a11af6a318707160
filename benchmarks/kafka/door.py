"""Part K: Kafka's own C client against a Kafka and against pymq's Kafka door.

Both servers are one process, on files, without fsync, and both are warmed up in the same way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.kafka import server
from benchmarks.model import MS, At, Goal, Job, Measures, Needs, Part, Side
from benchmarks.network import kafka_side
from benchmarks.network.kafka_side import Place
from benchmarks.network.roles import Actor, alone, percentiles, play
from benchmarks.network.servers import HOST, free_ports, listens, running

RATES = {100: 400_000, 1024: 100_000}
NAMES = {100: "100 B", 1024: "1 KB"}
SINGLE = 20_000

Work = Callable[..., Measures]


class Host(Protocol):
    """Runs a server with its data in a folder; yields ``bootstrap.servers``."""

    def __call__(self, folder: Path, *, port: int = 0) -> AbstractContextManager[str]: ...


@contextmanager
def _door(where: str, folder: Path, *, port: int = 0) -> Iterator[str]:
    """Run ``pymq kafka`` on *where*, or else on a folder in *folder*."""
    port = port or free_ports(1)[0]
    address = f"{HOST}:{port}"
    place = where or str(folder / "queue")
    command = [sys.executable, "-m", "pymq", "kafka", place, "--listen", address]
    with running(command, folder / "pymq.log", lambda: listens(port)):
        yield address


def _throughput(host: Host, acks: int, job: Job) -> Measures:
    """Produce, then consume, records of each size in a topic of their own."""
    job.warm(sum(2 * job.count(count) * size for size, count in RATES.items()))
    found: Measures = {}
    with host(job.folder) as bootstrap:
        server.warm_up(job, Place(bootstrap, acks=acks))
        for size, usual in RATES.items():
            there, count = Place(bootstrap, (f"records-{size}",), acks=acks), job.count(usual)
            server.make_topic(there)
            name = NAMES[size]
            found |= alone(f"put {name}", count, kafka_side.produce, there, count, size)
            found |= alone(f"get {name}", count, kafka_side.consume, there, count)
    return found


def _latency(host: Host, acks: int, job: Job) -> Measures:
    """Send one record of 100 B after the other, each when the last one is acknowledged."""
    with host(job.folder) as bootstrap:
        there = server.ready(job, bootstrap, acks=acks)
        (done,) = play((kafka_side.produce_paced, there, job.few(SINGLE), 0.0))
    return percentiles(done.found)


def _start(host: Host, acks: int, job: Job) -> Measures:
    """Start the server on a folder that it has used; a client sends its first record."""
    del acks  # The client has the default, all.
    ports = free_ports(2)
    with host(job.folder, port=ports[0]):
        pass  # formats the folder, and compiles Python's modules
    with Actor(_first_record, f"{HOST}:{ports[1]}") as client:
        client.ready()
        begin = time.monotonic()
        with host(job.folder, port=ports[1]):
            listening = time.monotonic()
            client.go()
            acked = client.result().end
    return {
        "listen": 1000 * (listening - begin),
        "first record": 1000 * (acked - listening),
        "all": 1000 * (acked - begin),
    }


def _first_record(bootstrap: str) -> Generator[None, None, None]:
    """Create a producer, and send a record to a topic that does not exist yet."""
    from confluent_kafka import Producer

    yield
    producer = Producer({"bootstrap.servers": bootstrap, **kafka_side.SINGLE})
    producer.produce("first", bytes(100))
    if producer.flush(60):
        raise TimeoutError("the first record was not acknowledged")


HOSTS: dict[str, Host] = {
    "kafka": server.kafka,
    "pymq": partial(_door, ""),
    "pymq memory": partial(_door, "memory:"),
    "pymq synced": partial(_door, ""),
}
SETTINGS = {
    "kafka": "a node, no fsync, acks=1",
    "pymq": "pymq kafka FOLDER, no fsync, acks=1",
    "pymq memory": "pymq kafka memory:, acks=1",
    "pymq synced": "pymq kafka FOLDER, acks=all: fdatasync before the answer",
}
PYMQ = Needs(("confluent_kafka", "crc32c", "cramjam"))


def _sides(work: Work, *names: str) -> tuple[Side, ...]:
    return tuple(
        Side(
            name,
            SETTINGS[name],
            partial(work, HOSTS[name], -1 if name == "pymq synced" else 1),
            server.NEEDS if name == "kafka" else PYMQ,
        )
        for name in names
    )


def _goal(measure: str, *, at_least: float | None = None, at_most: float | None = None) -> Goal:
    peers = (At("kafka", measure),)
    return Goal(At("pymq", measure), peers, at_least=at_least, at_most=at_most)


PARTS = (
    Part(
        "K1-throughput",
        "confluent-kafka produces, then consumes, from Kafka and from pymq's Kafka door",
        _sides(_throughput, "kafka", "pymq", "pymq memory", "pymq synced"),
        tuple(
            _goal(f"{what} {size}", at_least=1)
            for size in NAMES.values()
            for what in ("put", "get")
        ),
    ),
    Part(
        "K2-latency",
        "confluent-kafka produces one record of 100 B at a time: its acknowledgement",
        _sides(_latency, "kafka", "pymq", "pymq memory", "pymq synced"),
        (_goal("p50", at_most=0.75), _goal("p99", at_most=0.2)),
        units={"p50": MS, "p99": MS},
    ),
    Part(
        "K3-start",
        "from the start of the server to the first acknowledged record of a client",
        _sides(_start, "kafka", "pymq", "pymq memory"),
        (_goal("all"),),
        units=dict.fromkeys(("listen", "first record", "all"), MS),
    ),
)
