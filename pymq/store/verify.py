"""Look through a store's folder and say what is wrong with it, changing nothing; a good fsck."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from functools import partial

from pymq.core.index import Index
from pymq.core.record import COLUMNS_FORMAT, HEADER_SIZE, MAGIC, Header, RecordBatch
from pymq.core.types import BlockId
from pymq.core.values import Factory, define, value
from pymq.errors import (
    CorruptBatch,
    CorruptBlock,
    CorruptMetadata,
    MissingExtra,
    StoreError,
    StoreLocked,
)
from pymq.store.blockfile import (
    CHUNK,
    HEAD_MAX,
    Known,
    Window,
    check_chain,
    check_head,
    data_end,
    is_whole,
)
from pymq.store.files import Files, OsFiles, store_error
from pymq.store.folder import BLOCK, CKPT, CUT, INDEX, check_format, explained
from pymq.store.states import STATES, parse

_FILE = re.compile(r"(\d{8,})(\.block|\.ckpt|\.index|\.cut\d*)(\.tmp)?")
_RESTORE = "restore the file from another replica or a backup"
_REMOVE = "`pymq verify DIR --remove-unknown` removes them"
_REBUILT = "delete the file; opening the store does without it or makes it again"


@value
class Problem:
    """Something that is not as it should be."""

    file: str
    position: int | None  # in bytes
    offset: int | None  # in records: the one that should be there
    what: str
    advice: str
    is_note: bool = False  # odd, but no data is damaged

    def __str__(self) -> str:
        at = "" if self.position is None else f" at byte {self.position}"
        at += "" if self.offset is None else f", offset {self.offset}"
        return f"{'note: ' if self.is_note else ''}{self.file}{at}: {self.what}; {self.advice}"


@define
class BlockResult:
    """What was found in one block file."""

    file: str
    block: BlockId
    topic: str = ""
    partition: str = ""
    start: int = 0
    end: int = 0
    batches: int = 0  # good ones, as is all that follows
    records: int = 0
    bytes: int = 0
    is_ok: bool = True


@value
class Unknown:
    """Files of a block that the metadata do not know: left by a crash, and nobody asks for them."""

    block: BlockId
    files: tuple[str, ...]
    bytes: int


@define
class Report:
    """What :func:`verify` found; ``print(report)`` tells it to people."""

    path: str
    is_locked: bool = False  # whether nobody else could have the store open meanwhile
    blocks: list[BlockResult] = Factory(list)
    problems: list[Problem] = Factory(list)
    unknown: list[Unknown] = Factory(list)  # empty when the metadata were not looked at

    @property
    def is_ok(self) -> bool:
        """Whether nothing is damaged; there may be notes."""
        return all(problem.is_note for problem in self.problems)

    @property
    def batches(self) -> int:
        """Good batches in all blocks."""
        return sum(block.batches for block in self.blocks)

    @property
    def records(self) -> int:
        """Records in the good batches."""
        return sum(block.records for block in self.blocks)

    @property
    def bytes(self) -> int:
        """Bytes of the good batches."""
        return sum(block.bytes for block in self.blocks)

    def __str__(self) -> str:
        damaged = sum(not problem.is_note for problem in self.problems)
        verdict = "ok" if self.is_ok else f"{damaged} problems"
        totals = (
            f"{self.path}: {verdict}; {len(self.blocks)} blocks, {self.batches} batches, "
            f"{self.records} records, {self.bytes} bytes"
        )
        return "\n".join([totals, *map(str, self.problems)])


def verify(
    path: str,
    *,
    files: Files | None = None,
    known: Callable[[], Collection[BlockId]] | None = None,
) -> Report:
    """Read every byte of the store in the folder *path* and report what is wrong.

    Nothing is changed or made, but for the process id in the lock file. While another process has
    the store open the last batches may look torn, since they are just being written; the report
    says so.

    What a broker keeps beside the blocks, its metadata for example, is not looked at. *known* does
    that: it tells which blocks there are, or raises a :class:`StoreError` that is reported as
    damage. It is called while nobody else can have the store open, and only then.

    Raises:
        StoreError: *path* is not a store of a known version, or cannot be read at all.
    """
    return _Verifier(path, files or OsFiles(), known).run()


@value
class _Damage:
    position: int
    offset: int
    what: str
    is_foreign: bool  # a whole header, but not one that belongs there: no write tears like that


class _Verifier:
    def __init__(
        self, path: str, files: Files, known: Callable[[], Collection[BlockId]] | None
    ) -> None:
        self.files = files
        self.report = Report(path)
        self._ask_known = known
        self._found: list[tuple[BlockId, list[str]]] = []  # all blocks, with all of their files

    def run(self) -> Report:
        path = self.report.path
        with explained("open", path):
            names = self.files.list(path)
        marker = os.path.join(path, "FORMAT")
        if "FORMAT" not in names:
            raise StoreError(f"{path} is not a pymq store: it has no FORMAT file", file=path)
        check_format(self._load(marker), marker)
        lock = self._lock(names)
        try:
            if STATES in names:
                self._states(os.path.join(path, STATES))
            if "blocks" in names:
                self._topics(os.path.join(path, "blocks"))
            if self._ask_known is not None and self.report.is_locked:
                self._compare(self._ask_known)
        finally:
            if lock is not None:
                self.files.close(lock)
        return self.report

    def _lock(self, names: list[str]) -> int | None:
        path = os.path.join(self.report.path, "LOCK")
        if "LOCK" not in names:
            return None
        try:
            lock = self.files.lock(path)
        except StoreLocked as error:
            why = error.message
        except OSError as error:
            why = f"the lock cannot be taken ({error.strerror})"
        else:
            self.report.is_locked = True
            return lock
        advice = "what is written meanwhile may look torn; stop the process to be sure"
        self._problem(path, None, None, why, advice, is_note=True)
        return None

    def _problem(
        self,
        file: str,
        position: int | None,
        offset: int | None,
        what: str,
        advice: str,
        *,
        is_note: bool = False,
    ) -> None:
        self.report.problems.append(Problem(file, position, offset, what, advice, is_note))

    def _foreign(self, path: str) -> None:
        self._problem(
            path, None, None, "is no file of the store", "move it elsewhere", is_note=True
        )

    def _load(self, path: str) -> bytes:
        with explained("read", path):
            handle = self.files.open_readonly(path)
            try:
                return self.files.pread(handle, self.files.size(handle), 0)
            finally:
                self.files.close(handle)

    def _states(self, path: str) -> None:
        """Check what replicas must not forget."""
        try:
            data = self._load(path)
            size = parse(data, path)[1]
        except CorruptBlock as error:
            position, what = error.details["position"], error.message.split(": ", 1)[-1]
            assert isinstance(position, int)
            advice = "restore the file, or let the broker come back as a new one"
            self._problem(path, position, None, what.split(";")[0], advice)
        except OSError as error:
            message = store_error(error, "read", path).message
            self._problem(path, None, None, message, _RESTORE)
        else:
            if size < len(data):
                what, advice = "was torn by a crash", "opening the store cuts it off"
                self._problem(path, size, None, what, advice, is_note=True)

    # --- what the metadata say ------------------------------------------------------------------

    def _compare(self, known: Callable[[], Collection[BlockId]]) -> None:
        """Report the blocks that are not among the known ones."""
        try:
            blocks = known()
        except StoreError as error:
            file = str(error.details.get("file", self.report.path))
            self._problem(file, None, None, error.message, _RESTORE)
            return
        for id, files in self._found:
            if id in blocks:
                continue
            size = sum(map(self._size, files))
            self.report.unknown.append(Unknown(id, tuple(files), size))
            what = f"{size} bytes in {len(files)} files of a block that the metadata do not know: "
            what += "a crash came before they were removed with their topic, or when their time was"
            self._problem(files[0], None, None, what, _REMOVE, is_note=True)

    def _size(self, path: str) -> int:
        with explained("read", path):
            handle = self.files.open_readonly(path)
            try:
                return self.files.size(handle)
            finally:
                self.files.close(handle)

    # --- folders --------------------------------------------------------------------------------

    def _topics(self, root: str) -> None:
        for topic_id in self._list(root):
            topic = os.path.join(root, topic_id)
            for partition in self._list(topic):
                folder = os.path.join(topic, partition)
                if partition.isdecimal():
                    self._partition(folder, topic_id, int(partition))
                else:
                    self._foreign(folder)

    def _list(self, path: str) -> list[str]:
        try:
            return self.files.list(path)
        except NotADirectoryError:
            self._foreign(path)
        except OSError as error:
            self._problem(path, None, None, f"cannot be read ({error.strerror})", _RESTORE)
        return []

    def _partition(self, folder: str, topic_id: str, partition: int) -> None:
        found: dict[int, set[str]] = {}
        files: dict[int, list[str]] = {}
        for name in self._list(folder):
            path = os.path.join(folder, name)
            if not (match := _FILE.fullmatch(name)):
                self._foreign(path)
                continue
            files.setdefault(int(match[1]), []).append(path)
            if match[3]:
                advice = "opening the store removes it"
                self._problem(path, None, None, "was left by a crash", advice, is_note=True)
            elif match[2].startswith(CUT):
                self._cut(path)
            else:
                found.setdefault(int(match[1]), set()).add(match[2])
        self._found += [(BlockId(topic_id, partition, n), files[n]) for n in sorted(files)]
        numbers = sorted(number for number, suffixes in found.items() if BLOCK in suffixes)
        before: BlockResult | None = None
        for number in sorted(found):
            id = BlockId(topic_id, partition, number)
            stem = os.path.join(folder, f"{number:08d}")
            is_last = not numbers or number == numbers[-1]
            result = self._block(id, stem, found[number], is_last)
            if result and before:
                self._sequence(before, result)
            before = result or before

    def _cut(self, path: str) -> None:
        """Tell what recovery has kept of the tail of a block."""
        runs: list[tuple[int, int]] = []
        try:
            handle = self.files.open_readonly(path)
            try:
                window = Window(partial(self.files.pread, handle), self.files.size(handle))
                position = 0
                while (position := _resync(window, position)) < window.size:
                    try:
                        header = window.header(position)
                        window.verify(header, position)
                    except CorruptBatch:
                        position += 1
                        continue
                    position += header.length
                    if runs and runs[-1][1] == header.base_offset:
                        runs[-1] = (runs[-1][0], header.end_offset)
                    else:
                        runs.append((header.base_offset, header.end_offset))
            finally:
                self.files.close(handle)
        except OSError as error:
            message = store_error(error, "read", path).message
            self._problem(path, None, None, message, _REBUILT, is_note=True)
            return
        offsets = ", ".join(f"{start} to {end - 1}" for start, end in runs) or "none"
        what = "was cut off the block after a crash, since parts before it had not reached the "
        what += f"disk; whole batches of the offsets {offsets} are in it"
        advice = "nobody was told that they are safe; look whether you miss them, then delete it"
        self._problem(path, None, runs[0][0] if runs else None, what, advice, is_note=True)

    def _sequence(self, before: BlockResult, result: BlockResult) -> None:
        gap = result.block.number - before.block.number - 1
        if gap:
            what = f"{gap} blocks are missing before it"
            advice = "no harm if other brokers hold them"
            self._problem(result.file, None, result.start, what, advice, is_note=True)
        elif before.is_ok and before.end != result.start:
            what = f"begins at {result.start}, but the block before it ends at {before.end}"
            self._problem(result.file, 0, before.end, what, _RESTORE)

    # --- one block ------------------------------------------------------------------------------

    def _block(
        self, id: BlockId, stem: str, suffixes: set[str], is_last: bool
    ) -> BlockResult | None:
        marks = {s: known for s in (CKPT, INDEX) if (known := self._known(id, stem, s, suffixes))}
        path = stem + BLOCK
        if BLOCK not in suffixes:
            if any(known.position for known in marks.values()):
                self._problem(path, None, None, "the block file is missing", _RESTORE)
            return None
        result = BlockResult(path, id)
        self.report.blocks.append(result)
        count = len(self.report.problems)
        try:
            handle = self.files.open_readonly(path)
            try:
                window = Window(partial(self.files.pread, handle), self.files.size(handle))
                self._walk(window, result, marks, is_last and INDEX not in marks)
            finally:
                self.files.close(handle)
        except CorruptBlock as error:
            position, what = error.details["position"], error.message.split(": ", 1)[-1]
            offset = error.details["offset"]
            assert isinstance(position, int)
            assert isinstance(offset, int)
            self._problem(path, position, offset, what.split(";")[0], _RESTORE)
        except OSError as error:
            message = store_error(error, "read", path).message
            self._problem(path, None, None, message, _RESTORE)
        result.is_ok = all(problem.is_note for problem in self.report.problems[count:])
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
                    size = position  # written ahead of appends
                    break
                is_foreign = is_whole(window.piece(position, HEADER_SIZE, HEADER_SIZE))
                following = _resync(window, position + 1)
                damages.append(_Damage(position, offset, error.message, is_foreign))
                position, is_lost = following, True
                continue
            # The header may be trusted: whatever else is wrong, go on behind it.
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
        """Report *damages*; from offset *durable* on, if given, opening the store cuts them off."""
        first = damages[0] if damages else None
        is_torn = first and durable is not None and not first.is_foreign and first.offset >= durable
        for damage in damages:
            what, advice = damage.what, _RESTORE
            if is_torn:
                what += ": torn by a crash, or damaged"
                advice = (
                    "opening the store cuts it off, and keeps whole batches behind it in a .cut "
                    "file; if it was torn, no acknowledged record is lost"
                )
            self._problem(result.file, damage.position, damage.offset, what, advice)

    def _content(self, window: Window, header: Header, position: int, result: BlockResult) -> None:
        window.verify(header, position)
        data = b"".join(_pieces(window, position, header.length))
        batch = RecordBatch.parse(data)
        if header.body_format == COLUMNS_FORMAT:
            try:
                batch.records()
            except MissingExtra as error:
                self._problem(
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
            known = Known.from_bytes(self._load(path))
        except CorruptMetadata as error:
            self._problem(path, None, None, error.message, _REBUILT)
            return None
        except StoreError as error:
            self._problem(path, None, None, error.message, _REBUILT)
            return None
        if known.block != id:
            self._problem(path, None, None, f"belongs to block {known.block}", _REBUILT)
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
        """Check what a .ckpt or .index says against what is in the block."""
        path = result.file.removesuffix(BLOCK) + suffix
        if known.position > size:
            what = f"the block is {known.position - size} bytes shorter than it was once"
            self._problem(result.file, size, known.end, what, _RESTORE)
            return
        index, end, position = Index(), known.start, known.position and begin
        for header, at in found:
            if at < known.position:
                index.add(header, at)
                end, position = header.end_offset, at + header.length
        if (known.start, known.end, known.position) != (result.start, end, position):
            what = f"says that offset {known.end} is at byte {known.position}"
            what += f" of a block from {known.start}; the block says otherwise"
        elif index.to_bytes() != known.index.to_bytes():
            what = "its index does not agree with the block"
        else:
            return
        self._problem(path, None, None, what, _REBUILT)


def _pieces(window: Window, position: int, size: int) -> list[bytes]:
    pieces, end = [], position + size
    while position < end:
        piece = bytes(window.piece(position, end - position))
        if not piece:
            raise CorruptBatch("the body is cut short")
        pieces.append(piece)
        position += len(piece)
    return pieces


def _resync(window: Window, position: int) -> int:
    """Find the next batch header at or after *position*, or the file's end."""
    while position + HEADER_SIZE <= window.size:
        piece = bytes(window.piece(position, CHUNK, HEADER_SIZE))
        at = piece.find(MAGIC)
        if at < 0:
            position += len(piece) - len(MAGIC) + 1
            continue
        position += at
        try:
            window.header(position)
            return position
        except CorruptBatch:
            position += 1
    return window.size


__all__ = ["BlockResult", "Problem", "Report", "verify"]
