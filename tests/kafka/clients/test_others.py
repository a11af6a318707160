"""kafka-python and aiokafka, unmodified: independent implementations in Python."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kafka.clients.conftest import Served

S = 20


def test_kafka_python(kafka: Served) -> None:
    kp = pytest.importorskip("kafka", reason="kafka-python is not installed")
    from kafka.admin import NewTopic

    admin = kp.KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.create_topics([NewTopic(name="t", num_partitions=3, replication_factor=1)])
    producer = kp.KafkaProducer(bootstrap_servers=kafka.bootstrap, linger_ms=5)
    sent = [
        producer.send("t", key=b"%d" % n, value=b"v%d" % n, headers=[("h", b"1")])
        for n in range(60)
    ]
    producer.flush(S)
    placed = {(each.get(S).partition, each.get(S).offset) for each in sent}
    assert len(placed) == 60
    producer.close()
    consumer = kp.KafkaConsumer(
        "t",
        bootstrap_servers=kafka.bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=S * 1000,
    )
    found = [message for _, message in zip(range(60), consumer, strict=False)]
    assert {(each.partition, each.offset) for each in found} == placed
    assert {each.value for each in found} == {b"v%d" % n for n in range(60)}
    consumer.commit()
    assert sum(consumer.committed(each) for each in consumer.assignment()) == 60
    consumer.close()
    assert {record.value for record in kafka.records("t")} == {b"v%d" % n for n in range(60)}
    assert sorted(admin.list_topics()) == ["t"]
    admin.delete_topics(["t"])
    assert admin.list_topics() == []
    admin.close()


def test_aiokafka(kafka: Served) -> None:
    pytest.importorskip("aiokafka", reason="aiokafka is not installed")
    asyncio.run(asyncio.wait_for(_aiokafka(kafka), 3 * S))


async def _aiokafka(served: Served) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    served.mq.create_topic("t", partitions=2)
    async with AIOKafkaProducer(
        bootstrap_servers=served.bootstrap, enable_idempotence=True, compression_type="snappy"
    ) as producer:
        for number in range(40):
            await producer.send_and_wait("t", b"v%d" % number, key=b"%d" % number)
    found: list[Any] = []
    async with AIOKafkaConsumer(
        "t",
        bootstrap_servers=served.bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        async for message in consumer:
            found.append(message.value)
            if len(found) == 40:
                break
        await consumer.commit(dict.fromkeys(consumer.assignment(), (7, "note")))
        for each in consumer.assignment():
            assert await consumer.committed(each) == 7
    assert sorted(found) == sorted(b"v%d" % n for n in range(40))
    assert sorted(record.value for record in served.records("t")) == sorted(found)
