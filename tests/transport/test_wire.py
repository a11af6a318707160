"""The decoder of packets accepts every message, and nothing else."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from pymq.core import cbor as codec
from pymq.core.batch.record import EncodedBatch
from pymq.core.message import (
    Fetched,
    LeaderAndIsr,
    Message,
    Produce,
    Produced,
    RaftAppend,
    RaftAppended,
    Settled,
)
from pymq.core.types import AckMode, BlockId
from pymq.errors import InvalidRequest, PymqError, RecordTooLarge
from pymq.replication.raft.quorum_features.messages import (
    RaftSnapshot,
    RoundAppend,
    RoundAppended,
)
from pymq.transport import wire
from pymq.transport.shapes import shape_of
from tests.transport import cbor
from tests.transport.protocol import rows
from tests.transport.samples import MESSAGES, plain, sample


def test_every_message_has_a_number() -> None:
    links = {wire.Hello, wire.Refused, wire.Alive}
    assert set(wire.NUMBERS.values()) == set(MESSAGES) | links
    assert len(wire.NUMBERS) == len(MESSAGES) + len(links)


def test_numbers_and_fields_are_for_ever() -> None:
    """Numbers and fields equal docs/protocol.md, where an entry of a version never changes."""
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    for row in rows():
        assert row in text, f"docs/protocol.md lacks: {row}"


@pytest.mark.parametrize("cls", list(wire.NUMBERS.values()), ids=lambda cls: cls.__name__)
def test_a_message_arrives_as_it_was_sent(cls: type) -> None:
    rng = Random(cls.__name__)
    for _ in range(50):
        items = [("", "producer1", sample(cls, rng)) for _ in range(rng.randrange(1, 4))]
        header, *frames = wire.encode(items)
        found = wire.decode(header, frames)
        assert [plain(item) for item in found] == [plain(item) for item in items]


@pytest.mark.parametrize("cls", list(wire.NUMBERS.values()), ids=lambda cls: cls.__name__)
def test_another_reader_of_cbor_finds_the_same(cls: type) -> None:
    rng = Random(cls.__name__)
    for _ in range(20):
        header, *_ = wire.encode([("a", "b", sample(cls, rng))])
        rows, end = cbor.read(bytes(header))
        assert end == len(header)
        assert rows == codec.loads(header)
        assert rows[0] == wire.VERSION
        number, to, source, *fields = rows[1]
        assert (wire.NUMBERS[number], to, source) == (cls, "a", "b")
        assert len(fields) == len(shape_of(cls).names) + len(wire.RESERVED.get(cls, ()))


def test_fields_that_are_gone_keep_their_place() -> None:
    """A removed field keeps its place: nodes understand a broker that still sends it."""
    block = BlockId("0" * 32, 1, 2)
    append = RaftAppend(block, 3, 4, 5, 6, b"data")
    row = [143, "", "", ["0" * 32, 1, 2], 3, 4, 5, 6, b"data", 0, None]
    assert wire.encode([("", "", append)]) == [codec.dumps([1, row])]
    for old in 7, "not even an int":
        row[9] = old
        assert wire.decode(codec.dumps([1, row]), []) == [("", "", append)]
    assert wire.decode(codec.dumps([1, row[:8]]), []) == [("", "", RaftAppend(block, 3, 4, 5, 6))]
    answer = RaftAppended(block, 3, 4, 5, (1, 2))
    row = [144, "", "", ["0" * 32, 1, 2], 3, 4, 5, [1, 2], 0]
    assert wire.encode([("", "", answer)]) == [codec.dumps([1, row])]
    assert wire.decode(codec.dumps([1, row[:-1]]), []) == [("", "", answer)]


def test_no_broker_takes_a_message_of_a_quorum() -> None:
    """ReadIndex and snapshots have no numbers; the number of a snapshot is reserved."""
    block = BlockId("0" * 32, 1, 2)
    snapshot = [148, "", "", ["0" * 32, 1, 2], 3, 4, 5, b"state"]
    assert wire.decode(codec.dumps([1, snapshot]), []) == []
    quorum = (
        RoundAppend(block, 3, 4, 5, 6),
        RoundAppended(block, 3),
        RaftSnapshot(block, 3, 4, 5, b""),
    )
    for message in quorum:
        with pytest.raises(KeyError):
            wire.encode([("", "", message)])  # type: ignore[list-item] # that is what is tested


def test_payload_is_not_copied_and_has_frames_of_its_own() -> None:
    data = bytes(100_000)
    batch = EncodedBatch.encode([data], timestamp_ms=1)
    header, body, more = wire.encode(
        [
            ("", "p", Produce(1, "t", "0", AckMode.LEADER, batch)),
            ("", "p", Fetched(2, "t", "0", 0, 0, 0, data)),
        ]
    )
    assert body is batch.body
    assert more is data
    assert len(header) < 200


def test_who_gets_more_fields_than_he_knows_takes_those_that_he_knows() -> None:
    header = codec.dumps([1, [11, "", "", 7, 5, 3, False, None, "from a later version"]])
    assert wire.decode(header, []) == [("", "", Produced(7, 5, 3))]


def test_who_gets_fewer_fields_takes_the_defaults() -> None:
    header = codec.dumps([1, [11, "", "", 7]])
    assert wire.decode(header, []) == [("", "", Produced(7))]


def test_unknown_messages_are_left_out_and_those_with_payload_behind_them_too() -> None:
    rows = [1, [9_999, "", "", 5_000], [11, "", "", 7], [15, "", "", 1, "t", "0", 0, 0, 0, 3_000]]
    found = wire.decode(codec.dumps(rows), [bytes(5_000), bytes(3_000)])
    assert found == [("", "", Produced(7))]


@pytest.mark.parametrize(
    ("rows", "frames", "why"),
    [
        (5, [], "not a list"),
        ([], [], "not a list"),
        (["1"], [], "not a list"),
        ([0], [], "version 0 is not supported"),
        ([2], [], "version 2 is not supported"),
        ([1, 5], [], "a message is a list"),
        ([1, [11]], [], "a message is a list"),
        ([1, [11, ""]], [], "a message is a list"),
        ([1, [11, 1, ""]], [], "names of machines"),
        ([1, [11, "", "x" * 300, 7]], [], "names of machines"),
        ([1, [11, "", "a.b", 7]], [], "a machine's name"),
        ([1, [11, "", "\x1b[31mX\nFAKE LINE", 7]], [], "a machine's name"),
        ([1, [11, "", ""]], [], "at least 1 fields"),
        ([1, [11, "", "", "7"]], [], "64 bits"),
        ([1, [11, "", "", True]], [], "64 bits"),
        ([1, [11, "", "", 1 << 63]], [], "64 bits"),
        ([1, [10, "", "", 1, "t", "0", 5, [b"", b""]]], [], "no ack mode"),
        ([1, [10, "", "", 1, "t", "0", 1, [b"", b""]]], [], "cut short"),
        ([1, [15, "", "", 1, "t", "0", 0, 0, 0, 3_000]], [], "no frame"),
        ([1, [15, "", "", 1, "t", "0", 0, 0, 0, 3_000]], [b"x"], "a frame of 1 byte$"),
        ([1, [11, "", "", 7]], [b"x"], "more payload frames"),
        ([1, [11, "", "", 7, 0, 0, False, ["X"]]], [], "an error is a list"),
        ([1, [11, "", "", 7, 0, 0, False, [1, "", {}]]], [], "texts"),
        ([1, [11, "", "", 7, 0, 0, False, ["X", "", {b"1": 2}]]], [], "map of names"),
        ([1, [60, "", "", 1, "t", "0", 1, 1, {}]], [], "not a list"),
        ([1, [75, "", "", 1, 5]], [], "a result is a list"),
        ([1, [75, "", "", 1, [0, "x"]]], [], "64 bits"),
        ([1, [75, "", "", 1, [9, 5]]], [], "is unknown"),
        ([1, [75, "", "", 1, [1, ["t", "", {"block_bytes": 1}, []]]]], [], "block_bytes=1"),
    ],
)
def test_what_is_not_a_packet_is_refused(rows: object, frames: list[bytes], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        wire.decode(codec.dumps(rows), frames)


def test_sizes_are_looked_at_before_anything_else() -> None:
    with pytest.raises(InvalidRequest, match="the header has"):
        wire.decode(bytes(wire.HEADER_BYTES_MAX + 1), [])
    with pytest.raises(InvalidRequest, match="payload frames, the most"):
        wire.decode(codec.dumps([1]), [b""] * (wire.FRAMES_MAX + 1))
    with pytest.raises(InvalidRequest, match="messages, the most"):
        wire.decode(codec.dumps([1, *[[3, "", ""]] * (wire.MESSAGES_MAX + 1)]), [])
    with pytest.raises(RecordTooLarge):
        wire.encode([("", "", Fetched(1, "t", "0", 0, 0, 0, bytes(wire.FRAME_BYTES_MAX + 1)))])


def test_as_much_as_there_may_be_is_taken() -> None:
    alive = codec.dumps([1, *[[3, "", ""]] * wire.MESSAGES_MAX])
    assert len(wire.decode(alive, [], len(alive))) == wire.MESSAGES_MAX
    with pytest.raises(InvalidRequest, match="the header has"):
        wire.decode(alive, [], len(alive) - 1)
    fetched = ("", "", Fetched(1, "t", "0", 0, 0, 0, bytes(3_000)))
    header, *frames = wire.encode([fetched] * wire.FRAMES_MAX)
    assert wire.decode(header, frames) == [fetched] * wire.FRAMES_MAX
    header, *frames = wire.encode([fetched] * (wire.FRAMES_MAX + 1))
    with pytest.raises(InvalidRequest, match="payload frames, the most"):
        wire.decode(header, frames)
    largest = bytes(wire.FRAME_BYTES_MAX)
    assert len(wire.encode([("", "", Fetched(1, "t", "0", 0, 0, 0, largest))])) == 2


def test_both_names_of_a_message_together_are_bounded() -> None:
    def row(to: int, source: int) -> bytes:
        return codec.dumps([1, [3, "t" * to, "s" * source]])

    for to, source in ((wire.NAME_MAX, 0), (100, wire.NAME_MAX - 100), (0, wire.NAME_MAX)):
        assert wire.decode(row(to, source), []) == [("t" * to, "s" * source, wire.Alive())]
        for more in (row(to + 1, source), row(to, source + 1)):
            with pytest.raises(InvalidRequest, match="names of machines"):
                wire.decode(more, [])


def test_a_packet_is_full_before_it_is_more_than_is_taken() -> None:
    def fill(message: Message) -> wire.Packet:
        packet = wire.Packet()
        while not packet.is_full:
            packet.add("", "", message)
        return packet

    assert len(fill(Produced(1)).rows) == 1 + wire.MESSAGES < 1 + wire.MESSAGES_MAX
    assert len(fill(Fetched(1, "t", "0", 0, 0, 0, bytes(3_000))).frames) == wire.FRAMES_MAX
    large = Fetched(1, "t", "0", 0, 0, 0, bytes(wire.PACKET_BYTES // 4))
    assert fill(large).size == wire.PACKET_BYTES
    with pytest.raises(RecordTooLarge, match="a header of"):
        wire.encode([("", "", wire.Hello(software="x" * wire.HEADER_BYTES_MAX))])


def test_a_payload_that_is_too_large_leaves_the_rest_of_the_packet_whole() -> None:
    packet = wire.Packet()
    packet.add("", "", Produced(1))
    with pytest.raises(RecordTooLarge):
        packet.add("", "", Fetched(1, "t", "0", 0, 0, 0, bytes(wire.FRAME_BYTES_MAX + 1)))
    packet.add("", "", Produced(2))
    header, *frames = packet.seal()
    assert wire.decode(header, frames) == [("", "", Produced(1)), ("", "", Produced(2))]


def test_details_of_an_error_are_what_they_may_be_or_left_out() -> None:
    details = {"leader": b"\xf6", "wait": 0.5, "tried": ["a", None, 3], "deep": [["a"]], "ok": True}
    row = [37, "", "", 1, 0, ["NOT_LEADER", "who?", details]]
    ((_, _, found),) = wire.decode(codec.dumps([1, row]), [])
    assert isinstance(found, Settled)
    assert found.error is not None
    assert found.error.details == {"tried": ["a", None, 3], "ok": True}


@pytest.mark.parametrize("seed", range(20))
def test_damaged_packets_are_refused_or_are_other_packets(seed: int) -> None:
    """Any bytes give a list of well-typed messages, or InvalidRequest."""
    rng = Random(seed)
    refused = 0
    for _ in range(300):
        items = [("", "p", sample(rng.choice(MESSAGES), rng)) for _ in range(rng.randrange(1, 3))]
        header, *frames = wire.encode(items)
        damaged = bytearray(header)
        for _ in range(rng.randrange(1, 4)):
            match rng.randrange(4):
                case 0:
                    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
                case 1:
                    del damaged[rng.randrange(len(damaged)) :]
                case 2:
                    damaged.insert(rng.randrange(len(damaged) + 1), rng.randrange(256))
                case _:
                    frames = frames[1:]
            damaged = damaged or bytearray(b"\0")
        try:
            found = wire.decode(bytes(damaged), frames)
        except InvalidRequest:
            refused += 1
            continue
        again, *rest = wire.encode(found)
        assert [plain(i) for i in wire.decode(again, rest)] == [plain(item) for item in found]
    assert refused


def test_what_may_be_large_ends_its_packet() -> None:
    """A message that may be large ends its packet: several would exceed the header."""
    packet = wire.Packet()
    packet.add("", "", Produced(1))
    assert not packet.is_full
    packet.add("", "", LeaderAndIsr(2, "zk", 1, ()))
    assert packet.is_full


def test_errors_travel_with_their_class_and_what_can_travel_of_their_details() -> None:
    def trip(error: PymqError) -> PymqError:
        ((_, _, found),) = wire.decode(wire.encode([("", "", Produced(1, error=error))])[0], [])
        assert isinstance(found, Produced)
        assert found.error is not None
        return found.error

    found = trip(InvalidRequest("no", offset=5, names=("a", "b"), odd=object(), deep=[[1]]))
    assert type(found) is InvalidRequest
    assert str(found) == "no"
    assert found.details == {"offset": 5, "names": ["a", "b"]}
