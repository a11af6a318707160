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
from typing import Any

from pymq.core.batch import compression
from pymq.core.batch.columns import Buffer
from pymq.core.batch.header import BATCH_BYTES_MAX
from pymq.errors import CorruptBatch, MissingExtra, PymqError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_MASK = 0b111

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
        if codec == GZIP:
            gzip = zlib.decompressobj(_GZIP_BITS)
            found = gzip.decompress(data, most + 1)
            is_whole = gzip.eof
        elif codec == SNAPPY:
            return _unpack_snappy(data, most)
        elif codec in (LZ4, ZSTD):
            unpacker = compression.unpacker({LZ4: compression.LZ4, ZSTD: compression.ZSTD}[codec])
            found = unpacker.decompress(bytes(data), max_length=most + 1)
            is_whole = unpacker.eof
        else:
            raise CorruptBatch(f"Kafka has no codec {codec}")
    except PymqError:
        raise
    except Exception as error:  # each codec has an exception class of its own
        raise CorruptBatch(f"the records cannot be unpacked: {error}") from None
    if len(found) > most:
        raise CorruptBatch(f"the records unpack to more than {most} bytes")
    if not is_whole:
        raise CorruptBatch("the packed records are cut short")
    return found


def _unpack_snappy(data: Buffer, most: int) -> bytes:
    view, parts, left = memoryview(data), list[bytes](), most
    if bytes(view[: len(_JAVA_MAGIC)]) != _JAVA_MAGIC:
        return _snappy_block(view, left)
    position = _JAVA_HEAD
    while position < len(view):
        (size,) = _BLOCK.unpack_from(view, position)
        position += _BLOCK.size
        if not 0 <= size <= len(view) - position:
            raise CorruptBatch("a block of the packed records is cut short")
        parts.append(_snappy_block(view[position : position + size], left))
        left -= len(parts[-1])
        position += size
    return b"".join(parts)


def _snappy_block(block: memoryview, most: int) -> bytes:
    snappy = _snappy()
    if snappy.decompress_raw_len(block) > most:
        raise CorruptBatch("the records unpack to more bytes than a batch may have")
    return bytes(snappy.decompress_raw(block))


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
