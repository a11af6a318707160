"""The model of a benchmark: a part has goals and sides, and each side is measured in a separate
process.

A side prepares its data, is warmed up, and returns its measures by name. This module imports
neither pymq nor a peer, so the process of one side contains nothing of another side.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SHARE = {"tiny": 1 / 200, "default": 1 / 4, "long": 1.0}  # share of the work of a long run
CHUNK = 1 << 20

Measures = dict[str, float]


@dataclass(frozen=True)
class Job:
    """One run of one side."""

    # the run's own folder: empty, or in the state that the side's preparation has left
    folder: Path
    scale: str = "default"
    round: int = 0

    def count(self, usual: int) -> int:
        """Return the number of records at this scale; a long run has *usual* records.

        The result is a multiple of 1,000.
        """
        return max(1000, round(usual * SHARE[self.scale] / 1000) * 1000)

    def whole(self, usual: int) -> int:
        """Return *usual* at every scale except the tiny one, because with fewer records the measure
        would mean something else.
        """
        return self.count(usual) if self.scale == "tiny" else usual

    def few(self, usual: int) -> int:
        """Like :meth:`count`, for slow work, where a thousand records are many."""
        return max(16, round(usual * SHARE[self.scale]))

    def pick(self, *, tiny: int, default: int, long: int | None = None) -> int:
        """Choose by scale; *long* equals *default* unless given."""
        return {"tiny": tiny, "default": default, "long": long or default}[self.scale]

    def warm(self, size: int) -> None:
        """Touch *size* bytes of page cache and free them.

        A virtual machine returns idle memory to its host: the first writes to fresh pages run at a
        tenth of the usual speed.
        """
        path, block = self.folder / "warm", bytes(CHUNK)
        with path.open("wb", buffering=0) as file:
            for _ in range(max(1, size // CHUNK)):
                file.write(block)
        path.unlink()


def random_values(count: int, size: int) -> list[bytes]:
    """Return the same random values for all sides."""
    rng = random.Random(size)
    return [rng.randbytes(size) for _ in range(count)]


def batches(values: Sequence[bytes], size: int = 1000) -> list[Sequence[bytes]]:
    """Cut values into batches."""
    return [values[start : start + size] for start in range(0, len(values), size)]


class Stopwatch:
    """Measures the wall time of a block."""

    def __enter__(self) -> Stopwatch:
        self._start = time.perf_counter()
        self.seconds = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start

    def rate(self, count: int) -> float:
        """Return *count* per second."""
        return count / self.seconds

    def each_ns(self, count: int) -> float:
        """Return nanoseconds for each of *count*."""
        return self.seconds * 1e9 / count


def resident_bytes() -> int:
    """Return the memory of this process in bytes (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


Run = Callable[[Job], Measures]


class Needs(NamedTuple):
    """The requirements of a side; without them it is reported as missing."""

    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()  # sets of jars by name, see benchmarks.kafka.jars


NOTHING = Needs()


@dataclass(frozen=True)
class Side:
    """One of the compared sides: a peer, a physical limit, or pymq."""

    name: str
    setting: str  # the settings that matter for fairness: durability, batch, calls
    run: Run
    needs: Needs = NOTHING
    prepare: Callable[[Job], None] | None = None  # called before the runs, in a separate process
    is_kept: bool = False  # the side's data is prepared once for all runs, which do not change it
    is_killed: bool = False  # the preparation ends by kill -9

    @property
    def is_ours(self) -> bool:
        """Whether this side is pymq."""
        return self.name.startswith("pymq")


class At(NamedTuple):
    """A measure of a side."""

    side: str
    measure: str


@dataclass(frozen=True)
class Goal:
    """A goal of pymq: a ratio to the best of some peers, or, without peers, a figure."""

    ours: At
    peers: tuple[At, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    def is_met(self, reached: float) -> bool | None:
        """Return whether *reached* is good enough; None without a bound."""
        if self.at_least is None and self.at_most is None:
            return None
        low = self.at_least is None or reached >= self.at_least
        return low and (self.at_most is None or reached <= self.at_most)

    @property
    def bound(self) -> str:
        """The goal, as text."""
        unit = "x" if self.peers else ""
        if self.at_least is not None:
            return f">= {self.at_least:g}{unit}"
        return f"<= {self.at_most:g}{unit}" if self.at_most is not None else ""


class Unit(NamedTuple):
    """The unit of a measure."""

    name: str
    more_is_better: bool = True


RATE = Unit("records/s")
MS = Unit("ms", False)
NS = Unit("ns/record", False)


@dataclass(frozen=True)
class Part:
    """One comparison of a benchmark: its sides, measures and goals."""

    name: str
    title: str
    sides: tuple[Side, ...]
    goals: tuple[Goal, ...] = ()
    units: Mapping[str, Unit] = field(default_factory=dict)  # units of measures that are not rates
    runs_max: int = 100  # fewer for slow work that hardly varies
    axis: str = ""  # for a curve: the meaning of the number at the end of each measure's name
    patience: int = 1  # multiple of the usual timeout

    def unit(self, measure: str) -> Unit:
        """Return the unit of *measure*."""
        return self.units.get(measure, RATE)

    def side(self, name: str) -> Side:
        """Return the side of that name."""
        return next(side for side in self.sides if side.name == name)
