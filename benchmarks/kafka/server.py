"""Kafka in KRaft mode: nodes that are brokers and controllers, on free ports of 127.0.0.1.

The settings of the JVM are those of Kafka's own start script, with its heap of 1 GiB. The settings
of the broker are Kafka's defaults, but for those that make a cluster of this size possible.
"""

from __future__ import annotations

import base64
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.kafka import jars
from benchmarks.model import Job, Needs
from benchmarks.network import kafka_side
from benchmarks.network.kafka_side import Place
from benchmarks.network.roles import play
from benchmarks.network.servers import (
    HOST,
    READY_S,
    ServerFailed,
    free_ports,
    listens,
    running,
)

NEEDS = Needs(("confluent_kafka",), ("java",), ("kafka",))
JVM = (
    "-server -Xms1g -Xmx1g -XX:+UseG1GC -XX:MaxGCPauseMillis=20"
    " -XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent"
    " -XX:-UsePerfData -Djava.awt.headless=true"
).split()
LOGGING = """
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
"""
FORMAT_S = 60
NEVER_MS = 1 << 40  # for flush.ms: the kernel decides when records reach the disk
WARM = 4  # passes, as of Spark's JVM
WARM_RECORDS = 400_000  # of a pass, in a long run
WARM_SINGLE = 20_000  # records of a pass that are sent one at a time, in a long run


@contextmanager
def kafka(folder: Path, *, nodes: int = 1, port: int = 0) -> Iterator[str]:
    """Run Kafka with its data in *folder*, where a later call finds them; *port* is that of a
    single node, by default a free one. Yields ``bootstrap.servers``.

    Raises:
        ServerFailed: a node ended, or was not ready in time.
    """
    ports, votes = [port] if port else free_ports(nodes), free_ports(nodes)
    cluster = folder / "cluster.id"
    if not cluster.exists():
        cluster.write_text(base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
    with ExitStack() as stack:
        for number, own in enumerate(ports):
            home = folder / f"kafka-{number}"
            _configure(home, number, own, votes)
            if not (home / "data").exists():
                _run_tool(home, "kafka.tools.StorageTool", "format", "-t", cluster.read_text())
        for number, own in enumerate(ports):
            home = folder / f"kafka-{number}"
            command = [*_java(home), "kafka.Kafka", str(home / "server.properties")]
            is_up = lambda own=own: nodes > 1 or listens(own)  # noqa: E731  # it differs from node to node
            stack.enter_context(running(command, home / "log", is_up))
        bootstrap = ",".join(f"{HOST}:{own}" for own in ports)
        try:
            _wait_for_brokers(bootstrap, nodes)
        except TimeoutError as error:
            logs = [(folder / f"kafka-{number}" / "log").read_text() for number in range(nodes)]
            raise ServerFailed(f"{error}: {' '.join(log[-1000:] for log in logs)}") from None
        yield bootstrap


def _java(home: Path) -> list[str]:
    """Return the command of a JVM with Kafka's jars."""
    path = os.pathsep.join(map(str, jars.paths("kafka")))
    logging = f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}"
    return ["java", *JVM, logging, "-cp", path]


def _configure(home: Path, number: int, port: int, votes: list[int]) -> None:
    """Write a node's settings; its ports may differ from those of its last start."""
    home.mkdir(exist_ok=True)
    replicas, in_sync = len(votes), min(2, len(votes))
    voters = ",".join(f"{node}@{HOST}:{vote}" for node, vote in enumerate(votes))
    settings = {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{votes[number]}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": home / "data",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "controlled.shutdown.enable": "false",  # all nodes end together
    }
    lines = [f"{name}={value}\n" for name, value in settings.items()]
    (home / "server.properties").write_text("".join(lines), encoding="ascii")
    (home / "log4j2.properties").write_text(LOGGING, encoding="ascii")


def _run_tool(home: Path, tool: str, *arguments: str) -> None:
    command = [*_java(home), tool, *arguments, "-c", str(home / "server.properties")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=FORMAT_S, cwd=home, check=False
    )
    if done.returncode:
        raise ServerFailed(f"{tool} failed: {(done.stdout + done.stderr)[-2000:]}")


def _wait_for_brokers(bootstrap: str, count: int) -> None:
    """Wait until all nodes have registered as brokers."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + READY_S
    while True:
        try:
            if len(admin.list_topics(timeout=5).brokers) >= count:
                return
        except KafkaException:
            pass  # none answers yet
        if time.monotonic() > deadline:
            raise TimeoutError("Kafka's nodes did not register as brokers")
        time.sleep(0.05)  # there is no event, and the measurement has not begun


def make_topic(there: Place, replicas: int = 1) -> None:
    """Create the topics of a place, which may exist, and wait until all partitions have leaders.

    The kernel decides when their records reach the disk, with Kafka by default, with pymq as here.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": there.bootstrap, "log_level": 0})
    for name in there.topics:
        topic = NewTopic(name, there.partitions, replicas, config={"flush.ms": str(NEVER_MS)})
        try:
            admin.create_topics([topic])[name].result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        deadline = time.monotonic() + READY_S
        while True:
            known = admin.list_topics(name, timeout=10).topics[name].partitions
            if len(known) == there.partitions and all(p.leader >= 0 for p in known.values()):
                break
            if time.monotonic() > deadline:
                raise ServerFailed(f"the partitions of {name} have no leaders")
            time.sleep(0.05)  # there is no event, and the measurement has not begun


def warm_up(job: Job, there: Place, replicas: int = 1) -> None:
    """Produce and consume records of 100 B in other topics, in batches and one at a time, so that
    the JVM has compiled what it runs (decision 190).
    """
    many, single = (there._replace(topics=(name,)) for name in ("warm", "warm-single"))
    for place in (many, single):
        make_topic(place, replicas)
    for number in range(job.pick(tiny=1, default=WARM)):
        count = job.count(WARM_RECORDS)
        consume = (kafka_side.consume, many, count * (number + 1))
        play(consume, (kafka_side.produce, many, count, 100))
    count = job.few(WARM_SINGLE)
    play((kafka_side.consume_paced, single, count), (kafka_side.produce_paced, single, count, 0.0))


def ready(job: Job, bootstrap: str, *, replicas: int = 1, acks: int = 1) -> Place:
    """Create the topic for records, and warm the brokers up; returns its place."""
    there = Place(bootstrap, acks=acks)
    make_topic(there, replicas)
    warm_up(job, there, replicas)
    return there
