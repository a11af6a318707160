"""The codecs of a batch's body; unpacking is bounded, even if the declared size is wrong."""

from __future__ import annotations

from typing import Any

from pymq.errors import ConfigError, CorruptBatch, MissingExtra

NONE = 0
LZ4 = 1
ZSTD = 2

_NAMES = {None: NONE, "none": NONE, "lz4": LZ4, "zstd": ZSTD}


def codec_number(name: str | None) -> int:
    """Return the number of a codec by its name.

    Raises:
        ConfigError: the name is unknown.
        MissingExtra: the codec's package is not installed.
    """
    if name not in _NAMES:
        raise ConfigError(f"compression={name!r} is unknown; use None, 'lz4' or 'zstd'")
    number = _NAMES[name]
    if number == LZ4:
        _lz4()
    elif number == ZSTD:
        _zstd()
    return number


def compress(codec: int, data: bytes) -> bytes:
    """Compress *data* with the codec of a number from :func:`codec_number`."""
    if codec == LZ4:
        packed: bytes = _lz4().compress(data)
        return packed
    if codec == ZSTD:
        packed = _zstd().compress(data)
        return packed
    return data


def decompress(codec: int, data: bytes | memoryview, size: int) -> bytes:
    """Decompress *data*, which must unpack to exactly *size* bytes; memory is bounded by *size*.

    Raises:
        CorruptBatch: the result has another size, or *data* cannot be decompressed.
        MissingExtra: the codec's package is not installed.
    """
    unpacking = unpacker(codec)
    try:
        # Allow one byte more, to detect data that unpacks to more than the declared size.
        unpacked: bytes = unpacking.decompress(bytes(data), max_length=size + 1)
    except Exception as error:  # each codec has its own exception class
        raise CorruptBatch(f"the body cannot be unpacked: {error}") from None
    if len(unpacked) != size or not unpacking.eof or unpacking.unused_data:
        raise CorruptBatch(f"the body does not unpack to the {size} bytes that its header declares")
    return unpacked


def unpacker(codec: int) -> Any:
    """Return a decompressor, whose ``decompress`` takes a ``max_length``.

    Raises:
        CorruptBatch: the codec is unknown.
        MissingExtra: the codec's package is not installed.
    """
    if codec == LZ4:
        return _lz4().LZ4FrameDecompressor()
    if codec == ZSTD:
        return _zstd().ZstdDecompressor()
    raise CorruptBatch(f"compression {codec} is unknown; a newer pymq wrote this batch")


def _lz4() -> Any:
    try:
        import lz4.frame  # an extra: imported on first use
    except ImportError:
        raise MissingExtra.of("lz4 is not installed", "compression") from None
    return lz4.frame


def _zstd() -> Any:
    try:
        from compression import zstd  # part of Python from 3.14 on
    except ImportError:
        try:
            from backports import zstd  # the same module, as an extra
        except ImportError:
            raise MissingExtra.of("zstd is not installed", "compression") from None
    return zstd
