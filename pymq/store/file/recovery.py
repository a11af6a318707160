"""Recovers a block after a crash: finds its end, cuts off a torn write, refuses damage.

======================================  ============================================================
found                                   action
======================================  ============================================================
open block, bad bytes that no later     a torn write, or sectors written out of order: cut off. If
batch attests as durable                the part to be cut holds whole batches, all of it is first
                                        copied to a .cut file
open block, zeros up to the end         written in advance: cut off, not reported
open block, shorter than its            as in the first row
checkpoint
open block, bad bytes, and a later      damage: refused, nothing is changed
batch whose *durable* is beyond them
bad bytes before the position of a      the same
checkpoint, in a file that reaches it
sealed block, anything bad or missing   the same
file header bad or another block's      the same
a whole batch header that does not      the same: a newer version or a misplaced batch, which no
belong there                            torn write leaves
======================================  ============================================================

*Durable* describes this broker's disk: the leader and each follower stamp a batch with the state of
their own disk (see :class:`pymq.core.ready.Append`). With the leader's stamps, a follower's batches
would claim that records were durable which were not yet on the follower's disk, and a power cut
would look like damage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from functools import partial

from pymq.core.batch.offset_index import Index
from pymq.core.ready import Recovered
from pymq.core.types import BlockId
from pymq.errors import CorruptBatch, PymqError
from pymq.store.block.block_file import (
    CHUNK,
    HEAD_MAX,
    Behind,
    FileHead,
    Known,
    Walk,
    Window,
    check_head,
    corrupt,
    data_end,
    look_behind,
    walk,
)
from pymq.store.block.stored_block import StoredBlock
from pymq.store.file.folder import BLOCK, CKPT, CUT, INDEX, TMP, Folder, explained, syncing


def recover(
    folder: Folder,
    block: StoredBlock,
    suffixes: Collection[str],
    start: int,
    is_open: bool,
    state: bytes | None,
) -> Recovered:
    """Recover *block* from its open file, if any: find its end, and cut off a torn write.

    *state* is the block's saved state, which the answer contains.

    Raises:
        CorruptBlock: the block is damaged; nothing was changed.
        StoreError: the block cannot be read or repaired.
    """
    id, path = block.id, folder.file(block.id)
    marks = _marks(folder, id, start, suffixes)
    if BLOCK not in suffixes:
        return _recover_missing(path, block, marks, start, is_open, state)
    window = _open(folder, block, start)
    holding = {suffix: k for suffix, k in marks.items() if _holds(k, window, block)}
    trusted = max((known.position for known in holding.values()), default=0)
    window = _sync(folder, block, window, trusted)
    ckpt = holding.get(CKPT)
    found, index = Walk(block.start_position, start, 0), Index()
    if ckpt and ckpt.position:  # otherwise the checkpoint is older than the file
        found = Walk(ckpt.position, ckpt.end, ckpt.epoch, ckpt.last, ckpt.last_crc)
        index = ckpt.index
    with explained("read", path):
        walk(window, found, index, trusted)
        vouched = [known.position for known in marks.values()]
        behind = _judge(found, window, path, is_open, vouched)
        written = max(data_end(window.pread, found.position, window.size), behind.end)
        if behind.has_batches:
            _keep(folder, id, suffixes, window, found.position)
    if is_open:
        holding.pop(INDEX, None)  # a block with an index would count as sealed
    _repair(folder, block, suffixes, holding, found)
    block.stand(found, index)
    block.is_sealed = not is_open
    _note(block, holding)
    return Recovered(
        id,
        start,
        found.end,
        block.size - block.start_position,
        ckpt.snapshot if ckpt else None,
        found.headers,
        max([written, *vouched]) - found.position,
        state,
    )


def _sync(folder: Folder, block: StoredBlock, window: Window, trusted: int) -> Window:
    """Sync the file, and drop the cache after the *trusted* part, so that reads go to the disk.

    Writes and truncations of a killed process may not be durable yet. After a failed sync, the
    cache may differ from the disk.
    """
    files = folder.files
    with syncing(folder.file(block.id)):
        files.sync(block.handle)
        if window.size > trusted:
            folder.settle(block.id)
            files.forget(block.handle, trusted)
            # the old window may hold data from the dropped cache
            return Window(window.pread, window.size)
    return window


def _repair(
    folder: Folder,
    block: StoredBlock,
    suffixes: Collection[str],
    holding: Collection[str],
    found: Walk,
) -> None:
    """Remove the block's other files that are not in *holding*, and then cut off the torn write.

    In the other order, a crash in between could leave a checkpoint or index of a longer file, which
    would make the block look damaged.
    """
    stale = [suffix for suffix in (CKPT, INDEX) if suffix in suffixes and suffix not in holding]
    folder.remove(block.id, *stale, *(suffix for suffix in suffixes if suffix.endswith(TMP)))
    if found.fault:
        path = folder.file(block.id)
        with explained("cut the torn tail of", path):
            folder.files.truncate(block.handle, found.position)
            with syncing(path):
                folder.files.sync(block.handle)


def load(folder: Folder, block: StoredBlock, suffixes: Collection[str]) -> None:
    """Load *block*, a sealed block whose file is open, for reads.

    Raises:
        CorruptBlock: a header is damaged.
    """
    path = folder.file(block.id)
    window = _open(folder, block, None)
    marks = _marks(folder, block.id, block.start, suffixes)
    known = marks.get(INDEX)
    if known and known.position == window.size and _holds(known, window, block):
        found = Walk(known.position, known.end, known.epoch, known.last, known.last_crc)
        index = known.index
    else:
        found, index = Walk(block.start_position, block.start, 0), Index()
        with explained("read", path):
            walk(window, found, index, window.size)
        if found.fault:
            raise corrupt(path, found.position, found.end, found.fault)
    block.stand(found, index)
    block.is_sealed = block.is_passive = True
    _note(block, marks)


def snapshot_at(folder: Folder, block: StoredBlock) -> bytes | None:
    """Return the snapshot in the block's checkpoint if it is of the block's end, else None."""
    known = _marks(folder, block.id, block.start, [CKPT]).get(CKPT)
    return known.snapshot if known and known.end == block.end else None


def _open(folder: Folder, block: StoredBlock, start: int | None) -> Window:
    """Read the file header."""
    files, path = folder.files, folder.file(block.id)
    pread = partial(files.pread, block.handle)
    with explained("read", path):
        size = files.size(block.handle)
        head = pread(HEAD_MAX, 0)
    block.head, block.start_position = check_head(head, path, block.id, start)
    return Window(pread, size)


def _marks(folder: Folder, id: BlockId, start: int, suffixes: Collection[str]) -> dict[str, Known]:
    """Read the .ckpt and .index files that exist, are complete and belong to this block."""
    marks = {}
    for suffix in (CKPT, INDEX):
        if suffix in suffixes and (data := folder.load(folder.file(id, suffix))) is not None:
            with contextlib.suppress(PymqError):
                known = Known.from_bytes(data)
                if known.block == id and known.start == start:
                    marks[suffix] = known
    return marks


def _note(block: StoredBlock, marks: dict[str, Known]) -> None:
    block.ckpt_end = marks[CKPT].end if CKPT in marks else -1
    block.index_end = marks[INDEX].end if INDEX in marks else -1


def _holds(known: Known, window: Window, block: StoredBlock) -> bool:
    """Whether *known* belongs to this file, and the file still reaches that far."""
    if known.position > window.size:
        return False
    if known.last < 0:
        return known.position in (0, block.start_position)
    try:
        header = window.header(known.last)
    except CorruptBatch:
        return False
    return (
        header.header_crc == known.last_crc
        and header.end_offset == known.end
        and known.last + header.length == known.position
    )


def _judge(found: Walk, window: Window, path: str, is_open: bool, vouched: Iterable[int]) -> Behind:
    """Raise if the fault is in durable bytes; bytes before a position in *vouched* were durable.

    Returns:
        The content of the part to be cut off.

    Raises:
        CorruptBlock: the block is damaged.
    """
    what = found.fault
    if is_open and what:
        if any(found.position < position <= window.size for position in vouched):
            what += ", where all was good before"
        else:
            behind = look_behind(window, found)
            if behind.attested is not None:
                what += f", which was on the disk when the batch at byte {behind.attested} was made"
            elif not behind.is_misplaced:
                return behind
    elif not is_open and not what and max(vouched, default=0) > window.size:
        what = "the sealed block has become shorter"
    if what:
        raise corrupt(path, found.position, found.end, what)
    return Behind()


def _keep(
    folder: Folder, id: BlockId, suffixes: Collection[str], window: Window, position: int
) -> None:
    """Copy the part to be cut off to a file; it was never acknowledged, but may be useful."""

    def pieces() -> Iterator[bytes]:
        for at in range(position, window.size, CHUNK):
            yield window.pread(min(CHUNK, window.size - at), at)

    number, suffix = 1, CUT
    while suffix in suffixes:
        number += 1
        suffix = f"{CUT}{number}"
    folder.keep(id, suffix, pieces())


def _recover_missing(
    path: str,
    block: StoredBlock,
    marks: dict[str, Known],
    start: int,
    is_open: bool,
    state: bytes | None,
) -> Recovered:
    if not is_open or any(known.position for known in marks.values()):
        raise corrupt(path, 0, start, "the file is missing")
    block.head = FileHead(block.id, start, block.head.topic, block.head.partition)
    block.stand(Walk(0, start, 0), Index())
    block.index = None
    _note(block, marks)
    snapshot = marks[CKPT].snapshot if CKPT in marks else None
    return Recovered(block.id, start, start, 0, snapshot, [], 0, state)
