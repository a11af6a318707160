"""The gate without a socket, as a function from bytes to bytes, on an embedded queue in memory."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest

import pymq
from pymq.core.batch.columns import Buffer
from pymq.core.batch.kafka import records
from pymq.core.batch.kafka.batch import KAFKA_HEADER, SIGNED_FROM, crc32c_function
from pymq.kafka.codes import Code
from pymq.kafka.connection import KafkaConnection
from pymq.kafka.gate import KafkaGate
from pymq.kafka.offered import HANDLERS
from pymq.kafka.shared.conversation import Endpoint
from pymq.kafka.wire import codec
from pymq.kafka.wire import messages as m
from pymq.kafka.wire.schema import schemas

pytest.importorskip("crc32c", reason="crc32c is not installed")
CRC = crc32c_function()
NOW = 1_700_000_000_000


class Bench:
    """A gate at the only broker of a queue."""

    def __init__(self) -> None:
        self.mq = pymq.open("memory:")
        self.failures: list[Exception] = []
        endpoints = {"broker-0": Endpoint(0, "127.0.0.1", 9092)}
        ids = map("{:032x}".format, range(1, 1_000_000))
        self.gate = KafkaGate(
            "broker-0", ["zkserver-0"], endpoints, CRC, lambda: NOW, lambda: next(ids)
        )
        self.gate.failed = lambda _, error: self.failures.append(error)
        with self.mq.driver as loop:
            loop.add("kafka-0", self.gate)
        self.connection = self.connect()
        self._correlation = 0

    def connect(self) -> KafkaConnection:
        with self.mq.driver:
            return self.gate.connected("127.0.0.1")

    def frame(self, name: str, version: int, request: object) -> bytes:
        """Return a request as a client sends it, without its length."""
        self._correlation += 1
        schema = schemas()[f"{name}Request"]
        parts: list[Buffer] = [
            struct.pack(">hhih", schema.key, version, self._correlation, 4) + b"test"
        ]
        if schema.is_flexible(version):
            parts.append(b"\0")
        codec.writer(schema.name, version)(request, parts.append)
        return b"".join(parts)

    def send(self, frame: bytes, connection: KafkaConnection | None = None) -> None:
        with self.mq.driver as loop:
            here = connection or self.connection
            self.gate.received(here, memoryview(frame), loop.clock())
            loop.touch("kafka-0")

    def answers(self, *expected: tuple[str, int]) -> list[Any]:
        """Decode the answers that the gate has sent, by the *expected* APIs and versions."""
        data = b"".join(self.connection.out)
        self.connection.out.clear()
        found, position = [], 0
        for name, version in expected:
            (size,) = struct.unpack_from(">i", data, position)
            schema = schemas()[f"{name}Response"]
            at = position + 8
            if schema.is_flexible(version) and name != "ApiVersions":
                at = codec.skip_tags(data, at)
            answer, end = codec.reader(schema.name, version)(data, at)
            position += 4 + size
            assert end == position
            found.append(answer)
        assert position == len(data)
        return found

    def ask(self, name: str, version: int, request: object) -> Any:
        self.send(self.frame(name, version, request))
        (answer,) = self.answers((name, version))
        return answer


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    assert found.failures == []
    found.mq.close()


def batch(*values: bytes, producer: tuple[int, int, int] = (-1, -1, -1), magic: int = 2) -> bytes:
    n = len(values)
    body = records.encode(range(n), [0] * n, [None] * n, values, [()] * n)
    rest = (0, n - 1, NOW, NOW, *producer, n)
    blank = KAFKA_HEADER.pack(0, 49 + len(body), -1, magic, 0, *rest) + body
    return KAFKA_HEADER.pack(0, 49 + len(body), -1, magic, CRC(blank[SIGNED_FROM:]), *rest) + body


def produce(data: bytes, topic: str = "t", index: int = 0, acks: int = -1) -> m.ProduceRequest:
    part = m.ProduceRequestPartitionProduceData(index, data)
    return m.ProduceRequest(
        None, acks, 5_000, [m.ProduceRequestTopicProduceData(topic, m.NO_ID, [part])]
    )


def fetch(
    offset: int, topic: str = "t", index: int = 0, *, wait_ms: int = 0, least: int = 1
) -> m.FetchRequest:
    part = m.FetchRequestFetchPartition(index, fetch_offset=offset, partition_max_bytes=1 << 20)
    return m.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=least,
        topics=[m.FetchRequestFetchTopic(topic, m.NO_ID, [part])],
    )


def produced(answer: Any) -> Any:
    return answer.responses[0].partition_responses[0]


def read(answer: Any) -> Any:
    return answer.responses[0].partitions[0]


# --- what is offered ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_the_apis_are_those_with_a_handler(bench: Bench, version: int) -> None:
    answer = bench.ask("ApiVersions", version, m.ApiVersionsRequest("test", "1"))
    found = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert set(found) == {*HANDLERS, 18}
    assert found[0] == (0, 13)
    assert found[1] == schemas()["FetchRequest"].versions
    assert not {24, 25, 26, 28, 71, 72, 83, 88} & set(found)


def test_a_version_of_api_versions_that_is_unknown_is_answered_as_version_0(bench: Bench) -> None:
    bench.send(struct.pack(">hhih", 18, 99, 1, 1) + b"x" + b"whatever this is")
    (answer,) = bench.answers(("ApiVersions", 0))
    assert answer.error_code == Code.UNSUPPORTED_VERSION
    assert [(each.api_key, each.max_version) for each in answer.api_keys] == [(18, 4)]


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 24, 0, 1, 0),  # AddPartitionsToTxn
        struct.pack(">hhih", 0, 2, 1, 0),  # Produce, in a version that is only announced
        struct.pack(">hhih", 3, 1, 1, 0) + b"\x7f\xff\xff\xff",
    ],
)
def test_what_is_not_offered_closes_the_connection(bench: Bench, frame: bytes) -> None:
    bench.send(frame)
    assert bench.connection.is_closed
    bench.connection = bench.connect()
    assert bench.ask("ApiVersions", 0, m.ApiVersionsRequest()).error_code == 0


@pytest.mark.parametrize("seed", range(20))
def test_damaged_requests_harm_only_their_connection(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    bench.mq.create_topic("t")
    whole = [
        bench.frame("Produce", 9, produce(batch(b"x"))),
        bench.frame("Fetch", 12, fetch(0)),
        bench.frame("Metadata", 12, m.MetadataRequest(None)),
        bench.frame("JoinGroup", 5, m.JoinGroupRequest("g", 6_000, 100, protocol_type="consumer")),
        bench.frame("OffsetCommit", 8, m.OffsetCommitRequest("g")),
        bench.frame("CreateTopics", 7, m.CreateTopicsRequest()),
    ]
    for _ in range(100):
        frame = bytearray(rng.choice(whole))
        for _ in range(rng.choice((1, 1, 2, 5))):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        connection = bench.connect()
        bench.send(bytes(frame[: rng.choice((len(frame), rng.randrange(len(frame))))]), connection)
        with bench.mq.driver:
            bench.gate.disconnected(connection)
    assert produced(bench.ask("Produce", 9, produce(batch(b"y")))).error_code == 0


# --- produce ------------------------------------------------------------------------------------


def test_records_get_offsets_and_are_fetched(bench: Bench) -> None:
    bench.mq.create_topic("t")
    for first, values in ((0, (b"a", b"b")), (2, (b"c",))):
        part = produced(bench.ask("Produce", 9, produce(batch(*values))))
        assert (part.error_code, part.base_offset) == (0, first)
    part = read(bench.ask("Fetch", 12, fetch(0)))
    assert (part.error_code, part.high_watermark, part.log_start_offset) == (0, 3, 0)
    data = bytes(part.records)
    assert struct.unpack_from(">q", data)[0] == 0
    assert len(data) == len(batch(b"a", b"b")) + len(batch(b"c"))
    assert [r.value for r in bench.mq.consumer("t", mode="reader").until_end()] == [
        b"a",
        b"b",
        b"c",
    ]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (produce(batch(b"x", magic=1)), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (produce(batch(b"x")[:-1] + b"?"), Code.CORRUPT_MESSAGE),
        (produce(b""), Code.CORRUPT_MESSAGE),
        (produce(batch(b"x") * 2), Code.INVALID_RECORD),
        (produce(batch(b"x"), topic="none"), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (produce(batch(b"x"), topic="__consumer_offsets"), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (produce(batch(b"x"), index=1), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (produce(batch(b"x"), index=-1), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (produce(batch(b"x"), acks=2), Code.INVALID_REQUIRED_ACKS),
        (produce(batch(b"x" * (1 << 20))), Code.MESSAGE_TOO_LARGE),
    ],
)
def test_what_is_refused_when_producing(
    bench: Bench, request_: m.ProduceRequest, code: Code
) -> None:
    bench.mq.create_topic("t")
    assert produced(bench.ask("Produce", 9, request_)).error_code == code
    assert read(bench.ask("Fetch", 12, fetch(0))).high_watermark == 0


def test_sequences_of_an_idempotent_producer(bench: Bench) -> None:
    bench.mq.create_topic("t")
    given = bench.ask("InitProducerId", 4, m.InitProducerIdRequest(None, 1_000))
    other = bench.ask("InitProducerId", 4, m.InitProducerIdRequest(None, 1_000))
    assert given.producer_id != other.producer_id
    pid = given.producer_id

    def send(epoch: int, sequence: int) -> tuple[int, int]:
        part = produced(
            bench.ask("Produce", 9, produce(batch(b"x", producer=(pid, epoch, sequence))))
        )
        return part.error_code, part.base_offset

    assert send(0, 0) == (0, 0)
    assert send(0, 1) == (0, 1)
    assert send(0, 0) == (0, 0)  # the same batch again
    assert send(0, 5)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    raised = bench.ask("InitProducerId", 4, m.InitProducerIdRequest(None, 1_000, pid, 0))
    assert (raised.producer_id, raised.producer_epoch) == (pid, 1)
    assert send(1, 0) == (0, 2)
    assert send(0, 2)[0] == Code.INVALID_PRODUCER_EPOCH
    spent = bench.ask("InitProducerId", 4, m.InitProducerIdRequest(None, 1_000, pid, 32_767))
    assert spent.producer_id not in (pid, other.producer_id)
    refused = bench.ask("InitProducerId", 4, m.InitProducerIdRequest("name", 1_000))
    assert refused.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_producer_without_acks_gets_no_answer_and_is_cut_off_when_refused(bench: Bench) -> None:
    bench.mq.create_topic("t")
    bench.send(bench.frame("Produce", 9, produce(batch(b"x"), acks=0)))
    assert bench.ask("ApiVersions", 0, m.ApiVersionsRequest()).error_code == 0
    assert not bench.connection.is_closed
    bench.send(bench.frame("Produce", 9, produce(batch(b"x"), topic="none", acks=0)))
    assert bench.connection.is_closed


# --- fetch --------------------------------------------------------------------------------------


def test_a_fetch_waits_for_a_record_and_is_answered_at_once(bench: Bench) -> None:
    bench.mq.create_topic("t")
    bench.send(bench.frame("Fetch", 12, fetch(0, wait_ms=60_000)))
    assert bench.answers() == []
    other = bench.connect()
    bench.send(bench.frame("Produce", 9, produce(batch(b"x"))), other)
    (answer,) = bench.answers(("Fetch", 12))
    assert len(read(answer).records) == len(batch(b"x"))


def test_a_fetch_waits_for_as_many_bytes_as_it_wants(bench: Bench) -> None:
    bench.mq.create_topic("t")
    bench.send(bench.frame("Fetch", 12, fetch(0, wait_ms=60_000, least=len(batch(b"x")) + 1)))
    other = bench.connect()
    bench.send(bench.frame("Produce", 9, produce(batch(b"x"))), other)
    assert bench.answers() == []
    bench.send(bench.frame("Produce", 9, produce(batch(b"x"))), other)
    (answer,) = bench.answers(("Fetch", 12))
    assert len(read(answer).records) == 2 * len(batch(b"x"))


def test_a_fetch_that_waits_does_not_hold_up_what_is_behind_it(bench: Bench) -> None:
    bench.mq.create_topic("t")
    bench.send(bench.frame("Fetch", 12, fetch(0, wait_ms=60_000)))
    bench.send(bench.frame("Metadata", 9, m.MetadataRequest([])))
    waited, asked = bench.answers(("Fetch", 12), ("Metadata", 9))
    assert read(waited).error_code == 0
    assert len(asked.brokers) == 1


def test_a_client_that_leaves_is_forgotten(bench: Bench) -> None:
    bench.mq.create_topic("t")
    for _ in range(10):
        connection = bench.connect()
        bench.send(bench.frame("Fetch", 12, fetch(0, wait_ms=60_000)), connection)
        with bench.mq.driver:
            bench.gate.disconnected(connection)
    assert bench.gate._conversations == {}
    assert list(bench.gate.connections) == [bench.connection.id]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (fetch(1), Code.OFFSET_OUT_OF_RANGE),
        (fetch(-1), Code.OFFSET_OUT_OF_RANGE),
        (fetch(-2), Code.OFFSET_OUT_OF_RANGE),
        (fetch(0, "none"), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (fetch(0, "__consumer_offsets"), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (fetch(0, index=7), Code.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_what_is_refused_when_fetching(bench: Bench, request_: m.FetchRequest, code: Code) -> None:
    bench.mq.create_topic("t")
    request_.max_wait_ms = 60_000  # an error does not wait
    assert read(bench.ask("Fetch", 12, request_)).error_code == code


def test_topics_by_their_ids(bench: Bench) -> None:
    bench.mq.create_topic("t")
    (topic,) = bench.ask("Metadata", 12, m.MetadataRequest(None)).topics
    wanted = m.MetadataRequestMetadataRequestTopic(topic.topic_id, None)
    (same,) = bench.ask("Metadata", 12, m.MetadataRequest([wanted])).topics
    assert (same.name, same.error_code) == ("t", 0)
    request = fetch(0)
    request.topics[0].topic_id = topic.topic_id
    assert read(bench.ask("Fetch", 17, request)).error_code == 0
    bench.gate._context.topics.drop("t")  # The client has the id from another broker.
    assert read(bench.ask("Fetch", 17, request)).error_code == 0
    request.topics[0].topic_id = bytes(15) + b"x"
    assert read(bench.ask("Fetch", 17, request)).error_code == Code.UNKNOWN_TOPIC_ID


# --- the rest -----------------------------------------------------------------------------------


def test_an_unknown_topic_is_created_if_the_client_wants_it(bench: Bench) -> None:
    topic = m.MetadataRequestMetadataRequestTopic(m.NO_ID, "t")
    (missing,) = bench.ask("Metadata", 9, m.MetadataRequest([topic], False)).topics
    assert missing.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    (made,) = bench.ask("Metadata", 9, m.MetadataRequest([topic], True)).topics
    assert (made.error_code, [p.leader_id for p in made.partitions]) == (0, [0])
    bad = m.MetadataRequestMetadataRequestTopic(m.NO_ID, "no/name")
    (refused,) = bench.ask("Metadata", 9, m.MetadataRequest([bad], True)).topics
    assert refused.error_code == Code.INVALID_TOPIC_EXCEPTION


def test_internal_topics_are_hidden(bench: Bench) -> None:
    bench.ask("FindCoordinator", 3, m.FindCoordinatorRequest("g", 0))
    assert bench.ask("Metadata", 9, m.MetadataRequest(None)).topics == []


def test_coordinators_are_of_groups_only(bench: Bench) -> None:
    found = bench.ask("FindCoordinator", 4, m.FindCoordinatorRequest(coordinator_keys=["g", "a/b"]))
    assert [each.error_code for each in found.coordinators] == [0, Code.INVALID_GROUP_ID]
    assert (found.coordinators[0].node_id, found.coordinators[0].port) == (0, 9092)
    other = bench.ask("FindCoordinator", 3, m.FindCoordinatorRequest("t", 1))
    assert other.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_commit_names_what_it_could_not_do(bench: Bench) -> None:
    bench.mq.create_topic("t")
    bench.ask("FindCoordinator", 3, m.FindCoordinatorRequest("g", 0))
    parts = [
        m.OffsetCommitRequestOffsetCommitRequestPartition(0, 5, -1, "note"),
        m.OffsetCommitRequestOffsetCommitRequestPartition(1, 5, -1, ""),
    ]
    topic = m.OffsetCommitRequestOffsetCommitRequestTopic("t", m.NO_ID, parts)
    answer = bench.ask("OffsetCommit", 8, m.OffsetCommitRequest("g", topics=[topic]))
    codes = [each.error_code for each in answer.topics[0].partitions]
    assert codes == [0, Code.UNKNOWN_TOPIC_OR_PARTITION]
    parts[0].committed_metadata = "x" * 5_000
    answer = bench.ask("OffsetCommit", 8, m.OffsetCommitRequest("g", topics=[topic]))
    assert answer.topics[0].partitions[0].error_code == Code.OFFSET_METADATA_TOO_LARGE
    wanted = m.OffsetFetchRequestOffsetFetchRequestTopic("t", [0, 1])
    found = bench.ask("OffsetFetch", 7, m.OffsetFetchRequest("g", [wanted]))
    assert [(p.committed_offset, p.metadata) for p in found.topics[0].partitions] == [
        (5, "note"),
        (-1, ""),
    ]
    group = m.OffsetFetchRequestOffsetFetchRequestGroup("g", topics=None)
    (all_,) = bench.ask("OffsetFetch", 9, m.OffsetFetchRequest(groups=[group])).groups
    assert [(t.name, [p.committed_offset for p in t.partitions]) for t in all_.topics] == [
        ("t", [5])
    ]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": "__mine"}, Code.INVALID_TOPIC_EXCEPTION),
        ({"name": "a/b"}, Code.INVALID_TOPIC_EXCEPTION),
        ({"num_partitions": 0}, Code.INVALID_PARTITIONS),
        ({"replication_factor": 2}, Code.INVALID_REPLICATION_FACTOR),
        (
            {"assignments": [m.CreateTopicsRequestCreatableReplicaAssignment(0, [0])]},
            Code.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            {"configs": [m.CreateTopicsRequestCreatableTopicConfig("nothing", "1")]},
            Code.INVALID_CONFIG,
        ),
        (
            {"configs": [m.CreateTopicsRequestCreatableTopicConfig("retention.ms", "x")]},
            Code.INVALID_CONFIG,
        ),
        (
            {
                "configs": [
                    m.CreateTopicsRequestCreatableTopicConfig(
                        "message.timestamp.type", "LogAppendTime"
                    )
                ]
            },
            Code.INVALID_CONFIG,
        ),
        (
            {
                "configs": [
                    m.CreateTopicsRequestCreatableTopicConfig("compression.type", "producer")
                ]
            },
            Code.NONE,
        ),
    ],
)
def test_topics_that_cannot_be_created(bench: Bench, change: dict[str, Any], code: Code) -> None:
    topic = m.CreateTopicsRequestCreatableTopic("t", 1, 1)
    for name, value in change.items():
        setattr(topic, name, value)
    for validate_only in (True, False):
        request = m.CreateTopicsRequest([topic], validate_only=validate_only)
        (found,) = bench.ask("CreateTopics", 7, request).topics
        assert found.error_code == code
    assert (bench.mq.topics() == ["t"]) is (code is Code.NONE)
