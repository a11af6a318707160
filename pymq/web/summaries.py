"""Summaries of each topic and group, for sums over all of them on the page.

A snapshot describes only the first topics and groups in full, because the page shows these. Each
snapshot also describes the next few of the others, and keeps a summary of each. So after a few
snapshots the sums cover all topics and groups, at a cost per snapshot that does not grow with their
number. The page shows how many topics or groups each sum covers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

from pymq.core.metadata.descriptions import TopicDescription
from pymq.core.values import value

KNOWN_MAX = 10_000  # topics, and groups, that have a summary
FRESH_S = 900.0  # older summaries do not count: the page was closed for a while

Rate = tuple[float, float]  # records and bytes a second


@value
class TopicSummary:
    """The numbers of a topic at its last description."""

    at: float  # time of the description, in seconds
    records: int  # the sum of the log ends
    bytes: int  # bytes of one copy of each block
    short: int  # partitions with replicas that are not in sync
    held: tuple[tuple[str, int, int], ...]  # blocks and bytes, by broker
    rate: Rate | None  # records per second since the previous description; None after the first one


class Rounds:
    """Visits names in turn: all of them once, then again from the first."""

    def __init__(self) -> None:
        self._last = ""

    def visit(self, names: Sequence[str]) -> Iterator[str]:
        """Yield all of *names*, beginning after the name that was yielded last."""
        ordered = sorted(names)
        begin = bisect_right(ordered, self._last)
        for name in (*ordered[begin:], *ordered[:begin]):
            self._last = name
            yield name


class TopicSummaries:
    """The summaries of topics."""

    def __init__(self) -> None:
        self._known: dict[str, TopicSummary] = {}
        # topics that the principal may not describe, with the time of the refusal
        self._hidden: dict[str, float] = {}
        self.rounds = Rounds()

    def add(self, topic: TopicDescription, at: float) -> Rate | None:
        """Store a topic's description of the time *at*; return the topic's rate since the
        description before.
        """
        records, size, held = 0, 0, dict[str, tuple[int, int]]()
        for partition in topic.partitions:
            records += partition.end_offset
            for block in partition.blocks:
                size += block.size_bytes
                for broker in block.replicas:
                    blocks, stored = held.get(broker, (0, 0))
                    held[broker] = (blocks + 1, stored + block.size_bytes)
        before, rate = self._known.get(topic.name), None
        if before is not None and at > before.at and records >= before.records:
            seconds = at - before.at
            # Retention reduces the size; show 0 then.
            rate = ((records - before.records) / seconds, max(0, size - before.bytes) / seconds)
        short = sum(len(p.in_sync) < len(p.replicas) for p in topic.partitions)
        self._known[topic.name] = TopicSummary(
            at, records, size, short, tuple((name, *sums) for name, sums in held.items()), rate
        )
        self._hidden.pop(topic.name, None)
        return rate

    def hide(self, name: str, at: float) -> None:
        """Remember that the principal may not describe a topic."""
        self._known.pop(name, None)
        self._hidden[name] = at

    def keep(self, names: Collection[str], at: float) -> None:
        """Forget all topics except *names*, and outdated summaries."""
        for name in [n for n, t in self._known.items() if n not in names or at - t.at > FRESH_S]:
            del self._known[name]
        for name in [n for n, t in self._hidden.items() if n not in names or at - t > FRESH_S]:
            del self._hidden[name]

    @property
    def names(self) -> list[str]:
        """The topics that have a summary."""
        return list(self._known)

    @property
    def hidden(self) -> int:
        """How many of the visited topics the principal may not describe."""
        return len(self._hidden)

    @property
    def short(self) -> int:
        """Partitions with replicas that are not in sync."""
        return sum(topic.short for topic in self._known.values())

    def rates(self) -> list[Rate]:
        """Return the rate of each topic that was described at least twice."""
        return [topic.rate for topic in self._known.values() if topic.rate is not None]

    def held(self) -> dict[str, tuple[int, int]]:
        """Return the blocks and bytes on each broker."""
        found: dict[str, tuple[int, int]] = {}
        for topic in self._known.values():
            for broker, blocks, size in topic.held:
                before = found.get(broker, (0, 0))
                found[broker] = (before[0] + blocks, before[1] + size)
        return found


class Lags:
    """The lags of groups."""

    def __init__(self) -> None:
        # lag by group, with the time when it was computed
        self._known: dict[str, tuple[float, int]] = {}
        self.rounds = Rounds()

    def add(self, group: str, lag: int, at: float) -> None:
        """Store the lag of a group that was described at *at*."""
        self._known[group] = (at, lag)

    def keep(self, names: Collection[str], at: float) -> None:
        """Forget all groups except *names*, and outdated lags."""
        for name in [g for g, (t, _) in self._known.items() if g not in names or at - t > FRESH_S]:
            del self._known[name]

    @property
    def count(self) -> int:
        """The number of known groups."""
        return len(self._known)

    @property
    def total(self) -> int:
        """The lag of all known groups, in records."""
        return sum(lag for _, lag in self._known.values())
