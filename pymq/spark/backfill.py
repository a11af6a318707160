"""Plans long reads by blocks: a task reads whole sealed blocks one after the other.

A partition that holds more than one task should read is cut into several tasks, where possible at
the border of two blocks. Pure arithmetic::

    block      |    0    |    1    |       2       | 3 |
    task       |         0         |  1    |   2       |

Tasks and the ranges of a task stay in the order of partitions and offsets, so that the rows of a
partition keep their order wherever Spark keeps the order of its tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pymq.spark.planning import TASK_ROWS, Place, Range

TASK_BYTES = 128 << 20  # as Spark's spark.sql.files.maxPartitionBytes
CONSIDERED = 4096  # offsets of a range from which on its blocks are looked at
WAVES = 4  # tasks for each slot from which on an uneven task costs little


class BlockSpan(NamedTuple):
    """The offsets of a partition that one block holds."""

    start: int
    end: int
    size: int  # bytes; 0 if unknown


class Stretch(NamedTuple):
    """A part of a range within one block."""

    part: Range
    weight: float  # in tasks: 1.0 is as much as one task should read


def stretches(
    ranges: Sequence[Range], blocks: Mapping[Place, Sequence[BlockSpan]]
) -> list[Stretch]:
    """Divide ranges at the borders of blocks; offsets outside of known blocks are one block."""
    found = []
    for each in ranges:
        at = each.start
        for span in blocks.get((each.topic, each.partition), ()):
            low, high = max(at, span.start), min(each.end, span.end)
            if low >= high:
                continue
            if low > at:
                found.append(_stretch(each, at, low, 0))
            share = (high - low) / (span.end - span.start)
            found.append(_stretch(each, low, high, span.size * share))
            at = high
        if at < each.end:
            found.append(_stretch(each, at, each.end, 0))
    return found


def _stretch(each: Range, start: int, end: int, size: float) -> Stretch:
    weight = max((end - start) / TASK_ROWS, size / TASK_BYTES)
    return Stretch(each._replace(start=start, end=end), weight)


def is_long(found: Sequence[Stretch]) -> bool:
    """Whether a partition holds more than one task should read."""
    weights: dict[Place, float] = {}
    for (topic, partition, *_), weight in found:
        weights[topic, partition] = weights.get((topic, partition), 0.0) + weight
    return any(weight > 1.0 for weight in weights.values())


def divide(found: Sequence[Stretch], count: int, slots: int) -> list[list[Range]]:
    """Divide stretches into at most *count* tasks of about the same weight, in order.

    A task ends at the border of a block if one is near. With many tasks for each slot, that is half
    a task away, so that only blocks larger than a task are cut.
    """
    division = _Division(sum(weight for _, weight in found), count, slots)
    for stretch in found:
        division.add(stretch)
    return division.finish()


class _Division:
    """Fills one task after the other."""

    def __init__(self, weight: float, count: int, slots: int) -> None:
        self._left = weight  # of the task that is filled and of those after it
        self._missing = count  # tasks, with the one that is filled
        self._slack = weight / count / (2 if count >= WAVES * slots else 8)
        self._tasks: list[list[Range]] = []
        self._ranges: list[Range] = []
        self._filled = 0.0

    @property
    def _room(self) -> float:
        return self._left / self._missing - self._filled

    def add(self, stretch: Stretch) -> None:
        """Add the next stretch, in parts if it is longer than the room that is left."""
        part, weight = stretch
        while self._missing > 1 and weight > self._room + self._slack:
            cut = part.start + max(1, round(part.size * self._room / weight))
            if cut >= part.end:
                break
            share = weight * (cut - part.start) / part.size
            self._take(part._replace(end=cut), share)
            self._end_task()
            part, weight = part._replace(start=cut), weight - share
        self._take(part, weight)
        if self._missing > 1 and self._room <= self._slack:
            self._end_task()

    def _take(self, part: Range, weight: float) -> None:
        self._filled += weight
        if self._ranges and self._ranges[-1].is_before(part):
            self._ranges[-1] = self._ranges[-1]._replace(end=part.end)
        else:
            self._ranges.append(part)

    def _end_task(self) -> None:
        self._tasks.append(self._ranges)
        self._left -= self._filled
        self._missing -= 1
        self._ranges, self._filled = [], 0.0

    def finish(self) -> list[list[Range]]:
        """Return the ranges of each task."""
        return [*self._tasks, self._ranges] if self._ranges else self._tasks
