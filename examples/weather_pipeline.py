"""Spark joins flights with weather, and a view keeps the result as a table, while all processes are
killed.

python -m examples.weather_pipeline --kills 20    # in a clone, with Java 17 and pymq-log[spark,zmq]

A year of flights and the hourly weather of their airports go into two topics. A query
(weather_query.py) joins them as streams, with watermarks, and writes a third topic. `pymq table
sync` keeps that topic as a table of Parquet files (or Delta, or Iceberg). This program kills query
and table view again and again, at random moments. At the end the table must have each flight once,
with the weather that a plain lookup finds.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pymq
from examples.spark_pipeline import check_java, running_cluster, stop
from pymq.cli.commands.demo.flights import Flight, data_folder, read_flights

if TYPE_CHECKING:
    import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
FLIGHTS, WEATHER, JOINED = "flights", "weather", "enriched"
HOUR_MS = 3_600_000
LATER_MS = 60 * 24 * HOUR_MS  # longer than the watermark's delay
COLUMNS = (
    "id long, origin string, scheduled long, carrier string, dep_delay int, temp double, "
    "wind_speed double, precip double"
)
KILL_S = 3.0  # most seconds between some progress and a kill
PATIENCE_S = 600.0  # longest time in which the query makes no progress
# failures of the query itself: on a busy computer, Python may start more slowly than Spark waits
FAILURES = 8

Hours = Mapping[tuple[str, int], dict[str, Any]]  # weather by airport and hour


def main() -> int:
    """Run the whole pipeline; return 1 if the table is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=3, metavar="N", help="(%(default)s)")
    parser.add_argument("--dir", type=Path, default=Path("weather-data"), help="(%(default)s)")
    parser.add_argument("--format", default="parquet", choices=("parquet", "delta", "iceberg"))
    parser.add_argument(
        "--quick", type=int, metavar="N", help="use only the first N flights of the year"
    )
    parser.add_argument(
        "--seed", type=int, help="seed of the kills; by default a new one in each run"
    )
    args = parser.parse_args()
    check_java()
    folder = args.dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    seed = random.randrange(1 << 32) if args.seed is None else args.seed
    flights = read_flights(data_folder())[: args.quick]
    hours = read_weather(data_folder(), flights[-1].timestamp_ms)
    table = folder / "table"
    with running_cluster(folder) as url:
        with pymq.open(url) as mq:
            send(mq, flights, hours)
        killer = Killer(url, folder, args.format, random.Random(seed))
        most = max(100, len(flights) // max(8, 2 * args.kills))
        for number in range(1, args.kills + 1):
            print(f"kill {number} of {args.kills}: {killer.live(most)}", flush=True)
        killer.finish(most)
    found = compare(read_table(str(table), args.format), flights, hours)
    print(found or f"{len(flights):,} flights, each once, with its weather; {args.kills} kills")
    return 1 if found else 0


# --- the data -----------------------------------------------------------------------------------


def read_weather(folder: Path, last_ms: int) -> Hours:
    """Return the weather by airport and hour, up to a time."""
    found = {}
    with (folder / "weather.csv").open(newline="", encoding="ascii") as text:
        for row in csv.DictReader(text):
            hour = int(datetime.fromisoformat(row["time_hour"]).timestamp()) * 1000
            if hour <= last_ms:
                found[row["origin"], hour] = {
                    name: None if row[name] == "NA" else float(row[name])
                    for name in ("temp", "wind_speed", "precip")
                }
    return found


def flight_values(flights: Iterable[Flight]) -> Iterator[bytes]:
    """Encode flights, numbered in their order."""
    for number, flight in enumerate(flights):
        yield json.dumps(
            {
                "id": number,
                "origin": flight.origin,
                "scheduled": flight.timestamp_ms,
                "carrier": flight.carrier,
                "dep_delay": flight.dep_delay,
            }
        ).encode()


def weather_values(hours: Hours) -> Iterator[bytes]:
    """Encode hours of weather, in the order of time."""
    for (origin, hour), found in sorted(hours.items(), key=lambda each: each[0][1]):
        yield json.dumps({"origin": origin, "hour": hour, **found}).encode()


def send(mq: pymq.Client, flights: list[Flight], hours: Hours) -> None:
    """Send flights and weather in the order of time, and then records that move the watermarks past
    the year's end.
    """
    later = flights[-1].timestamp_ms + LATER_MS
    # The query never writes the last record of each topic, which has no match.
    last_flight = {"id": -1, "origin": "END", "scheduled": later, "carrier": "", "dep_delay": None}
    last_hour = {"origin": "END OF WEATHER", "hour": later}
    for topic, values, last in (
        (FLIGHTS, flight_values(flights), last_flight),
        (WEATHER, weather_values(hours), last_hour),
    ):
        mq.create_topic(topic, 2, replicas=1, exist_ok=True)
        with mq.producer(producer_id=f"{topic}-feed") as producer:
            sent = [producer.next_sequence(topic, number) for number in range(2)]
            for number, value in enumerate(values):
                turn, partition = divmod(number, 2)
                if turn >= sent[partition]:
                    producer.send(topic, value, partition=partition)
            if not any(sent):
                producer.send(topic, json.dumps(last).encode(), partition=0)
    mq.create_topic(JOINED, 2, replicas=1, exist_ok=True)


# --- the processes ------------------------------------------------------------------------------


class Killer:
    """Runs the query and the table view, and kills them."""

    def __init__(self, url: str, folder: Path, format: str, rng: random.Random) -> None:
        self._url = url
        self._folder = folder
        self._format = format
        self._rng = rng
        self._has_ended = False
        self._failures = 0

    def live(self, most: int) -> str:
        """Run both, and kill them some time after progress; return how far they were."""
        batches = self._rng.randrange(3)  # number of batches that end before the kill
        while not self._run(most, batches):
            if self._has_ended:
                return "when all was joined"
        return (
            f"{'in' if self._newest('offsets') >= self._done() else 'after'} batch {self._done()}"
        )

    def finish(self, most: int) -> None:
        """Run both to their end."""
        while not self._has_ended:
            self._run(most, None)
        with self._table("--once") as table:
            if table.wait():
                stop(f"the table has failed: see {self._folder / 'table.log'}")

    def _run(self, most: int, batches: int | None) -> bool:
        """Run both until the query ends, or kill them; return whether they were killed."""
        with self._query(most) as query, self._table() as table:
            begin = last = self._done()
            since = time.monotonic()
            due: float | None = None
            while (status := query.poll()) is None:
                done, now = self._done(), time.monotonic()
                if done != last:
                    last, since = done, now
                if batches is not None and due is None and done - begin >= batches:
                    due = now + self._rng.uniform(0, KILL_S)
                if due is not None and now > due and self._newest("offsets") >= 0:
                    return True
                if now - since > PATIENCE_S:
                    stop(f"the query does not get on: see {self._folder / 'query.log'}")
                if table.poll():
                    stop(f"the table has ended: see {self._folder / 'table.log'}")
                time.sleep(0.02)  # Spark's files have no notification of changes.
        self._has_ended = not status
        self._failures += bool(status)
        if self._failures > FAILURES:
            stop(f"the query fails again and again: see {self._folder / 'query.log'}")
        return False

    def _query(self, most: int) -> Any:
        command = ["-m", "examples.weather_query", "--url", self._url, "--most", str(most)]
        return self._process("query", *command, "--checkpoint", str(self._folder / "checkpoint"))

    def _table(self, *more: str) -> Any:
        command = ["-m", "pymq", "table", "sync", self._url, JOINED, str(self._folder / "table")]
        command += ["--format", self._format, "--columns", COLUMNS, "--every", "500ms", *more]
        return self._process("table", *command)

    @contextmanager
    def _process(self, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            try:
                os.killpg(
                    process.pid, signal.SIGKILL
                )  # the whole process group: the driver's JVM has to die with the driver
            except ProcessLookupError:
                pass  # The process has ended.
            process.wait()

    def _done(self) -> int:
        return self._newest("commits") + 1

    def _newest(self, name: str) -> int:
        try:
            names = os.listdir(self._folder / "checkpoint" / name)
        except FileNotFoundError:
            return -1
        return max((int(each) for each in names if each.isdecimal()), default=-1)


# --- the check ----------------------------------------------------------------------------------


def read_table(location: str, format: str) -> pa.Table:
    """Read the whole table."""
    if format == "parquet":
        import pyarrow.parquet as pq

        return pq.read_table(location)
    if format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(location).to_pyarrow_table()
    from pyiceberg.catalog import load_catalog

    uri = f"sqlite:///{location}/catalog.db"
    with load_catalog("pymq", type="sql", uri=uri) as catalog:
        return catalog.load_table(f"pymq.{JOINED}").scan().to_arrow()


class Row(NamedTuple):
    """A flight with its weather."""

    origin: str
    scheduled: int
    carrier: str
    dep_delay: int | None
    temp: float | None
    wind_speed: float | None
    precip: float | None


def compare(table: pa.Table, flights: list[Flight], hours: Hours) -> str:
    """Return a description of errors in the table; empty if it is right."""
    names = ["id", *Row._fields]
    found: dict[int, Row] = {}
    for id, *row in zip(*(table.column(name).to_pylist() for name in names), strict=True):
        if id in found:
            return f"flight {id} is there twice"
        found[id] = Row(*row)
    nothing = {"temp": None, "wind_speed": None, "precip": None}
    for id, flight in enumerate(flights):
        at = flight.timestamp_ms
        weather = hours.get((flight.origin, at - at % HOUR_MS), nothing)
        wanted = Row(flight.origin, at, flight.carrier, flight.dep_delay, **weather)
        if found.pop(id, None) != wanted:
            return f"flight {id} is missing or has not its weather: {wanted}"
    return f"{len(found)} rows are of no flight" if found else ""


if __name__ == "__main__":
    sys.exit(main())
