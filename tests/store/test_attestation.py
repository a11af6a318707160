"""The durable end that a partition stamps on each batch."""

from __future__ import annotations

import time
from pathlib import Path

import pymq
from pymq.core.batch.batch_sequence import split
from pymq.core.batch.header import MAGIC, Header


def headers(folder: Path) -> list[Header]:
    """Return the headers of the batches in all blocks, in order."""
    found: list[Header] = []
    for path in sorted(folder.glob("blocks/*/0/*.block")):
        data = path.read_bytes()
        if MAGIC in data:
            found += [batch.header for batch in split(data[data.index(MAGIC) :])]
    return found


def produce(folder: Path, count: int, **config: object) -> list[Header]:
    with pymq.open(folder) as mq:
        if not headers(folder):
            mq.create_topic("t", **config)  # type: ignore[arg-type]  # options by name
        with mq.producer(linger_ms=0) as producer:
            for _ in range(count):
                producer.send("t", b"x" * 100).result()
    return headers(folder)


def test_synced_appends_attest_each_other(tmp_path: Path) -> None:
    found = produce(tmp_path, 5, fsync="always")
    assert [header.durable for header in found] == [0, 1, 2, 3, 4]


def test_without_syncs_nothing_is_attested(tmp_path: Path) -> None:
    found = produce(tmp_path, 5, fsync="os")
    assert [header.durable for header in found] == [0] * 5
    # Data that recovery or a checkpoint found valid is durable.
    assert [header.durable for header in produce(tmp_path, 2)[5:]] == [5, 5]


def test_a_sync_in_between_is_attested_soon(tmp_path: Path) -> None:
    with pymq.open(tmp_path) as mq:
        mq.create_topic("t", fsync="interval", fsync_interval_ms=20)
        with mq.producer(linger_ms=0) as producer:
            until = time.monotonic() + 30
            while not any(header.durable for header in headers(tmp_path)):
                assert time.monotonic() < until
                producer.send("t", b"x" * 100).result()
            found = headers(tmp_path)
    durable = [header.durable for header in found]
    assert durable == sorted(durable)
    assert all(header.durable <= header.base_offset for header in found)


def test_a_new_block_begins_with_nothing_to_attest(tmp_path: Path) -> None:
    found = produce(tmp_path, 60, fsync="os", block_bytes=4096)
    starts = {header.durable for header in found}
    assert len(starts) > 1
    assert starts <= {header.base_offset for header in found}
