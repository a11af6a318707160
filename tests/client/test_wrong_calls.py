"""Wrong arguments are refused at the call, with a code, and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pymq
from pymq.errors import PymqError


@pytest.fixture
def mq() -> Iterator[Any]:
    with pymq.open("memory:") as client:
        client.create_topic("t", partitions=2)
        yield client


CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "exist_ok": (lambda mq: mq.create_topic("t", exist_ok="no"), "CONFIG_ERROR"),
    "nothing to alter": (lambda mq: mq.alter_topic("t"), "CONFIG_ERROR"),
    "a group of another kind": (lambda mq: mq.describe_group(5), "INVALID_NAME"),
    "no partitions to reset": (lambda mq: mq.reset_group("g", "t", {}), "CONFIG_ERROR"),
    "topics of another kind": (lambda mq: mq.unsubscribe("g", 5), "INVALID_NAME"),
    "no topics": (lambda mq: mq.unsubscribe("g", []), "NOT_SUBSCRIBED"),
    "a partition that is a flag": (
        lambda mq: mq.set_partition_state("t", True, "leader"),
        "UNKNOWN_PARTITION",
    ),
    "one replica by its name": (lambda mq: mq.reassign("t", 0, "broker-0"), "CONFIG_ERROR"),
    "a number of replicas": (lambda mq: mq.reassign("t", 0, 3), "CONFIG_ERROR"),
    "idempotent": (lambda mq: mq.producer(idempotent="no"), "CONFIG_ERROR"),
    "a name without answers": (
        lambda mq: mq.producer(producer_id="loader", acks="none"),
        "CONFIG_ERROR",
    ),
    "auto_ack": (lambda mq: mq.consumer("t", auto_ack="no"), "CONFIG_ERROR"),
    "on_assigned": (lambda mq: mq.consumer("t", on_assigned=5), "CONFIG_ERROR"),
    "on_revoked": (lambda mq: mq.consumer("t", on_revoked="f"), "CONFIG_ERROR"),
    "on_record": (lambda mq: mq.consumer("t", delivery="push", on_record=5), "CONFIG_ERROR"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused_with_a_code(mq: Any, name: str) -> None:
    call, code = CALLS[name]
    with pytest.raises(PymqError) as caught:
        call(mq)
    assert caught.value.code == code
    assert str(caught.value)


@pytest.mark.parametrize("time", [None, 1.5, "now"])
def test_a_time_of_another_kind_does_not_stop_the_queue(mq: Any, time: object) -> None:
    """A time of another type raises in the call.

    In the loop it would fail for all users of the queue.
    """
    with mq.producer() as producer:
        producer.send("t", b"x", partition=0).result(10)
    with mq.consumer("t", mode="psb") as reader:
        with pytest.raises(PymqError) as caught:
            reader.seek_to_time("0", time)
        assert caught.value.code == "CONFIG_ERROR"
    assert mq.topics() == ["t"]


def test_what_a_consumer_is_given_must_be_of_its_kind(mq: Any) -> None:
    with mq.consumer("t", group="g") as consumer:
        for found in (None, 5):
            with pytest.raises(TypeError, match="only records can be settled"):
                consumer.ack(found)
        with pytest.raises(PymqError) as caught:
            consumer.skip("x")
        assert caught.value.code == "INVALID_REQUEST"


@pytest.mark.parametrize("timeout", ["5", True, [b"x"], float("nan")])
def test_a_time_to_wait_is_a_number_of_seconds(mq: Any, timeout: object) -> None:
    """A wrong timeout raises at once, and the call has no effect."""
    with (
        mq.producer(linger_ms=600_000) as producer,
        mq.consumer("t", group="g") as consumer,
        mq.consumer("t", mode="psb") as reader,
    ):
        delivery = producer.send("t", b"x", partition=0)
        deliveries = producer.send_many("t", [b"y"], partition=0)
        calls: tuple[Callable[[Any], object], ...] = (
            producer.flush,
            producer.close,
            delivery.result,
            delivery.exception,
            deliveries.wait,
            deliveries.result,
            deliveries.exception,
            lambda timeout: consumer.commit(timeout=timeout),
            lambda timeout: consumer.poll(timeout=timeout),
            lambda timeout: consumer.poll_batches(timeout=timeout),
            lambda timeout: reader.poll(timeout=timeout),
            lambda timeout: mq.decommission("broker-0", wait=True, timeout=timeout),
        )
        for call in calls:
            with pytest.raises(PymqError, match="number of seconds") as caught:
                call(timeout)
            assert caught.value.code == "CONFIG_ERROR"
        assert not any(broker.is_draining for broker in mq.cluster().brokers)
        producer.send("t", b"z", partition=0).result(10)
        assert [record.value for record in reader.until_end()] == [b"x", b"y", b"z"]


@pytest.mark.parametrize("given", [1, 5.0, 3_000_000, "record", None])
def test_a_commit_takes_no_record_offset_or_count(mq: Any, given: object) -> None:
    """``commit(1)`` means something else in other clients; here it would be a timeout."""
    with mq.producer() as producer, mq.consumer("t", group="g") as consumer:
        producer.send("t", b"x").result(10)
        (record,) = consumer.poll(timeout=10)
        for wrong in (given, record, [record]):
            with pytest.raises(PymqError, match=r"ack\(record\) says what is done") as caught:
                consumer.commit(wrong)
            assert caught.value.code == "CONFIG_ERROR"
        assert sum(mq.describe_group("g").in_flight.values()) == 1
        consumer.ack(record)
        consumer.commit(timeout=10)


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "5", None])
def test_a_poll_is_for_a_number_of_records(mq: Any, most: object) -> None:
    with mq.consumer("t", group="g") as consumer, mq.consumer("t", mode="psb") as reader:
        calls: tuple[Callable[[Any], object], ...] = (
            consumer.poll,
            reader.poll,
            consumer.poll_batches,
            reader.poll_batches,
        )
        for call in calls:
            with pytest.raises(PymqError, match="must be an integer from 1") as caught:
                call(most)
            assert caught.value.code == "CONFIG_ERROR"


@pytest.mark.parametrize("rate", [0, -1, True, "5", float("nan")])
def test_a_redrive_has_so_many_letters_a_second(mq: Any, rate: object) -> None:
    with pytest.raises(PymqError, match=r"rate=.* must be a positive number a second") as caught:
        mq.redrive("t", rate=rate)
    assert caught.value.code == "CONFIG_ERROR"


@pytest.mark.parametrize("delay", ["5"])
def test_a_delay_is_a_number_of_seconds(mq: Any, delay: object) -> None:
    with mq.producer() as producer, mq.consumer("t", group="g") as consumer:
        producer.send("t", b"x").result(10)
        (record,) = consumer.poll(timeout=10)
        with pytest.raises(PymqError) as caught:
            consumer.nack(record, delay)
        assert caught.value.code == "CONFIG_ERROR"
        consumer.ack(record)
        consumer.commit()


@pytest.mark.parametrize("index", [True, False])
def test_a_flag_is_no_partition(mq: Any, index: bool) -> None:
    """A bool raises instead of counting as partition 1 or 0."""
    with mq.producer() as producer, mq.consumer("t", mode="psb") as reader:
        calls: tuple[Callable[[], object], ...] = (
            lambda: producer.send("t", b"x", partition=index),
            lambda: producer.send_many("t", [b"x"], partition=index),
            lambda: producer.next_sequence("t", index),
            lambda: reader.seek(index, 0),
            lambda: reader.pause(index),
            lambda: reader.position(index),
            lambda: reader.offset_at(index, 0),
            lambda: mq.consumer("t", mode="psb", partition=index),
        )
        for call in calls:
            with pytest.raises(PymqError, match=str(index)) as caught:
                call()
            assert caught.value.code == "UNKNOWN_PARTITION"
        assert list(reader.until_end()) == []


def test_a_closed_consumer_has_no_partitions(mq: Any) -> None:
    for options in ({"group": "g"}, {"mode": "psb"}):
        consumer = mq.consumer("t", **options)
        consumer.close()
        with pytest.raises(PymqError) as caught:
            consumer.assignment()
        assert caught.value.code == "CLOSED"
