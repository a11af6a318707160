"""What was delivered too often goes to a topic of its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pymq.core.config import RECORD_MAX, TopicConfig
from pymq.core.record import Record
from pymq.core.types import AckMode
from pymq.core.view import BatchView
from pymq.errors import NotEnoughBrokers

if TYPE_CHECKING:
    from pymq.client.client import Client
    from pymq.client.producer import Producer


OBITUARY_MAX = 4 << 10  # bytes that the headers below may take


class Undertaker:
    """Moves the dead letters of one consumer; without a *topic* they are dropped."""

    def __init__(self, client: Client, topic: str | None, group: str | None) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self._producer: Producer | None = None

    def bury(self, view: BatchView) -> None:
        """Write these records to the dead-letter topic; they are there when this returns."""
        topic = self._topic
        if topic is None:
            return
        if self._producer is None:
            self._make(topic, view.topic)
            self._producer = self._client.producer()
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


def _obituary(record: Record, group: str | None) -> list[tuple[str, bytes]]:
    """Where a dead letter came from, as headers."""
    return [
        ("pymq.topic", record.topic.encode()),
        ("pymq.partition", record.partition.encode()),
        ("pymq.offset", str(record.offset).encode()),
        ("pymq.group", (group or "").encode()),
        ("pymq.delivery_count", str(record.delivery_count).encode()),
    ]
