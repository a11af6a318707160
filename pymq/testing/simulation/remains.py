"""Enumerates the states in which a crash may leave a disk.

:meth:`pymq.testing.simulation.disk.SimDisk.crash` draws one of these states at random. This module
lists all of them, so that each can be tried:

* State 0: all unsynced data is lost. State 1: all unsynced data is kept.
* All combinations of names (each as before or as now) and files (each after any number of its
  unsynced writes), if there are at most :data:`COMBINED_MAX`. If there are more combinations:
  variants of state 0 with one item kept, and of state 1 with one item lost.
* A torn write, for each of the last :data:`TORN_MAX` writes to a file: the write is cut in its
  middle or at its first whole sector, with zeros up to its length if the file grows. With
  ``SimDisk(holes=True)``, also the second part without the first. Everything else is kept.

The list is complete except for these limits and for finer cuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING

from pymq.core.values import define

if TYPE_CHECKING:
    from pymq.testing.simulation.disk import SimDisk
    from pymq.testing.simulation.simulated_file import SimFile

COMBINED_MAX = 12
TORN_MAX = 3
SECTOR = 512


@define
class Remains:
    """One of the states; a :class:`pymq.testing.simulation.simulated_folders.Survival`."""

    names: frozenset[tuple[str, str]]  # names that survive as they are now
    files: dict[int, bytes]  # contents of files with unsynced writes

    def keeps(self, folder: str, name: str) -> bool:
        """Whether a name survives as it is now, rather than as before."""
        return (folder, name) in self.names

    def content(self, file: SimFile) -> bytes:
        """Return the surviving content of a file with unsynced writes."""
        return self.files[id(file)]


def remains(disk: SimDisk) -> list[Remains]:
    """Return all states in which a crash now may leave *disk*; there is at least one."""
    names, files = disk.unsynced()
    histories = [_history(file) for file in files]
    distinct = [_distinct(history) for history in histories]
    options: list[list[int]] = [[0, 1] for _ in names] + [list(range(len(d))) for d in distinct]
    picks = list(_picks(options))
    found = [
        Remains(
            frozenset(name for name, kept in zip(names, pick, strict=False) if kept),
            {
                id(file): versions[at]
                for file, versions, at in zip(files, distinct, pick[len(names) :], strict=True)
            },
        )
        for pick in picks
    ]
    everything = found[min(1, len(found) - 1)]
    for file, history in zip(files, histories, strict=True):
        known = {*history}
        for old, new in list(pairwise(history))[-TORN_MAX:]:
            for part in _torn(old, new, disk.holes):
                if part not in known:
                    known.add(part)
                    found.append(Remains(everything.names, {**everything.files, id(file): part}))
    return found


def _history(file: SimFile) -> list[bytes]:
    """Return the contents of a file after each write since its last sync, the oldest first."""
    # After a failed sync, the disk may have a state that programs never saw.
    if file.disk is not None:
        return [file.synced(), file.written()]
    data = bytearray(file.data)
    versions = [bytes(data)]
    for position, old, length in reversed(file.undo):
        data[position : position + len(old)] = old
        del data[length:]
        versions.append(bytes(data))
    return versions[::-1]


def _distinct(history: Sequence[bytes]) -> list[bytes]:
    """Remove duplicates; the first state stays first, and the last stays last unless both are
    equal.
    """
    return [*dict.fromkeys(history[:-1] if history[-1] != history[0] else history)] + (
        [history[-1]] if history[-1] != history[0] else []
    )


def _picks(options: list[list[int]]) -> Iterator[tuple[int, ...]]:
    """Return combinations of options: first the first option of each, then the last of each, then
    others.
    """
    first, last = tuple(o[0] for o in options), tuple(o[-1] for o in options)
    yield first
    if last == first:
        return
    yield last
    if prod(map(len, options)) <= COMBINED_MAX:
        yield from (pick for pick in product(*options) if pick not in (first, last))
        return
    seen = {first, last}
    for base in (first, last):
        for index, choices in enumerate(options):
            for choice in choices:
                pick = (*base[:index], choice, *base[index + 1 :])
                if pick not in seen:
                    seen.add(pick)
                    yield pick


def _torn(old: bytes, new: bytes, holes: bool) -> Iterator[bytes]:
    """Return the contents that may survive of a write that changed *old* to *new*."""
    if len(new) < len(old) and old.startswith(new):
        return  # a truncation is one step
    size = max(len(old), len(new))
    before, after = old.ljust(size, b"\0"), new.ljust(size, b"\0")
    if before == after:
        yield new[: (len(old) + len(new)) // 2]
        return
    sectors = [at for at in range(0, size, SECTOR) if _differ(before, after, at)]
    low = next(i for i in range(sectors[0], size) if before[i] != after[i])
    end = min(sectors[-1] + SECTOR, size)
    high = next(i for i in range(end - 1, low - 1, -1) if before[i] != after[i]) + 1
    for cut in sorted({(low + high) // 2, low - low % SECTOR + SECTOR}):
        if not low < cut < high:
            continue
        yield new[:cut] + old[cut:]
        if len(new) > len(old):
            yield new[:cut] + before[cut : len(new)]
        if holes and cut % SECTOR == 0:
            yield before[:cut] + new[cut:]
    if len(new) > len(old):
        yield before[: len(new)]


def _differ(before: bytes, after: bytes, at: int) -> bool:
    return before[at : at + SECTOR] != after[at : at + SECTOR]
