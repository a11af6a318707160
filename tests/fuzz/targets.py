"""Readers of foreign bytes, each with damaged input and a check of its result.

A reader may raise the error that its caller expects, or return sound data. If the damage does not
correct the checksums, sound data must be exactly the original.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, Protocol
from zlib import crc32

from pymq.core import cbor
from pymq.core.batch import columns, compression
from pymq.core.batch.batch_sequence import clip, restamp, split
from pymq.core.batch.header import CRC, HEADER, HEADER_CRC, HEADER_SIZE, SIGNED, Header, header_crc
from pymq.core.batch.record import EncodedBatch
from pymq.core.batch.view import RecordBatch
from pymq.errors import CorruptBatch, InvalidRequest
from pymq.transport import wire
from pymq.transport.tcp.connections import SCRATCH_BYTES
from pymq.transport.tcp.stream import FIRST_BYTES, PacketReader, greeting, head
from tests.fuzz.damage import NUMBERS, distort, scramble, write
from tests.transport.samples import plain, sample


class Target(Protocol):
    """A reader of bytes."""

    def attempt(self, rng: Random) -> bool:
        """Feed the target damaged bytes; returns whether it accepted them.

        Raises:
            Exception: anything at all; the reader was harmed.
        """
        ...


class Packets:
    """The decoder of packets, and with it that of each message type."""

    def __init__(self) -> None:
        rng = Random("packets")
        self.packets: list[list[bytes]] = []
        self.rows: list[list[Any]] = []
        for cls in wire.NUMBERS.values():
            for _ in range(6):
                items = [("", "p", sample(cls, rng)) for _ in range(rng.choice((1, 1, 1, 3)))]
                header, *frames = wire.encode(items)
                self.packets.append([bytes(header), *map(bytes, frames)])
                self.rows.append(cbor.loads(header))
        self.headers = [packet[0] for packet in self.packets]
        self.parts = [row for rows in self.rows for row in rows[1:]]

    def attempt(self, rng: Random) -> bool:
        """Read a packet whose header was changed, as bytes or as CBOR, or whose frames were."""
        number = rng.randrange(len(self.packets))
        header, *frames = self.packets[number]
        if rng.random() < 0.6:
            rows = distort(rng, self.rows[number], self.parts)
            header = write(rows)
        elif rng.random() < 0.8:
            header = scramble(rng, header, self.headers)
        if rng.random() < 0.1:
            frames = self._other_frames(rng, frames)
        try:
            found = wire.decode(header, frames, wire.CLIENT_HEADER_BYTES_MAX)
        except InvalidRequest:
            return False
        again, *rest = wire.encode(found)
        assert [plain(item) for item in wire.decode(again, rest)] == [plain(one) for one in found]
        return True

    @staticmethod
    def _other_frames(rng: Random, frames: list[bytes]) -> list[bytes]:
        match rng.randrange(4):
            case 0:
                return frames[1:]
            case 1:
                return [*frames, rng.randbytes(rng.choice((0, 1, 3_000)))]
            case 2:
                return [b""] * rng.choice((1, 64, 65))
            case _:
                return [scramble(rng, frame, frames) for frame in frames]


class Streams:
    """The reader of packets in a stream of bytes, in pieces of any size."""

    def __init__(self) -> None:
        packets = Packets().packets
        self.streams = [
            greeting(b"client-1/0123456789abcdef")
            + b"".join([head(packet) + b"".join(packet) for packet in packets[at : at + 3]])
            for at in range(0, len(packets), 3)
        ]
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))

    def attempt(self, rng: Random) -> bool:
        """Read a stream in which some bytes were changed, removed or added."""
        data = rng.choice(self.streams)
        if rng.random() < 0.8:
            data = scramble(rng, data, self.streams)
        reader, at, total = PacketReader(), 0, 0
        is_greeted = False
        try:
            while at < len(data):
                buffer = reader.buffer(self.scratch)
                size = min(len(buffer), rng.choice((1, 5, 300, 100_000)), len(data) - at)
                buffer[:size] = data[at : at + size]
                del buffer
                reader.received(size, self.scratch)
                at += size
                assert reader.held <= 2 * max(at, FIRST_BYTES)
                if not is_greeted:
                    is_greeted = reader.next_greeting() is not None
                while is_greeted and (packet := reader.next()) is not None:
                    total += packet.size + len(packet.header)
                    assert total <= at
        except InvalidRequest:
            return False
        return is_greeted


# --- batches --------------------------------------------------------------------------------------


def sound_batches() -> list[EncodedBatch]:
    """Return stamped batches with every feature of batches."""
    rng = Random("batches")
    made: list[EncodedBatch] = []
    for count in (1, 2, 7, 65, 300):
        values = [rng.randbytes(rng.choice((0, 3, 100))) for _ in range(count)]
        even = [bytes(20)] * count
        keys = [None if rng.random() < 0.3 else b"key %d" % number for number in range(count)]
        headers = [(("a", b"1"), ("ä", b"")) if rng.random() < 0.5 else () for _ in range(count)]
        times = [1_000 + rng.randrange(-50, 1 << rng.choice((4, 40))) for _ in range(count)]
        made += [
            EncodedBatch.encode(
                even if which & 1 else values,
                timestamp_ms=1_000,
                keys=keys if which & 2 else None,
                headers=headers if which & 4 else None,
                timestamps=times if which & 4 else None,
                producer_id=rng.choice((-1, 7)),
                base_sequence=rng.choice((-1, 0, 1 << 40)),
                codec=(compression.NONE, compression.LZ4, compression.ZSTD)[which % 3],
            ).stamp(count * which, 3, 0)
            for which in range(8)
        ]
    made += [batch.keep(range(0, len(batch), 2)) for batch in made[8:24]]
    made += [EncodedBatch.gap(5, 100, 2), EncodedBatch.control(b"x", timestamp_ms=5, kind=2)]
    return made


def as_bytes(batch: EncodedBatch) -> bytes:
    """Return the bytes of a batch, as on the wire and on the disk."""
    return bytes(batch.head) + bytes(batch.body)


_HEADER_FIELDS = Header._fields
_FIELDS = [name for name in _HEADER_FIELDS if name not in ("magic", "header_crc", "batch_crc")]
# the first format has four letters
_KINDS = dict(zip(_HEADER_FIELDS, HEADER.format[2:], strict=True))


def mended(head: bytes, body: bytes) -> bytes:
    """Return header and body with valid checksums, as an attacker would send them."""
    signed = bytearray(head)
    CRC.pack_into(signed, HEADER_CRC + 4, crc32(body, crc32(signed[SIGNED:])))
    CRC.pack_into(signed, HEADER_CRC, header_crc(signed))
    return bytes(signed) + body


def forged(rng: Random, batch: EncodedBatch, others: Sequence[bytes]) -> bytes:
    """Return a batch with wrong values in its header, its columns' lengths or their content."""
    header, body = batch.header, bytes(batch.body)
    codec_number = header.attributes & 7
    if rng.random() < 0.6:
        found = columns.unpack(
            compression.decompress(codec_number, body, header.raw_length) if codec_number else body,
            header.columns,
        )
        parts = [bytes(part) for part in found.values()]
        at = rng.randrange(len(parts))
        if rng.random() < 0.5:
            parts[at] = write(distort(rng, cbor.loads(parts[at]), ()))
        else:
            parts[at] = scramble(rng, parts[at], parts)
        body = columns.pack(parts)
        if rng.random() < 0.3:
            body = scramble(rng, body, others)
        raw = len(body)
        body = compression.compress(codec_number, body) if codec_number else body
        if codec_number and rng.random() < 0.2:
            body = scramble(rng, body, others)
        header = header._replace(length=HEADER_SIZE + len(body), raw_length=raw)
    if rng.random() < 0.5:
        for _ in range(rng.choice((1, 1, 2))):
            name = rng.choice(_FIELDS)
            fields = header._asdict()
            fields[name] = _fitting(rng, name, fields[name])
            header = Header(**fields)
    return mended(HEADER.pack(*header), body)


def _fitting(rng: Random, name: str, number: int) -> int:
    """Return another number that fits into a field."""
    kind = _KINDS[name]
    bits = 8 * struct.calcsize("<" + kind)
    if rng.random() < 0.4:
        chosen = number + rng.choice((-1, 1, -2, 2, 256))
    else:
        chosen = rng.choice(NUMBERS)
    chosen &= (1 << bits) - 1
    return chosen - (1 << bits) if kind == "q" and chosen >> bits - 1 else chosen


class Batches:
    """The reader of a consumer: header, checksum, columns, records."""

    def __init__(self) -> None:
        self.batches = sound_batches()
        self.data = [as_bytes(batch) for batch in self.batches]

    def attempt(self, rng: Random) -> bool:
        """Read a batch that was damaged, or forged with a valid CRC."""
        number = rng.randrange(len(self.data))
        is_forged = rng.random() < 0.7
        if is_forged:
            data = forged(rng, self.batches[number], self.data)
        else:
            data = scramble(rng, self.data[number], self.data)
        try:
            batch = EncodedBatch.parse(data).verify()
            whole = list(batch.records())
            view = RecordBatch(batch.at("t", "0"), batch.base_offset + 1, batch.end_offset)
            some = view.records()
        except CorruptBatch:
            return False
        assert len(whole) == len(batch)
        assert len(some) <= len(whole)
        assert all(batch.base_offset <= record.offset < batch.end_offset for record in whole)
        if not is_forged:
            assert data[: batch.size] in self.data
        return True


class Runs:
    """Readers of batches in sequence: a follower, a reader and the file of a block."""

    def __init__(self) -> None:
        self.runs = [_run(Random(f"run {number}")) for number in range(20)]
        self.data = [b"".join(map(as_bytes, run)) for run in self.runs]

    def attempt(self, rng: Random) -> bool:
        """Read a sequence with damage anywhere, or with one forged batch."""
        number = rng.randrange(len(self.runs))
        if rng.random() < 0.6:
            parts = [as_bytes(batch) for batch in self.runs[number]]
            at = rng.randrange(len(parts))
            parts[at] = forged(rng, self.runs[number][at], self.data)
            data = b"".join(parts)
        else:
            data = scramble(rng, self.data[number], self.data)
        end = self.runs[number][0].base_offset
        taken = _is_taken(lambda: restamp(data, end))
        parsed = _is_taken(lambda: [batch.verify() for batch in split(data)])
        assert parsed or not taken, "what was taken from a leader cannot be read"
        _is_taken(lambda: clip(data, end + rng.choice((0, 1, 100))))
        return taken


def _run(rng: Random) -> list[EncodedBatch]:
    made, offset, epoch = [], rng.choice((0, 1_000, 1 << 40)), 1
    for _ in range(rng.randrange(1, 6)):
        epoch += rng.choice((0, 0, 1))
        batch = rng.choice(_SMALL).stamp(offset, epoch, offset)
        made.append(batch)
        offset = batch.end_offset
    return made


_SMALL = [batch for batch in sound_batches() if batch.size < 2_000]


def _is_taken(read: Callable[[], Iterable[object]]) -> bool:
    try:
        read()
    except CorruptBatch:
        return False
    return True
