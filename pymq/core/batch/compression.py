"""The codecs of a batch's body; each is bounded when it unpacks, whatever the sender declared."""

from __future__ import annotations

from typing import Any

from pymq.errors import ConfigError, CorruptBatch, MissingExtra

NONE = 0
LZ4 = 1
ZSTD = 2

_NAMES = {None: NONE, "none": NONE, "lz4": LZ4, "zstd": ZSTD}
_INSTALL = "pip install 'pymq-log[compression]'"


def codec_number(name: str | None) -> int:
    """Look up a codec by the name that users give.

    Raises:
        ConfigError: there is none of that name.
        MissingExtra: its package is not installed.
    """
    if name not in _NAMES:
        raise ConfigError(f"compression={name!r} is not known; use None, 'lz4' or 'zstd'")
    number = _NAMES[name]
    if number == LZ4:
        _lz4()
    elif number == ZSTD:
        _zstd()
    return number


def compress(codec: int, data: bytes) -> bytes:
    """Pack *data* with a codec of :func:`codec_number`."""
    if codec == LZ4:
        packed: bytes = _lz4().compress(data)
        return packed
    if codec == ZSTD:
        packed = _zstd().compress(data)
        return packed
    return data


def decompress(codec: int, data: bytes | memoryview, size: int) -> bytes:
    """Unpack *data*, which must give exactly *size* bytes; never makes more than that.

    Raises:
        CorruptBatch: it gives more or less, or cannot be unpacked.
        MissingExtra: the codec's package is not installed.
    """
    if codec == LZ4:
        unpacker: Any = _lz4().LZ4FrameDecompressor()
    elif codec == ZSTD:
        unpacker = _zstd().ZstdDecompressor()
    else:
        raise CorruptBatch(f"compression {codec} is not known; a newer pymq wrote this batch")
    try:
        # One byte more than allowed tells "just enough" from "too much".
        unpacked: bytes = unpacker.decompress(bytes(data), max_length=size + 1)
    except Exception as error:  # each codec has an exception class of its own
        raise CorruptBatch(f"the body cannot be unpacked: {error}") from None
    if len(unpacked) != size or not unpacker.eof or unpacker.unused_data:
        raise CorruptBatch(f"the body does not unpack to the {size} bytes that its header declares")
    return unpacked


def _lz4() -> Any:
    try:
        import lz4.frame  # an extra: imported when first asked for
    except ImportError:
        raise MissingExtra(f"lz4 is not installed: {_INSTALL}") from None
    return lz4.frame


def _zstd() -> Any:
    try:
        from compression import zstd  # part of Python from 3.14 on
    except ImportError:
        try:
            from backports import zstd  # the same module, as an extra
        except ImportError:
            raise MissingExtra(f"zstd is not installed: {_INSTALL}") from None
    return zstd
