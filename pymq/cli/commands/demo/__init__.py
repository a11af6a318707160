"""``pymq demo``: a year of flights through an embedded queue, counted by a group of workers.

It may be interrupted or killed at any time, and run again: each flight is sent once and counted
once. The producer has a name, so the queue knows how many records of each partition it has written,
and the producer goes on behind them. The workers save what they have counted in a topic, together
with the offsets that they have counted, and acknowledge these only afterwards; what is delivered
again is recognised by its offset.
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

HELP = "run a year of flights through a queue in a folder, and count them"

TOPIC, SAVED = "flights", "flights-counted"
GROUP, PRODUCER = "counters", "demo"
PARTITIONS = 8
SAVE_RECORDS = 20_000  # how many records a worker counts before it saves and acknowledges
DRAW_S = 0.1

T = TypeVar("T")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--dir", default="demo-data", help="the queue's folder (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="consumers, 1 to 8 (%(default)s)")
    parser.add_argument("--png", metavar="FILE", help="where to draw the result (DIR.png)")
    parser.add_argument("--quick", metavar="N", type=int, help="take the year's first N flights")


def run(args: argparse.Namespace, show: Show) -> int:
    """Run the demo; 1 when the counts are not those of a direct computation."""
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
        show.interrupted("interrupted; the same command goes on where this one stopped")
        return INTERRUPTED
    if demo.found != direct(demo.sent()):
        raise InternalError(
            f"what the workers counted is not what a direct count of the same flights gives; keep "
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
    """One run. The main thread only draws and hears Ctrl-C; all else happens in other threads.

    An interrupt is raised wherever the main thread is, and that must not be in the midst of a
    write.
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
        self._ends = [0] * PARTITIONS  # of the topic
        self._produced = 0  # flights in the topic, as far as is known
        self._tallies = [FlightTally() for _ in range(PARTITIONS)]
        self._locks = [threading.Lock() for _ in range(PARTITIONS)]

    def run(self, folder: str) -> dict[str, Any]:
        """Produce and consume; returns the numbers."""
        mq = self._attend(lambda: pymq.open(folder))
        try:
            self._attend(lambda: self._prepare(mq))
            there, counted = self._produced, self._counted()
            if there:
                self._show.say(f"{folder} holds {there:,} flights from before, {counted:,} counted")
            total = max(there, len(self._wanted))
            start = time.perf_counter()
            with self._show.progress("produce", total, there) as step:
                self._attend(lambda: self._produce(mq), step, lambda: self._produced)
            middle = time.perf_counter()
            with self._show.progress("consume", sum(self._ends), counted) as step:
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
        """Do something in a thread, and draw how far it is meanwhile."""
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
        """The flights that the topic holds: of each partition the first so many."""
        seen, found = [0] * PARTITIONS, []
        for flight in self._flights:
            at = key_partition(flight.carrier.encode(), PARTITIONS)
            seen[at] += 1
            if seen[at] <= self._ends[at]:
                found.append(flight)
        return found

    # --- the queue ------------------------------------------------------------------------------

    def _prepare(self, mq: pymq.Client) -> None:
        """Make the topics, and take up what an earlier run has left in them."""
        mq.create_topic(TOPIC, partitions=PARTITIONS, exist_ok=True)
        # Of what is saved only the newest counts. It must not be lost when the power fails, since
        # what it has counted is acknowledged.
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
                    there[index] -= 1  # An earlier run has sent it.
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
        """One worker: count, save, acknowledge, until all is counted."""
        total, since = sum(self._ends), 0
        open_batches: list[pymq.RecordBatch] = []  # counted and not saved
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
        """Make durable what was counted, and only then acknowledge it."""
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


# --- showing ------------------------------------------------------------------------------------


def _numbers(records: int, before: int, seconds: float) -> dict[str, float]:
    return {
        "records": records,
        "by_earlier_runs": before,
        "seconds": round(seconds, 3),
        "per_second": round(records / seconds),
    }


def _ranked(found: dict[str, Summary]) -> list[tuple[str, Summary]]:
    """The carriers, those with the most flights first."""
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
        show.say(f"drawn in {outcome['png']}")
    show.say(f"all of it in {outcome['seconds']:.1f} s; the queue is in {folder}. What next:")
    show.say("  the same command again  nothing is sent or counted twice")
    show.say(f"  pymq verify {folder}  reads every byte of it")
    show.say(f"  rm -r {folder}  to begin anew")


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
        show.say("without matplotlib there is no picture; get it with: pip install matplotlib")
        return False
    show.say("drawing ...", style="dim")
    draw(found[""], _ranked(found), names, file)
    return True
