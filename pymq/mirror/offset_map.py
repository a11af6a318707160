"""The map from offsets of a Kafka partition to offsets of its copy.

The map is a list of runs: *count* records from offset *source* on have the offsets from *target*
on. A partition without gaps needs a single run. Kafka leaves gaps where a transaction ended or
where compaction removed records, and pymq where an election or a roll used an offset.

A map has at most :data:`RUNS_MAX` runs. A longer map is thinned out: it drops each run that ends
less than *grain* source offsets after the last run that it has kept. If too many are left, it
doubles *grain* and thins out again.
A translated offset is then less than *grain* records behind the exact one, and never ahead.
"""

from __future__ import annotations

from bisect import bisect_right

from pymq.core.values import Factory, define

RUNS_MAX = 1024
_LAST = 1 << 62

OffsetRun = tuple[int, int, int]  # source, target, count


@define
class OffsetMap:
    """Translates offsets of one partition; offsets must be added in ascending order."""

    runs: list[OffsetRun] = Factory(list)
    grain: int = 0  # 0: exact

    def add(self, source: int, target: int, count: int) -> None:
        """Note that *count* records from *source* on were written from *target* on."""
        if self.runs:
            first, to, length = self.runs[-1]
            if first + length == source and to + length == target:
                self.runs[-1] = (first, to, length + count)
                return
        self.runs.append((source, target, count))
        if len(self.runs) > RUNS_MAX:
            self._thin()

    def find(self, source: int) -> int | None:
        """Return the target offset at which a consumer continues that would continue at *source*.

        Returns None if the map is empty. The result is never after records that the consumer has
        not read.
        """
        if not self.runs:
            return None
        index = bisect_right(self.runs, (source, _LAST, _LAST)) - 1
        if index < 0:
            return self.runs[0][1]
        first, target, count = self.runs[index]
        return target + min(source - first, count)

    def forget(self, before: int) -> None:
        """Drop runs that end before the source offset *before*, but keep the last run."""
        kept = [run for run in self.runs[:-1] if run[0] + run[2] > before]
        self.runs = kept + self.runs[-1:]

    def _thin(self) -> None:
        self.grain = max(self.grain, 1)
        while len(self.runs) > RUNS_MAX // 2:
            self.grain *= 2
            kept = self.runs[:1]
            for run in self.runs[1:-1]:
                end = kept[-1][0] + kept[-1][2]
                if run[0] + run[2] - end >= self.grain:
                    kept.append(run)
            self.runs = kept + self.runs[-1:]
