"""What was delivered too often goes to a topic of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymq.core.record import Record
from pymq.core.view import BatchView

if TYPE_CHECKING:
    from pymq.client.client import Client
    from pymq.client.producer import Producer


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
            self._client.create_topic(topic, partitions=1, exist_ok=True)
            self._producer = self._client.producer()
        for record in view.records():
            self._producer.send(
                topic,
                record.value,
                key=record.key,
                headers=(*record.headers, *_obituary(record, self._group)),
            )
        self._producer.flush()

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
