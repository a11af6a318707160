"""The counters of clients, a broker and a zkserver equal the events."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import attrs
import pytest

import pymq
from pymq.access.requirements import CLUSTER_ACTION, requirements
from pymq.core.message import Message
from pymq.core.observe.events import EVENTS
from pymq.core.observe.metrics import Metrics
from pymq.errors import ProducerFenced, UnknownTopic
from pymq.runtime.timed_machines import ANSWERS, FRESH_MAX, REQUESTS
from pymq.testing import Cluster


def requests(metrics: Metrics, kind: str) -> float:
    return metrics.value("pymq_request_seconds", request=kind)


def test_records_bytes_and_requests(tmp_path: Path) -> None:
    with pymq.open(tmp_path) as mq:
        mq.create_topic("orders", partitions=2, fsync="always")
        before = mq.metrics()
        with mq.producer() as producer:
            for _ in range(3):
                producer.send("orders", b"x" * 1000, partition=1).result()
            producer.send_many("orders", [b"y"] * 100, partition=0).wait()
            after = mq.metrics()
            assert after["pymq_producers"] == 1
        assert after["pymq_messages_in_total"] == 103
        assert 3_000 < after.value("pymq_bytes_in_total", topic="orders") < 5_000
        assert requests(after, "Produce") - requests(before, "Produce") == 4
        assert after["pymq_fsync_seconds"] - before["pymq_fsync_seconds"] >= 4
        assert after.value("pymq_high_watermark", partition="1") == 3
        assert after.value("pymq_log_end_offset", partition="0") == 100
        assert after["pymq_producer_records_total"] == 103
        assert after["pymq_producer_batches_total"] == 4
        assert after["pymq_producer_batch_seconds"] == 4
        with mq.consumer("orders", mode="psb") as consumer:
            assert len(list(consumer.until_end())) == 103
            read = mq.metrics()
            assert read["pymq_consumers"] == 1
        assert read["pymq_consumer_records_total"] == 103
        assert read["pymq_bytes_out_total"] >= after["pymq_bytes_in_total"]
        assert read["pymq_led_partitions"] == read["pymq_hosted_partitions"] == 2
        assert read["pymq_under_replicated_partitions"] == read["pymq_offline_partitions"] == 0


def test_many_requests_are_all_counted() -> None:
    """Times are counted in groups, and none is lost or counted twice."""
    count = 2 * FRESH_MAX + 345
    with pymq.open("memory:") as mq:
        mq.create_topic("t")
        with mq.producer() as producer:
            for number in range(count):
                producer.send("t", b"x").result()
                if not number % 700:
                    assert requests(mq.metrics(), "Produce") == number + 1
        metrics = mq.metrics()
        assert requests(metrics, "Produce") == metrics["pymq_messages_in_total"] == count
        assert metrics["pymq_write_seconds"] >= count


def test_lag_is_what_is_left() -> None:
    with pymq.open("memory:") as mq:
        mq.create_topic("orders")
        with mq.producer() as producer:
            producer.send_many("orders", [b"x"] * 10).wait()
        with mq.consumer("orders", group="g") as consumer:
            records = consumer.poll(max_records=10)
            consumer.ack(records[:4])
            consumer.commit()
            metrics = mq.metrics()
            assert metrics.value("pymq_group_lag", group="g") == 6
            assert metrics.value("pymq_group_committed_offset", topic="orders") == 4
            assert metrics.value("pymq_group_in_flight", group="g") == 6
            assert metrics.value("pymq_group_members", group="g") == 1
            with mq.producer() as producer:
                producer.send("orders", b"x").result()
            # The member has not learned of that record yet, but the leader in this process knows
            # it.
            assert mq.metrics().value("pymq_group_lag", group="g") == 7


def test_errors_are_counted_by_their_code() -> None:
    with pymq.open("memory:") as mq:
        with pytest.raises(UnknownTopic):
            mq.describe_topic("t")
        mq.create_topic("t")
        with mq.producer(producer_id="p") as old, mq.producer(producer_id="p") as new:
            new.send("t", b"x").result()
            with pytest.raises(ProducerFenced):
                old.send("t", b"y").result()
        metrics = mq.metrics()
        for request, error in (("Produce", ProducerFenced), ("DescribeTopic", UnknownTopic)):
            name = "pymq_request_errors_total"
            assert metrics.value(name, request=request, error=error.code) == 1
        assert metrics["pymq_producer_errors_total"] == 1
        assert metrics["pymq_producer_records_total"] == metrics["pymq_messages_in_total"] == 1


def test_what_nobody_answers_is_not_waited_for() -> None:
    """With acks=none there is no answer to wait for; the request is counted nevertheless."""
    with pymq.open("memory:") as mq:
        mq.create_topic("t")
        before = mq.metrics()
        with mq.producer(acks="none") as producer:
            for _ in range(5):
                producer.send("t", b"x").result()
        after = mq.metrics()
        assert after["pymq_messages_in_total"] == 5
        assert after["pymq_unanswered_requests"] == before["pymq_unanswered_requests"]


def test_what_happens_in_a_cluster_is_noted() -> None:
    """Topics, leaders and in-sync sets: each change is an event with its fields."""
    heard: list[tuple[str, dict[str, object]]] = []
    with Cluster(brokers=3, zkservers=1, seed=1) as cluster:
        controller = cluster.zkservers["zkserver-0"].controller
        assert controller is not None
        controller.journal.listener = lambda event, fields: heard.append((event, fields))
        mq = cluster.client()
        mq.create_topic("t", replicas=3, acks="leader")

        def insync() -> int:
            return len(mq.describe_topic("t").partitions[0].in_sync)

        cluster.run_until(lambda: insync() == 3)
        leader = mq.describe_topic("t").partitions[0].leader
        assert leader is not None
        follower = next(name for name in sorted(cluster.brokers) if name != leader)
        with mq.producer() as producer:
            cluster.crash(follower)
            cluster.run(5)
            producer.send("t", b"x").result()
            cluster.restart(follower)
            cluster.run_until(lambda: insync() == 3)
            cluster.crash(leader)
            cluster.run(10)
            producer.send("t", b"x").result()
        mq.delete_topic("t")
    events = [event for event, _ in heard]
    for event, fields in heard:
        assert tuple(fields) == EVENTS[event][1], event
    for wanted in ("topic_created", "isr_shrunk", "isr_expanded", "leader_changed"):
        assert wanted in events
    assert events.index("isr_shrunk") < events.index("isr_expanded")
    assert ("broker_dead", {"broker": follower}) in heard
    changed = next(fields for event, fields in heard if event == "leader_changed")
    assert changed["before"] == leader
    assert ("topic_deleted", {"topic": "t"}) in heard


def test_every_request_of_a_client_is_timed() -> None:
    """Every request that needs less than ClusterAction comes from a client, and its answer is
    timed.
    """
    for cls in get_args(Message):
        fields = {field.name for field in attrs.fields(cls)}
        is_of_nodes = requirements(cls(**dict.fromkeys(fields, ""))) == (CLUSTER_ACTION,)
        assert (cls in REQUESTS) or is_of_nodes, cls
        assert not (cls in REQUESTS or cls in ANSWERS) or "id" in fields, cls
    assert not set(REQUESTS) & ANSWERS
