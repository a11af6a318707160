"""A compacted topic to which only one writer at a time appends, after reading the whole topic.

A writer takes the topic over by a producer name: the writer gets a newer epoch of that name, reads
the topic, and appends a record with the next sequence. From then on the brokers refuse the previous
writer. The brokers also refuse the new writer if another record was appended after it had requested
the sequence. So a writer has always read all records before the one that it appends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pymq.client.admin.appends import append, sequences
from pymq.core.batch.columns import Headers
from pymq.core.batch.header import EPOCH_HALF
from pymq.core.batch.priority import priority_bits
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.route import routed_bit
from pymq.core.types import AckMode
from pymq.errors import (
    DuplicateSequence,
    NotEnoughBrokers,
    OutOfOrderSequence,
    ProducerFenced,
)

if TYPE_CHECKING:
    from pymq.client.client import Client

TIMEOUT_S = 60.0
CLAIMS = 10  # attempts to take over the topic
OWNER = b""  # the key of the record with which a writer takes the topic over


class OwnedTopic:
    """The topic *name* of one partition, for one writer; its producer name is the topic's name."""

    def __init__(self, client: Client, name: str, max_record_bytes: int) -> None:
        self.name = name
        self._client = client
        self._max_record_bytes = max_record_bytes
        self._sequence = 0  # sequence of the next record
        self.producer_id = self.producer_epoch = 0

    def create(self, like: str) -> None:
        """Create the topic if it is missing, with ack mode and replicas of the topic *like*."""
        found = self._client.describe_topic(like).partitions[0]
        options: dict[str, Any] = {
            "acks": AckMode.RAFT if found.acks is AckMode.RAFT else AckMode.LEADER,
            "exist_ok": True,
            "cleanup_policy": "compact",
            "max_record_bytes": self._max_record_bytes,
        }
        try:
            self._client.create_topic(self.name, 1, max(1, len(found.replicas)), **options)
        except NotEnoughBrokers:
            # fewer replicas or a weaker ack mode are better than no topic
            self._client.create_topic(self.name, 1, **options)

    def claim(self, load: Callable[[], None]) -> bool:
        """Fence the previous writer; *load* reads the topic.

        Returns False if another writer has claimed the topic.
        """
        identities, questions = self._client.questions.identities, self._client.questions
        self.producer_id, epoch = identities.named(self.name)
        self.producer_epoch = epoch << EPOCH_HALF
        for _ in range(CLAIMS):
            known = sequences(questions, self.name, ["0"], self.producer_id, TIMEOUT_S)
            self._sequence = known["0"]
            load()
            if self.append(OWNER, str(epoch).encode()):
                return True
        return False

    def append(self, key: bytes, item: bytes) -> bool:
        """Append a record, durably; returns False if another writer has taken the topic over."""
        return self.append_all([(key, item)])

    def append_all(self, rows: list[tuple[bytes, bytes]]) -> bool:
        """Append records, given by key and value, as one batch; see :meth:`append`."""
        questions = self._client.questions
        topic = questions.topic_metadata(self.name)
        values, keys = [item for _, item in rows], [key for key, _ in rows]
        batch = self.batch(values, list(keys), [()] * len(rows), self._sequence)
        try:
            append(questions, topic, {"0": batch}, TIMEOUT_S, sync=True)
        except (OutOfOrderSequence, DuplicateSequence, ProducerFenced):
            return False
        self._sequence += len(rows)
        return True

    def batch(
        self,
        values: list[bytes],
        keys: list[bytes | None],
        headers: list[Headers],
        sequence: int,
    ) -> EncodedBatch:
        """Return a batch with the writer's producer id, for this topic or another topic."""
        return EncodedBatch.encode(
            values,
            timestamp_ms=self._client._wall_ms(),
            keys=keys,
            headers=headers,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            attributes=routed_bit(headers) | priority_bits(headers),
        )
