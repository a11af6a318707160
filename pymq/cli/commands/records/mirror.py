"""``pymq mirror``: copies topics from a Kafka to a queue, or from a queue to a Kafka."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymq.cli.connect import opened
from pymq.cli.interrupt import Interrupt
from pymq.cli.show import INTERRUPTED, OK, Show
from pymq.cli.units import duration_text
from pymq.core.counts import clause, plural
from pymq.errors import ConfigError

if TYPE_CHECKING:
    from pymq.mirror.plan import TopicCopy
    from pymq.mirror.progress import MirrorProgress

HELP = "mirror topics from a Kafka to a queue, or from a queue to a Kafka"
SCHEME = "kafka://"
TOLD_S = 10.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    parser.add_argument("source", metavar="SOURCE", help="kafka://HOST:PORT, or a queue as --url")
    parser.add_argument("target", metavar="TARGET", help="the other one")
    parser.add_argument(
        "--topics",
        metavar="PATTERN",
        action="append",
        required=True,
        help="as orders or 'orders.*', separated by commas or given again",
    )
    parser.add_argument(
        "--exclude", metavar="PATTERN", action="append", default=[], help="leave these topics out"
    )
    parser.add_argument(
        "--groups",
        metavar="PATTERN",
        action="append",
        default=[],
        help="from Kafka: translate the committed offsets of these groups",
    )
    parser.add_argument("--name", default="kafka", help="of the mirror's journal (%(default)s)")
    span = parser.add_mutually_exclusive_group()
    span.add_argument("--once", action="store_true", help="end with the records that exist now")
    span.add_argument("--follow", action="store_true", help="go on until Ctrl-C; the default")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be mirrored")
    parser.add_argument("--rate", metavar="N", type=float, help="records a second, at most")
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="at a record that the target refuses, or that Kafka no longer has (%(default)s)",
    )
    parser.add_argument(
        "--batch", metavar="N", type=int, default=10_000, help="records of a round (%(default)s)"
    )
    parser.add_argument("--compression", choices=("lz4", "zstd"), help="of the batches it writes")
    parser.add_argument(
        "--at-least-once", action="store_true", help="to Kafka: use no transactions"
    )
    parser.add_argument(
        "--properties", metavar="FILE", help="properties of librdkafka, NAME=VALUE in each line"
    )
    parser.add_argument("--curve-dir", metavar="DIR", help="the folder of keys")
    parser.add_argument("--principal", metavar="NAME", help="the name of our own key")
    parser.add_argument("--tls-dir", metavar="DIR", help="the folder of certificates, for tls://")


def run(args: argparse.Namespace, show: Show) -> int:
    """Mirror until an interrupt; the same command continues where this one ends."""
    from pymq.mirror.kafka_client import properties_of
    from pymq.mirror.start import mirror

    inward = args.source.startswith(SCHEME)
    if inward == args.target.startswith(SCHEME):
        raise ConfigError(f"one of SOURCE and TARGET must be {SCHEME}HOST:PORT, the other a queue")
    lines = (
        Path(args.properties).read_text(encoding="utf-8").splitlines() if args.properties else []
    )
    args.url = args.target if inward else args.source
    with Interrupt() as interrupt, opened(args, makes=inward and not args.dry_run) as mq:
        made = mirror(
            args.source if inward else mq,
            mq if inward else args.target,
            args.topics,
            excluded=args.exclude,
            groups=args.groups,
            name=args.name,
            once=args.once,
            rate=args.rate,
            on_error=args.on_error,
            records=args.batch,
            compression=args.compression,
            exactly_once=not args.at_least_once,
            properties=properties_of(lines),
        )
        try:
            if args.dry_run:
                return _plan(made.dry_run(), show)
            telling = Telling(show)
            done = made.run(lambda: interrupt.is_asked, telling.tell)
        finally:
            made.close()
    _result(done, show)
    return INTERRUPTED if args.once and interrupt.is_asked and done.lag else OK


def _plan(found: list[tuple[TopicCopy, int]], show: Show) -> int:
    if show.is_json:
        rows = [
            {
                "topic": copy.topic,
                "partitions": copy.partitions,
                "replicas": copy.replicas,
                "options": copy.options,
                "dropped": list(copy.dropped),
                "records": left,
            }
            for copy, left in found
        ]
        show.result({"topics": rows, "dry_run": True})
        return OK
    show.table(
        ("topic", "partitions", "records", "options"),
        [
            (
                copy.topic,
                str(copy.partitions),
                f"{left:,}",
                " ".join(f"{name}={item}" for name, item in copy.options.items()),
            )
            for copy, left in found
        ],
        left=("topic", "options"),
    )
    for copy, _ in found:
        for text in copy.dropped:
            show.say(f"{copy.topic}: the copy does not have {text}", style="yellow")
    return OK


def _result(done: MirrorProgress, show: Show) -> None:
    if show.is_json:
        topics: list[dict[str, Any]] = [
            {
                "topic": name,
                "records": topic.records,
                "bytes": topic.size,
                "skipped": topic.skipped,
                "lag": topic.lag,
            }
            for name, topic in done.topics.items()
        ]
        show.result(
            {
                "topics": topics,
                "groups": [{"group": name, "offsets": n} for name, n in done.groups.items()],
                "busy_groups": sorted(done.busy_groups),
                "seconds": round(done.seconds, 3),
            }
        )
        return
    show.table(
        ("topic", "records", "skipped", "lag"),
        [
            (name, f"{topic.records:,}", f"{topic.skipped:,}", f"{topic.lag:,}")
            for name, topic in done.topics.items()
        ],
    )
    show.say(f"{plural(done.records, 'record')} in {done.seconds:.1f} s")
    for name, count in done.groups.items():
        if name not in done.busy_groups:
            show.say(f"group {name}: {clause(count, 'offset', 'was set', 'were set')}")
    for name in sorted(done.busy_groups):
        show.say(f"group {name}: it has members in the queue, so its offsets were not set")


class Telling:
    """Prints the progress at its first round, and then every ten seconds."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._due = 0.0

    def tell(self, progress: MirrorProgress) -> None:
        """Print a line if it is time for one."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + TOLD_S
        parts = [plural(progress.records, "record"), f"{progress.rate:,.0f} records/s"]
        parts.append(f"lag {progress.lag:,}")
        if progress.lag and (left := progress.left_s) is not None:
            parts.append(f"{duration_text(left * 1000)} left")
        if progress.skipped:
            parts.append(f"{progress.skipped:,} skipped")
        if progress.trouble:
            parts.append(f"Kafka: {progress.trouble}")
        self._show.say(", ".join(parts), style="dim")
