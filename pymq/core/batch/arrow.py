"""Record batches as Arrow, for Spark, pandas and Polars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pymq.core.batch.columns import Headers
from pymq.errors import MissingExtra

if TYPE_CHECKING:
    import pyarrow


class Table(Protocol):
    """Records as columns, and where they are from."""

    topic: str
    partition: str

    @property
    def values(self) -> Sequence[bytes]: ...

    @property
    def keys(self) -> Sequence[bytes | None]: ...

    @property
    def headers(self) -> Sequence[Headers]: ...

    @property
    def timestamps(self) -> Sequence[int]: ...

    @property
    def offsets(self) -> Sequence[int]: ...

    def __len__(self) -> int: ...


def to_arrow(batch: Table) -> pyarrow.RecordBatch:
    """Return the batch's columns, in the order that Spark's Kafka source has.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # an extra: imported when first asked for
    except ImportError:
        raise MissingExtra("pyarrow is not installed: pip install 'pymq-log[arrow]'") from None
    count = len(batch)
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.record_batch(
        {
            "key": pa.array(batch.keys, pa.binary()),
            "value": pa.array(batch.values, pa.binary()),
            "topic": pa.array([batch.topic] * count, pa.string()),
            "partition": pa.array([batch.partition] * count, pa.string()),
            "offset": pa.array(batch.offsets, pa.int64()),
            "timestamp": pa.array(batch.timestamps, pa.timestamp("ms", "UTC")),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in pairs] for pairs in batch.headers],
                pa.list_(header),
            ),
        }
    )
