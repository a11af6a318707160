"""``pymq demo``: sends a year of flights through an embedded queue; a group of workers counts.

The demo may be interrupted or killed and run again: each flight is sent once and counted once. The
producer has a name, so the queue remembers the producer's sequence in each partition, and the
producer resumes there. The workers save their counts in a topic, together with the counted offsets,
and acknowledge only afterwards. A worker recognises redelivered records by their offsets.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs

import pymq
from pymq.cli.commands.demo.flights import (
    Flight,
    FlightTally,
    Summary,
    data_folder,
    direct,
    read_carriers,
    read_flights,
    summaries,
)
from pymq.cli.show import INTERRUPTED, Show, Step
from pymq.errors import ConfigError, InternalError
from pymq.hash.partitioner import key_partition

HELP = "send a year of flights through a queue in a folder, and count them"

TOPIC, SAVED = "flights", "flights-counted"
GROUP, PRODUCER = "counters", "demo"
PARTITIONS = 8
SAVE_RECORDS = 20_000  # records per save and acknowledgement of a worker
DRAW_S = 0.1

T = TypeVar("T")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--dir", default="demo-data", help="the queue's folder (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="consumers, 1 to 8 (%(default)s)")
    parser.add_argument("--png", metavar="FILE", help="file for the plot of the result (DIR.png)")
    parser.add_argument(
        "--quick", metavar="N", type=int, help="use only the first N flights of the year"
    )


def run(args: argparse.Namespace, show: Show) -> int:
    """Run the demo; return 1 if the counts differ from a direct computation."""
    if not 1 <= args.workers <= PARTITIONS:
        raise ConfigError(f"--workers {args.workers}: choose from 1 to {PARTITIONS}")
    if args.quick is not None and args.quick < 1:
        raise ConfigError(f"--quick {args.quick}: choose at least 1")
    started = time.perf_counter()
    folder = data_folder()
    show.say("reading the flights that left New York in 2013 ...", style="dim")
    flights, names = read_flights(folder), read_carriers(folder)
    demo = Demo(flights, args.quick, args.workers, show)
    try:
        outcome = demo.run(args.dir)
    except KeyboardInterrupt:
        show.interrupted("interrupted; run the same command again to continue")
        return INTERRUPTED
    if demo.found != direct(demo.sent()):
        raise InternalError(
            f"the workers' counts differ from a direct count of the same flights; keep "
            f"{args.dir} and report it"
        )
    outcome["equals_direct_computation"] = True
    png = args.png or f"{os.path.normpath(args.dir)}.png"
    outcome["png"] = png if _draw(demo.found, names, png, show) else None
    outcome["seconds"] = round(time.perf_counter() - started, 3)
    if show.is_json:
        show.result(outcome | _as_json(demo.found, names))
    else:
        _tell(demo.found, names, outcome, args.dir, show)
    return 0


class Demo:
    """One run of the demo.

    The main thread only draws and receives Ctrl-C; other threads do the work.

    Python raises an interrupt at any point of the main thread, which therefore must not write.
    """

    def __init__(
        self, flights: Sequence[Flight], count: int | None, workers: int, show: Show
    ) -> None:
        self.found: dict[str, Summary] = {}
        self._flights = flights
        self._wanted = flights[:count]
        self._workers = workers
        self._show = show
        self._stop = threading.Event()
        self._ends = [0] * PARTITIONS  # ends of the partitions of the topic
        self._produced = 0  # acknowledged flights
        self._tallies = [FlightTally() for _ in range(PARTITIONS)]
        self._locks = [threading.Lock() for _ in range(PARTITIONS)]

    def run(self, folder: str) -> dict[str, Any]:
        """Produce and consume; return counts and times."""
        mq = self._attend(lambda: pymq.open(folder))
        try:
            self._attend(lambda: self._prepare(mq))
            there, counted = self._produced, self._counted()
            if there:
                self._show.say(f"{folder} holds {there:,} flights from before, {counted:,} counted")
            total = max(there, len(self._wanted))
            start = time.perf_counter()
            with self._show.progress("produce", total, "flight", there) as step:
                self._attend(lambda: self._produce(mq), step, lambda: self._produced)
            middle = time.perf_counter()
            with self._show.progress("consume", sum(self._ends), "flight", counted) as step:
                self._attend(lambda: self._consume(mq), step, self._counted)
            end = time.perf_counter()
        finally:
            self._attend(mq.close)
        self.found = summaries(self._tallies)
        return {
            "flights": sum(self._ends),
            "workers": self._workers,
            "produced": _numbers(sum(self._ends) - there, there, middle - start),
            "consumed": _numbers(self._counted() - counted, counted, end - middle),
        }

    def _attend(
        self, work: Callable[[], T], step: Step | None = None, done: Callable[[], int] = int
    ) -> T:
        """Run *work* in a thread, and draw its progress meanwhile."""
        result: list[T] = []
        problem: list[BaseException] = []

        def call() -> None:
            try:
                result.append(work())
            except BaseException as error:  # raised below, in the main thread
                problem.append(error)

        thread = threading.Thread(target=call, name="demo")
        thread.start()
        try:
            while thread.is_alive():
                thread.join(DRAW_S)
                if step is not None:
                    step.at(done())
        except BaseException:
            self._stop.set()
            thread.join()
            raise
        if problem:
            raise problem[0]
        return result[0]

    def sent(self) -> list[Flight]:
        """Return the flights that are in the topic now: in each partition, the first ones sent."""
        seen, found = [0] * PARTITIONS, []
        for flight in self._flights:
            at = key_partition(flight.carrier.encode(), PARTITIONS)
            seen[at] += 1
            if seen[at] <= self._ends[at]:
                found.append(flight)
        return found

    # --- the queue ------------------------------------------------------------------------------

    def _prepare(self, mq: pymq.Client) -> None:
        """Create the topics and load the state of an earlier run."""
        mq.create_topic(TOPIC, partitions=PARTITIONS, exist_ok=True)
        # Only the newest tally of a key counts, so the topic is compacted. A tally must survive a
        # power failure, because the worker acknowledges the counted records after writing it.
        mq.create_topic(
            SAVED, partitions=PARTITIONS, cleanup_policy="compact", fsync="always", exist_ok=True
        )
        for index, saved in enumerate(mq.describe_topic(SAVED).partitions):
            if saved.end_offset:
                last = saved.end_offset - 1
                with mq.consumer(SAVED, mode="psb", partition=index, offset=last) as consumer:
                    for record in consumer.until_end():
                        self._tallies[index] = FlightTally(record.value)
        self._look_at_ends(mq)
        self._produced = sum(self._ends)

    def _look_at_ends(self, mq: pymq.Client) -> None:
        self._ends = [partition.end_offset for partition in mq.describe_topic(TOPIC).partitions]

    def _produce(self, mq: pymq.Client) -> None:
        keys = {flight.carrier: flight.carrier.encode() for flight in self._wanted}
        indexes = {carrier: key_partition(key, PARTITIONS) for carrier, key in keys.items()}
        with mq.producer(producer_id=PRODUCER) as producer:
            there = [producer.next_sequence(TOPIC, index) for index in range(PARTITIONS)]
            for flight in self._wanted:
                carrier = flight.carrier
                index = indexes[carrier]
                if there[index]:
                    there[index] -= 1  # do not send flights that an earlier run has sent
                    continue
                if self._stop.is_set():
                    break
                value, when = flight.to_json(), flight.timestamp_ms
                producer.send(TOPIC, value, key=keys[carrier], timestamp_ms=when)
                self._produced += 1
        self._look_at_ends(mq)

    def _counted(self) -> int:
        return sum(map(len, self._tallies))

    def _consume(self, mq: pymq.Client) -> None:
        if self._counted() == sum(self._ends):
            return
        problems: list[BaseException] = []
        with mq.producer() as producer:
            consumers = [mq.consumer(TOPIC, group=GROUP) for _ in range(self._workers)]

            def work(consumer: pymq.Consumer) -> None:
                try:
                    with consumer:
                        self._work(consumer, producer)
                except BaseException as error:  # raised below
                    problems.append(error)
                    self._stop.set()

            threads = [
                threading.Thread(target=work, args=(consumer,), name=f"demo-worker-{number}")
                for number, consumer in enumerate(consumers)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if problems:
            raise problems[0]

    def _work(self, consumer: pymq.Consumer, producer: pymq.Producer) -> None:
        """Run one worker: count, save and acknowledge until all flights are counted."""
        total, since = sum(self._ends), 0
        open_batches: list[pymq.RecordBatch] = []  # counted, but not saved yet
        while not self._stop.is_set() and self._counted() < total:
            for batch in consumer.poll_batches(max_bytes=1 << 18, timeout=0.1):
                index = int(batch.partition)
                with self._locks[index]:
                    self._tallies[index].take(batch.base_offset, batch.values)
                open_batches.append(batch)
                since += len(batch)
            if since >= SAVE_RECORDS:
                self._save(consumer, producer, open_batches)
                open_batches, since = [], 0
        self._save(consumer, producer, open_batches)

    def _save(
        self, consumer: pymq.Consumer, producer: pymq.Producer, batches: list[pymq.RecordBatch]
    ) -> None:
        """Save the tallies durably, and only then acknowledge their records."""
        deliveries = []
        for index in sorted({int(batch.partition) for batch in batches}):
            with self._locks[index]:
                saved = self._tallies[index].to_json()
                key = str(index).encode()
                deliveries.append(producer.send(SAVED, saved, key=key, partition=index))
        for delivery in deliveries:
            delivery.result()
        for batch in batches:
            consumer.ack(batch)
        if batches:
            consumer.commit()


# --- output -------------------------------------------------------------------------------------


def _numbers(records: int, before: int, seconds: float) -> dict[str, float]:
    return {
        "records": records,
        "by_earlier_runs": before,
        "seconds": round(seconds, 3),
        "per_second": round(records / seconds),
    }


def _ranked(found: dict[str, Summary]) -> list[tuple[str, Summary]]:
    """Return the carriers, those with the most flights first."""
    carriers = [(name, summary) for name, summary in found.items() if name]
    return sorted(carriers, key=lambda carrier: -carrier[1].flights)


def _tell(
    found: dict[str, Summary],
    names: dict[str, str],
    outcome: dict[str, Any],
    folder: str,
    show: Show,
) -> None:
    rows = [(names.get(code, code).split(" Inc")[0], count) for code, count in _ranked(found)]
    rows.append(("all", found[""]))
    columns = ("carrier", "flights", "cancelled", "mean delay", "90 % within", "cancelled by month")
    show.table(columns, [_row(name, summary) for name, summary in rows])
    count = outcome["flights"]
    show.say(
        f"equal to a direct computation over the same {count:,} flights, to the last digit",
        style="bold green",
    )
    if outcome["png"] is not None:
        show.say(f"plot written to {outcome['png']}")
    show.say(f"finished in {outcome['seconds']:.1f} s; the queue is in {folder}. What next:")
    show.say("  the same command again  sends and counts nothing twice")
    show.say(f"  pymq verify {folder}  reads every byte of it")
    show.say(f"  rm -r {folder}  starts over")


def _row(name: str, summary: Summary) -> tuple[str, ...]:
    return (
        name,
        f"{summary.flights:,}",
        f"{summary.cancelled / max(1, summary.flights):.1%}",
        f"{summary.mean_delay:.1f} min",
        f"{summary.p90_delay} min",
        _sparkline(summary.cancelled_months),
    )


def _sparkline(counts: Sequence[int]) -> str:
    most = max(1, *counts)
    return "".join(" ▁▂▃▄▅▆▇█"[-(-8 * count // most)] for count in counts)


def _as_json(found: dict[str, Summary], names: dict[str, str]) -> dict[str, Any]:
    return {
        "total": attrs.asdict(found[""]),
        "carriers": {
            code: {"name": names.get(code, code)} | attrs.asdict(summary)
            for code, summary in _ranked(found)
        },
    }


def _draw(found: dict[str, Summary], names: dict[str, str], file: str, show: Show) -> bool:
    try:
        from pymq.cli.commands.demo.plot import draw
    except ImportError:
        show.say("no plot, because matplotlib is not installed: pip install matplotlib")
        return False
    show.say("drawing ...", style="dim")
    draw(found[""], _ranked(found), names, file)
    return True
