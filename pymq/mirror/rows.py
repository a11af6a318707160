"""Records on their way from Kafka: checked, and collected as the columns of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymq.core.batch.columns import Headers
from pymq.core.batch.kafka.records import TOMBSTONE
from pymq.core.values import Factory, define
from pymq.errors import CorruptBatch, InvalidTimestamp, RecordTooLarge

if TYPE_CHECKING:
    from pymq.core.metadata.topic_config import TopicConfig

CHUNK_BYTES = 1 << 20  # size at which a batch is closed
CHUNK_RECORDS = 10_000


@define
class MirrorRows:
    """Records of one partition, as columns, with their offsets in Kafka."""

    offsets: list[int] = Factory(list)
    values: list[bytes] = Factory(list)
    keys: list[bytes | None] = Factory(list)
    headers: list[Headers] = Factory(list)
    times: list[int] = Factory(list)
    size: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the next record begins another batch."""
        return self.size >= CHUNK_BYTES or len(self.offsets) >= CHUNK_RECORDS


def add(rows: MirrorRows, message: Any, config: TopicConfig, wall_ms: int) -> None:
    """Add a message of confluent-kafka to the rows.

    A record without a timestamp gets the time *wall_ms*.

    Raises:
        RecordTooLarge, InvalidTimestamp: the copy's options do not allow this record.
        CorruptBatch: a header's name is not UTF-8.
    """
    item, key = message.value(), message.key()
    try:
        pairs = message.headers()
    except UnicodeDecodeError as error:
        raise CorruptBatch(f"{_where(message)}: a header's name is not UTF-8") from error
    headers: Headers = ()
    if pairs:
        headers = tuple([(name, content or b"") for name, content in pairs])
    if item is None:
        item, headers = b"", (*headers, TOMBSTONE)
    size = len(item) + len(key or b"")
    if headers:
        size += sum([len(name) + len(content) for name, content in headers])
    if size > config.max_record_bytes:
        raise RecordTooLarge(
            f"{_where(message)}: {size} bytes are more than max_record_bytes="
            f"{config.max_record_bytes} of the copy; raise that option, or use --on-error skip"
        )
    kind, time = message.timestamp()
    if not kind or time < 0:
        time = wall_ms
    limit = config.timestamp_after_max_ms
    if limit is not None and time > wall_ms + limit:
        raise InvalidTimestamp(
            f"{_where(message)}: its time is {time - wall_ms} ms ahead, more than "
            f"timestamp_after_max_ms={limit} of the copy; raise that option, or use --on-error skip"
        )
    rows.offsets.append(message.offset())
    rows.values.append(item)
    rows.keys.append(key)
    rows.headers.append(headers)
    rows.times.append(time)
    rows.size += size


def _where(message: Any) -> str:
    return f"{message.topic()}/{message.partition()} at offset {message.offset()}"
