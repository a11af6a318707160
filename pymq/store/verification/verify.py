"""Verifies a store's folder without changing it, like a read-only fsck."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from functools import partial

from pymq.core.counts import clause, plural
from pymq.core.types import BlockId
from pymq.errors import (
    CorruptBatch,
    CorruptBlock,
    CorruptMetadata,
    StoreError,
    StoreLocked,
)
from pymq.store.block.block_file import Window
from pymq.store.file.cleaned import Cleaned
from pymq.store.file.folder import BLOCK, CLEAN, CUT, check_format, explained
from pymq.store.file.os_files import Files, OsFiles, store_error
from pymq.store.file.states import STATES, parse
from pymq.store.verification.report import BlockResult, Problem, Report, Unknown
from pymq.store.verification.verify_block import REBUILT, RESTORE, BlockVerifier, read_all, resync

_FILE = re.compile(r"(\d{8,})(\.block|\.ckpt|\.index|\.clean|\.cut\d*)(\.tmp)?")
_REMOVE = "`pymq verify DIR --remove-unknown` removes them"


def verify(
    path: str,
    *,
    files: Files | None = None,
    known: Callable[[], Collection[BlockId]] | None = None,
    on_read: Callable[[int], object] = lambda size: None,
) -> Report:
    """Read every byte of the store in the folder *path* and report all damage.

    The function changes only the process id in the lock file. While another process has the store
    open, the last batches may look torn because they are being written; the report says so.

    Other files of a broker, such as its metadata, are not checked. *known* is a function for the
    metadata: it returns the known blocks, or raises a :class:`StoreError`, which is reported as
    damage. The verifier calls *known* only if it holds the store's lock.

    The verifier calls *on_read* after each block file, with the size of the file in bytes.

    Raises:
        StoreError: *path* is not a store of a known version, or cannot be read at all.
    """
    return _Verifier(path, files or OsFiles(), known, on_read).run()


class _Verifier:
    def __init__(
        self,
        path: str,
        files: Files,
        known: Callable[[], Collection[BlockId]] | None,
        on_read: Callable[[int], object],
    ) -> None:
        self.files = files
        self.report = Report(path)
        self._blocks = BlockVerifier(files, self.report, on_read)
        self._ask_known = known
        # all blocks, with the names of all their files
        self._found: list[tuple[BlockId, list[str]]] = []

    def run(self) -> Report:
        path = self.report.path
        with explained("open", path):
            names = self.files.list(path)
        marker = os.path.join(path, "FORMAT")
        if "FORMAT" not in names:
            raise StoreError(f"{path} is not a pymq store: it has no FORMAT file", file=path)
        check_format(read_all(self.files, marker), marker)
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
        unknown = {found.block for found in self.report.unknown}
        for block, file in self._blocks.missing:
            if block not in unknown:  # otherwise a crash has interrupted the removal of the block
                self.report.problem(file, None, None, "the block file is missing", RESTORE)
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
        advice = "batches that are being written may look torn; stop the process to be sure"
        self.report.problem(path, None, None, why, advice, is_note=True)
        return None

    def _foreign(self, path: str) -> None:
        self.report.problem(
            path, None, None, "is no file of the store", "move it elsewhere", is_note=True
        )

    def _states(self, path: str) -> None:
        """Check the saved states of replicas."""
        try:
            data = read_all(self.files, path)
            size = parse(data, path)[1]
        except CorruptBlock as error:
            position, what = error.details["position"], error.message.split(": ", 1)[-1]
            assert isinstance(position, int)
            advice = "restore the file, or empty the folder, so that the broker starts as a new one"
            self.report.problem(path, position, None, what.split(";")[0], advice)
        except OSError as error:
            message = store_error(error, "read", path).message
            self.report.problem(path, None, None, message, RESTORE)
        else:
            if size < len(data):
                what, advice = "was torn by a crash", "opening the store cuts it off"
                self.report.problem(path, size, None, what, advice, is_note=True)

    # --- metadata -------------------------------------------------------------------------------

    def _compare(self, known: Callable[[], Collection[BlockId]]) -> None:
        """Report the blocks that are not in the metadata."""
        try:
            blocks = known()
        except StoreError as error:
            file = str(error.details.get("file", self.report.path))
            self.report.problem(file, None, None, error.message, RESTORE)
            return
        for id, files in self._found:
            if id in blocks:
                continue
            size = sum(map(self._size, files))
            self.report.unknown.append(Unknown(id, tuple(files), size))
            what = f"{plural(size, 'byte')} in {plural(len(files), 'file')} of a block that the "
            what += "metadata does not contain: a crash prevented their removal with the topic, "
            what += "or by retention"
            self.report.problem(files[0], None, None, what, _REMOVE, is_note=True)

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
        if os.path.islink(path):
            what, advice = "is a link to another place", "replace it by a folder with its files"
            self.report.problem(path, None, None, what, advice)
            return []
        try:
            return self.files.list(path)
        except NotADirectoryError:
            self._foreign(path)
        except OSError as error:
            self.report.problem(path, None, None, f"cannot be read ({error.strerror})", RESTORE)
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
                self.report.problem(path, None, None, "was left by a crash", advice, is_note=True)
            elif match[2].startswith(CUT):
                self._cut(path)
            elif match[2] == CLEAN:
                self._clean(BlockId(topic_id, partition, int(match[1])), path)
            else:
                found.setdefault(int(match[1]), set()).add(match[2])
        self._found += [(BlockId(topic_id, partition, n), files[n]) for n in sorted(files)]
        numbers = sorted(number for number, suffixes in found.items() if BLOCK in suffixes)
        before: BlockResult | None = None
        for number in sorted(found):
            id = BlockId(topic_id, partition, number)
            stem = os.path.join(folder, f"{number:08d}")
            is_last = not numbers or number == numbers[-1]
            result = self._blocks.check(id, stem, found[number], is_last)
            if result and before:
                self._sequence(before, result)
            before = result or before

    def _clean(self, id: BlockId, path: str) -> None:
        """Check the notes of compactions."""
        try:
            cleaned = Cleaned.from_bytes(read_all(self.files, path))
        except (CorruptMetadata, StoreError) as error:
            self.report.problem(path, None, None, error.message, REBUILT)
            return
        if cleaned.block != id:
            self.report.problem(path, None, None, f"belongs to block {cleaned.block}", REBUILT)

    def _cut(self, path: str) -> None:
        """Report a file with batches that recovery has cut off a block."""
        runs: list[tuple[int, int]] = []
        try:
            handle = self.files.open_readonly(path)
            try:
                window = Window(partial(self.files.pread, handle), self.files.size(handle))
                position = 0
                while (position := resync(window, position)) < window.size:
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
            self.report.problem(path, None, None, message, REBUILT, is_note=True)
            return
        offsets = ", ".join(f"{start} to {end - 1}" for start, end in runs) or "none"
        what = "was cut off the block after a crash, since earlier bytes had not reached the "
        what += f"disk; it has whole batches with the offsets {offsets}"
        advice = (
            "no producer got an acknowledgement for them; check whether you need them, "
            "then delete the file"
        )
        self.report.problem(path, None, runs[0][0] if runs else None, what, advice, is_note=True)

    def _sequence(self, before: BlockResult, result: BlockResult) -> None:
        gap = result.block.number - before.block.number - 1
        if gap:
            what = f"{clause(gap, 'block', 'is', 'are')} missing before it"
            advice = f"no harm if other brokers hold {'it' if gap == 1 else 'them'}"
            self.report.problem(result.file, None, result.start, what, advice, is_note=True)
        elif before.is_ok and before.end != result.start:
            what = f"begins at {result.start}, but the block before it ends at {before.end}"
            self.report.problem(result.file, 0, before.end, what, RESTORE)


__all__ = ["BlockResult", "Problem", "Report", "Unknown", "verify"]
