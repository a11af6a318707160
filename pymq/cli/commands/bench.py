"""``pymq bench``: measures throughput and latency on a topic that it creates and deletes.

The command uses one producer and one consumer in one process; ``make bench`` compares pymq with
other systems under equal settings.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymq
from pymq.cli import connect
from pymq.cli.connect import opened
from pymq.cli.interrupt import Interrupt
from pymq.cli.show import INTERRUPTED, OK, Show
from pymq.cli.units import options
from pymq.core.counts import plural
from pymq.core.values import value
from pymq.errors import ConfigError

HELP = "measure how fast this queue writes and delivers records"
CHUNK = 1_000  # records per call
ANSWER_S = 60.0  # timeout of each step
SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    connect.arguments(parser)
    parser.add_argument("--records", type=int, metavar="N", default=200_000, help="%(default)s")
    parser.add_argument(
        "--size", type=int, metavar="BYTES", default=100, help="bytes of each record (%(default)s)"
    )
    parser.add_argument("--partitions", type=int, metavar="N", default=1, help="%(default)s")
    parser.add_argument("--replicas", type=int, metavar="N", default=1, help="%(default)s")
    parser.add_argument(
        "--acks", choices=("raft", "leader", "none"), default="leader", help="%(default)s"
    )
    parser.add_argument(
        "--config", metavar="NAME=VALUE", action="append", default=[], help="as fsync=always"
    )
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        default=500,
        help="records sent one by one to measure latencies (%(default)s)",
    )
    parser.add_argument("--keep", action="store_true", help="do not delete the topic afterwards")


@value
class BenchRate:
    """Throughput of many records per call."""

    what: str
    records: int
    bytes: int
    seconds: float


@value
class Latency:
    """Latencies of single records, in seconds, sorted."""

    what: str
    seconds: tuple[float, ...]

    def at(self, share: float) -> float:
        """Return the latency that this share of the samples does not exceed (a percentile)."""
        last = len(self.seconds) - 1
        return self.seconds[min(last, int(share * len(self.seconds)))]


def run(args: argparse.Namespace, show: Show) -> int:
    """Measure and print the results."""
    for name, found in (("records", args.records), ("size", args.size), ("samples", args.samples)):
        if found < 1:
            raise ConfigError(f"--{name} {found}: choose at least 1")
    with Interrupt() as interrupt, opened(args) as mq, _topic(mq, args) as topic:
        bench = Bench(mq, topic, args, show, lambda: interrupt.is_asked)
        rates = [bench.produce(), bench.consume()]
        latencies = [bench.produce_one_by_one(), bench.end_to_end()]
    if interrupt.is_asked:
        show.interrupted()
        return INTERRUPTED
    if show.is_json:
        show.result(_as_json(args, topic, rates, latencies))
    else:
        _tell(args, rates, latencies, show)
    return OK


@contextmanager
def _topic(mq: pymq.Client, args: argparse.Namespace) -> Iterator[str]:
    name = f"pymq-bench-{os.urandom(4).hex()}"
    mq.create_topic(name, args.partitions, args.replicas, args.acks, **options(args.config))
    try:
        yield name
    finally:
        if not args.keep:
            mq.delete_topic(name)


class Bench:
    """Runs the measurements one after the other; each ends early once *is_over* returns True."""

    def __init__(
        self,
        mq: pymq.Client,
        topic: str,
        args: argparse.Namespace,
        show: Show,
        is_over: Callable[[], bool],
    ) -> None:
        self._mq = mq
        self._topic = topic
        self._size: int = args.size
        self._count: int = args.records
        self._samples: int = args.samples
        self._show = show
        self._is_over = is_over
        self._sent = 0

    def produce(self) -> BenchRate:
        """Send all records and wait for their acknowledgements."""
        values = [os.urandom(self._size) for _ in range(min(CHUNK, self._count))]
        with (
            self._mq.producer() as producer,
            self._show.progress("produce", self._count, "record", is_told=False) as step,
        ):
            # This request tells the client the leaders.
            producer.send_many(self._topic, values[:1]).wait(ANSWER_S)
            began = time.perf_counter()
            while self._sent < self._count and not self._is_over():
                part = values[: self._count - self._sent]
                producer.send_many(self._topic, part)
                self._sent += len(part)
                step.at(self._sent)
            producer.flush(ANSWER_S)
            seconds = time.perf_counter() - began
        return BenchRate("produce", self._sent, self._sent * self._size, seconds)

    def consume(self) -> BenchRate:
        """Read all records as columns."""
        count = 0
        with (
            self._mq.consumer(self._topic, mode="psb") as consumer,
            self._show.progress("consume", self._sent, "record", is_told=False) as step,
        ):
            began = time.perf_counter()
            while count < self._sent and not self._is_over():
                for batch in consumer.poll_batches(timeout=1.0):
                    count += len(batch.values)
                step.at(count)
            seconds = time.perf_counter() - began
        return BenchRate("consume", count, count * self._size, seconds)

    def produce_one_by_one(self) -> Latency:
        """Measure the time from ``send`` to its acknowledgement."""
        record = os.urandom(self._size)
        with self._mq.producer(linger_ms=0) as producer:
            producer.send(self._topic, record).result(ANSWER_S)

            def once() -> None:
                producer.send(self._topic, record).result(ANSWER_S)

            return Latency("send to answer", self._timed("answers", once))

    def end_to_end(self) -> Latency:
        """Measure the time from ``send`` to the ``poll`` of a waiting consumer."""
        record = os.urandom(self._size)
        with (
            self._mq.producer(linger_ms=0) as producer,
            self._mq.consumer(self._topic, mode="psb", offset="end") as consumer,
        ):

            def once() -> None:
                producer.send(self._topic, record)
                until = time.monotonic() + ANSWER_S
                while not consumer.poll(1, timeout=1.0) and time.monotonic() < until:
                    pass

            once()
            return Latency("send to consumer", self._timed("end to end", once))

    def _timed(self, what: str, once: Callable[[], None]) -> tuple[float, ...]:
        found = []
        with self._show.progress(what, self._samples, "record", is_told=False) as step:
            for number in range(self._samples):
                began = time.perf_counter()
                once()
                found.append(time.perf_counter() - began)
                step.at(number + 1)
                if self._is_over():
                    break
        return tuple(sorted(found))


# --- output -------------------------------------------------------------------------------------


def _tell(
    args: argparse.Namespace, rates: Sequence[BenchRate], latencies: Sequence[Latency], show: Show
) -> None:
    show.say(
        f"{plural(args.records, 'record')} of {plural(args.size, 'byte')}, "
        f"{plural(args.partitions, 'partition')}, {plural(args.replicas, 'replica')}, "
        f"acks={args.acks}; one producer, one consumer, one process"
    )
    rows = [
        (
            rate.what,
            f"{rate.records / rate.seconds:,.0f}",
            f"{rate.bytes / rate.seconds / 1e6:,.1f}",
            f"{rate.seconds:.2f}",
        )
        for rate in rates
    ]
    show.table(("many at a time", "records/s", "MB/s", "seconds"), rows)
    shown = [
        (found.what, *(f"{found.at(share) * 1000:.2f}" for _, share in SHARES))
        for found in latencies
    ]
    show.table(("one by one, ms", *(name for name, _ in SHARES)), shown)


def _as_json(
    args: argparse.Namespace, topic: str, rates: Sequence[BenchRate], latencies: Sequence[Latency]
) -> dict[str, Any]:
    return {
        "topic": topic,
        "records": args.records,
        "size": args.size,
        "partitions": args.partitions,
        "replicas": args.replicas,
        "acks": args.acks,
        "rates": {
            rate.what: {
                "records_per_second": round(rate.records / rate.seconds),
                "bytes_per_second": round(rate.bytes / rate.seconds),
                "seconds": round(rate.seconds, 6),
            }
            for rate in rates
        },
        "latency_ms": {
            found.what: {name: round(found.at(share) * 1000, 3) for name, share in SHARES}
            for found in latencies
        },
    }
