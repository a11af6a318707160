"""Small batches that cost much: very many records, or very many bytes once they are unpacked."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import pytest

from pymq.core.batch import compression
from pymq.core.batch.kafka import codecs
from pymq.core.batch.kafka.batch import (
    BYTES_PER_RECORD,
    KAFKA_HEADER,
    RECORDS_MAX,
    RECORDS_PIECE,
    SIGNED_FROM,
    KafkaLimits,
    crc32c_function,
    wrap,
    wrapping,
)
from pymq.errors import CorruptBatch, InvalidRequest, RecordTooLarge
from pymq.kafka.codes import Code
from pymq.kafka.connection import KafkaConnection
from pymq.kafka.slices import LONG_MAX, REST_MS, SliceQueue
from tests.kafka.test_gate import NOW, Bench, batch, produce, produced

pytest.importorskip("crc32c", reason="crc32c is not installed")
cramjam = pytest.importorskip("cramjam", reason="cramjam is not installed")
CRC = crc32c_function()
CODECS = [codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD]
PACKED = [codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD]
MANY = 90_000  # records that a batch may have
SMALL = 1 << 20  # bytes that a batch may have as it comes


def pack(codec: int, data: bytes) -> bytes:
    if codec == codecs.GZIP:
        gzip = zlib.compressobj(9, wbits=31)
        return gzip.compress(data) + gzip.flush()
    if codec == codecs.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec in (codecs.LZ4, codecs.ZSTD):
        number = compression.LZ4 if codec == codecs.LZ4 else compression.ZSTD
        return compression.compress(number, data)
    return data


def sealed(codec: int, packed: bytes, count: int) -> bytes:
    """Return a batch whose CRC holds."""
    rest = (codec, count - 1, NOW, NOW, -1, -1, -1, count)
    blank = KAFKA_HEADER.pack(0, 49 + len(packed), -1, 2, 0, *rest) + packed
    crc = CRC(blank[SIGNED_FROM:])
    return KAFKA_HEADER.pack(0, 49 + len(packed), -1, 2, crc, *rest) + packed


def varint(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def tiny_records(count: int) -> bytes:
    """Return the smallest records that there are: without key and value."""
    found = bytearray()
    for offset in range(count):
        at = varint(offset)
        found += varint(5 + len(at)) + b"\0\0" + at + b"\x01\x01\0"
    return bytes(found)


@pytest.fixture(scope="module")
def many() -> bytes:
    return tiny_records(MANY)


def _count(steps: Iterable[int], costs: list[int]) -> None:
    for cost in steps:
        costs.append(cost)  # noqa: PERF402 # the steps end with an error, and their costs stay


@pytest.mark.parametrize("codec", PACKED)
def test_what_unpacks_to_gigabytes_costs_what_a_batch_may_cost(codec: int) -> None:
    """The unpacked bytes are counted while they come, and the rest is never unpacked."""
    data = sealed(codec, pack(codec, bytes(40 << 20)), 1)
    most = 4 << 20
    costs: list[int] = []
    with pytest.raises(RecordTooLarge):
        _count(wrapping(data, CRC, NOW, KafkaLimits(unpacked=most)), costs)
    assert sum(costs) <= most // BYTES_PER_RECORD


@pytest.mark.parametrize("size", [1 << 20, 60 << 20, (1 << 32) - 1])
def test_a_block_of_snappy_that_declares_more_than_it_can_hold_is_not_allocated(size: int) -> None:
    block = bytes([*(size >> shift & 127 | 128 for shift in (0, 7, 14, 21)), size >> 28]) + b"\0a"
    with pytest.raises(CorruptBatch, match="cannot unpack to"):
        codecs.unpack(codecs.SNAPPY, block)


def test_the_densest_block_of_snappy_is_within_the_ratio() -> None:
    data = bytes(1 << 20)
    assert codecs.unpack(codecs.SNAPPY, pack(codecs.SNAPPY, data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_a_count_that_the_bytes_cannot_hold_is_refused(codec: int) -> None:
    with pytest.raises(InvalidRequest, match="cannot hold"):
        wrap(sealed(codec, pack(codec, tiny_records(3)), 50_000), CRC, NOW)


@pytest.mark.parametrize("codec", CODECS)
def test_more_records_than_a_batch_may_have_are_refused_before_they_are_unpacked(
    codec: int,
) -> None:
    garbage = sealed(codec, b"\xff" * 100, RECORDS_MAX + 1)
    with pytest.raises(RecordTooLarge, match="at most"):
        wrap(garbage, CRC, NOW)


@pytest.mark.parametrize("codec", PACKED)
def test_packed_records_that_are_cut_short_end(codec: int) -> None:
    whole = pack(codec, tiny_records(2_000))
    for end in (1, 5, len(whole) // 2, len(whole) - 5):
        with pytest.raises(InvalidRequest, match="cannot be decoded"):
            wrap(sealed(codec, whole[:end], 2_000), CRC, NOW)


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_that_is_wrong_is_found_in_any_piece(codec: int) -> None:
    count = RECORDS_PIECE + 10
    data = bytearray(tiny_records(count))
    data[-1] = 2  # headers that are not there
    with pytest.raises(InvalidRequest, match="cannot be decoded"):
        wrap(sealed(codec, pack(codec, bytes(data)), count), CRC, NOW)
    again = tiny_records(count)
    with pytest.raises(InvalidRequest, match="follow the last record"):
        wrap(sealed(codec, pack(codec, again + b"\0"), count), CRC, NOW)
    swapped = again.replace(varint(RECORDS_PIECE), varint(RECORDS_PIECE + 1), 1)
    with pytest.raises(InvalidRequest, match="not in order"):
        wrap(sealed(codec, pack(codec, swapped), count), CRC, NOW)


# --- in the gate --------------------------------------------------------------------------------


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    found.mq.create_topic("t")
    yield found
    assert found.failures == []
    found.mq.close()


def turn(bench: Bench) -> None:
    """Let a millisecond pass and the loop turn."""
    with bench.mq.driver as loop:
        began = loop.clock()
        while loop.clock() == began:
            pass
        loop.touch("kafka-0")


def settle(bench: Bench, *connections: KafkaConnection) -> int:
    """Turn until the connections have answers; returns the number of turns."""
    turns = 0
    while not all(each.out or each.is_closed for each in connections):
        turn(bench)
        turns += 1
        assert turns < 10_000
    return turns


def code(bench: Bench, connection: KafkaConnection) -> int:
    bench.connection = connection
    (answer,) = bench.answers(("Produce", 9))
    return int(produced(answer).error_code)


@pytest.mark.parametrize("codec", CODECS)
def test_a_large_batch_is_checked_in_slices_and_others_go_first(
    bench: Bench, codec: int, many: bytes
) -> None:
    packed = pack(codec, many)
    assert len(packed) <= SMALL
    large, other = bench.connect(), bench.connect()
    bench.send(bench.frame("Produce", 9, produce(sealed(codec, packed, MANY))), large)
    assert not large.out
    bench.send(bench.frame("Produce", 9, produce(batch(b"x"))), other)
    turns = settle(bench, other)
    assert turns <= 2
    assert not large.out
    assert settle(bench, large) >= 4
    assert code(bench, other) == code(bench, large) == Code.NONE
    with bench.mq.consumer("t", mode="reader") as consumer:
        assert sum(1 for _ in consumer.until_end()) == MANY + 1


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_is_too_large_and_others_go_first(bench: Bench, codec: int) -> None:
    data = sealed(codec, pack(codec, bytes(18 << 20)), 1)
    assert len(data) <= SMALL
    large, other = bench.connect(), bench.connect()
    bench.send(bench.frame("Produce", 9, produce(data)), large)
    bench.send(bench.frame("Produce", 9, produce(batch(b"x"))), other)
    settle(bench, other)
    settle(bench, large)
    assert (code(bench, other), code(bench, large)) == (Code.NONE, Code.MESSAGE_TOO_LARGE)


def test_too_many_records_and_wrong_counts_have_kafkas_codes(bench: Bench) -> None:
    for data, expected in (
        (sealed(0, tiny_records(3), RECORDS_MAX + 1), Code.MESSAGE_TOO_LARGE),
        (sealed(0, tiny_records(3), 4), Code.INVALID_RECORD),
        (sealed(0, tiny_records(3), 3)[:-1] + b"\x07", Code.CORRUPT_MESSAGE),
    ):
        assert produced(bench.ask("Produce", 9, produce(data))).error_code == expected


def test_batches_of_a_connection_keep_their_order(bench: Bench, many: bytes) -> None:
    """What follows a batch that takes several slices waits for it, whatever it is."""
    bench.send(bench.frame("Produce", 9, produce(sealed(0, many, MANY))))
    for value in (b"1", b"2"):
        bench.send(bench.frame("Produce", 9, produce(batch(value))))
    assert bench.connection.is_full
    settle(bench, bench.connection)
    turn(bench)
    found = bench.answers(*[("Produce", 9)] * 3)
    assert [produced(each).base_offset for each in found] == [0, MANY, MANY + 1]
    assert not bench.connection.is_full


def test_a_request_that_looks_a_topic_up_is_not_overtaken(bench: Bench) -> None:
    """The second request's topic is known, that of the first one beside it is not."""
    bench.mq.create_topic("unknown")
    assert produced(bench.ask("Produce", 9, produce(batch(b"0")))).base_offset == 0
    first = produce(batch(b"1"), "unknown")
    first.topic_data += produce(batch(b"1")).topic_data
    frames = [bench.frame("Produce", 9, each) for each in (first, produce(batch(b"2")))]
    with bench.mq.driver as loop:
        for frame in frames:
            bench.gate.received(bench.connection, memoryview(frame), loop.clock())
        loop.touch("kafka-0")
    bench.answers(*[("Produce", 9)] * 2)
    with bench.mq.consumer("t", mode="reader") as consumer:
        assert [record.value for record in consumer.until_end()] == [b"0", b"1", b"2"]


def test_a_client_that_leaves_takes_its_checks_along(bench: Bench, many: bytes) -> None:
    connections = [bench.connect() for _ in range(LONG_MAX + 3)]
    for each in connections:
        bench.send(bench.frame("Produce", 9, produce(sealed(0, many, MANY))), each)
        bench.send(bench.frame("Produce", 9, produce(batch(b"x"))), each)
    turn(bench)
    with bench.mq.driver:
        for each in connections:
            bench.gate.disconnected(each)
    assert bench.gate.deadline > 0
    assert produced(bench.ask("Produce", 9, produce(batch(b"y")))).error_code == 0


def test_requests_that_wait_are_bounded(
    bench: Bench, many: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymq.kafka.gate.HELD_BYTES_MAX", 3 << 20)
    connections = [bench.connect() for _ in range(8)]
    for each in connections:
        bench.send(bench.frame("Produce", 9, produce(sealed(0, many, MANY))), each)
    assert 0 < sum(each.is_closed for each in connections) < 8


def test_slices_go_round_among_the_first_long_ones() -> None:
    queue = SliceQueue()
    for number in range(1, 8):
        queue.add(number)
    first = []
    while (new := queue.next_new()) is not None:
        first.append(new)
        queue.add(new)
    assert first == list(range(1, 8))
    rounds = []
    for time in range(2 * LONG_MAX):
        if time:
            assert queue.next_long(time * REST_MS - 1) is None
        found = queue.next_long(time * REST_MS)
        assert found is not None
        rounds.append(found)
        queue.add(found)
    assert sorted(rounds[:LONG_MAX]) == sorted(rounds[LONG_MAX:]) == sorted(set(rounds))
    queue.drop(7)
    assert queue.due == 2 * LONG_MAX * REST_MS
