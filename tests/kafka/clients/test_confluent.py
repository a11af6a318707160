"""confluent-kafka, unmodified: the client in C that most other clients wrap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import pymq
import pymq.aio
from tests.kafka.clients.conftest import Served

ck = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
admin = pytest.importorskip("confluent_kafka.admin")
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
S = 20  # time limit of any step


def produce(
    served: Served, topic: str, values: list[bytes | None], *, partition: int = 0, **conf: Any
) -> list[int]:
    """Send values, each with a key and a header; returns their offsets."""
    offsets: list[int] = []

    def done(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    producer = ck.Producer(served.conf(linger__ms=5, **conf))
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            key=b"k%d" % number,
            headers={"h": b"1"},
            partition=partition,
            timestamp=1_700_000_000_000 + number,
            on_delivery=done,
        )
        producer.poll(0)
    assert producer.flush(S) == 0
    return offsets


def assigned(served: Served, topic: str, partition: int = 0, offset: int = 0) -> Any:
    consumer = ck.Consumer(served.conf(group__id="x", enable__auto__commit=False, check__crcs=True))
    consumer.assign([ck.TopicPartition(topic, partition, offset)])
    return consumer


def poll(consumer: Any, count: int) -> list[Any]:
    """Return the next *count* messages."""
    found: list[Any] = []
    until = time.monotonic() + S
    while len(found) < count and time.monotonic() < until:
        for message in consumer.consume(count - len(found), 0.2):
            assert message.error() is None, message.error()
            found.append(message)
    assert len(found) == count
    return found


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a client's own threads have done something."""
    until = time.monotonic() + S
    while not condition():
        assert time.monotonic() < until, "it did not happen"


# --- produce and consume ------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_what_it_produces_both_kinds_of_clients_read(kafka: Served, codec: str) -> None:
    values: list[bytes | None] = [b"value %d " % n * 20 for n in range(300)]
    values.append(None)
    offsets = produce(kafka, "t", values, compression__type=codec, enable__idempotence=True)
    assert offsets == list(range(301))
    mine = kafka.records("t")
    assert [record.value for record in mine] == [value or b"" for value in values]
    assert [record.key for record in mine] == [b"k%d" % n for n in range(301)]
    assert [record.timestamp_ms for record in mine] == [1_700_000_000_000 + n for n in range(301)]
    assert mine[0].headers == (("h", b"1"),)
    assert mine[300].headers == (("h", b"1"), ("pymq.tombstone", b""))
    consumer = assigned(kafka, "t")
    theirs = poll(consumer, 301)
    consumer.close()
    assert [message.value() for message in theirs] == values
    assert [message.offset() for message in theirs] == list(range(301))


def test_it_reads_what_pymqs_own_producer_writes(kafka: Served) -> None:
    kafka.mq.create_topic("t")
    with kafka.mq.producer(compression="lz4") as producer:
        for number in range(200):
            producer.send("t", b"v%d" % number, key=b"k" if number % 2 else None)
        producer.send("t", b"", key=b"k", headers=(("pymq.tombstone", b""), ("h", b"x")))
    consumer = assigned(kafka, "t", offset=10)
    found = poll(consumer, 191)
    consumer.close()
    assert [message.value() for message in found[:-1]] == [b"v%d" % n for n in range(10, 200)]
    assert [message.key() for message in found[:3]] == [None, b"k", None]
    assert (found[-1].value(), found[-1].headers()) == (None, [("h", b"x")])


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_all_acks(memory: Served, acks: str) -> None:
    producer = ck.Producer(memory.conf(acks=acks, linger__ms=1))
    for number in range(100):
        producer.produce("t", b"%d" % number)
    assert producer.flush(S) == 0
    eventually(lambda: len(memory.records("t")) == 100)


def test_a_consumer_that_waits_gets_a_record_at_once(memory: Served) -> None:
    """The record ends the waiting fetch, which would otherwise wait up to half a second."""
    memory.mq.create_topic("t")
    consumer = assigned(memory, "t")
    assert consumer.poll(0.3) is None
    waits = []
    with memory.mq.producer(linger_ms=0) as producer:
        for _ in range(20):
            began = time.monotonic()
            producer.send("t", b"x")
            poll(consumer, 1)
            waits.append(time.monotonic() - began)
    consumer.close()
    assert sorted(waits)[10] < 0.25


def test_large_records(memory: Served) -> None:
    values: list[bytes | None] = [bytes([n]) * 900_000 for n in range(20)]
    produce(memory, "t", values)
    consumer = assigned(memory, "t")
    assert [message.value() for message in poll(consumer, 20)] == values
    consumer.close()


def test_a_record_that_is_too_large_is_refused(memory: Served) -> None:
    memory.mq.create_topic("t", max_record_bytes=1_000)
    errors: list[Any] = []
    producer = ck.Producer(memory.conf(linger__ms=0))
    producer.produce("t", bytes(5_000), on_delivery=lambda error, _: errors.append(error))
    producer.flush(S)
    assert [error.code() for error in errors] == [ck.KafkaError.MSG_SIZE_TOO_LARGE]


def test_a_compacted_topic_refuses_records_without_a_key(memory: Served) -> None:
    memory.mq.create_topic("t", cleanup_policy="compact")
    errors: list[Any] = []
    producer = ck.Producer(memory.conf(linger__ms=0))
    producer.produce("t", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(S)
    assert [error.code() for error in errors] == [ck.KafkaError.INVALID_RECORD]


def test_transactions_are_refused(memory: Served) -> None:
    producer = ck.Producer(memory.conf(transactional__id="t"))
    with pytest.raises(ck.KafkaException):
        producer.init_transactions(5)


# --- groups -------------------------------------------------------------------------------------


def member(served: Served, group: str = "g", protocol: str = "classic", **conf: Any) -> Any:
    """A consumer; *protocol* is that of its group: "classic", or "consumer" (KIP-848)."""
    options = {"auto__offset__reset": "earliest", "enable__auto__commit": False, **conf}
    if protocol == "classic":
        options["session__timeout__ms"] = 6_000  # with KIP-848 the coordinator decides
    return ck.Consumer(served.conf(group__id=group, group__protocol=protocol, **options))


PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@PROTOCOLS
def test_a_group_shares_partitions_and_commits(kafka: Served, protocol: str) -> None:
    kafka.mq.create_topic("t", partitions=4)
    for partition in range(4):
        produce(kafka, "t", [b"%d-%d" % (partition, n) for n in range(25)], partition=partition)
    first = member(kafka, protocol=protocol)
    first.subscribe(["t"])
    got = poll(first, 100)
    assert len({message.value() for message in got}) == 100
    first.commit(asynchronous=False)
    second = member(kafka, protocol=protocol)
    second.subscribe(["t"])

    def shared() -> bool:
        for consumer in (first, second):
            consumer.poll(0.05)
        return len(first.assignment()) == len(second.assignment()) == 2

    eventually(shared)
    committed = first.committed([ck.TopicPartition("t", n) for n in range(4)], S)
    assert [each.offset for each in committed] == [25] * 4
    second.close()

    def alone() -> bool:
        first.poll(0.05)
        return len(first.assignment()) == 4

    eventually(alone)
    produce(kafka, "t", [b"more"], partition=3)
    (more,) = poll(first, 1)
    assert more.value() == b"more"
    first.close()
    assert kafka.mq.describe_group("g").lag == {("t", str(n)): int(n == 3) for n in range(4)}


@pytest.mark.parametrize("strategy", ["roundrobin", "cooperative-sticky"])
def test_other_assignors(memory: Served, strategy: str) -> None:
    memory.mq.create_topic("t", partitions=3)
    consumers = [member(memory, partition__assignment__strategy=strategy) for _ in range(3)]
    for consumer in consumers:
        consumer.subscribe(["t"])

    def spread() -> bool:
        for consumer in consumers:
            consumer.poll(0.02)
        return all(len(consumer.assignment()) == 1 for consumer in consumers)

    eventually(spread)
    for consumer in consumers:
        consumer.close()


@PROTOCOLS
def test_a_static_member_comes_back_to_its_partitions(memory: Served, protocol: str) -> None:
    memory.mq.create_topic("t", partitions=2)
    rebalances: list[int] = []

    def assigned_now(_: Any, partitions: list[Any]) -> None:
        rebalances.append(len(partitions))

    other = member(memory, protocol=protocol, group__instance__id="b")
    other.subscribe(["t"], on_assign=assigned_now)
    first = member(memory, protocol=protocol, group__instance__id="a")
    first.subscribe(["t"])

    def settled() -> bool:
        other.poll(0.05)
        first.poll(0.05)
        return len(first.assignment()) == len(other.assignment()) == 1

    eventually(settled)
    mine, before = [each.partition for each in first.assignment()], len(rebalances)
    first.close()  # A static member does not leave.
    again = member(memory, protocol=protocol, group__instance__id="a")
    again.subscribe(["t"])

    def back() -> bool:
        other.poll(0.05)
        again.poll(0.05)
        return len(again.assignment()) == 1

    eventually(back)
    assert [each.partition for each in again.assignment()] == mine
    assert len(rebalances) == before
    again.close()
    other.close()


def test_a_group_of_pymqs_own_consumers_is_not_joined(memory: Served) -> None:
    memory.mq.create_topic("t")
    with memory.mq.consumer("t", group="g") as mine:
        mine.poll(timeout=0)
        consumer = member(memory)
        consumer.subscribe(["t"])
        errors: list[int] = []

        def refused() -> bool:
            message = consumer.poll(0.2)
            errors.extend([message.error().code()] if message is not None else [])
            return bool(errors)

        eventually(refused)
        assert errors == [ck.KafkaError.INCONSISTENT_GROUP_PROTOCOL]
        consumer.close()


def test_pymqs_consumers_go_on_where_a_kafka_group_stopped(memory: Served) -> None:
    produce(memory, "t", [b"%d" % n for n in range(10)])
    consumer = member(memory)
    consumer.subscribe(["t"])
    consumer.commit(poll(consumer, 4)[-1], asynchronous=False)
    consumer.close()
    with memory.mq.consumer("t", group="g") as mine:
        assert [record.value for record in mine.poll(timeout=S)][:1] == [b"4"]


# --- offsets by time, and admin -----------------------------------------------------------------


def test_offsets_by_time(kafka: Served) -> None:
    produce(kafka, "t", [b"%d" % n for n in range(50)])
    consumer = assigned(kafka, "t")
    at = [ck.TopicPartition("t", 0, 1_700_000_000_000 + shift) for shift in (-5, 20, 49, 50)]
    found = [consumer.offsets_for_times([each], S)[0].offset for each in at]
    assert found == [0, 20, 49, -1]
    assert consumer.get_watermark_offsets(ck.TopicPartition("t", 0), S) == (0, 50)
    consumer.close()
    client = admin.AdminClient(kafka.conf())
    for spec, offset in (
        (admin.OffsetSpec.earliest(), 0),
        (admin.OffsetSpec.latest(), 50),
        (admin.OffsetSpec.max_timestamp(), 49),
    ):
        (answer,) = client.list_offsets({ck.TopicPartition("t", 0): spec}).values()
        assert answer.result(S).offset == offset


def test_records_that_only_another_broker_holds_are_read() -> None:
    """Moving a partition moves no data: the new leader has only the later records."""
    with pymq.open("memory:", brokers=3) as mq, mq.kafka() as endpoint:
        kafka = Served(mq, endpoint)
        mq.create_topic("t")
        for round_, broker in enumerate(("broker-0", "broker-1", "broker-2", "broker-0")):
            mq.reassign("t", "0", [broker])
            eventually(lambda: mq.describe_topic("t").partitions[0].leader == broker)  # noqa: B023 # called at once
            produce(kafka, "t", [b"%d-%d" % (round_, n) for n in range(20)])
        consumer = assigned(kafka, "t")
        found = poll(consumer, 80)
        assert [message.value() for message in found] == [
            b"%d-%d" % (round_, n) for round_ in range(4) for n in range(20)
        ]
        assert [message.offset() for message in found] == sorted(m.offset() for m in found)
        wanted = ck.TopicPartition("t", 0, 1_700_000_000_010)
        assert consumer.offsets_for_times([wanted], S)[0].offset == found[10].offset()
        consumer.close()


def test_admin_of_topics(kafka: Served) -> None:
    client = admin.AdminClient(kafka.conf())
    new = admin.NewTopic("t", 2, 1, config={"retention.ms": "3600000"})
    (made,) = client.create_topics([new]).values()
    made.result(S)
    (again,) = client.create_topics([new]).values()
    with pytest.raises(ck.KafkaException, match="TOPIC_ALREADY_EXISTS"):
        again.result(S)
    odd = admin.NewTopic("odd", 1, 1, config={"no.such.option": "1"})
    (refused,) = client.create_topics([odd]).values()
    with pytest.raises(ck.KafkaException, match="INVALID_CONFIG"):
        refused.result(S)
    (grown,) = client.create_partitions([admin.NewPartitions("t", 3)]).values()
    grown.result(S)
    assert len(client.list_topics("t", timeout=S).topics["t"].partitions) == 3
    assert kafka.mq.describe_topic("t").config.retention_ms == 3_600_000

    changed = admin.ConfigResource(
        "topic",
        "t",
        incremental_configs=[
            admin.ConfigEntry(
                "retention.ms", "7000", incremental_operation=admin.AlterConfigOpType.SET
            ),
            admin.ConfigEntry(
                "segment.ms", None, incremental_operation=admin.AlterConfigOpType.DELETE
            ),
        ],
    )
    (done,) = client.incremental_alter_configs([changed]).values()
    done.result(S)
    (options,) = client.describe_configs([admin.ConfigResource("topic", "t")]).values()
    found = options.result(S)
    assert found["retention.ms"].value == "7000"
    assert found["cleanup.policy"].value == "delete"
    (gone,) = client.delete_topics(["t"]).values()
    gone.result(S)
    with pytest.raises(pymq.errors.UnknownTopic):
        kafka.mq.describe_topic("t")
    assert len(client.describe_cluster().result(S).nodes) == len(kafka.bootstrap.split(","))


def test_a_new_topic_that_matches_a_pattern_is_consumed(memory: Served) -> None:
    """The gate finds topics that match; a pattern that would take long is refused."""
    produce(memory, "logs.a", [b"1"])
    consumer = member(memory, protocol="consumer")
    consumer.subscribe(["^logs\\..*"])
    assert poll(consumer, 1)[0].value() == b"1"
    produce(memory, "logs.b", [b"2"])
    assert poll(consumer, 1)[0].value() == b"2"
    consumer.close()
    greedy = member(memory, protocol="consumer")
    greedy.subscribe(["^(a+)+$"])
    errors: list[str] = []

    def refused() -> bool:
        message = greedy.poll(0.1)
        errors.extend([message.error().str()] if message is not None else [])
        return bool(errors)

    eventually(refused)
    assert "regular expression is not valid" in errors[0]
    greedy.close()


@PROTOCOLS
def test_admin_of_groups(memory: Served, protocol: str) -> None:
    produce(memory, "t", [b"%d" % n for n in range(10)])
    consumer = member(memory, protocol=protocol)
    consumer.subscribe(["t"])
    poll(consumer, 10)
    consumer.commit(asynchronous=False)
    client = admin.AdminClient(memory.conf())
    (listed,) = client.list_consumer_groups().result(S).valid
    assert (listed.group_id, listed.state) == ("g", ck.ConsumerGroupState.STABLE)
    assert listed.type.name.lower() == protocol
    (described,) = client.describe_consumer_groups(["g"]).values()
    (member_found,) = described.result(S).members
    assert [each.partition for each in member_found.assignment.topic_partitions] == [0]
    (busy,) = client.delete_consumer_groups(["g"]).values()
    with pytest.raises(ck.KafkaException, match="NON_EMPTY_GROUP"):
        busy.result(S)
    consumer.close()
    wanted = ck.ConsumerGroupTopicPartitions("g", [ck.TopicPartition("t", 0, 3)])
    (reset,) = client.alter_consumer_group_offsets([wanted]).values()
    reset.result(S)
    (offsets,) = client.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions("g")]).values()
    assert [each.offset for each in offsets.result(S).topic_partitions] == [3]
    (deleted,) = client.delete_consumer_groups(["g"]).values()
    deleted.result(S)
    assert list(memory.mq.groups()) == []


def test_a_topic_that_was_deleted_and_made_again_is_another_one(memory: Served) -> None:
    producer = ck.Producer(memory.conf(linger__ms=0, topic__metadata__refresh__interval__ms=500))
    client = admin.AdminClient(memory.conf())
    for round_ in range(3):
        (made,) = client.create_topics([admin.NewTopic("t", 1, 1)]).values()
        made.result(S)
        producer.produce("t", b"%d" % round_)
        assert producer.flush(S) == 0
        assert [record.value for record in memory.records("t")] == [b"%d" % round_]
        (gone,) = client.delete_topics(["t"]).values()
        gone.result(S)


def test_an_asyncio_client_serves_kafka_too() -> None:
    async def script() -> None:
        async with pymq.aio.open("memory:") as mq:
            with await mq.kafka() as kafka:
                producer = ck.Producer({"bootstrap.servers": kafka.bootstrap})
                producer.produce("orders", b"two teapots")
                assert await asyncio.to_thread(producer.flush, S) == 0
            async with mq.consumer("orders", mode="reader") as reader:
                assert [record.value async for record in reader.until_end()] == [b"two teapots"]

    asyncio.run(script())
