"""Kafka's batches in a partition: the leader's checks before a batch gets an offset."""

from __future__ import annotations

import attrs
import pytest

from pymq.core.batch.columns import Headers
from pymq.core.batch.kafka import records
from pymq.core.batch.kafka.batch import KAFKA_HEADER, SIGNED_FROM, crc32c_function, wrap
from pymq.core.batch.record import EncodedBatch
from pymq.core.metadata.topic_config import TopicConfig
from pymq.errors import CorruptBatch, InvalidRequest, RecordTooLarge
from tests.core.partition.bench import Bench, state

pytest.importorskip("crc32c", reason="crc32c is not installed")
CRC = crc32c_function()
HEADERS: Headers = ()


def kafka(*rows: tuple[bytes | None, bytes]) -> EncodedBatch:
    """Return a batch as the gate for Kafka's clients makes it."""
    n = len(rows)
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    body = records.encode(range(n), [0] * n, keys, values, [HEADERS] * n)
    rest = (0, n - 1, 0, 0, -1, -1, -1, n)
    blank = KAFKA_HEADER.pack(0, 49 + len(body), -1, 2, 0, *rest) + body
    crc = CRC(blank[SIGNED_FROM:])
    return wrap(KAFKA_HEADER.pack(0, 49 + len(body), -1, 2, crc, *rest) + body, CRC, 0)


def bench(**config: object) -> Bench:
    return Bench(attrs.evolve(state(), config=TopicConfig.of(config))).started()


def test_a_kafka_batch_gets_an_offset_and_is_read() -> None:
    there = bench()
    there.produce(1, kafka((None, b"a"), (b"k", b"b")))
    there.produce(2)
    there.write()
    assert there.produced() == [(1, 0), (2, 2)]
    assert there.values() == [b"a", b"b", b"0"]


def test_a_compacted_topic_takes_records_with_keys_only() -> None:
    there = bench(cleanup_policy="compact")
    there.produce(1, kafka((b"k", b"a")))
    there.produce(2, kafka((b"k", b"a"), (None, b"b")))
    there.write()
    (_, refused), (_, offset) = sorted(there.produced(), reverse=True)
    assert isinstance(refused, InvalidRequest)
    assert offset == 0


def test_the_limit_is_about_the_batch_as_it_came() -> None:
    there = bench(max_record_bytes=200)
    there.produce(1, kafka((None, bytes(80)), (None, bytes(80))))
    (answer,) = there.produced()
    assert isinstance(answer[1], RecordTooLarge)


def test_a_batch_that_the_gate_has_not_checked_is_read_first() -> None:
    """A client of pymq's own protocol may send Kafka's batches (body format 2), too."""
    there = bench()
    sound = kafka((None, b"a"))
    damaged = bytearray(sound.body)
    damaged[-2] ^= 0xFF  # the value, whose bytes Kafka's CRC covers
    bad = EncodedBatch.sealed(sound.header, bytes(damaged))
    sound.is_sound = bad.is_sound = False
    there.produce(1, bad)
    there.produce(2, sound)
    there.write()
    (_, refused), (_, offset) = sorted(there.produced())
    assert isinstance(refused, CorruptBatch)
    assert offset == 0
