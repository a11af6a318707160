"""Verifies one block file with its checkpoint and index."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pymq.core.batch.header import COLUMNS_FORMAT, HEADER_SIZE, Header
from pymq.core.batch.offset_index import Index
from pymq.core.batch.record import EncodedBatch
from pymq.core.counts import plural
from pymq.core.types import BlockId
from pymq.core.values import value
from pymq.errors import (
    CorruptBatch,
    CorruptBlock,
    CorruptMetadata,
    MissingExtra,
    StoreError,
)
from pymq.store.block.block_file import (
    HEAD_MAX,
    Known,
    Window,
    check_chain,
    check_head,
    data_end,
    find_magic,
    is_whole,
)
from pymq.store.file.folder import BLOCK, CKPT, INDEX, LOAD_MAX, explained
from pymq.store.file.os_files import Files, store_error
from pymq.store.verification.report import BlockResult, Report

RESTORE = "restore the file from another replica or a backup"
REBUILT = "delete the file; the store does not need it, and may write it again when opened"


@value
class _Damage:
    position: int
    offset: int
    what: str
    # whether there is a sound header that does not belong there, which no torn write leaves
    is_foreign: bool


class BlockVerifier:
    """Checks block files and adds the results to a report."""

    def __init__(self, files: Files, report: Report, on_read: Callable[[int], object]) -> None:
        # block files that are missing although other files of the block exist
        self.missing: list[tuple[BlockId, str]] = []
        self._files = files
        self._report = report
        self._on_read = on_read  # called with the size of each block file

    def check(
        self, id: BlockId, stem: str, suffixes: set[str], is_last: bool
    ) -> BlockResult | None:
        marks = {s: known for s in (CKPT, INDEX) if (known := self._known(id, stem, s, suffixes))}
        path = stem + BLOCK
        if BLOCK not in suffixes:
            if any(known.position for known in marks.values()):
                self.missing.append((id, path))
            return None
        result = BlockResult(path, id)
        self._report.blocks.append(result)
        count = len(self._report.problems)
        try:
            handle = self._files.open_readonly(path)
            try:
                size = self._files.size(handle)
                window = Window(partial(self._files.pread, handle), size)
                try:
                    self._walk(window, result, marks, is_last and INDEX not in marks)
                finally:
                    self._on_read(size)
            finally:
                self._files.close(handle)
        except CorruptBlock as error:
            position, what = error.details["position"], error.message.split(": ", 1)[-1]
            offset = error.details["offset"]
            assert isinstance(position, int)
            assert isinstance(offset, int)
            self._report.problem(path, position, offset, what.split(";")[0], RESTORE)
        except OSError as error:
            message = store_error(error, "read", path).message
            self._report.problem(path, None, None, message, RESTORE)
        result.is_ok = all(problem.is_note for problem in self._report.problems[count:])
        return result

    def _walk(
        self, window: Window, result: BlockResult, marks: dict[str, Known], may_be_torn: bool
    ) -> None:
        head = window.piece(0, HEAD_MAX, min(HEAD_MAX, window.size))
        file_head, position = check_head(bytes(head), result.file, result.block, None)
        result.topic, result.partition = file_head.topic, file_head.partition
        result.start = result.end = file_head.start
        begin, epoch, is_lost, size = position, 0, False, window.size
        found: list[tuple[Header, int]] = []
        damages: list[_Damage] = []
        while position < size:
            offset = result.end
            try:
                header = window.header(position)
            except CorruptBatch as error:
                if may_be_torn and data_end(window.pread, position, size) == position:
                    # the rest of the file is zeros, which the store has written in advance
                    size = position
                    break
                is_foreign = is_whole(window.piece(position, HEADER_SIZE, HEADER_SIZE))
                following = resync(window, position + 1)
                damages.append(_Damage(position, offset, error.message, is_foreign))
                position, is_lost = following, True
                continue
            # The header is sound, so the verifier finds the next batch even if the body is damaged.
            following = position + header.length
            found.append((header, position))
            result.end = header.end_offset
            is_foreign = not is_lost
            try:
                if not is_lost:
                    check_chain(header, offset, epoch)
                offset, is_foreign = header.base_offset, False
                if following > size:
                    raise CorruptBatch("the body is cut short")
                self._content(window, header, position, result)
            except CorruptBatch as error:
                damages.append(_Damage(position, offset, error.message, is_foreign))
            position, epoch, is_lost = following, header.leader_epoch, False
        durable = max((header.durable for header, _ in found), default=0)
        durable = max([durable, *(known.end for known in marks.values() if known.position <= size)])
        self._damage(result, damages, durable if may_be_torn else None)
        for suffix, known in marks.items():
            self._agreement(result, known, suffix, found, begin, size)

    def _damage(self, result: BlockResult, damages: list[_Damage], durable: int | None) -> None:
        """Report *damages*; opening the store would cut off those from position *durable* on."""
        first = damages[0] if damages else None
        is_torn = first and durable is not None and not first.is_foreign and first.offset >= durable
        for damage in damages:
            what, advice = damage.what, RESTORE
            if is_torn:
                what += ": torn by a crash, or damaged"
                advice = (
                    "opening the store cuts it off, and keeps whole batches behind it in a .cut "
                    "file; if it was torn, no acknowledged record is lost"
                )
            self._report.problem(result.file, damage.position, damage.offset, what, advice)

    def _content(self, window: Window, header: Header, position: int, result: BlockResult) -> None:
        window.verify(header, position)
        data = b"".join(_pieces(window, position, header.length))
        batch = EncodedBatch.parse(data)
        if header.body_format == COLUMNS_FORMAT:
            try:
                batch.records()
            except MissingExtra as error:
                self._report.problem(
                    result.file,
                    position,
                    header.base_offset,
                    "the body cannot be unpacked here",
                    error.message,
                    is_note=True,
                )
        result.batches += 1
        result.records += header.count
        result.bytes += header.length

    # --- checkpoint and index -------------------------------------------------------------------

    def _known(self, id: BlockId, stem: str, suffix: str, suffixes: set[str]) -> Known | None:
        if suffix not in suffixes:
            return None
        path = stem + suffix
        try:
            known = Known.from_bytes(read_all(self._files, path))
        except CorruptMetadata as error:
            self._report.problem(path, None, None, error.message, REBUILT)
            return None
        except StoreError as error:
            self._report.problem(path, None, None, error.message, REBUILT)
            return None
        if known.block != id:
            self._report.problem(path, None, None, f"belongs to block {known.block}", REBUILT)
            return None
        return known

    def _agreement(
        self,
        result: BlockResult,
        known: Known,
        suffix: str,
        found: list[tuple[Header, int]],
        begin: int,
        size: int,
    ) -> None:
        """Compare a .ckpt or .index with the content of the block."""
        path = result.file.removesuffix(BLOCK) + suffix
        if known.position > size:
            what = f"the block is {plural(known.position - size, 'byte')} shorter than before"
            self._report.problem(result.file, size, known.end, what, RESTORE)
            return
        index, end, position = Index(), known.start, known.position and begin
        for header, at in found:
            if at < known.position:
                index.add(header, at)
                end, position = header.end_offset, at + header.length
        if (known.start, known.end, known.position) != (result.start, end, position):
            what = f"says that offset {known.end} is at byte {known.position}"
            what += f" of a block from {known.start}; the block file disagrees"
        elif index.to_bytes() != known.index.to_bytes():
            what = "its index does not agree with the block"
        else:
            return
        self._report.problem(path, None, None, what, REBUILT)


def read_all(files: Files, path: str) -> bytes:
    """Read a whole small file."""
    with explained("read", path):
        handle = files.open_readonly(path)
        try:
            size = files.size(handle)
            if size > LOAD_MAX:
                raise StoreError(f"{path} is too large: {size} bytes", file=path)
            return files.pread(handle, size, 0)
        finally:
            files.close(handle)


def _pieces(window: Window, position: int, size: int) -> list[bytes]:
    pieces, end = [], position + size
    while position < end:
        piece = bytes(window.piece(position, end - position))
        if not piece:
            raise CorruptBatch("the body is cut short")
        pieces.append(piece)
        position += len(piece)
    return pieces


def resync(window: Window, position: int) -> int:
    """Return the position of the next batch header at or after *position*, or the file's end."""
    while (at := find_magic(window, position)) is not None:
        try:
            window.header(at)
            return at
        except CorruptBatch:
            position = at + 1
    return window.size
