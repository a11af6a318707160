"""Finding out what a crash has left of a block, and repairing what may be repaired.

======================================  ============================================================
what is found                           what is done
======================================  ============================================================
open block, bad bytes that no batch     a write that was cut short, or whose sectors were written
behind them says were durable           out of order: cut off. If there are whole batches in what
                                        is cut, all of it is kept in a .cut file first
open block, zeros up to the end         written ahead of appends: cut off, and nothing to report
open block, shorter than its            as for bad bytes
checkpoint
open block, bad bytes, and a batch      damage: refused, nothing is changed
behind them whose *durable* is beyond
bad bytes before the position of a      the same
checkpoint, the file being as long
sealed block, anything bad or missing   the same
file header bad or another block's      the same
a whole batch header that does not      the same: a newer version, a misplaced batch; no write
belong there                            tears like that
======================================  ============================================================

*Durable* must speak of this disk: who appends, a leader or a follower, stamps what its own disk
held (see :class:`pymq.core.ready.Append`). A follower that kept its leader's stamps would have
batches that attest what was only on its way here, and a power cut would look like damage.
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
    """Read *block*, whose file is open, if there is one; cut its torn tail; fill *block* in.

    *state* is what was saved for it, and goes into the answer.

    Raises:
        CorruptBlock: it is damaged; nothing was changed.
        StoreError: it cannot be read or repaired.
    """
    id, files, path = block.id, folder.files, folder.file(block.id)
    marks = _marks(folder, id, start, suffixes)
    if BLOCK not in suffixes:
        return _recover_missing(path, block, marks, start, is_open, state)
    window = _open(folder, block, start)
    size = window.size
    holding = {suffix: k for suffix, k in marks.items() if _holds(k, window, block)}
    trusted = max((known.position for known in holding.values()), default=0)
    with syncing(path):
        # What a killed process left is not durable yet, not even that it has cut the file; and what
        # a failed sync left in the cache is not what the disk has.
        files.sync(block.handle)
        if size > trusted:
            folder.settle(id)
            files.forget(block.handle, trusted)
            window = Window(window.pread, size)  # the other may hold what was just forgotten

    ckpt = holding.get(CKPT)
    found, index = Walk(block.start_position, start, 0), Index()
    if ckpt and ckpt.position:  # else it was made before the file was
        found = Walk(ckpt.position, ckpt.end, ckpt.epoch, ckpt.last, ckpt.last_crc)
        index = ckpt.index
    with explained("read", path):
        walk(window, found, index, trusted)
        vouched = [known.position for known in marks.values()]
        behind = _judge(found, window, path, is_open, vouched)
        written = max(data_end(window.pread, found.position, size), behind.end)
        if behind.has_batches:
            _keep(folder, id, suffixes, window, found.position)

    # First what says that more is good goes, or after a crash the file would look damaged.
    # And an index says that the block is sealed.
    stale = [suffix for suffix in (CKPT, INDEX) if suffix in suffixes and suffix not in holding]
    if is_open and INDEX in holding:
        del holding[INDEX]
        stale.append(INDEX)
    folder.remove(id, *stale, *(suffix for suffix in suffixes if suffix.endswith(TMP)))
    if found.fault:
        with explained("cut the torn tail of", path):
            files.truncate(block.handle, found.position)
            with syncing(path):
                files.sync(block.handle)
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


def load(folder: Folder, block: StoredBlock, suffixes: Collection[str]) -> None:
    """Fill in *block*, a sealed one, whose file is open, to be read.

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
    """Return the state that a checkpoint holds as of the block's end, if there is one."""
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
    """Read the .ckpt and the .index, as far as they are there, whole, and this block's."""
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
    """Refuse what was durable once; *vouched* are positions that were known good once.

    Returns:
        What is in the part that is to be cut off.

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
    """Keep what is about to be cut off: nobody was told that it is safe, but it may be of use."""

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
