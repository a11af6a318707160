"""Topics with typed values, on every kind of queue."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest

import pymq
import pymq.serde
from pymq import aio, serde
from pymq.client.typed.values import Bad, TypedRecord
from pymq.errors import (
    ConfigError,
    InvalidRequest,
    PymqError,
    SchemaIncompatible,
    UnknownTopic,
    ValueNotEncoded,
)
from pymq.testing import Cluster
from tests.client.helpers import polled


@attrs.frozen
class Order:
    item: str
    count: int = 1


@attrs.frozen
class OrderWithNote:
    item: str
    count: int = 1
    note: str = ""


@attrs.frozen
class OrderOfTexts:
    item: str
    count: str


def avro(*fields: dict[str, Any]) -> serde.Avro:
    rows = [{"name": "item", "type": "string"}, *fields]
    return serde.Avro({"type": "record", "name": "Order", "fields": rows})


NOTE = {"name": "note", "type": "string", "default": "none"}


def put(mq: pymq.Client, *values: bytes) -> None:
    """Send values without a schema."""
    with mq.producer() as producer:
        producer.send_many("orders", values).result(60)


# --- values -------------------------------------------------------------------------------------


def test_values_go_and_come_back(mq: pymq.Client) -> None:
    mq.create_topic("orders", partitions=2)
    with mq.topic("orders", Order) as orders:
        orders.send(Order("teapot"), key=b"k", headers=[("h", b"1")]).result(60)
        orders.send_many([Order("cup", 6), Order("spoon", 12)], [b"a", b"b"])
        orders.flush(60)
        with orders.consumer(group="billing") as consumer:
            found = {record.value.item: record for record in consumer.until_end()}
            consumer.ack(found.values())
            consumer.commit()
            assert consumer.consumer.committed() == consumer.consumer.end_offsets()
    assert {record.value for record in found.values()} == {
        Order("teapot"),
        Order("cup", 6),
        Order("spoon", 12),
    }
    first = found["teapot"]
    assert first.key == b"k"
    assert dict(first.headers)["h"] == b"1"
    assert dict(first.headers)["pymq.schema"].decode() == orders.schema.fingerprint
    assert first.raw.value == b'{"item":"teapot","count":1}'


def test_a_value_that_does_not_fit_is_not_sent(mq: pymq.Client) -> None:
    mq.create_topic("orders")
    wrong: Any = Order("teapot", "one")  # type: ignore[arg-type] # that is what is tested
    with mq.topic("orders", Order) as orders:
        with pytest.raises(ValueNotEncoded, match="topic 'orders': count: an integer is expected"):
            orders.send(wrong)
        with pytest.raises(ValueNotEncoded):
            orders.send_many([Order("cup"), wrong])
        orders.send(Order("cup")).result(60)
    assert sum(part.high_watermark for part in mq.describe_topic("orders").partitions) == 1


def test_a_delay_and_an_expiry_go_with_a_value(mq: pymq.Client) -> None:
    mq.create_topic("orders")
    with mq.topic("orders", Order) as orders:
        orders.send(Order("later"), delay_s=0.05).result(60)
        orders.send(Order("never"), expires_s=0).result(60)
        with orders.consumer(group="billing") as consumer:
            (record,) = consumer.poll(timeout=60)
            assert record.value == Order("later")


def test_a_value_that_cannot_be_decoded_becomes_a_dead_letter(mq: pymq.Client) -> None:
    """The group continues; the letter has the error and can be sent back."""
    mq.create_topic("orders")
    bad: list[Bad] = []
    put(mq, b"nonsense", b'{"item": 5}')
    with mq.topic("orders", Order) as orders:
        orders.send(Order("teapot")).result(60)
        with orders.consumer(group="billing", on_bad=bad.append) as consumer:
            assert [record.value for record in consumer.until_end()] == [Order("teapot")]
            consumer.commit()
        assert [record.value for record, _ in bad] == [b"nonsense", b'{"item": 5}']
        assert {error.code for _, error in bad} == {"VALUE_NOT_DECODED"}
    letters = list(mq.dead_letters("orders.dlq"))
    assert [letter.value for letter in letters] == [b"nonsense", b'{"item": 5}']
    why = dict(letters[1].headers)["pymq.error"].decode()
    assert "orders/0 offset 1 cannot be decoded: item: a text is expected, not '5'" in why
    assert mq.metrics().value("pymq_consumer_undecodable_total") == 2


def test_a_poll_goes_on_to_the_next_value_that_can_be_decoded(mq: pymq.Client) -> None:
    mq.create_topic("orders")
    put(mq, *[b"nonsense"] * 20)
    with mq.topic("orders", Order) as orders:
        orders.send(Order("teapot")).result(60)
        with orders.consumer(group="billing") as consumer:
            (record,) = consumer.poll(max_records=5, timeout=60)
            assert record.value == Order("teapot")
            consumer.nack(record, error="not now")
            (record,) = consumer.poll(timeout=60)
            assert record.delivery_count == 2
            consumer.reject(record, "never")
        with orders.consumer(group="billing") as consumer:
            assert consumer.poll(timeout=0.05) == []
    assert len(list(mq.dead_letters("orders.dlq"))) == 21


def test_a_reader_goes_past_what_it_cannot_decode(mq: pymq.Client) -> None:
    mq.create_topic("orders")
    bad: list[Bad] = []
    put(mq, b"nonsense")
    with mq.topic("orders", Order) as orders:
        orders.send(Order("teapot")).result(60)
        with orders.consumer(mode="reader", on_bad=bad.append) as reader:
            assert [record.value for record in reader.until_end()] == [Order("teapot")]
    assert [record.value for record, _ in bad] == [b"nonsense"]


@pytest.mark.parametrize("mode", ["group", "reader"])
def test_push(mq: pymq.Client, mode: Any) -> None:
    mq.create_topic("orders")
    put(mq, b"nonsense")
    found: list[TypedRecord[Order]] = []
    has_come = threading.Event()

    def take(record: TypedRecord[Order]) -> None:
        found.append(record)
        has_come.set()

    with (
        mq.topic("orders", Order) as orders,
        orders.consumer(mode=mode, delivery="push", on_record=take),
    ):
        orders.send(Order("teapot")).result(60)
        assert has_come.wait(60)
    assert [record.value for record in found] == [Order("teapot")]


@pytest.mark.parametrize("dead_letter", [True, False])
def test_reject(mq: pymq.Client, *, dead_letter: bool) -> None:
    """A rejected record is not delivered again, with or without dead letters."""
    mq.create_topic("orders")
    put(mq, b"1", b"2", b"3")
    options: Any = {} if dead_letter else {"max_deliver": 0}
    with mq.consumer("orders", group="g", **options) as consumer:
        first, second, third = polled(consumer, 3)
        consumer.reject(first, ValueError("no price"))
        consumer.reject([second, third])
        consumer.commit()
        assert consumer.lag() == {"0": 0}
    if dead_letter:
        letters = list(mq.dead_letters("orders.dlq"))
        assert [dict(letter.headers)["pymq.error"] for letter in letters] == [
            b"ValueError: no price",
            *[b"delivered 1 time, and not acknowledged"] * 2,
        ]
    else:
        assert mq.topics() == ["orders"]
    with mq.consumer("orders", mode="reader") as reader, pytest.raises(InvalidRequest):
        reader.reject(first)


def test_what_is_wrong_is_refused(mq: pymq.Client) -> None:
    mq.create_topic("orders")
    with pytest.raises(ConfigError, match="JSON has no form"):
        mq.topic("orders", complex)
    with pytest.raises(ConfigError, match="compatibility='sideways'"):
        mq.topic("orders", Order, compatibility="sideways")  # type: ignore[arg-type] # a test
    for wrong in ("json", pymq.serde.Json):
        with pytest.raises(ConfigError, match=r"such as pymq\.serde\.Json\(\)"):
            mq.topic("orders", Order, wrong)  # type: ignore[arg-type] # a test
    with pytest.raises(ConfigError, match="on_bad"):
        mq.topic("orders", Order).consumer(on_bad=5)  # type: ignore[arg-type] # a test
    with pytest.raises(UnknownTopic):
        mq.topic("nothing", Order).send(Order("x"))


# --- schemas ------------------------------------------------------------------------------------


def test_schemas_are_registered_once_and_checked(mq: pymq.Client) -> None:
    mq.create_topic("orders")
    for _ in range(2):
        with mq.topic("orders", Order, compatibility="backward") as orders:
            orders.send(Order("teapot")).result(60)
    with mq.topic("orders", OrderWithNote, compatibility="backward") as orders:
        orders.register()
    with (
        mq.topic("orders", OrderOfTexts, compatibility="backward") as wrong,
        pytest.raises(SchemaIncompatible, match="count was integer") as caught,
    ):
        wrong.send(OrderOfTexts("teapot", "one"))
    assert caught.value.details["problems"] == [
        "count is required and was not",
        "count was integer",
    ]
    versions = mq.schemas.versions("orders")
    assert [(each.version, each.compatibility) for each in versions] == [
        (1, "backward"),
        (2, "backward"),
    ]
    assert mq.schemas.find(versions[0].schema.fingerprint) == versions[0].schema
    assert sum(part.high_watermark for part in mq.describe_topic("orders").partitions) == 2


def test_schemas_survive(tmp_path: Path) -> None:
    with pymq.open(tmp_path / "data") as mq:
        mq.create_topic("orders")
        mq.topic("orders", Order, compatibility="full").register()
    with pymq.open(tmp_path / "data") as mq:
        with pytest.raises(SchemaIncompatible):
            mq.topic("orders", OrderOfTexts, compatibility="full").register()
        mq.schemas.refresh()
        assert [each.schema.format for each in mq.schemas.versions("orders")] == ["json"]


def test_avro_is_read_with_the_schema_that_wrote_it(mq: pymq.Client) -> None:
    """Values of an older and of a newer schema can be read.

    A value of an unregistered schema is bad.
    """
    mq.create_topic("orders")
    bad: list[Bad] = []
    old = mq.topic("orders", dict, avro(), compatibility="full")
    new = mq.topic("orders", dict, avro(NOTE), compatibility="full")
    other = mq.topic("orders", dict, avro({"name": "x", "type": "int"}))
    old.send({"item": "teapot"}).result(60)
    new.send({"item": "cup", "note": "blue"}).result(60)
    other.send({"item": "spoon", "x": 1}).result(60)
    with old.consumer(mode="reader", on_bad=bad.append) as reader:
        assert [record.value for record in reader.until_end()] == [
            {"item": "teapot"},
            {"item": "cup"},
        ]
    assert "its schema" in str(bad[0][1])
    assert "is not known" in str(bad[0][1])
    with new.consumer(mode="reader") as reader:
        assert [record.value for record in reader.until_end()] == [
            {"item": "teapot", "note": "none"},
            {"item": "cup", "note": "blue"},
        ]


def test_of_two_schemas_that_contradict_each_other_one_is_registered(mq: pymq.Client) -> None:
    """Both clients check, then both write; the second must see the schema of the first."""
    mq.create_topic("orders")
    topics: list[Any] = [
        mq.topic("orders", kind, compatibility="full") for kind in (Order, OrderOfTexts)
    ]
    errors: list[PymqError] = []

    def register(topic: Any) -> None:
        try:
            topic.register()
        except PymqError as error:
            errors.append(error)

    threads = [threading.Thread(target=register, args=(topic,)) for topic in topics * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    mq.schemas.refresh()
    versions = mq.schemas.versions("orders")
    assert len({each.schema for each in versions}) == len(versions) == 1
    assert any(isinstance(error, SchemaIncompatible) for error in errors)


def test_nonsense_in_the_registry_harms_nobody(mq: pymq.Client) -> None:
    mq.create_topic("orders")
    mq.topic("orders", Order, compatibility="backward").register()
    with mq.producer() as producer:
        for text in (b"nonsense", b"[]", b"{}", b'{"version": "x"}', b"[" * 100_000):
            producer.send("pymq.schemas", text, key=b"orders/9").result(60)
    mq.topic("orders", OrderWithNote, compatibility="backward").register()
    assert [each.version for each in mq.schemas.versions("orders")] == [1, 2]


@pytest.mark.parametrize("seed", range(8))
def test_brokers_that_crash_lose_no_schema(seed: int) -> None:
    """In a simulation a leader dies between two registrations; its successor knows both schemas."""
    with Cluster(brokers=3, seed=seed) as cluster:
        mq = cluster.client()
        mq.create_topic("orders", replicas=3, acks="raft")
        with mq.topic("orders", Order, compatibility="backward") as orders:
            orders.send(Order("teapot")).result(60)
        leader = mq.describe_topic("pymq.schemas").partitions[0].leader
        assert leader is not None
        cluster.crash(leader)
        with mq.topic("orders", OrderWithNote, compatibility="backward") as orders:
            orders.send(OrderWithNote("cup")).result(60)
        other = cluster.client()
        with pytest.raises(SchemaIncompatible):
            other.topic("orders", OrderOfTexts, compatibility="backward").register()
        assert [each.version for each in other.schemas.versions("orders")] == [1, 2]
        with other.topic("orders", OrderWithNote).consumer(group="g") as consumer:
            values = [record.value for record in consumer.until_end()]
        assert values == [OrderWithNote("teapot"), OrderWithNote("cup")]


# --- asyncio ------------------------------------------------------------------------------------


def test_asyncio(tmp_path: Path) -> None:
    bad: list[Bad] = []
    pushed: list[Order] = []

    async def run() -> list[Any]:
        found: list[Any] = []
        async with aio.open(tmp_path / "data") as mq:
            await mq.create_topic("orders")
            async with mq.producer() as producer:
                await producer.send("orders", b"nonsense")
            async with mq.topic("orders", Order, compatibility="backward") as orders:
                await orders.send(Order("teapot"), key=b"k")
                with pytest.raises(ValueNotEncoded):
                    orders.send(Order("cup", "one"))  # type: ignore[arg-type] # a test
                orders.send(Order("cup"))
                await orders.flush()
                async with orders.consumer(group="g", on_bad=bad.append) as consumer:
                    found += await consumer.poll(timeout=60)
                    consumer.nack(found[-1])
                    found += await consumer.poll(timeout=60)
                    await consumer.reject(found[-1])
                    consumer.ack(found[:1])
                    await consumer.commit()
                    assert await consumer.poll(timeout=0) == []
                has_come = asyncio.Event()

                async def take(record: TypedRecord[Order]) -> None:
                    pushed.append(record.value)
                    has_come.set()

                async with orders.consumer(group="h", delivery="push", on_record=take):
                    await has_come.wait()
                async with orders.consumer(mode="reader") as reader:
                    found += [record async for record in reader.until_end()]
            with pytest.raises(SchemaIncompatible):
                await mq.topic("orders", OrderOfTexts, compatibility="backward")
        return [record.value for record in found]

    cups = [Order("teapot"), Order("cup")]
    assert asyncio.run(asyncio.wait_for(run(), 120)) == [*cups, Order("cup"), *cups]
    assert [record.value for record, _ in bad] == [b"nonsense"]
    assert pushed[0] == Order("teapot")
