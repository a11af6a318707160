"""Java's KafkaShareConsumer, unmodified, in groups with pymq's own consumers."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import pymq
from benchmarks.kafka import jars
from tests.kafka.clients.conftest import Served, served
from tests.nodes.processes import processes

pytestmark = pytest.mark.slow
SOURCES = sorted((Path(__file__).parent / "java").glob("*.java"))
IDLE_S = 3
S = 60  # seconds
Worker = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How to start Java with Kafka's client and the worker.

    The jars are those of ``make kafka``, or in the folder that PYMQ_KAFKA_JARS names.
    """
    folder = os.environ.get("PYMQ_KAFKA_JARS") or str(jars.ALL["kafka"].folder)
    if not list(Path(folder).glob("kafka-clients-*.jar")):
        pytest.skip(jars.missing("kafka") or f"there is no kafka-clients in {folder}")
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool}")
    classes = tmp_path_factory.mktemp("classes")
    path = f"{folder}/*"
    subprocess.run(
        ["javac", "-cp", path, "-d", str(classes), *map(str, SOURCES)], check=True, timeout=S
    )
    return ["java", "-Xmx256m", "-cp", f"{classes}:{path}"]


@pytest.fixture
def start(java: list[str]) -> Iterator[Worker]:
    """Starts workers, and kills those that are left."""
    workers: list[subprocess.Popen[str]] = []

    def begin(bootstrap: str, how: str, idle_s: int = IDLE_S) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [*java, "ShareWork", bootstrap, "g", "t", how, str(idle_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        workers.append(worker)
        return worker

    yield begin
    for worker in workers:
        worker.kill()
        worker.wait(S)
        if worker.stdout is not None:
            worker.stdout.close()


@pytest.fixture(params=[1, 3])
def kafka(request: pytest.FixtureRequest) -> Iterator[Served]:
    mq = pymq.open("memory:", brokers=request.param)
    mq.create_topic("t", partitions=3)
    yield from served(mq)


def send(mq: pymq.Client, values: Sequence[str]) -> None:
    with mq.producer() as producer:
        for value in values:
            producer.send("t", value.encode())
        producer.flush()


def result(worker: subprocess.Popen[str]) -> list[tuple[str, int]]:
    """Wait for the end of a worker; returns the records and their numbers of deliveries."""
    out, _ = worker.communicate(timeout=S)
    lines = out.splitlines()
    assert [line for line in lines if line.startswith("# error")] == []
    found = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return [(value, int(count)) for value, _, count in found]


def test_accept_release_and_reject(kafka: Served, start: Worker) -> None:
    plain = [f"v{n}" for n in range(500)]
    odd = [f"{kind}{n}" for kind in ("reject", "release") for n in range(5)]
    send(kafka.mq, [*plain, *odd])
    found = Counter(result(start(kafka.bootstrap, "explicit")))
    assert found == Counter(
        [(value, 1) for value in (*plain, *odd)] + [(f"release{n}", 2) for n in range(5)]
    )
    letters = [record.value.decode() for record in kafka.records("t.dlq")]
    assert sorted(letters) == [f"reject{n}" for n in range(5)]
    described = kafka.mq.describe_group("g")
    assert sum(described.lag.values()) == 0
    assert described.members == ()


def test_a_group_of_java_and_python_workers(kafka: Served, start: Worker) -> None:
    """Each record is delivered once."""
    sent = [f"v{n}" for n in range(3_000)]
    own: list[str] = []
    stop = threading.Event()

    def consume() -> None:
        with kafka.mq.consumer("t", group="g") as consumer:
            while not stop.is_set():
                for record in consumer.poll(max_records=20, timeout=0.1):
                    own.append(record.value.decode())
                    consumer.ack(record)
                stop.wait(0.02)  # Python must not take everything.
            consumer.commit()

    worker = start(kafka.bootstrap, "implicit")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "# ready\n"
    thread = threading.Thread(target=consume)
    thread.start()
    try:
        for at in range(0, len(sent), 50):
            send(kafka.mq, sent[at : at + 50])
            stop.wait(0.02)
        theirs = [value for value, _ in result(worker)]
    finally:
        stop.set()
        thread.join()
    assert own
    assert theirs
    assert Counter(own + theirs) == Counter(sent)


def test_records_of_a_killed_worker_go_to_another(kafka: Served, start: Worker) -> None:
    sent = [f"v{n}" for n in range(30)]
    send(kafka.mq, sent)
    killed = start(kafka.bootstrap, "hang")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "# ready\n"
    taken = [killed.stdout.readline().split()[0]]
    (member, *_) = kafka.mq.describe_group("g").members
    assert ".t.broker-" in member
    killed.kill()
    out, _ = killed.communicate()
    taken += [line.split()[0] for line in out.splitlines()]
    found = dict(result(start(kafka.bootstrap, "explicit")))
    assert set(found) == set(sent)
    assert {found[value] for value in taken} == {2}


def test_an_administrator(kafka: Served, java: list[str]) -> None:
    """Kafka's Admin, for a group of pymq's own consumers."""
    kafka.mq.create_topic("u", partitions=1)
    with kafka.mq.producer() as producer:
        for number in range(3):
            producer.send("u", b"%d" % number)
        producer.flush()
    with kafka.mq.consumer("u", group="g") as consumer:
        for record in consumer.poll(max_records=3, timeout=S):
            consumer.ack(record)
        consumer.commit()
    command = [*java, "ShareAdmin", kafka.bootstrap, "g", "u"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=S, check=False)
    assert done.stdout.splitlines() == [
        "features [group.version, share.version]",
        "reset earliest",
        "listed 0",
        "state Empty 0",
        "start 3",
        "start 1",
        "gone GroupIdNotFoundException",
    ], done.stderr


def test_brokers_that_are_killed(tmp_path: Path, start: Worker) -> None:
    """Each record is delivered, and acknowledged by somebody: workers find each new coordinator."""
    sent = [f"v{n}" for n in range(600)]
    own: list[str] = []
    stop = threading.Event()
    with processes(tmp_path, kafka=True) as cluster, pymq.open(cluster.url) as mq:
        mq.create_topic("t", partitions=3, replicas=3)

        def consume() -> None:
            with mq.consumer("t", group="g", ordered=False) as consumer:
                while not stop.is_set():
                    for record in consumer.poll(max_records=10, timeout=0.1):
                        own.append(record.value.decode())
                        consumer.ack(record)
                    stop.wait(0.05)

        workers = [start(cluster.bootstrap, "implicit", 40) for _ in range(2)]
        thread = threading.Thread(target=consume)
        thread.start()
        try:
            for number, name in enumerate(("broker-0", "broker-1", "broker-2")):
                part = sent[200 * number : 200 * number + 100]
                send(mq, part)
                cluster.nodes[name].kill()
                send(mq, sent[200 * number + 100 : 200 * number + 200])
                cluster.nodes[name].start()
                cluster.wait_ready()
            cluster.wait_for(lambda: lag(mq) == 0, "all records are acknowledged", 60)
        finally:
            stop.set()
            thread.join()
        for worker in workers:
            worker.terminate()
        theirs = [value for worker in workers for value, _ in result(worker)]
    found = Counter(own + theirs)
    assert own
    assert theirs
    assert set(found) == set(sent)


def lag(mq: pymq.Client) -> int:
    try:
        return sum(mq.describe_group("g").lag.values())
    except pymq.errors.PymqError:
        return -1  # The coordinator is being replaced.
