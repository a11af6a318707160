"""A worker of a share group, over real sockets: requests and answers byte by byte."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from pymq.core.batch.columns import Buffer
from pymq.core.batch.kafka import codecs, records
from pymq.core.batch.kafka.batch import KAFKA_HEADER, KAFKA_HEADER_SIZE, KafkaHeader
from pymq.kafka.codes import Code
from pymq.kafka.wire import codec
from pymq.kafka.wire import messages as m
from pymq.kafka.wire.schema import schemas

TIMEOUT_S = 20
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)


class Delivered(NamedTuple):
    """A record that a worker has leased."""

    topic_id: bytes
    partition: int
    offset: int
    value: bytes | None
    deliveries: int


class Wire:
    """A connection to a broker."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, TIMEOUT_S)
        self._correlation = 0

    def send(self, name: str, version: int, request: object) -> None:
        self._correlation += 1
        schema = schemas()[f"{name}Request"]
        head = struct.pack(">hhih", schema.key, version, self._correlation, 6) + b"worker"
        parts: list[Buffer] = [head + b"\0" if schema.is_flexible(version) else head]
        codec.writer(schema.name, version)(request, parts.append)
        data = b"".join(parts)
        self.socket.sendall(struct.pack(">i", len(data)) + data)

    def receive(self, name: str, version: int) -> Any:
        (size,) = struct.unpack(">i", self._read(4))
        data = self._read(size)
        at, schema = 4, schemas()[f"{name}Response"]
        if schema.is_flexible(version):
            at = codec.skip_tags(data, at)
        answer, end = codec.reader(schema.name, version)(data, at)
        assert end == size
        return answer

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker has closed the connection")
            data += piece
        return data

    def ask(self, name: str, version: int, request: object) -> Any:
        self.send(name, version, request)
        return self.receive(name, version)

    def close(self) -> None:
        self.socket.close()


class ShareWorker:
    """A member of a share group, with a session at each broker whose partitions it reads."""

    def __init__(
        self,
        address: tuple[str, int],
        group: str,
        topic: str,
        member: str = "worker",
        version: int = 2,
    ) -> None:
        self.group, self.topic, self.member, self.version = group, topic, member, version
        self.epoch = 0
        self.acks: dict[tuple[int, bytes, int], list[tuple[int, int, list[int]]]] = {}
        self.parts: list[tuple[bytes, int]] = []
        first = Wire(address)
        asked = m.MetadataRequestMetadataRequestTopic(m.NO_ID, topic)
        found = first.ask("Metadata", 13, m.MetadataRequest([asked]))
        self._wires = {each.node_id: Wire((each.host, each.port)) for each in found.brokers}
        self._epochs = dict.fromkeys(self._wires, 0)
        (known,) = found.topics
        self.leaders = {
            (known.topic_id, each.partition_index): each.leader_id for each in known.partitions
        }
        key = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        (leader,) = first.ask("FindCoordinator", 6, key).coordinators
        self.coordinator: int = leader.node_id
        first.close()

    def beat(self, epoch: int | None = None, names: list[str] | None = None) -> Any:
        """Send a heartbeat; the first joins the group."""
        epoch = self.epoch if epoch is None else epoch
        names = [self.topic] if epoch == 0 else names
        request = m.ShareGroupHeartbeatRequest(self.group, self.member, epoch, None, names)
        answer = self._wires[self.coordinator].ask("ShareGroupHeartbeat", 1, request)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.parts = [
                    (each.topic_id, n)
                    for each in answer.assignment.topic_partitions
                    for n in each.partitions
                ]
        return answer

    def join(self) -> Self:
        """Join, and open a session at each leader, so that the group has its first offsets."""
        assert self.beat().error_code == 0
        for node in sorted({self.leaders[part] for part in self.parts}):
            assert self.fetch(node, wait_ms=0) == []
        return self

    def request(
        self,
        node: int,
        epoch: int,
        wait_ms: int = 500,
        most: int = 500,
        parts: Iterable[tuple[bytes, int]] = (),
        *,
        renews: bool = False,
    ) -> m.ShareFetchRequest:
        acks = {key[1:]: runs for key, runs in self.acks.items() if key[0] == node}
        self.acks = {key: runs for key, runs in self.acks.items() if key[0] != node}
        topics: dict[bytes, m.ShareFetchRequestFetchTopic] = {}
        for topic_id, index in dict.fromkeys((*parts, *acks)):
            topic = topics.setdefault(topic_id, m.ShareFetchRequestFetchTopic(topic_id))
            topic.partitions.append(
                m.ShareFetchRequestFetchPartition(
                    index,
                    acknowledgement_batches=[
                        m.ShareFetchRequestAcknowledgementBatch(*run)
                        for run in sorted(acks.get((topic_id, index), []))
                    ],
                )
            )
        return m.ShareFetchRequest(
            self.group,
            self.member,
            epoch,
            0 if renews else wait_ms,
            0,
            0 if renews else 1 << 20,
            0 if renews else most,
            500,
            1,
            renews,
            list(topics.values()),
        )

    def raw_fetch(self, node: int = 0, epoch: int | None = None, **options: Any) -> Any:
        """Send a ShareFetch; returns the answer."""
        if epoch is None:
            epoch = self._epochs[node]
            self._epochs[node] += 1
        if epoch == 0:
            options.setdefault("parts", [p for p in self.parts if self.leaders[p] == node])
        request = self.request(node, epoch, **options)
        return self._wires[node].ask("ShareFetch", self.version, request)

    def fetch(self, node: int = 0, epoch: int | None = None, **options: Any) -> list[Delivered]:
        """Return the records that a broker has leased."""
        answer = self.raw_fetch(node, epoch, **options)
        assert answer.error_code == 0, Code(answer.error_code)
        return [
            record
            for topic in answer.responses
            for part in topic.partitions
            for record in delivered(topic.topic_id, part)
        ]

    def poll(self, **options: Any) -> list[Delivered]:
        """Return the records that all brokers have leased."""
        nodes = sorted({self.leaders[part] for part in self.parts})
        return [record for node in nodes for record in self.fetch(node, **options)]

    def settle(self, kind: int, *found: Delivered) -> None:
        """Acknowledge records with the next fetch."""
        for record in found:
            key = (
                self.leaders[record.topic_id, record.partition],
                record.topic_id,
                record.partition,
            )
            self.acks.setdefault(key, []).append((record.offset, record.offset, [kind]))

    def acknowledge(self, node: int = 0, epoch: int | None = None, *, renews: bool = False) -> Any:
        """Send the acknowledgements now; returns the code of each partition, or of the request."""
        if epoch is None:
            epoch = self._epochs[node]
            self._epochs[node] += 1
        fetch = self.request(node, epoch)
        request = m.ShareAcknowledgeRequest(
            self.group,
            self.member,
            epoch,
            renews,
            [
                m.ShareAcknowledgeRequestAcknowledgeTopic(
                    topic.topic_id,
                    [
                        m.ShareAcknowledgeRequestAcknowledgePartition(
                            part.partition_index,
                            [
                                m.ShareAcknowledgeRequestAcknowledgementBatch(
                                    each.first_offset, each.last_offset, each.acknowledge_types
                                )
                                for each in part.acknowledgement_batches
                            ],
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in fetch.topics
            ],
        )
        answer = self._wires[node].ask("ShareAcknowledge", self.version, request)
        if answer.error_code:
            return Code(answer.error_code)
        return [Code(part.error_code) for each in answer.responses for part in each.partitions]

    def ask(self, name: str, version: int, request: object) -> Any:
        """Send any request to the group's coordinator."""
        return self._wires[self.coordinator].ask(name, version, request)

    def leave(self) -> None:
        """Close the sessions, and leave the group."""
        for node in sorted({self.leaders[part] for part in self.parts}):
            self.fetch(node, -1)
        assert self.beat(-1).error_code == 0
        self.kill()

    def kill(self) -> None:
        """Break the connections, as the end of the process does."""
        for wire in self._wires.values():
            wire.close()


def delivered(topic_id: bytes, part: Any) -> list[Delivered]:
    """Decode the leased records of a partition, as Kafka's clients do: skip all others."""
    assert part.error_code == 0, Code(part.error_code)
    assert part.acknowledge_error_code == 0, Code(part.acknowledge_error_code)
    counts = {
        offset: each.delivery_count
        for each in part.acquired_records
        for offset in range(each.first_offset, each.last_offset + 1)
    }
    found, data, at = [], memoryview(part.records or b""), 0
    while at < len(data):
        head = KafkaHeader._make(KAFKA_HEADER.unpack_from(data, at))
        body = data[at + KAFKA_HEADER_SIZE : at + 12 + head.length]
        at += 12 + head.length
        unpacked = b"".join(codecs.unpack_pieces(head.attributes, body, 1 << 26))
        for piece in records.decode_pieces(unpacked, head.size, 1 << 20):
            for delta, value in zip(piece.offsets, piece.values, strict=True):
                offset = head.base_offset + delta
                if offset in counts:
                    count = counts.pop(offset)
                    found.append(Delivered(topic_id, part.partition_index, offset, value, count))
    assert not counts, f"leased, but without a record: {counts}"
    return found
