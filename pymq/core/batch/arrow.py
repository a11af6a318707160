"""Converts record batches to Arrow, for Spark, pandas and Polars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymq.errors import MissingExtra

if TYPE_CHECKING:
    import pyarrow

    from pymq.core.batch.view import RecordBatch


def to_arrow(batch: RecordBatch) -> pyarrow.RecordBatch:
    """Return the batch's columns, in the order of Spark's Kafka source.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # an extra: imported on first use
    except ImportError:
        raise MissingExtra.of("pyarrow is not installed", "arrow") from None
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
