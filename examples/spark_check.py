"""Check that the hours written by spark_query.py equal a plain count, and that each is there once.

python examples/spark_check.py --url zmq+tcp://127.0.0.1:7878
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pymq
from pymq.cli.commands.demo.flights import Flight, data_folder, read_flights
from pymq.cli.show import Show

HOUR_MS = 3_600_000
SUMMER = 1_362_898_800, 1_383_458_400  # March 10 to November 3, seconds since 1970


class Hour(NamedTuple):
    """The flights scheduled to leave an airport in one hour."""

    hour: int  # the beginning of the hour, milliseconds since 1970
    origin: str
    flights: int
    cancelled: int
    delay: int  # total delay of the flights that left; minutes

    @classmethod
    def read(cls, data: bytes) -> Hour:
        """Read the hours written by the query."""
        return cls(**json.loads(data))


def main() -> int:
    """Compare, then print a table and draw a picture; return 1 if the hours are wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True, help="zmq+tcp://HOST:PORT of zkservers")
    parser.add_argument("--topic", default="hours")
    parser.add_argument("--quick", type=int, metavar="N", help="of the first N flights")
    parser.add_argument("--png", default="hours.png", metavar="FILE", help="where to draw it")
    args = parser.parse_args()

    show = Show(is_json=False)
    flights = sorted(read_flights(data_folder()), key=left_ms)[: args.quick]
    with pymq.open(args.url) as mq, mq.consumer(args.topic, mode="psb", offset="begin") as consumer:
        found = [Hour.read(record.value) for record in consumer.until_end()]
    if complaint := difference(found, direct(flights)):
        show.error(complaint, "INTERNAL_ERROR")
        return 1
    tell(found, show)
    told = f"{len(found):,} hours of {len(flights):,} flights, each once"
    show.say(f"equal to a direct computation: {told}", style="bold green")
    draw(found, args.png, show)
    return 0


def left_ms(flight: Flight) -> int:
    """Return when a flight left; for a cancelled flight, its scheduled time."""
    return flight.timestamp_ms + 60_000 * (flight.dep_delay or 0)


def direct(flights: Sequence[Flight]) -> list[Hour]:
    """Return the same hours as the Spark query, counted without Spark."""
    counts: dict[tuple[int, str], list[int]] = {}
    for flight in flights:
        hour = flight.timestamp_ms // HOUR_MS * HOUR_MS
        count = counts.setdefault((hour, flight.origin), [0, 0, 0])
        count[0] += 1
        count[1] += flight.dep_delay is None
        count[2] += flight.dep_delay or 0
    return [Hour(*key, *count) for key, count in counts.items()]


def difference(found: Sequence[Hour], wanted: Sequence[Hour]) -> str:
    """Return a description of the differences; empty if each hour is there once."""
    have, need = Counter(found), Counter(wanted)
    if have == need:
        return ""
    missing, doubled = (need - have).total(), len(found) - len(have)
    wrong = len(set(have) - set(need))
    return f"{missing} hours are missing, {doubled} are there twice, {wrong} are wrong"


def tell(found: Sequence[Hour], show: Show) -> None:
    """Print a table of the airports."""
    rows = []
    for origin in sorted({each.origin for each in found}):
        mine = [each for each in found if each.origin == origin]
        flights, cancelled = sum(h.flights for h in mine), sum(h.cancelled for h in mine)
        delay = sum(h.delay for h in mine) / max(1, flights - cancelled)
        worst = max(mine, key=lambda h: h.delay)
        when = time.strftime("%b %d, %H:00 UTC", time.gmtime(worst.hour / 1000))
        cells = (f"{len(mine):,}", f"{flights:,}", f"{cancelled / flights:.1%}", f"{delay:.1f} min")
        rows.append((origin, *cells, when))
    columns = ("airport", "hours", "flights", "cancelled", "mean delay", "worst hour")
    show.table(columns, rows)


def draw(found: Sequence[Hour], file: str, show: Show) -> None:
    """Draw the mean delay by airport, month and hour of the day."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        show.say("no plot, because matplotlib is not installed: pip install matplotlib")
        return
    airports = sorted({each.origin for each in found})
    figure = Figure(figsize=(12, 5.4), dpi=130, layout="constrained")
    figure.suptitle("When to leave New York: mean delay in minutes, 2013", fontsize=16)
    plots = figure.subplots(1, len(airports), sharey=True, squeeze=False)[0]
    for axes, airport in zip(plots, airports, strict=True):
        delay, left = [[0] * 12 for _ in range(24)], [[0] * 12 for _ in range(24)]
        for each in found:
            if each.origin == airport:
                when = time.gmtime(each.hour / 1000 + new_york_s(each.hour))
                delay[when.tm_hour][when.tm_mon - 1] += each.delay
                left[when.tm_hour][when.tm_mon - 1] += each.flights - each.cancelled
        cells = [
            [total / count if count else math.nan for total, count in zip(*rows, strict=True)]
            for rows in zip(delay, left, strict=True)
        ]
        image = axes.imshow(cells, aspect="auto", cmap="RdYlBu_r", vmin=-10, vmax=50)
        axes.set_title(airport)
        axes.set_xticks(range(12), list("JFMAMJJASOND"))
        axes.set_ylim(23.5, 3.5)
        axes.set_yticks(range(4, 24, 4), [f"{hour}:00" for hour in range(4, 24, 4)])
        axes.tick_params(length=0)
    figure.colorbar(image, ax=list(plots), extend="both", shrink=0.8)
    figure.savefig(file)
    show.say(f"drawn in {file}")


def new_york_s(at_ms: int) -> int:
    """Return how far New York's clock was from UTC at a time of 2013."""
    is_summer = SUMMER[0] <= at_ms // 1000 < SUMMER[1]
    return -4 * 3600 if is_summer else -5 * 3600


if __name__ == "__main__":
    sys.exit(main())
