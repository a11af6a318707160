"""Key compaction: keeps only the last record of each key.

* A tombstone is a record with the header ``("pymq.tombstone", b"")``, which deletes its key.
  Compaction keeps a tombstone for some time, so that all consumers see it, and then removes the
  tombstone, too.
* Records without a key and control batches are kept.
* Offsets never change: a batch still covers the offsets of its removed records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b

from pymq.core.batch.columns import HEADERS
from pymq.core.batch.record import EncodedBatch

TOMBSTONE = ("pymq.tombstone", b"")

_SPAN_MAX = (1 << 32) - 1


def is_due(clean: int, dirty: int, min_dirty: float) -> bool:
    """Whether the *dirty* bytes since the last compaction are enough for another compaction.

    *clean* is the size in bytes after the last compaction. Compacting after each new block would
    make the total cost quadratic; waiting for a share of the whole size keeps the cost linear
    (Kafka, min.cleanable.dirty.ratio).
    """
    return min_dirty <= 0 or (dirty > 0 and dirty >= min_dirty * (clean + dirty))


def _digest(key: bytes) -> bytes:
    """Return a short digest of a key, so that memory depends only on the number of keys."""
    return blake2b(key, digest_size=16).digest()


def last_offsets(batches: Iterable[EncodedBatch], last: dict[bytes, int]) -> None:
    """Store in *last*, for each key's digest, the offset of the key's last record."""
    for batch in batches:
        if batch.header.is_control:
            continue
        for offset, key in zip(batch.offsets, batch.keys, strict=True):
            if key is not None:
                last[_digest(key)] = offset


def compacted(
    batches: Iterable[EncodedBatch], last: Mapping[bytes, int], tombstones_before_ms: int
) -> Iterator[EncodedBatch]:
    """Yield *batches* without the removed records; unchanged batches are not copied.

    Consecutive batches without any remaining records are merged if they have the same epoch.
    """
    gap: EncodedBatch | None = None  # the empty batches merged so far
    for batch in batches:
        kept = batch if batch.header.is_control else _keep(batch, last, tombstones_before_ms)
        if gap is not None and kept.header.count == 0:
            merged = _merge(gap, kept)
            if merged is not None:  # not ``if merged``: an empty batch counts as false
                gap = merged
                continue
        if gap is not None:
            yield gap
        gap = kept if kept.header.count == 0 else None
        if gap is None:
            yield kept
    if gap is not None:
        yield gap


def _keep(
    batch: EncodedBatch, last: Mapping[bytes, int], tombstones_before_ms: int
) -> EncodedBatch:
    chosen = [
        at
        for at, (offset, key) in enumerate(zip(batch.offsets, batch.keys, strict=True))
        if key is None or last.get(_digest(key), offset) <= offset
    ]
    if batch.column(HEADERS) is not None:
        headers, times = batch.headers, batch.timestamps
        chosen = [
            at for at in chosen if TOMBSTONE not in headers[at] or times[at] >= tombstones_before_ms
        ]
    if len(chosen) == len(batch):
        return batch
    if chosen:
        return batch.keep(chosen)
    return EncodedBatch.gap(batch.base_offset, batch.header.span, batch.header.leader_epoch)


def _merge(gap: EncodedBatch, more: EncodedBatch) -> EncodedBatch | None:
    span = gap.header.span + more.header.span
    if span > _SPAN_MAX or gap.header.leader_epoch != more.header.leader_epoch:
        return None
    return EncodedBatch.gap(gap.base_offset, span, gap.header.leader_epoch)
