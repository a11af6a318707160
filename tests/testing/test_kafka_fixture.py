"""The fixture ``pymq_kafka``, as a user's test has it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pymq.errors import ConfigError, UnknownGroup
from pymq.testing.kafka import KafkaForTests

ck = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
S = 20


def produce(kafka: KafkaForTests, values: list[bytes], **conf: Any) -> list[Any]:
    """Send values; returns the error, or None, of each."""
    errors: list[Any] = []
    options = {"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "log_level": 0}
    producer = ck.Producer(options | {k.replace("__", "."): v for k, v in conf.items()})
    for value in values:
        producer.produce("t", value, on_delivery=lambda error, _: errors.append(error))
        producer.flush(S)
    return errors


def test_records_and_lag(pymq_kafka: KafkaForTests) -> None:
    assert pymq_kafka.records("t") == []
    produce(pymq_kafka, [b"a", b"b", b"c"])
    assert [record.value for record in pymq_kafka.records("t")] == [b"a", b"b", b"c"]
    with pytest.raises(UnknownGroup):
        pymq_kafka.lag("g")
    consumer = ck.Consumer(
        {
            "bootstrap.servers": pymq_kafka.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["t"])
    message, until = None, time.monotonic() + S
    while message is None and time.monotonic() < until:
        message = consumer.poll(0.2)
    consumer.commit(message, asynchronous=False)
    consumer.close()
    assert pymq_kafka.lag("g") == 2


def test_each_test_has_its_own(pymq_kafka: KafkaForTests) -> None:
    assert pymq_kafka.mq.topics() == []


def test_errors_that_a_client_repeats_are_not_seen(pymq_kafka: KafkaForTests) -> None:
    pymq_kafka.mq.create_topic("t")
    pymq_kafka.fail("t", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert produce(pymq_kafka, [b"a"]) == [None]
    assert [record.value for record in pymq_kafka.records("t")] == [b"a"]


def test_errors_for_good_are_seen(pymq_kafka: KafkaForTests) -> None:
    pymq_kafka.mq.create_topic("t")
    pymq_kafka.fail("t", "MESSAGE_TOO_LARGE")
    first, second = produce(pymq_kafka, [b"a", b"b"])
    assert first.code() == ck.KafkaError.MSG_SIZE_TOO_LARGE
    assert second is None
    with pytest.raises(ConfigError, match="NO_SUCH"):
        pymq_kafka.fail("t", "NO_SUCH")


def test_clients_connect_again_after_a_restart(pymq_kafka: KafkaForTests) -> None:
    options = {
        "bootstrap.servers": pymq_kafka.bootstrap,
        "log_level": 0,
        "enable.idempotence": True,
        "reconnect.backoff.ms": 10,
    }
    producer = ck.Producer(options)
    for value in (b"a", b"b"):
        producer.produce("t", value)
        assert producer.flush(S) == 0
        pymq_kafka.restart()
    assert [record.value for record in pymq_kafka.records("t")] == [b"a", b"b"]
