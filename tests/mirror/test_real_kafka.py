"""Mirrors from a real Kafka, which leaves gaps after transactions, and to one, in transactions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pymq
from benchmarks.kafka import jars
from benchmarks.kafka.server import kafka as started
from pymq.errors import ProducerFenced
from pymq.mirror.progress import MirrorProgress
from pymq.mirror.start import mirror
from tests.mirror.conftest import S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS, EACH = 6, 50
KILLS = 6
OUT = """
import sys
import pymq
from pymq.mirror.start import mirror

with pymq.open(sys.argv[2]) as mq:
    made = mirror(mq, sys.argv[1], "killed", records=200, once=True)
    made.run(lambda: False, lambda progress: print(progress.records, flush=True))
    made.close()
"""


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a real Kafka; `make kafka` fetches its jars."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    if what := jars.missing("kafka"):
        pytest.skip(f"missing: {what}; `make kafka` fetches it")
    with started(tmp_path_factory.mktemp("kafka")) as found:
        yield found


def once(source: pymq.Client | str, target: pymq.Client | str, **options: Any) -> MirrorProgress:
    made = mirror(source, target, "orders*", once=True, **options)
    try:
        return made.run(lambda: False)
    finally:
        made.close()


def transactions(bootstrap: str, topic: str) -> list[bytes]:
    """Write transactions, each second one aborted; returns the committed values."""
    import confluent_kafka

    conf = {"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0}
    producer = confluent_kafka.Producer(conf)
    producer.init_transactions(S)
    committed = []
    for number in range(ROUNDS):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, each) for each in range(EACH)]
        for value in values:
            producer.produce(topic, value, partition=0)
        if number % 2:
            assert producer.flush(S) == 0
            producer.abort_transaction(S)
        else:
            producer.commit_transaction(S)
            committed += values
    return committed


def committed(bootstrap: str, topic: str, partitions: int) -> list[bytes]:
    """Read the committed records of a topic of Kafka."""
    import confluent_kafka

    conf = {
        "bootstrap.servers": bootstrap,
        "group.id": "check",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "log_level": 0,
    }
    consumer = confluent_kafka.Consumer(conf)
    begin = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic, n, begin) for n in range(partitions)])
    found, ends = list[bytes](), 0
    while ends < partitions:
        message = consumer.poll(S)
        assert message is not None, "Kafka does not answer"
        if message.error() is None:
            found.append(message.value())
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            ends += 1
    consumer.close()
    return found


def test_only_committed_records_come_from_kafka(bootstrap: str) -> None:
    values = transactions(bootstrap, "orders-in")
    with pymq.open("memory:") as mq:
        assert once(f"kafka://{bootstrap}", mq).records == len(values)
        assert once(f"kafka://{bootstrap}", mq).records == 0
        with mq.consumer("orders-in", mode="reader") as consumer:
            assert [record.value for record in consumer.until_end()] == values


def test_offsets_of_groups_are_translated_over_gaps(bootstrap: str) -> None:
    """Each transaction ends with a marker, so Kafka's offsets run ahead of the copy's."""
    import confluent_kafka

    transactions(bootstrap, "orders-gaps")
    span = 2 * (EACH + 1)  # offsets of a committed and an aborted transaction, with their markers
    conf = {"bootstrap.servers": bootstrap, "group.id": "billing", "log_level": 0}
    group = confluent_kafka.Consumer(conf)
    # at a record, after a marker, in an aborted transaction, at a later record
    for offset, translated in (
        (EACH - 1, EACH - 1),
        (EACH + 1, EACH),
        (EACH + 20, EACH),
        (span + 7, EACH + 7),
    ):
        commit(group, confluent_kafka.TopicPartition("orders-gaps", 0, offset))
        with pymq.open("memory:") as mq:
            once(f"kafka://{bootstrap}", mq, groups="billing", excluded="orders-in,orders-out")
            found = mq.describe_group("billing").committed
            assert found == {("orders-gaps", "0"): translated}
    group.close()


def commit(group: Any, where: Any) -> None:
    """Commit an offset; a new Kafka's coordinator refuses this for a moment."""
    import confluent_kafka

    until = time.monotonic() + S
    while True:
        try:
            group.commit(offsets=[where], asynchronous=False)
        except confluent_kafka.KafkaException:
            if time.monotonic() > until:
                raise
        else:
            return


def test_killed_mirrors_to_kafka_write_each_record_once(bootstrap: str, tmp_path: Path) -> None:
    count = 8000
    with pymq.open(tmp_path / "queue") as mq:
        mq.create_topic("killed", 2)
        with mq.producer() as producer:
            for number in range(count):
                producer.send("killed", b"%d" % number, partition=number % 2)
    argv = [sys.executable, "-c", OUT, f"kafka://{bootstrap}", str(tmp_path / "queue")]
    for kill in (True,) * KILLS + (False,):
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        watchdog = threading.Timer(2 * S, process.kill)
        watchdog.start()
        assert process.stdout is not None
        if kill:
            for _ in range(3):
                assert process.stdout.readline(), "it ended too early"
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        watchdog.cancel()
        assert process.returncode == (-signal.SIGKILL if kill else 0)
    found = sorted(int(value) for value in committed(bootstrap, "killed", 2))
    assert found == list(range(count))


def test_each_record_goes_to_kafka_in_one_committed_transaction(
    bootstrap: str, tmp_path: Path
) -> None:
    """Also if a later mirror of the same name takes over in the middle."""
    url, count = f"kafka://{bootstrap}", 500
    with pymq.open(tmp_path / "queue") as mq:
        mq.create_topic("orders-out", partitions=2)
        with mq.producer() as producer:
            for number in range(count):
                producer.send("orders-out", b"%d" % number, partition=number % 2)
        first = mirror(mq, url, "orders-out", once=True, records=50)
        rounds = 0

        def take_over(progress: MirrorProgress) -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 3:
                made = mirror(mq, url, "orders-out", once=True, records=70)
                made.run(lambda: False)
                made.close()

        with pytest.raises(ProducerFenced):
            first.run(lambda: False, take_over)
        first.close()
        found = sorted(int(value) for value in committed(bootstrap, "orders-out", 2))
        assert found == list(range(count))
