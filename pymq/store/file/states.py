"""The saved states of replicas, a few bytes for each block, all in one file: ``states.log``.

A Raft replica must have its term and vote on disk before it sends them. If a broker fails, all
blocks that it led hold elections at the same time. Because all states are in one file, these
elections share one sync.

::

    pymq states\\nv 1\\n
    group ...          the states saved in one turn of the loop, written and synced as a whole
        4s   PMQS
        u32  length of the group, in bytes
        u32  CRC-32 of the body
        u32  CRC-32 of the 12 bytes before
        body: CBOR, an array of [topic id, partition, number, state], one for each block;
              the state is null when the block was removed
        u8   255: a group without this byte was not written to its end

Only the last entry of a block is valid. When most of the file is stale, the store rewrites it.

The file gets its name when its first group is durable, and each group is durable before the next
one is written. So a bad group means:

=====================================================  =============================
the first group, or one with bytes after it            damage
the last group, cut short, or with zeros as a sector   torn by a crash: cut off
or up to its end
the last group, all of it written                      damage
=====================================================  =============================

Damage is never cut off, because a replica that forgot its vote might vote twice.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from struct import Struct
from zlib import crc32

from pymq.core import cbor
from pymq.core.types import BlockId
from pymq.errors import CorruptBlock, InvalidRequest, StoreError
from pymq.store.file.folder import TMP, Folder, explained, is_sync, syncing
from pymq.store.file.os_files import store_error

STATES = "states.log"
BEGIN = b"pymq states\nv 1\n"
GROUP_MAGIC = b"PMQS"

REWRITE_FROM = 64 << 10  # bytes; a smaller file is not worth a rewrite
_SECTOR = 512  # a disk writes a sector as a whole or not at all
_HEAD = Struct("<4sII")
_CRC = Struct("<I")
_BODY = _HEAD.size + _CRC.size
_END = b"\xff"
_GROUP_MAX = 1 << 30

Changes = Mapping[BlockId, bytes | None]  # None: the block was removed


class States:
    """The states of all blocks, in memory and on disk in *folder*."""

    def __init__(self, folder: Folder) -> None:
        self.path = os.path.join(folder.path, STATES)
        self.failed: StoreError | None = None  # set after a failed sync: no state can be saved ...
        # ... and it is unknown whether the states of these blocks were saved
        self._unsure: dict[BlockId, StoreError] = {}
        self._folder = folder
        self._files = folder.files
        self._states: dict[BlockId, bytes] = {}
        self._handle = -1  # -1 until a state is saved
        self._size = 0
        self._live = 0  # the file's approximate size after a rewrite

    # --- reading --------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the file, if it exists; cut off a group that a crash has torn.

        Raises:
            CorruptBlock: the file is damaged; nothing was changed.
            StoreError: the file cannot be read or repaired.
        """
        self.close()
        with explained("open", self.path):
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(self.path + TMP)
            try:
                self._handle = self._files.open(self.path)
            except FileNotFoundError:
                self._states = {}
                return
            # Writes and the rename of a killed process may not be durable yet, and after a failed
            # sync the cache may differ from the disk.
            with syncing(self.path):
                self._files.sync(self._handle)
                self._files.sync_dir(self._folder.path)
            self._files.forget(self._handle, 0)
            data = self._files.pread(self._handle, self._files.size(self._handle), 0)
        self._states, self._size = parse(data, self.path)
        self._live = sum(map(_cost, self._states.items()))
        if self._size < len(data):
            with explained("cut the torn tail of", self.path):
                self._files.truncate(self._handle, self._size)
                with syncing(self.path):
                    self._files.sync(self._handle)

    def get(self, block: BlockId) -> bytes | None:
        """Return the last saved state of *block*."""
        return self._states.get(block)

    def blocks(self) -> Collection[BlockId]:
        """Return the blocks that have a saved state."""
        return self._states.keys()

    # --- changing it ----------------------------------------------------------------------------

    def problem(self, block: BlockId) -> StoreError | None:
        """Return the error if no state of *block* can be saved before a recovery."""
        return self._unsure.get(block) or self.failed

    def save(self, changes: Changes) -> None:
        """Save *changes* durably: after a crash either all or none of them are saved.

        Raises:
            OSError: none of them is saved; if :attr:`failed` is set, this is unknown.
        """
        group = encode(changes)
        live = self._live
        for block, state in changes.items():
            old = self._states.get(block)
            live -= 0 if old is None else _cost((block, old))
            live += 0 if state is None else _cost((block, state))
        try:
            if self._handle < 0 or self._size + len(group) > max(2 * live, REWRITE_FROM):
                self._rewrite(changes)
            else:
                self._append(group)
        except OSError as error:
            cause = store_error(error, "write", self.path)
            if self.failed is None and is_sync(cause):
                self.failed = cause
            if self.failed is not None:
                self._unsure.update(dict.fromkeys(changes, self.failed))
            raise cause from None
        self._live = live
        for block, state in changes.items():
            if state is None:
                self._states.pop(block, None)
            else:
                self._states[block] = state

    def _append(self, group: bytes) -> None:
        handle, size = self._handle, self._size
        try:
            self._files.pwritev(handle, [group], size)
        except OSError:
            try:
                self._files.truncate(handle, size)
            except OSError as error:
                self.failed = store_error(error, "undo a write to", self.path)
            raise
        try:
            self._files.sync(handle)
        except OSError as error:
            self.failed = store_error(error, "sync", self.path)
            raise self.failed from error
        self._size = size + len(group)

    def _rewrite(self, changes: Changes) -> None:
        """Rewrite the file with the current states and *changes*."""
        merged = {**self._states, **changes}
        left = {block: state for block, state in merged.items() if state is not None}
        data = BEGIN + encode(left)
        handle = self._folder.put(self.path, data)
        self.close()
        self._handle, self._size = handle, len(data)

    def recover(self, block: BlockId) -> None:
        """Read the file again if a failed write left its content unknown.

        Raises:
            CorruptBlock, StoreError: as for :meth:`open`.
        """
        if self.failed is not None:
            self.open()
            self.failed = None
        self._unsure.pop(block, None)

    def close(self) -> None:
        """Close the file, whose content is durable or whose error is known."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            with contextlib.suppress(OSError):
                self._files.close(handle)


def _cost(item: tuple[BlockId, bytes]) -> int:
    """Return the largest size that an entry can have."""
    block, state = item
    return 32 + len(block.topic_id) + len(state)


def encode(changes: Changes) -> bytes:
    """Encode a group."""
    body = cbor.dumps([[*block, state] for block, state in changes.items()]) + _END
    head = _HEAD.pack(GROUP_MAGIC, _BODY + len(body), crc32(body))
    return head + _CRC.pack(crc32(head)) + body


def parse(data: bytes, path: str) -> tuple[dict[BlockId, bytes], int]:
    """Decode the content of the file; return the states and the number of good bytes.

    Raises:
        CorruptBlock: the file is damaged, not only torn at its end.
    """
    if not data.startswith(BEGIN):
        raise _corrupt(path, 0, "it does not begin with the header of a known version")
    states: dict[BlockId, bytes] = {}
    position = len(BEGIN)
    if position == len(data):
        raise _corrupt(path, position, "it has become shorter")
    while position < len(data):
        length = _length(data, position)
        body = data[position + _BODY : position + length]
        if not length or crc32(body) != _HEAD.unpack_from(data, position)[2]:
            if position > len(BEGIN) and _is_torn(data, position, length):
                break
            raise _corrupt(path, position, "a checksum does not match")
        for block, state in _entries(body, path, position):
            if state is None:
                states.pop(block, None)
            else:
                states[block] = state
        position += length
    return states, position


def _length(data: bytes, position: int) -> int:
    """Return the length of the group at *position*; 0 if there is no sound group header."""
    if len(data) - position < _BODY:
        return 0
    magic, length, _ = _HEAD.unpack_from(data, position)
    (crc,) = _CRC.unpack_from(data, position + _HEAD.size)
    is_good = magic == GROUP_MAGIC and crc32(data[position : position + _HEAD.size]) == crc
    return length if is_good and _BODY < length <= _GROUP_MAX else 0


def _is_torn(data: bytes, position: int, length: int) -> bool:
    """Whether the bad group at *position* is the result of a torn write."""
    if length and position + length != len(data):
        return position + length > len(data)
    if len(data) - position < _BODY or not data[-1]:
        return True
    at = position
    while (at := data.find(GROUP_MAGIC, at + 1)) >= 0:
        if _length(data, at):
            return False
    at = position
    while at < len(data):
        following = at - at % _SECTOR + _SECTOR
        if not data[at:following].strip(b"\0"):
            return True
        at = following
    return False


def _entries(body: bytes, path: str, position: int) -> list[tuple[BlockId, bytes | None]]:
    try:
        items = cbor.loads(body[:-1])
        found = [(BlockId(*item[:3]), item[3]) for item in items if len(item) == 4]
    except (InvalidRequest, TypeError, KeyError) as error:
        raise _corrupt(path, position, f"it cannot be decoded: {error}") from None
    if len(found) < len(items):
        raise _corrupt(path, position, "it cannot be decoded")
    return found


def _corrupt(path: str, position: int, what: str) -> CorruptBlock:
    return CorruptBlock(
        f"{path} is damaged at byte {position}: {what}; nothing was changed. It holds the "
        "votes and terms of this broker, which must not continue without them: restore the file, "
        "or empty the folder, and the broker starts as a new one that copies from the others",
        file=path,
        position=position,
        offset=None,
    )
