"""A file of the simulated disk: its content for programs, and its content after a crash.

Synced writes survive. Of later writes each sector of 512 bytes survives or is lost, independently
of the others. A crash may keep a new length without its data; then the missing bytes are zeros.
"""

from __future__ import annotations

import random

__all__ = ["SimFile"]

SECTOR = 512
PAGE = 4096

_FAR = 1 << 62


class SimFile:
    """A file as programs see it, with the data to compute the content that the disk may have."""

    __slots__ = ("data", "dirty", "disk", "is_shared", "kept", "path", "undo")

    def __init__(self, path: str, data: bytearray) -> None:
        self.path = path  # the file's last path, to find it
        self.data = data  # the content as programs see it
        # whether another disk's file shares the data, which must then be copied before a change
        self.is_shared = False
        self.kept = _FAR  # bytes before this position have not changed since the last sync
        # Undo steps since the last sync, in order of time: (position, former bytes, former length).
        # An append adds a step only to an empty list, because every undo step also truncates the
        # file.
        self.undo: list[tuple[int, bytes, int]] = []
        # After a failed sync: the real content of the disk; the kernel considers the pages in
        # memory clean. Changes since then are kept as (from, to), or as (length, -1) for a
        # truncation.
        self.disk: bytes | None = None
        self.dirty: list[tuple[int, int]] = []

    def touch(self, position: int, old: bytes, end: int) -> bytearray:
        """Prepare a change of the file at *position*, where *old* is now; return the content."""
        if self.is_shared:
            self.data, self.is_shared = bytearray(self.data), False
        if old or not self.undo:
            self.undo.append((position, old, len(self.data)))
        self.kept = min(self.kept, position)
        if self.disk is not None:
            self.dirty.append((position, end))
        return self.data

    def synced(self) -> bytes:
        """Return the content at the last successful sync."""
        if self.disk is not None:
            return self.disk
        data = bytearray(self.data)
        for position, old, length in reversed(self.undo):
            data[position : position + len(old)] = old
            del data[length:]
        return bytes(data)

    def sync(self) -> None:
        """Write all changes since the last sync to the disk, even after a failed sync."""
        if self.disk is not None:
            disk = self.written()
            self.disk = None if disk == self.data else disk
            self.dirty.clear()
        self.undo.clear()
        self.kept = _FAR

    def written(self) -> bytes:
        """Return the content that the disk would have after a sync now."""
        if self.disk is None:
            return bytes(self.data)
        disk = bytearray(self.disk)
        for position, end in self.dirty:
            if end < 0:
                del disk[position:]
                continue
            page, stop = position - position % PAGE, min(end + -end % PAGE, len(self.data))
            disk.extend(bytes(max(page - len(disk), 0)))
            disk[page:stop] = self.data[page:stop]
        # The length is not a page: a failed sync does not discard its change.
        del disk[len(self.data) :]
        return bytes(disk.ljust(len(self.data), b"\0"))

    def settle(self, data: bytes) -> None:
        """Set the content to *data*, as if synced."""
        self.data, self.is_shared, self.kept = bytearray(data), False, _FAR
        self.undo.clear()
        self.disk = None
        self.dirty.clear()

    def copy(self) -> SimFile:
        """Return a copy; both share the data until one of them changes it."""
        self.is_shared = True
        made = SimFile(self.path, self.data)
        made.is_shared, made.kept, made.disk = True, self.kept, self.disk
        made.undo, made.dirty = self.undo.copy(), self.dirty.copy()
        return made

    def write(self, new: bytes, position: int) -> int:
        """Write *new* at *position*; zeros fill a gap after the end."""
        size, end = len(self.data), position + len(new)
        if position == size:
            data = self.touch(position, b"", end)
            data += new
        else:
            data = self.touch(position, bytes(self.data[position:end]), end)
            if position > size:
                data.extend(bytes(position - size))
            data[position:end] = new
        return len(new)

    def cut(self, size: int) -> None:
        """Truncate the file to *size* bytes, fewer than it has."""
        data = self.touch(size, bytes(self.data[size:]), -1)
        del data[size:]

    def flip(self, position: int, bit: int) -> None:
        """Damage a byte, in memory and on the disk."""
        data = bytearray(self.data)
        data[position] ^= bit
        self.data, self.is_shared = data, False
        if self.disk is not None and position < len(self.disk):
            rotten = bytearray(self.disk)
            rotten[position] ^= bit
            self.disk = bytes(rotten)

    @property
    def is_unsynced(self) -> bool:
        """Whether a crash may change the file."""
        return bool(self.undo) or self.disk is not None

    def lose(self, rng: random.Random | None, *, holes: bool) -> None:
        """Let a sync fail: *rng* decides which changes reach the disk."""
        if self.is_unsynced:
            self.disk = self.survived(rng, holes=holes) if rng else self.synced()
            self.undo.clear()
            self.dirty.clear()
            self.kept = _FAR

    def forget(self, position: int) -> None:
        """Read the bytes from *position* on from the disk again."""
        if self.disk is None or self.dirty:
            return
        position -= position % PAGE
        length = len(self.data)  # the length is not a page, and stays
        self.data, self.is_shared = self.data[:position], False
        self.data += self.disk[position:length]
        self.data.extend(bytes(length - len(self.data)))
        if self.data == self.disk:
            self.disk = None

    def survived(self, rng: random.Random, *, holes: bool) -> bytes:
        """Return the content that a crash leaves.

        With *holes*, later sectors may survive without earlier ones.
        """
        old, new, kept = self.synced(), self.written(), self.kept
        if self.disk is not None:
            kept = len(new) if old.startswith(new) else 0
        if len(new) <= kept and len(new) < len(old):  # only a truncation: one step of the journal
            return rng.choice((old, new))
        low, high = sorted((len(old), len(new)))
        size = rng.choice((low, high, rng.randint(low, high)))
        kept = min(kept, low)
        how = rng.random()
        found = bytearray(size)
        found[:kept] = new[:kept]
        at = kept
        if holes:
            share = rng.choice((0.0, 0.3, 0.7, 1.0))
            while at < size:
                end = min(at - at % SECTOR + SECTOR, size)
                piece = (new if rng.random() < share else old)[at:end]
                found[at : at + len(piece)] = piece
                at = end
        else:
            torn = rng.choice((kept, size, rng.randint(kept, size)))
            for piece, at in ((new[kept:torn], kept), (old[torn:size], torn)):
                found[at : at + len(piece)] = piece
        return old if how < 0.1 else bytes(found)
