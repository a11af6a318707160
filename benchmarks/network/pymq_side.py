"""pymq: a zkserver and brokers as the examples start them, clients in their own processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.machine import ROOT
from benchmarks.model import batches, random_values
from benchmarks.network.roles import paced
from benchmarks.network.servers import HOST, free_ports, listens, running

if TYPE_CHECKING:
    import pymq
from pymq.client.option_types import Acks

TOPIC = "records"
BATCH = 1000


@contextmanager
def cluster(
    folder: Path, brokers: int = 1, *, curve: Path | None = None, plain: bool = False
) -> Iterator[str]:
    """Start a zkserver and *brokers*; yield the URL for clients.

    The nodes speak ZeroMQ, or with *plain* the same packets over TCP alone.
    """
    metadata, *data = free_ports(1 + brokers)
    scheme = "pymq" if plain else "tcp"
    server = f"{scheme}://{HOST}:{metadata}"
    common = ["--curve-dir", str(curve)] if curve else []
    with ExitStack() as stack:
        command = [sys.executable, str(ROOT / "examples" / "zkserver.py"), "--listen", server]
        command += ["--coordinator", f"sqlite:{folder / 'tree.sqlite'}", *common]
        stack.enter_context(running(command, folder / "zk.log", lambda: listens(metadata)))
        for number, port in enumerate(data):
            command = [sys.executable, str(ROOT / "examples" / "broker.py")]
            command += ["--name", f"broker-{number}", "--listen", f"{scheme}://{HOST}:{port}"]
            command += ["--zkserver", server, "--data", str(folder / f"broker-{number}"), *common]
            log = folder / f"broker-{number}.log"
            stack.enter_context(running(command, log, lambda port=port: listens(port)))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        if plain:
            yield f"tcp://{HOST}:{metadata}"
            return
        yield f"zmq+{server}" + (f"?curve_dir={curve}&principal=bench" if curve else "")


def make_keys(folder: Path) -> Path:
    """Make keys of a zkserver, a broker and ``bench``, which may read and write the topic, and a
    quota.

    The broker counts the quota, which is never reached.
    """
    from pymq.transport.curve.key_files import Public, make_pair, write_pair

    keys = folder / "keys"
    for name in ("zkserver", "broker-0", "bench"):
        pair = make_pair(name)
        write_pair(keys, pair, Public(name, pair.public, is_node=name != "bench"))
    rules = [
        (["zkserver", "broker-0"], ["ClusterAction"], ["cluster"]),
        (["bench"], ["Describe"], ["cluster"]),
        (["bench"], ["Read", "Write", "Create"], [f"topic:{TOPIC}"]),
    ]
    lines = ["[quota.bench]", f"produce_bytes_per_second = {1 << 40}"]
    for principals, operations, resources in rules:
        lines += ["[[rule]]", f"principal = {principals}", f"operations = {operations}"]
        lines += [f"resources = {resources}"]
    (keys / "policy.toml").write_text("\n".join(lines) + "\n")
    return keys


def make_topic(url: str, *, acks: Acks, replicas: int, fsync: str | None = None) -> None:
    """Create the topic, as soon as the brokers are known."""
    import pymq

    with pymq.open(url) as mq:
        _make_topic(mq, acks, replicas, fsync)


def _make_topic(mq: pymq.Client, acks: Acks, replicas: int, fsync: str | None) -> None:
    settings: dict[str, Any] = {} if fsync is None else {"fsync": fsync}
    wait_for_brokers(mq, replicas)
    mq.create_topic(TOPIC, partitions=1, replicas=replicas, acks=acks, **settings)
    with mq.producer() as producer:
        producer.send(TOPIC, b"").result(timeout=30)  # from now on the partition has a leader


def wait_for_brokers(mq: pymq.Client, count: int) -> None:
    """Wait until this many brokers have registered."""
    deadline = time.monotonic() + 30
    while len(mq.cluster().brokers) < count:
        if time.monotonic() > deadline:
            raise TimeoutError("the brokers did not register")
        time.sleep(0.05)


@contextmanager
def _together(folder: str) -> Iterator[pymq.Client]:
    """Open three brokers on files in this process, as a user does, and create the topic:
    no socket.
    """
    import pymq

    with pymq.open(Path(folder) / "queue", brokers=3) as mq:
        _make_topic(mq, "raft", 3, "always")
        yield mq


def in_one_process(folder: str, count: int, size: int) -> Generator[None, None, None]:
    """Run three brokers and a producer of batches in one process."""
    groups = batches(random_values(count, size), BATCH)
    with _together(folder) as mq, mq.producer(delivery_timeout_s=300) as producer:
        producer.send(TOPIC, b"").result(timeout=30)
        yield
        for group in groups:
            producer.send_many(TOPIC, group)
        producer.flush()


def consume_in_one_process(folder: str, count: int, size: int) -> Generator[None, None, int]:
    """Run three brokers and a consumer of earlier records in one process."""
    with _together(folder) as mq, mq.producer() as producer:
        for group in batches(random_values(count, size), BATCH):
            producer.send_many(TOPIC, group)
        producer.flush()
        with mq.consumer(TOPIC, mode="psb", offset="begin") as consumer:
            yield
            seen = total = 0
            while seen < count:
                records, octets = _poll(consumer, 1.0)
                seen, total = seen + records, total + octets
            return total


def both_in_one_process(folder: str, count: int, size: int) -> Generator[None, None, int]:
    """Run three brokers, a producer and a consumer in one thread of one process."""
    groups = batches(random_values(count, size), BATCH)
    with _together(folder) as mq, mq.producer(delivery_timeout_s=300) as producer:
        producer.send(TOPIC, b"").result(timeout=30)
        with mq.consumer(TOPIC, mode="psb", offset="end") as consumer:
            consumer.poll_batches(timeout=0.5)  # begins at the present end
            yield
            seen = total = 0
            for group in groups:
                producer.send_many(TOPIC, group)
                records, octets = _poll(consumer, 0.0)
                seen, total = seen + records, total + octets
            producer.flush()
            while seen < count:
                records, octets = _poll(consumer, 1.0)
                seen, total = seen + records, total + octets
            return total


def _poll(consumer: pymq.Consumer, timeout: float) -> tuple[int, int]:
    seen = total = 0
    for batch in consumer.poll_batches(timeout=timeout):
        values = batch.values
        seen += len(values)
        total += sum(map(len, values))
    return seen, total


def in_one_process_paced(
    folder: str, count: int, pause_s: float
) -> Generator[None, None, list[int]]:
    """Run three brokers and a producer of one record at a time in one process."""
    with _together(folder) as mq, mq.producer(linger_ms=0) as producer:
        producer.send(TOPIC, bytes(8)).result(timeout=30)
        yield
        return paced(count, pause_s, lambda value: producer.send(TOPIC, value).result(timeout=30))


def produce(url: str, count: int, size: int, many: bool) -> Generator[None, None, None]:
    """``send_many`` of 1,000, or ``send`` for each record; one flush at the end."""
    import pymq

    groups = batches(random_values(count, size), BATCH)
    with pymq.open(url) as mq, mq.producer(delivery_timeout_s=300) as producer:
        producer.send(TOPIC, b"").result(timeout=30)
        yield
        for group in groups:
            if many:
                producer.send_many(TOPIC, group)
            else:
                for value in group:
                    producer.send(TOPIC, value)
        producer.flush()


def consume(url: str, count: int, columns: bool) -> Generator[None, None, int]:
    """``poll_batches``, or ``poll`` of up to 1,000 records, from the beginning."""
    import pymq

    with pymq.open(url) as mq, mq.consumer(TOPIC, mode="psb", offset="begin") as consumer:
        yield
        seen = total = 0
        while seen < count:
            if columns:
                for batch in consumer.poll_batches():
                    values = batch.values
                    seen += len(values)
                    total += sum(map(len, values))
            else:
                records = consumer.poll(max_records=BATCH, timeout=1.0)
                seen += len(records)
                total += sum([len(record.value) for record in records])
        return total


def produce_each(url: str, count: int, window: int) -> Generator[None, None, None]:
    """Send a request for each record of 100 B, *window* in flight."""
    import pymq

    values = random_values(count, 100)
    settings: dict[str, Any] = {"linger_ms": 0, "batch_bytes": 1, "max_in_flight": window}
    settings["idempotent"] = False  # an idempotent producer allows at most five in flight
    with pymq.open(url) as mq, mq.producer(**settings) as producer:
        producer.send(TOPIC, b"").result(timeout=30)
        yield
        for value in values:
            producer.send(TOPIC, value)
        producer.flush()


def produce_paced(url: str, count: int, pause_s: float) -> Generator[None, None, list[int]]:
    """Send one record at a time; return the time of each answer."""
    import pymq

    with pymq.open(url) as mq, mq.producer(linger_ms=0) as producer:
        producer.send(TOPIC, bytes(8)).result(timeout=30)
        yield
        return paced(count, pause_s, lambda value: producer.send(TOPIC, value).result(timeout=30))


def consume_paced(url: str, count: int) -> Generator[None, None, list[int]]:
    """Return the age of each record at its arrival."""
    import pymq

    with pymq.open(url) as mq, mq.consumer(TOPIC, mode="psb", offset="end") as consumer:
        consumer.poll(timeout=0.5)  # begins at the present end
        yield
        found: list[int] = []
        while len(found) < count:
            records = consumer.poll(timeout=1.0)
            now = time.monotonic_ns()
            found += [
                now - int.from_bytes(record.value[:8], "big")
                for record in records
                if len(record.value) == 100
            ]
        return found
