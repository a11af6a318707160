"""Share groups (KIP-932) through a real door: Kafka's workers in pymq's own groups."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pymq
from pymq.cli.diagnosis.record_status import fates
from pymq.hash.partitioner import key_partition
from pymq.kafka.codes import Code
from pymq.kafka.endpoint import KafkaEndpoint
from pymq.kafka.wire import messages as m
from tests.kafka.share.worker import ACCEPT, REJECT, RELEASE, RENEW, Delivered, ShareWorker

pytest.importorskip("crc32c", reason="crc32c is not installed")
MEMBERS = 5  # deliveries before a record is a dead letter
Start = Callable[..., ShareWorker]


class Queue:
    """A queue that listens for Kafka's clients, and its workers."""

    def __init__(self, brokers: int = 1) -> None:
        self.mq = pymq.open("memory:", brokers=brokers)
        self.endpoint: KafkaEndpoint = self.mq.kafka()
        self._workers: list[ShareWorker] = []

    def worker(self, member: str = "w1", group: str = "g", topic: str = "t") -> ShareWorker:
        found = ShareWorker(self.endpoint.addresses[0], group, topic, member)
        self._workers.append(found)
        return found

    def send(self, *values: bytes, topic: str = "t", key: bytes | None = None) -> None:
        with self.mq.producer() as producer:
            for value in values:
                producer.send(topic, value, key=key)
            producer.flush()

    def letters(self) -> list[pymq.Record]:
        """Return the dead letters of the topic t."""
        with self.mq.consumer("t.dlq", mode="reader") as consumer:
            return list(consumer.until_end())

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self.endpoint.close()
        self.mq.close()


@pytest.fixture
def queue() -> Iterator[Queue]:
    found = Queue()
    found.mq.create_topic("t", partitions=2)
    yield found
    found.close()


@pytest.fixture
def brokers() -> Iterator[Queue]:
    found = Queue(brokers=3)
    found.mq.create_topic("t", partitions=3)
    yield found
    found.close()


def values(found: list[Delivered]) -> list[bytes]:
    return sorted(record.value or b"" for record in found)


def drained(worker: ShareWorker, count: int) -> list[Delivered]:
    """Poll until the worker has got so many records."""
    found: list[Delivered] = []
    for _ in range(200):
        found += worker.poll(wait_ms=200)
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} records, not {count}")


def test_a_worker_gets_and_accepts_records(queue: Queue) -> None:
    queue.send(b"a", b"b", b"c")
    worker = queue.worker()
    answer = worker.beat()
    assert (answer.error_code, answer.member_epoch) == (0, 1)
    assert sorted(index for _, index in worker.parts) == [0, 1]
    found = drained(worker, 3)
    assert values(found) == [b"a", b"b", b"c"]
    assert {record.deliveries for record in found} == {1}
    worker.settle(ACCEPT, *found)
    assert worker.poll(wait_ms=0) == []
    assert sum(queue.mq.describe_group("g").lag.values()) == 0
    worker.leave()
    assert queue.mq.describe_group("g").members == ()


def test_records_that_come_later_end_the_wait(queue: Queue) -> None:
    worker = queue.worker().join()
    timer = threading.Timer(0.05, queue.send, [b"late"])
    timer.start()
    assert values(worker.fetch(wait_ms=20_000)) == [b"late"]
    timer.join()


def test_released_records_are_delivered_again_and_counted(queue: Queue) -> None:
    queue.send(b"a")
    worker = queue.worker()
    worker.beat()
    for count in range(1, 4):
        (record,) = drained(worker, 1)
        assert (record.value, record.deliveries) == (b"a", count)
        worker.settle(RELEASE, record)


def test_a_record_that_was_delivered_too_often_is_a_dead_letter(queue: Queue) -> None:
    queue.send(b"a", key=b"k")
    worker = queue.worker()
    worker.beat()
    for _ in range(MEMBERS):
        (record,) = drained(worker, 1)
        worker.settle(RELEASE, record)
    assert worker.poll(wait_ms=0) == []
    (letter,) = queue.letters()
    assert (letter.value, letter.key) == (b"a", b"k")
    assert dict(letter.headers)["pymq.delivery_count"] == b"5"
    assert sum(queue.mq.describe_group("g").lag.values()) == 0


def test_rejected_records_are_dead_letters_at_once(queue: Queue) -> None:
    queue.send(b"a", b"b")
    worker = queue.worker()
    worker.beat()
    found = drained(worker, 2)
    worker.settle(REJECT, *(record for record in found if record.value == b"a"))
    worker.settle(ACCEPT, *(record for record in found if record.value == b"b"))
    assert set(worker.acknowledge()) == {Code.NONE}
    (letter,) = queue.letters()
    headers = dict(letter.headers)
    assert letter.value == b"a"
    assert headers["pymq.group"] == b"g"
    assert headers["pymq.delivery_count"] == b"1"
    assert headers["pymq.error"] == b"a worker has rejected the record"
    assert worker.poll(wait_ms=0) == []


@pytest.mark.parametrize("brokers_count", [1, 3])
def test_one_group_of_kafkas_workers_and_pymqs_consumers(brokers_count: int) -> None:
    """Each record is delivered once, to one of the two."""
    queue = Queue(brokers_count)
    queue.mq.create_topic("t", partitions=3)
    count, own, stop = 600, list[bytes](), threading.Event()

    def consume() -> None:
        with queue.mq.consumer("t", group="g") as consumer:
            while not stop.is_set():
                for record in consumer.poll(max_records=5, timeout=0.05):
                    own.append(record.value)
                    consumer.ack(record)
            consumer.commit()

    thread = threading.Thread(target=consume)
    try:
        worker = queue.worker().join()
        thread.start()
        theirs: list[bytes] = []
        with queue.mq.producer() as producer:
            for number in range(count):
                producer.send("t", b"%d" % number)
                if number % 50 == 49:
                    producer.flush()
                    found = worker.poll(wait_ms=20, most=10)
                    theirs += [record.value or b"" for record in found]
                    worker.settle(ACCEPT, *found)
            producer.flush()
        for _ in range(400):
            if len(own) + len(theirs) >= count:
                break
            found = worker.poll(wait_ms=50, most=10)
            theirs += [record.value or b"" for record in found]
            worker.settle(ACCEPT, *found)
        assert worker.poll(wait_ms=0) == []
        members = queue.mq.describe_group("g").members
        stop.set()
        thread.join()
        assert own
        assert theirs
        assert any(name.startswith("w1.t.broker-") for name in members)
        assert Counter(own + theirs) == Counter(b"%d" % n for n in range(count))
    finally:
        stop.set()
        thread.join()
        queue.close()


def test_records_of_a_killed_worker_are_delivered_again(queue: Queue) -> None:
    queue.send(*(b"%d" % n for n in range(10)))
    killed, other = queue.worker("w1"), queue.worker("w2")
    killed.beat()
    assert len(drained(killed, 10)) == 10
    killed.kill()
    other.beat()
    found = drained(other, 10)
    assert values(found) == sorted(b"%d" % n for n in range(10))
    assert {record.deliveries for record in found} == {2}


def test_the_end_of_a_session_gives_its_records_to_others(queue: Queue) -> None:
    queue.send(b"a", b"b")
    first, second = queue.worker("w1"), queue.worker("w2")
    first.beat()
    found = drained(first, 2)
    first.settle(ACCEPT, *(record for record in found if record.value == b"a"))
    assert Code.NONE in first.acknowledge(epoch=-1)
    second.beat()
    (record,) = drained(second, 1)
    assert (record.value, record.deliveries) == (b"b", 2)


def test_workers_leave_when_the_queue_listens_no_more(queue: Queue) -> None:
    worker = queue.worker().join()
    assert queue.mq.describe_group("g").members == ("w1.t.broker-0",)
    queue.endpoint.close()
    assert queue.mq.describe_group("g").members == ()
    assert worker.parts


def test_sessions_have_epochs(queue: Queue) -> None:
    queue.send(b"a")
    worker = queue.worker()
    worker.beat()
    worker.member = ""
    assert worker.raw_fetch(epoch=0).error_code == Code.INVALID_REQUEST
    worker.member = "w1"
    assert worker.raw_fetch(epoch=1).error_code == Code.SHARE_SESSION_NOT_FOUND
    assert worker.raw_fetch(epoch=-1).error_code == Code.SHARE_SESSION_NOT_FOUND
    assert worker.acknowledge(epoch=0) is Code.INVALID_SHARE_SESSION_EPOCH
    found = worker.fetch()
    worker.settle(ACCEPT, *found)
    assert worker.raw_fetch(epoch=0).error_code == Code.INVALID_REQUEST
    worker.settle(ACCEPT, *found)
    assert worker.acknowledge(epoch=7) is Code.INVALID_SHARE_SESSION_EPOCH
    worker.settle(ACCEPT, *found)
    assert worker.acknowledge() == [Code.NONE]
    assert worker.raw_fetch(epoch=1).error_code == Code.INVALID_SHARE_SESSION_EPOCH
    assert worker.raw_fetch(epoch=2, wait_ms=0).error_code == 0
    # A client that has lost its session begins another one.
    assert worker.raw_fetch(epoch=0, wait_ms=0).error_code == 0
    assert worker.raw_fetch(epoch=1, wait_ms=0).error_code == 0


def test_acknowledgements_of_records_that_are_not_leased_are_refused_as_a_whole(
    queue: Queue,
) -> None:
    queue.send(*(b"%d" % n for n in range(3)), key=b"k")  # in one partition
    worker = queue.worker()
    worker.beat()
    found = drained(worker, 3)
    first, second, _ = found
    worker.settle(ACCEPT, first)
    assert worker.acknowledge() == [Code.NONE]
    worker.settle(ACCEPT, first, second)  # the first for the second time
    assert worker.acknowledge() == [Code.INVALID_RECORD_STATE]
    worker.settle(ACCEPT, second)
    assert worker.acknowledge() == [Code.NONE]
    key = 0, first.topic_id, first.partition
    for runs in ([(2, 1, [1])], [(0, 2, [1, 1])], [(2, 2, [9])], [(2, 2, [4])], [(-1, 0, [1])]):
        worker.acks[key] = runs
        assert worker.acknowledge() == [Code.INVALID_REQUEST]
    worker.acks[0, m.NO_ID[:-1] + b"x", 0] = [(0, 0, [1])]
    assert worker.acknowledge() == [Code.UNKNOWN_TOPIC_ID]


def test_a_kind_for_each_offset(queue: Queue) -> None:
    queue.send(*(b"%d" % n for n in range(4)), key=b"k")
    worker = queue.worker()
    worker.beat()
    first, *_ = drained(worker, 4)
    start = first.offset
    worker.acks[0, first.topic_id, first.partition] = [
        (start, start + 3, [ACCEPT, RELEASE, ACCEPT, RELEASE])
    ]
    assert worker.acknowledge() == [Code.NONE]
    again = drained(worker, 2)
    assert [(each.value, each.deliveries) for each in again] == [(b"1", 2), (b"3", 2)]


def test_renewed_leases_go_on(queue: Queue) -> None:
    queue.send(b"a")
    worker = queue.worker()
    worker.beat()
    (record,) = drained(worker, 1)
    before = lease_ms(queue, record)
    worker.settle(RENEW, record)
    assert worker.fetch(renews=True) == []  # takes nothing but acknowledgements
    assert lease_ms(queue, record) >= before - 5
    worker.settle(RENEW, record)
    assert worker.acknowledge(renews=True) == [Code.NONE]
    worker.settle(ACCEPT, record)
    assert worker.acknowledge() == [Code.NONE]


def lease_ms(queue: Queue, record: Delivered) -> int:
    found = queue.mq.describe_leases("g", "t", str(record.partition))
    (lease,) = found.leases
    assert lease.member == "w1.t.broker-0"
    assert lease.until_ms is not None
    return lease.until_ms


def test_limits_of_records_and_bytes(queue: Queue) -> None:
    queue.mq.create_topic("large", partitions=1)
    queue.send(*(bytes(300_000) for _ in range(8)), topic="large")
    worker = queue.worker(topic="large")
    worker.beat()
    (first,) = worker.fetch(most=1)
    found = worker.fetch(most=100)  # 1 MiB
    assert 1 <= len(found) <= 5
    # What did not fit was returned, and not counted as a delivery.
    rest = worker.fetch(most=100)
    assert {record.deliveries for record in rest} == {1}
    assert len({record.offset for record in (first, *found, *rest)}) == 1 + len(found) + len(rest)


def test_heartbeats_have_epochs(queue: Queue) -> None:
    worker = queue.worker()
    assert worker.beat(3).error_code == Code.UNKNOWN_MEMBER_ID
    assert worker.beat(-1).error_code == Code.UNKNOWN_MEMBER_ID
    assert worker.beat(-2).error_code == Code.INVALID_REQUEST
    assert worker.beat().error_code == 0
    assert worker.beat().assignment is None
    assert worker.beat(7).error_code == Code.FENCED_MEMBER_EPOCH
    queue.mq.create_topic("u", partitions=1)
    answer = worker.beat(names=["t", "u"])
    assert answer.member_epoch == 2
    assert len(worker.parts) == 3
    assert worker.beat(1).assignment is not None  # the last answer was lost
    worker.member = "/"
    assert worker.beat(0).error_code == Code.INVALID_REQUEST


def test_groups_of_another_kind_are_refused(queue: Queue) -> None:
    worker = queue.worker()
    protocol = m.JoinGroupRequestJoinGroupRequestProtocol("range", b"")
    joined = worker.ask(
        "JoinGroup",
        3,
        m.JoinGroupRequest("g", 30_000, 30_000, "", None, "consumer", [protocol]),
    )
    assert joined.error_code == 0
    assert worker.beat().error_code == Code.GROUP_ID_NOT_FOUND


def test_descriptions(queue: Queue) -> None:
    queue.send(*(b"%d" % n for n in range(5)), key=b"k")
    worker = queue.worker()
    worker.beat()
    first, *_ = drained(worker, 5)
    worker.settle(ACCEPT, first)
    worker.poll(wait_ms=0)
    listed = worker.ask("ListGroups", 5, m.ListGroupsRequest(types_filter=["share"])).groups
    assert [(each.group_id, each.group_type, each.group_state) for each in listed] == [
        ("g", "share", "Stable")
    ]
    (found,) = worker.ask("ShareGroupDescribe", 1, m.ShareGroupDescribeRequest(["g"])).groups
    assert (found.error_code, found.group_state) == (0, "Stable")
    assert [(each.member_id, each.client_id) for each in found.members] == [("w1", "worker")]
    (found,) = worker.ask("ShareGroupDescribe", 1, m.ShareGroupDescribeRequest(["no"])).groups
    assert found.error_code == Code.GROUP_ID_NOT_FOUND
    offsets = describe_offsets(worker)
    assert offsets[first.partition] == (first.offset + 1, 4)
    assert offsets[1 - first.partition] == (0, 0)


def describe_offsets(worker: ShareWorker) -> dict[int, tuple[int, int]]:
    """Return the start offset and the lag of each partition."""
    asked = m.DescribeShareGroupOffsetsRequestDescribeShareGroupOffsetsRequestGroup("g", None)
    request = m.DescribeShareGroupOffsetsRequest([asked])
    (group,) = worker.ask("DescribeShareGroupOffsets", 1, request).groups
    assert group.error_code == 0
    return {
        part.partition_index: (part.start_offset, part.lag)
        for topic in group.topics
        for part in topic.partitions
    }


def test_offsets_are_changed_and_deleted(queue: Queue) -> None:
    queue.send(*(b"%d" % n for n in range(5)), key=b"k")
    worker = queue.worker()
    worker.beat()
    first, *_ = drained(worker, 5)

    def alter(offset: int) -> Any:
        part = m.AlterShareGroupOffsetsRequestAlterShareGroupOffsetsRequestPartition(
            first.partition, offset
        )
        topic = m.AlterShareGroupOffsetsRequestAlterShareGroupOffsetsRequestTopic("t", [part])
        request = m.AlterShareGroupOffsetsRequest("g", [topic])
        return worker.ask("AlterShareGroupOffsets", 0, request)

    def delete() -> Any:
        topic = m.DeleteShareGroupOffsetsRequestDeleteShareGroupOffsetsRequestTopic("t")
        request = m.DeleteShareGroupOffsetsRequest("g", [topic])
        return worker.ask("DeleteShareGroupOffsets", 0, request)

    assert alter(3).error_code == Code.NON_EMPTY_GROUP
    assert delete().error_code == Code.NON_EMPTY_GROUP
    worker.fetch(epoch=-1)
    answer = alter(3)
    assert answer.error_code == answer.responses[0].partitions[0].error_code == 0
    assert describe_offsets(worker)[first.partition] == (3, 2)
    answer = delete()
    assert answer.error_code == answer.responses[0].error_code == 0
    assert delete().error_code == Code.GROUP_ID_NOT_FOUND


def test_a_worker_reads_the_partitions_of_each_leader(brokers: Queue) -> None:
    brokers.send(*(b"%d" % n for n in range(60)))
    worker = brokers.worker()
    worker.beat()
    assert set(worker.leaders.values()) == {0, 1, 2}
    found = drained(worker, 60)
    assert len({record.value for record in found}) == 60
    assert {record.deliveries for record in found} == {1}
    worker.settle(ACCEPT, *found)
    worker.poll(wait_ms=0)
    assert sum(brokers.mq.describe_group("g").lag.values()) == 0
    members = brokers.mq.describe_group("g").members
    assert len(members) == 3


def test_records_end_the_wait_at_each_broker(brokers: Queue) -> None:
    """The coordinator is told of new records by its own broker; others have to ask again."""
    worker = brokers.worker().join()
    for index in range(3):
        topic_id, _ = worker.parts[0]
        node = worker.leaders[topic_id, index]
        key = next(b"%d" % n for n in range(99) if key_partition(b"%d" % n, 3) == index)
        timer = threading.Timer(0.05, brokers.send, [key], {"key": key})
        timer.start()
        assert values(worker.fetch(node, wait_ms=20_000)) == [key]
        timer.join()


def test_the_options_of_a_group_are_fixed(queue: Queue) -> None:
    worker = queue.worker()
    resource = m.DescribeConfigsRequestDescribeConfigsResource(32, "g", None)
    request = m.DescribeConfigsRequest([resource])
    (found,) = worker.ask("DescribeConfigs", 4, request).results
    options = {each.name: each.value for each in found.configs}
    assert options["share.auto.offset.reset"] == "earliest"
    assert options["share.record.lock.duration.ms"] == "30000"

    def alter(name: str, value: str) -> int:
        config = m.IncrementalAlterConfigsRequestAlterableConfig(name, 0, value)
        changed = m.IncrementalAlterConfigsRequestAlterConfigsResource(32, "g", [config])
        request = m.IncrementalAlterConfigsRequest([changed])
        (answer,) = worker.ask("IncrementalAlterConfigs", 1, request).responses
        return int(answer.error_code)

    assert alter("share.auto.offset.reset", "earliest") == 0
    assert alter("share.auto.offset.reset", "latest") == Code.INVALID_CONFIG
    assert alter("no.such.option", "1") == Code.INVALID_CONFIG


def test_explain_names_the_worker(queue: Queue) -> None:
    queue.send(b"a")
    worker = queue.worker("java-1")
    worker.beat()
    (record,) = drained(worker, 1)
    parts = {each.name: each for each in queue.mq.describe_topic("t").partitions}
    (fate,) = fates(queue.mq, "t", parts[str(record.partition)], record.offset, None)
    assert (fate.group, fate.state) == ("g", "leased")
    assert "java-1.t.broker-0" in fate.why
