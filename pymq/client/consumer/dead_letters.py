"""Moves records that were delivered too often, or have expired, to the dead-letter topic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pymq.core.batch.dead_letter import OBITUARY_MAX, headers_of_damage, with_obituary
from pymq.core.batch.record import Record
from pymq.core.batch.view import RecordBatch
from pymq.core.metadata.topic_config import RECORD_MAX, TopicConfig
from pymq.core.types import AckMode
from pymq.errors import NotEnoughBrokers

if TYPE_CHECKING:
    from pymq.client.client import Client
    from pymq.client.producer.producer import Producer


class DeadLetters:
    """Moves the dead letters of one consumer; without a *topic* it drops them."""

    def __init__(self, client: Client, topic: str | None, group: str | None) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self._producer: Producer | None = None

    def bury(self, view: RecordBatch, why: bytes | None = None) -> None:
        """Write these records to the dead-letter topic, and wait for the acknowledgements.

        *why* is the error text; None: each record's own last error.
        """
        self.send(view, why)
        self.flush()

    def send(self, view: RecordBatch, why: bytes | None = None) -> None:
        """Begin to write these records; :meth:`flush` waits for them."""
        topic = self._topic
        if topic is None:
            return
        if (fault := view.fault()) is None:
            self._send(view.records(), why)
        else:
            producer = self._producer_to(topic, view.topic)
            producer.send(topic, b"", headers=headers_of_damage(view, fault, self._group))

    def flush(self) -> None:
        """Wait until all records are written."""
        if self._producer is not None:
            self._producer.flush()

    def bury_records(self, records: Sequence[Record], why: bytes | None = None) -> None:
        """Write records to the dead-letter topic, and wait for the acknowledgements.

        *why* is as in :meth:`bury`.
        """
        self._send(records, why)
        self.flush()

    def _send(self, records: Sequence[Record], why: bytes | None) -> None:
        topic = self._topic
        if topic is None or not records:
            return
        producer = self._producer_to(topic, records[0].topic)
        for record in records:
            headers = with_obituary(record, self._group, why)
            producer.send(topic, record.value, key=record.key, headers=headers)

    def _producer_to(self, topic: str, source: str) -> Producer:
        if self._producer is None:
            self._make(topic, source)
            self._producer = self._client.producer()
        return self._producer

    def _make(self, topic: str, source: str) -> None:
        """Create the dead-letter topic, with the ack mode and replicas of the records' topic."""
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
            # Create the topic even if some brokers are dead, so that the group can continue.
            make()

    def close(self) -> None:
        """Close the producer."""
        if self._producer is not None:
            self._producer.close()
