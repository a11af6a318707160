"""The codecs of Kafka's batches; the size of unpacked data is bounded.

======  ======  ==============================================================================
number  name    as
======  ======  ==============================================================================
0       none
1       gzip    RFC 1952
2       snappy  one raw block, or the magic of Java's snappy stream and its blocks
3       lz4     frames
4       zstd    frames
======  ======  ==============================================================================
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator
from typing import Any

from pymq.core.batch import compression
from pymq.core.batch.columns import Buffer
from pymq.core.batch.header import BATCH_BYTES_MAX
from pymq.errors import CorruptBatch, MissingExtra, PymqError, RecordTooLarge

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_MASK = 0b111
PIECE = 256 << 10  # bytes that are unpacked at a time
# Snappy's densest element, a copy of 64 bytes, takes three bytes; a block has two or more besides.
SNAPPY_RATIO = 22

_JAVA_MAGIC = b"\x82SNAPPY\0"
_JAVA_HEAD = 16  # bytes of the magic and of two versions
_BLOCK = struct.Struct(">i")
_GZIP_BITS = 31  # zlib's number for the format of gzip


def unpack(codec: int, data: Buffer, most: int = BATCH_BYTES_MAX) -> Buffer:
    """Unpack *data*, to at most *most* bytes.

    Raises:
        CorruptBatch: *data* cannot be unpacked, or unpacks to more than *most* bytes.
        MissingExtra: the codec's package is not installed.
    """
    if codec == NONE:
        return data
    try:
        return b"".join(unpack_pieces(codec, data, most))
    except RecordTooLarge as error:
        raise CorruptBatch(error.message) from None


def unpack_pieces(codec: int, data: Buffer, most: int) -> Generator[bytes, None, None]:
    """Unpack *data* in pieces of at most ``PIECE`` bytes; a block of snappy is one piece.

    No piece is allocated before the bytes of *data* show that it may be needed.

    Raises:
        CorruptBatch: *data* cannot be unpacked.
        RecordTooLarge: *data* unpacks to more than *most* bytes.
        MissingExtra: the codec's package is not installed.
    """
    if codec == NONE:
        yield bytes(data)
        return
    if codec not in _PIECES:
        raise CorruptBatch(f"Kafka has no codec {codec}")
    size = 0
    try:
        for piece in _PIECES[codec](data, most):
            size += len(piece)
            if size > most:
                raise RecordTooLarge(f"the records unpack to more than {most} bytes")
            yield piece
    except PymqError:
        raise
    except Exception as error:  # each codec has an exception class of its own
        raise CorruptBatch(f"the records cannot be unpacked: {error}") from None


def _gzip_pieces(data: Buffer, most: int) -> Generator[bytes, None, None]:
    del most
    gzip = zlib.decompressobj(_GZIP_BITS)
    packed: Buffer = data
    while True:
        piece = gzip.decompress(packed, PIECE)
        yield piece
        if gzip.eof:
            return
        packed = gzip.unconsumed_tail
        if not piece and not packed:
            raise CorruptBatch("the packed records are cut short")


def _frame_pieces(codec: int) -> Callable[[Buffer, int], Generator[bytes, None, None]]:
    """Return the function that unpacks frames with pymq's codec of that number."""

    def pieces(data: Buffer, most: int) -> Generator[bytes, None, None]:
        del most
        unpacker = compression.unpacker(codec)
        packed = bytes(data)
        while not unpacker.eof:
            piece = unpacker.decompress(packed, max_length=PIECE)
            packed = b""
            if not piece and not unpacker.eof and unpacker.needs_input:
                raise CorruptBatch("the packed records are cut short")
            yield piece

    return pieces


def _snappy_pieces(data: Buffer, most: int) -> Generator[bytes, None, None]:
    view, left = memoryview(data), most
    if bytes(view[: len(_JAVA_MAGIC)]) != _JAVA_MAGIC:
        yield _snappy_block(view, left)
        return
    position = _JAVA_HEAD
    while position < len(view):
        (size,) = _BLOCK.unpack_from(view, position)
        position += _BLOCK.size
        if not 0 <= size <= len(view) - position:
            raise CorruptBatch("a block of the packed records is cut short")
        piece = _snappy_block(view[position : position + size], left)
        left -= len(piece)
        position += size
        yield piece


def _snappy_block(block: memoryview, most: int) -> bytes:
    snappy = _snappy()
    size = snappy.decompress_raw_len(block)
    # The block declares its size, and the memory is allocated before the block is read.
    if size > len(block) * SNAPPY_RATIO:
        raise CorruptBatch(f"a block of {len(block)} bytes cannot unpack to {size}")
    if size > most:
        raise RecordTooLarge("the records unpack to more bytes than a batch may have")
    return bytes(snappy.decompress_raw(block))


_PIECES: dict[int, Callable[[Buffer, int], Generator[bytes, None, None]]] = {
    GZIP: _gzip_pieces,
    SNAPPY: _snappy_pieces,
    LZ4: _frame_pieces(compression.LZ4),
    ZSTD: _frame_pieces(compression.ZSTD),
}


def _snappy() -> Any:
    try:
        import cramjam  # an extra: imported on first use
    except ImportError:
        raise MissingExtra.of("snappy needs cramjam, which is not installed", "kafka") from None
    return cramjam.snappy


def check_installed() -> None:
    """Check that all codecs can be used.

    Raises:
        MissingExtra: a package is missing.
    """
    _snappy()
    compression.codec_number("lz4")
    compression.codec_number("zstd")
