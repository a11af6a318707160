"""From Kafka to a queue: records, options, groups, errors. The Kafka is a queue of pymq."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import pymq
from pymq.errors import (
    ConfigError,
    OffsetOutOfRange,
    ProducerFenced,
    RecordTooLarge,
    UnknownTopic,
)
from pymq.mirror.kafka_client import KafkaTopic
from pymq.mirror.plan import to_pymq
from pymq.mirror.progress import MirrorProgress
from pymq.mirror.start import mirror
from pymq.testing.kafka import KafkaForTests
from tests.mirror.conftest import commit, inward, produce, rows, url


def test_records_keep_everything(kafka: KafkaForTests, mq: pymq.Client) -> None:
    kafka.mq.create_topic("orders", 3, retention_ms=1 << 50, cleanup_policy="delete")
    produce(kafka, "orders", 500, partitions=3)
    done = inward(kafka, mq, "orders", records=64, compression="lz4")
    assert (done.records, done.lag, done.skipped) == (500, 0, 0)
    assert rows(mq, "orders") == rows(kafka.mq, "orders")
    assert sum(value == b"" for part in rows(mq, "orders").values() for _, _, value, _, _ in part)
    assert mq.describe_topic("orders").config.retention_ms == 1 << 50

    produce(kafka, "orders", 30, partitions=3)
    assert inward(kafka, mq, "orders").records == 30
    assert inward(kafka, mq, "orders").records == 0
    assert rows(mq, "orders") == rows(kafka.mq, "orders")


def test_topics_are_chosen_by_pattern(kafka: KafkaForTests, mq: pymq.Client) -> None:
    for name in ("orders.eu", "orders.us", "orders.test", "bills", "pymq.mirror.x"):
        kafka.mq.create_topic(name)
    inward(kafka, mq, "orders.*,pymq*", excluded="*.test")
    assert mq.topics() == ["orders.eu", "orders.us", "pymq.mirror.kafka"]
    with pytest.raises(UnknownTopic, match="nothing"):
        inward(kafka, mq, "nothing*")


def test_a_dry_run_changes_nothing(kafka: KafkaForTests, mq: pymq.Client) -> None:
    kafka.mq.create_topic("orders", 2, block_bytes=1 << 20)
    produce(kafka, "orders", 10, partitions=2)
    made = mirror(url(kafka), mq, "orders")
    ((copy, left),) = made.dry_run()
    assert (copy.topic, copy.partitions, left) == ("orders", 2, 10)
    assert copy.options["block_bytes"] == 1 << 20
    assert mq.topics() == []


def test_options_are_translated() -> None:
    options = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "60000",
        "max.message.bytes": "2000000",
        "segment.bytes": "1073741824",
        "segment.ms": "3600000",
        "min.insync.replicas": "3",
        "flush.messages": "7",
        "flush.ms": "9223372036854775807",
    }
    own = frozenset({"min.insync.replicas", "segment.ms", "flush.messages", "flush.ms"})
    copy = to_pymq(KafkaTopic("t", 4, 3, options, own), 2)
    assert (copy.partitions, copy.replicas) == (4, 2)
    assert copy.options == {
        "cleanup_policy": "compact",
        "retention_ms": 60_000,
        "max_record_bytes": 2_000_000,
        "block_ms": 3_600_000,
        "min_in_sync": 2,
    }
    dropped = " ".join(copy.dropped)
    for name in ("cleanup.policy", "flush.messages=7", "flush.ms"):
        assert name in dropped


def test_a_topic_that_grows_and_a_new_one_are_found(kafka: KafkaForTests, mq: pymq.Client) -> None:
    kafka.mq.create_topic("a")
    produce(kafka, "a", 5)
    inward(kafka, mq, "*")
    kafka.mq.create_partition("a", "1")
    produce(kafka, "a", 6, partitions=2)
    produce(kafka, "b", 4)
    assert inward(kafka, mq, "*").records == 10
    assert rows(mq, "a") == rows(kafka.mq, "a")
    assert rows(mq, "b") == rows(kafka.mq, "b")


def test_offsets_of_groups_are_translated(kafka: KafkaForTests, mq: pymq.Client) -> None:
    kafka.mq.create_topic("orders", 2)
    produce(kafka, "orders", 100, partitions=2)
    mq.create_topic("orders", 2)
    with mq.producer() as producer:
        producer.send("orders", b"was here before", partition=0)
    commit(kafka, "billing", "orders", {0: 10, 1: 20})
    commit(kafka, "others", "orders", {0: 1})
    done = inward(kafka, mq, "orders", groups="bill*")
    assert done.groups == {"billing": 2}
    assert mq.describe_group("billing").committed == {("orders", "0"): 11, ("orders", "1"): 20}
    assert mq.groups() == ["billing"]

    # An offset that was moved further in the queue stays.
    mq.reset_group("billing", "orders", {"1": 40})
    commit(kafka, "billing", "orders", {0: 15, 1: 25})
    assert inward(kafka, mq, "orders", groups="billing").groups == {"billing": 1}
    assert mq.describe_group("billing").committed == {("orders", "0"): 16, ("orders", "1"): 40}


def test_a_group_with_members_in_the_queue_is_left_alone(
    kafka: KafkaForTests, mq: pymq.Client
) -> None:
    produce(kafka, "orders", 10)
    commit(kafka, "billing", "orders", {0: 3})
    mq.create_topic("orders")
    with mq.consumer("orders", group="billing") as consumer:
        consumer.poll(timeout=0)
        done = inward(kafka, mq, "orders", groups="*")
        assert done.busy_groups == {"billing"}
        assert len(consumer.poll(timeout=10)) == 10


def test_a_group_is_never_ahead_of_what_is_mirrored(kafka: KafkaForTests, mq: pymq.Client) -> None:
    produce(kafka, "orders", 100)
    commit(kafka, "billing", "orders", {0: 90})
    made = mirror(url(kafka), mq, "orders", groups="billing", records=10, rate=1e6)
    try:
        made.run(lambda: made.progress.records >= 20)
    finally:
        made.close()
    end = mq.describe_topic("orders").partitions[0].high_watermark
    assert end < 90
    assert mq.describe_group("billing").committed == {("orders", "0"): end}
    inward(kafka, mq, "orders", groups="billing")
    assert mq.describe_group("billing").committed == {("orders", "0"): 90}


def test_a_record_that_is_too_large_is_named(kafka: KafkaForTests, mq: pymq.Client) -> None:
    with kafka.mq.producer() as producer:
        for size in (10, 2000, 20):
            producer.send("orders", b"x" * size) if size > 10 else kafka.mq.create_topic("orders")
    mq.create_topic("orders", max_record_bytes=1000)
    with pytest.raises(RecordTooLarge, match="orders/0 at offset 0: 2000 bytes"):
        inward(kafka, mq, "orders")
    done = inward(kafka, mq, "orders", on_error="skip")
    assert (done.records, done.skipped) == (1, 1)
    assert [row[2] for row in rows(mq, "orders")["0"]] == [b"x" * 20]


def test_records_that_kafka_has_removed_are_an_error(kafka: KafkaForTests, mq: pymq.Client) -> None:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient

    produce(kafka, "orders", 10)
    inward(kafka, mq, "orders")
    produce(kafka, "orders", 10)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    gone = confluent_kafka.TopicPartition("orders", 0, 15)
    for future in admin.delete_records([gone]).values():
        future.result()
    with pytest.raises(OffsetOutOfRange, match="orders/0"):
        inward(kafka, mq, "orders")
    assert inward(kafka, mq, "orders", on_error="skip").records == 5


def test_the_broker_may_go_away(kafka: KafkaForTests, mq: pymq.Client) -> None:
    produce(kafka, "orders", 10)
    made = mirror(url(kafka), mq, "orders")
    has_begun, may_end = threading.Event(), threading.Event()

    def told(progress: MirrorProgress) -> None:
        if progress.records >= 10:
            has_begun.set()

    thread = threading.Thread(target=made.run, args=(may_end.is_set, told))
    thread.start()
    try:
        assert has_begun.wait(30)
        kafka.restart()
        produce(kafka, "orders", 10)
        with mq.consumer("orders", mode="reader") as consumer:
            found: list[Any] = []
            while len(found) < 20:
                found += consumer.poll(timeout=30)
        assert rows(mq, "orders") == rows(kafka.mq, "orders")
    finally:
        may_end.set()
        thread.join(60)
        made.close()


def test_a_second_mirror_fences_the_first(kafka: KafkaForTests, mq: pymq.Client) -> None:
    produce(kafka, "orders", 10)
    first = mirror(url(kafka), mq, "orders")
    seconds: list[int] = []

    def told(progress: MirrorProgress) -> None:
        if progress.records >= 10 and not seconds:
            produce(kafka, "orders", 10)
            seconds.append(inward(kafka, mq, "orders").records)
            produce(kafka, "orders", 1)

    try:
        with pytest.raises(ProducerFenced, match=r"pymq\.mirror\.kafka"):
            first.run(lambda: False, told)
    finally:
        first.close()
    assert seconds == [10]
    assert inward(kafka, mq, "orders").records == 1
    assert rows(mq, "orders") == rows(kafka.mq, "orders")


def test_a_topic_that_was_deleted_begins_again(kafka: KafkaForTests, mq: pymq.Client) -> None:
    produce(kafka, "orders", 10)
    inward(kafka, mq, "orders")
    mq.delete_topic("orders")
    assert inward(kafka, mq, "orders").records == 10


def test_metrics(kafka: KafkaForTests, mq: pymq.Client) -> None:
    produce(kafka, "orders", 10)
    made = mirror(url(kafka), mq, "orders", once=True)
    done = made.run(lambda: False)
    assert mq.metrics().value("pymq_mirror_records_total", topic="orders") == 10
    assert mq.metrics()["pymq_mirror_lag"] == 0
    assert done.rate > 0
    assert done.left_s == 0
    made.close()
    made.close()
    assert "pymq_mirror_lag" not in mq.metrics()


@pytest.mark.parametrize(
    "wrong",
    [
        {"topics": ""},
        {"on_error": "hide"},
        {"rate": 0},
        {"records": 0},
        {"name": "a b"},
        {"compression": "gz"},
    ],
)
def test_wrong_options(wrong: dict[str, Any], kafka: KafkaForTests, mq: pymq.Client) -> None:
    with pytest.raises(pymq.errors.PymqError) as caught:
        mirror(url(kafka), mq, **{"topics": "t", **wrong})
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("wrong", ["kafka://", "kafka://host", "kafka://a:1,b", "http://a:1"])
def test_wrong_addresses(wrong: str, mq: pymq.Client) -> None:
    with pytest.raises(ConfigError, match="kafka://HOST:PORT"):
        mirror(wrong, mq, "t")
    with pytest.raises(ConfigError, match="the other a queue"):
        mirror(mq, mq, "t")
