"""``pymq demo``: a year of flights through an embedded queue, counted by a group of workers.

It may be interrupted or killed at any time, and run again: each flight is sent once and counted
once. The producer has a name, so the queue knows how many records of each partition it has written,
and the producer goes on behind them. The workers save what they have counted in a topic, together
with the offsets that they have counted, and acknowledge these only afterwards; what is delivered
again is recognised by its offset.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pymq
from pymq.cli.flights import (
    MONTHS,
    Flight,
    Summary,
    Tally,
    data_folder,
    direct,
    read_carriers,
    read_flights,
    summaries,
)
from pymq.cli.show import Show, Step
from pymq.client.client import Client
from pymq.client.consumer import Consumer
from pymq.client.producer import Producer
from pymq.core.view import BatchView
from pymq.errors import ConfigError, InternalError, PymqError
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
    show.say("Reading the flights that left New York in 2013 ...", style="dim")
    flights = read_flights(folder)[: args.quick]
    demo = _Demo(flights, args.workers, show)
    with _stopping(demo):
        outcome = demo.run(args.dir)
    expected = direct(demo.sent())
    outcome["equal"] = demo.found == expected
    names = read_carriers(folder)
    if not outcome["equal"]:
        raise InternalError(
            f"what the workers counted differs from a direct count of the same flights; keep "
            f"{args.dir} and report it"
        )
    outcome["png"] = _draw(demo.found, names, args.png or f"{Path(args.dir)}.png", show)
    outcome["seconds"] = round(time.perf_counter() - started, 3)
    if show.is_json:
        show.result(outcome | {"carriers": _as_json(demo.found, names)})
    else:
        _tell(demo, names, outcome, args.dir, show)
    return 0


class _Demo:
    """One run. The main thread only draws and hears Ctrl-C; all else happens in other threads.

    An interrupt is raised wherever the main thread is, and that must not be in the midst of a write.
    """

    def __init__(self, flights: Sequence[Flight], workers: int, show: Show) -> None:
        self.flights = flights
        self.workers = workers
        self.show = show
        self.stop = threading.Event()
        self.found: dict[str, Summary] = {}
        self.ends = [0] * PARTITIONS
        self._tallies = [Tally() for _ in range(PARTITIONS)]
        self._locks = [threading.Lock() for _ in range(PARTITIONS)]
        self._produced = 0

    def run(self, folder: str) -> dict[str, Any]:
        """Produce and consume; returns the numbers."""
        mq = self._attend(lambda: pymq.open(folder))
        try:
            self._attend(lambda: self._prepare(mq))
            already = sum(self.ends)
            before = time.perf_counter()
            with self.show.progress("produce", len(self.flights), already) as step:
                self._attend(lambda: self._produce(mq), step, lambda: self._produced)
            between = time.perf_counter()
            counted = self._counted()
            with self.show.progress("consume", sum(self.ends), counted) as step:
                self._attend(lambda: self._consume(mq), step, self._counted)
            after = time.perf_counter()
        finally:
            self._attend(mq.close)
        self.found = summaries(self._tallies)
        produced, consumed = sum(self.ends) - already, self._counted() - counted
        return {
            "flights": sum(self.ends),
            "workers": self.workers,
            "produced": _numbers(produced, already, between - before),
            "consumed": _numbers(consumed, counted, after - between),
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
            self.stop.set()
            thread.join()
            raise
        if problem:
            raise problem[0]
        return result[0]

    def sent(self) -> list[Flight]:
        """The flights that the topic holds."""
        seen, found = [0] * PARTITIONS, []
        for flight in self.flights:
            at = key_partition(flight.carrier.encode(), PARTITIONS)
            seen[at] += 1
            if seen[at] <= self.ends[at]:
                found.append(flight)
        return found

    # --- the queue ------------------------------------------------------------------------------

    def _prepare(self, mq: Client) -> None:
        mq.create_topic(TOPIC, partitions=PARTITIONS, exist_ok=True)
        # Of what was saved, only the newest counts.
        mq.create_topic(SAVED, partitions=PARTITIONS, cleanup_policy="compact", exist_ok=True)
        for index, saved in enumerate(mq.describe_topic(SAVED).partitions):
            if saved.end_offset:
                last = saved.end_offset - 1
                with mq.consumer(SAVED, mode="psb", partition=index, offset=last) as consumer:
                    for record in consumer.until_end():
                        self._tallies[index] = Tally(record.value)
        self._look_at_ends(mq)

    def _look_at_ends(self, mq: Client) -> None:
        self.ends = [partition.end_offset for partition in mq.describe_topic(TOPIC).partitions]

    def _produce(self, mq: Client) -> None:
        with mq.producer(producer_id=PRODUCER) as producer:
            there = [producer.next_sequence(TOPIC, index) for index in range(PARTITIONS)]
            keys = {flight.carrier: flight.carrier.encode() for flight in self.flights}
            at = {carrier: key_partition(key, PARTITIONS) for carrier, key in keys.items()}
            for number, flight in enumerate(self.flights):
                index = at[flight.carrier]
                if there[index]:
                    there[index] -= 1  # An earlier run has sent it.
                    continue
                producer.send(
                    TOPIC,
                    flight.to_json(),
                    key=keys[flight.carrier],
                    timestamp_ms=flight.timestamp_ms,
                )
                self._produced = number + 1
                if self.stop.is_set():
                    break
        self._produced = max(self._produced, len(self.flights)) if not self.stop.is_set() else 0
        self._look_at_ends(mq)

    def _counted(self) -> int:
        return sum(map(len, self._tallies))

    def _consume(self, mq: Client) -> None:
        if self._counted() == sum(self.ends):
            return
        problems: list[BaseException] = []
        with mq.producer() as producer:
            consumers = [mq.consumer(TOPIC, group=GROUP) for _ in range(self.workers)]

            def work(consumer: Consumer) -> None:
                try:
                    with consumer:
                        self._work(consumer, producer)
                except BaseException as error:  # raised below
                    problems.append(error)
                    self.stop.set()

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

    def _work(self, consumer: Consumer, producer: Producer) -> None:
        """One worker: count, save, acknowledge, until all is counted."""
        total, since = sum(self.ends), 0
        open_batches: list[BatchView] = []  # counted and not saved
        while not self.stop.is_set() and self._counted() < total:
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

    def _save(self, consumer: Consumer, producer: Producer, batches: list[BatchView]) -> None:
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


class _stopping:
    """On leaving by an error, tell the demo's threads."""

    def __init__(self, demo: _Demo) -> None:
        self._demo = demo

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._demo.stop.set()
