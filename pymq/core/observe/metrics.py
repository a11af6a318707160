"""Metrics: histograms, a snapshot of all values, and the text for Prometheus.

Each state machine counts in its own plain integers, which takes tens of nanoseconds for a batch. On
request the machine's thread collects these integers into :class:`Metrics`. Another thread formats
the text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pymq.core.observe.metric_catalog import METRICS, Spec
from pymq.core.values import define

__all__ = ["BOUNDS", "METRICS", "Histogram", "Metrics", "Spec"]

# Upper bounds in seconds. A request within one process takes 20 us, or 200 us if it waits for a
# disk.
BOUNDS: Final = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


@define
class Histogram:
    """A histogram of durations in seconds; one thread writes to it at a time."""

    counts: list[int]  # one count for each bound, and one for values above the last bound
    total: float = 0.0

    @classmethod
    def new(cls) -> Histogram:
        """Return an empty histogram."""
        return cls([0] * (len(BOUNDS) + 1))

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def copy(self) -> Histogram:
        """Return a copy."""
        return Histogram(self.counts.copy(), self.total)

    def plus(self, other: Histogram) -> Histogram:
        """Return the sum of both histograms."""
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(counts, self.total + other.total)

    @property
    def count(self) -> int:
        """The number of counted durations."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """Return the bound below which a *share* of all durations lies.

        The result is 0 if no duration was counted.
        """
        left = share * self.count
        if not left:
            return 0.0
        for bound, count in zip(BOUNDS, self.counts, strict=False):
            left -= count
            if left <= 0:
                return bound
        return float("inf")


Found = float | Histogram
Labels = tuple[str, ...]


class Metrics:
    """The values of all metrics at one moment, by their names in the catalogue.

    ``metrics["pymq_messages_in_total"]`` is the sum over all labels; :meth:`value` returns the sum
    for given labels. ``str(metrics)`` is the text that Prometheus reads.
    """

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[Labels, Found]]] = {}

    def add(self, name: str, found: Found, *labels: str) -> None:
        """Add a value, with as many *labels* as the metric has in the catalogue."""
        self._found.setdefault(name, []).append((labels, found))

    def merge(self, other: Metrics) -> None:
        """Add all values of *other*."""
        for name, samples in other._found.items():
            self._found.setdefault(name, []).extend(samples)

    def join(self) -> None:
        """Replace values with the same labels by their sum."""
        for name, samples in self._found.items():
            joined: dict[Labels, Found] = {}
            for labels, found in samples:
                joined[labels] = _sum(joined[labels], found) if labels in joined else found
            self._found[name] = list(joined.items())

    def __iter__(self) -> Iterator[str]:
        return (name for name in METRICS if name in self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> float:
        return self.value(name)

    def samples(self, name: str) -> Sequence[tuple[Mapping[str, str], Found]]:
        """Return all values of a metric, each with its labels."""
        names = METRICS[name].labels
        return [
            (dict(zip(names, labels, strict=True)), found)
            for labels, found in self._found.get(name, ())
        ]

    def value(self, name: str, /, **labels: str) -> float:
        """Return the sum of the values with these *labels*; for a histogram, the count.

        Raises:
            KeyError: there is no such metric, or it has no such label.
        """
        names, total = METRICS[name].labels, 0.0
        if unknown := sorted(labels.keys() - set(names)):
            raise KeyError(f"{name} has no label {unknown[0]!r}; it has {', '.join(names)}")
        wanted = [(names.index(label), text) for label, text in labels.items()]
        for found_labels, found in self._found.get(name, ()):
            if all(found_labels[at] == text for at, text in wanted):
                total += found.count if isinstance(found, Histogram) else found
        return total

    def __str__(self) -> str:
        lines: list[str] = []
        for name in self:
            spec = METRICS[name]
            lines += (f"# HELP {name} {spec.help}", f"# TYPE {name} {spec.kind}")
            for labels, found in self._found[name]:
                if isinstance(found, Histogram):
                    _write_histogram(lines, name, _labelled(spec, labels), found)
                else:
                    text = ",".join(_labelled(spec, labels))
                    lines.append(f"{name}{{{text}}} {found!r}" if text else f"{name} {found!r}")
        return "\n".join(lines) + "\n" if lines else ""


def _sum(first: Found, second: Found) -> Found:
    if isinstance(first, Histogram):
        assert isinstance(second, Histogram), "values of one metric have one kind"
        return first.plus(second)
    assert not isinstance(second, Histogram), "values of one metric have one kind"
    return first + second


def _labelled(spec: Spec, labels: Labels) -> list[str]:
    return [f'{name}="{_escape(text)}"' for name, text in zip(spec.labels, labels, strict=True)]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _write_histogram(lines: list[str], name: str, labels: list[str], found: Histogram) -> None:
    so_far = 0
    for bound, count in zip((*map(repr, BOUNDS), "+Inf"), found.counts, strict=True):
        so_far += count
        text = ",".join([*labels, f'le="{bound}"'])
        lines.append(f"{name}_bucket{{{text}}} {so_far}")
    braces = f"{{{','.join(labels)}}}" if labels else ""
    lines += (f"{name}_sum{braces} {found.total!r}", f"{name}_count{braces} {so_far}")
