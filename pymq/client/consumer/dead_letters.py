"""What was delivered too often goes to a topic of its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pymq.core.batch.record import Record
from pymq.core.batch.view import RecordBatch
from pymq.core.metadata.topic_config import RECORD_MAX, TopicConfig
from pymq.core.types import AckMode
from pymq.errors import NotEnoughBrokers, PymqError

if TYPE_CHECKING:
    from pymq.client.client import Client
    from pymq.client.producer.producer import Producer


REASON_MAX = 1 << 10  # bytes of why records could not be read
OBITUARY_MAX = 4 << 10  # bytes that the headers below may take


class DeadLetters:
    """Moves the dead letters of one consumer; without a *topic* they are dropped."""

    def __init__(self, client: Client, topic: str | None, group: str | None) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self._producer: Producer | None = None

    def bury(self, view: RecordBatch) -> None:
        """Write these records to the dead-letter topic; they are there when this returns."""
        topic = self._topic
        if topic is None:
            return
        if self._producer is None:
            self._make(topic, view.topic)
            self._producer = self._client.producer()
        if (fault := view.fault()) is not None:
            self._producer.send(topic, b"", headers=_damage(view, fault, self._group))
            self._producer.flush()
            return
        for record in view.records():
            self._producer.send(
                topic,
                record.value,
                key=record.key,
                headers=(*record.headers, *_obituary(record, self._group)),
            )
        self._producer.flush()

    def _make(self, topic: str, source: str) -> None:
        """Make the dead-letter topic, as safe as that which the records come from."""
        found = self._client.describe_topic(source)
        first = found.partitions[0]
        acks = first.acks if first.acks is AckMode.RAFT else AckMode.LEADER
        most = min(found.config.max_record_bytes + OBITUARY_MAX, RECORD_MAX)
        make = partial(
            self._client.create_topic,
            topic,
            acks=acks,
            exist_ok=True,
            max_record_bytes=max(most, TopicConfig().max_record_bytes),
        )
        try:
            make(replicas=max(1, len(first.replicas)))
        except NotEnoughBrokers:
            make()  # Some are away, and a letter on one broker is better than a group that stops.

    def close(self) -> None:
        """Let go."""
        if self._producer is not None:
            self._producer.close()


def _damage(view: RecordBatch, fault: PymqError, group: str | None) -> list[tuple[str, bytes]]:
    """What stands in the place of records that cannot be read."""
    return [
        ("pymq.topic", view.topic.encode()),
        ("pymq.partition", view.partition.encode()),
        ("pymq.offset", str(view.base_offset).encode()),
        ("pymq.end_offset", str(view.end_offset).encode()),
        ("pymq.group", (group or "").encode()),
        ("pymq.delivery_count", str(view.delivery_count).encode()),
        ("pymq.error", fault.message.encode()[:REASON_MAX]),
    ]


def _obituary(record: Record, group: str | None) -> list[tuple[str, bytes]]:
    """Where a dead letter came from, as headers."""
    return [
        ("pymq.topic", record.topic.encode()),
        ("pymq.partition", record.partition.encode()),
        ("pymq.offset", str(record.offset).encode()),
        ("pymq.group", (group or "").encode()),
        ("pymq.delivery_count", str(record.delivery_count).encode()),
    ]
