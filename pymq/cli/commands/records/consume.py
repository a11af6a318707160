"""``pymq consume``: prints the records of a topic, as a reader or as a member of a group."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Literal, Protocol

import pymq
from pymq.cli import connect
from pymq.cli.connect import opened
from pymq.cli.interrupt import Interrupt
from pymq.cli.offset_args import FORMS, OffsetArg, offsets_of, parse_place
from pymq.cli.record_text import FORMATS, Format
from pymq.cli.show import INTERRUPTED, OK, Show
from pymq.client.consumer.until_end import UntilEnd
from pymq.errors import ConfigError

HELP = "print the records of a topic"
POLL_S = 0.25  # longest delay until an interrupt takes effect
CHUNK = 500


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    connect.arguments(parser)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--group", help="consume as a member of this group, and acknowledge printed records"
    )
    parser.add_argument(
        "--partition", metavar="NAME", action="append", help="only this one; repeatable"
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="PLACE",
        help=f"{FORMS} (earliest); with --group only earliest or latest, for a group that is new",
    )
    parser.add_argument("--max", type=int, metavar="N", help="stop after this many records")
    parser.add_argument("--follow", action="store_true", help="follow new records until Ctrl-C")
    parser.add_argument(
        "--format", choices=sorted(FORMATS), help="text, json (as --json), or only the value"
    )
    parser.add_argument("--headers", action="store_true", help="show headers")


def run(args: argparse.Namespace, show: Show) -> int:
    """Print records; return 130 if interrupted before the end."""
    place = parse_place(args.start or "earliest")
    if args.max is not None and args.max < 1:
        raise ConfigError(f"--max {args.max}: choose at least 1")
    if args.group is not None and args.partition:
        raise ConfigError("a group consumes all partitions: leave out --partition or --group")
    if args.group is not None and place.kind not in ("earliest", "latest"):
        raise ConfigError(
            f"a group continues at its committed offsets; 'pymq group reset {args.group} "
            f"{args.topic} --to "
            f"{args.start}' changes them"
        )
    if sys.stdout is None:
        raise ConfigError("standard output is closed; records are printed there")
    write = FORMATS[args.format or ("json" if show.is_json else "text")]
    limit = 1 << 62 if args.max is None else args.max
    with Interrupt() as interrupt, opened(args) as mq, _source(mq, args, place) as source:
        count = _print(source, write, args.headers, limit, interrupt)
    is_cut_short = interrupt.is_asked and not args.follow and count < limit
    return INTERRUPTED if is_cut_short else OK


def _print(
    source: Source, write: Format, with_headers: bool, limit: int, interrupt: Interrupt
) -> int:
    """Print up to *limit* records; return the number printed."""
    out, count = sys.stdout.buffer, 0
    while count < limit and not interrupt.is_asked:
        records = source.take(min(CHUNK, limit - count))
        if records is None:
            break
        _write(out, b"".join([write(record, with_headers) for record in records]))
        out.flush()  # acknowledge only records whose output is flushed
        source.done(records)
        count += len(records)
    return count


def _write(out: BinaryIO, data: bytes) -> None:
    """Write all bytes: one call on unbuffered stdout may write only a part of the bytes."""
    rest = memoryview(data)
    while rest:
        rest = rest[out.write(rest) :]


class Source(Protocol):
    """The source of the records to print."""

    def take(self, limit: int) -> list[pymq.Record] | None:
        """Return some records, or an empty list after a timeout; None at the end."""

    def done(self, records: list[pymq.Record]) -> None:
        """Note that *records* have been printed."""


@contextmanager
def _source(mq: pymq.Client, args: argparse.Namespace, place: OffsetArg) -> Iterator[Source]:
    if args.group is not None:
        reset: Literal["begin", "end"] = "begin" if place.kind == "earliest" else "end"
        with mq.consumer(args.topic, group=args.group, auto_offset_reset=reset) as consumer:
            yield MemberSource(consumer, goes_on=args.follow)
            consumer.commit()
        return
    parts = {part.name: part for part in mq.describe_topic(args.topic).partitions}
    for name in args.partition or ():
        # raises an error that lists the existing names
        mq.questions.partition_name(args.topic, name)
    wanted = {name: part for name, part in parts.items() if name in (args.partition or parts)}
    only = next(iter(wanted)) if len(wanted) == 1 else None
    with mq.consumer(args.topic, mode="psb", partition=only, offset="end") as consumer:
        if only is None and len(wanted) < len(parts):
            consumer.pause(*(name for name in parts if name not in wanted))
        at = offsets_of(mq, args.topic, place, wanted)
        for name, offset in at.items():
            consumer.seek(name, offset)
        ends = {name: part.high_watermark for name, part in wanted.items()}
        yield ReaderSource(consumer, at, None if args.follow else ends)


class MemberSource:
    """Records leased to this member of a group."""

    def __init__(self, consumer: pymq.Consumer, *, goes_on: bool) -> None:
        self._consumer = consumer
        self._ends = {} if goes_on else consumer.end_offsets()
        self._ending = None if goes_on else UntilEnd(consumer, self._ends)
        self._is_over = False

    def take(self, limit: int) -> list[pymq.Record] | None:
        """Return some records; None once the group is done with all records that existed at the
        start.
        """
        if self._is_over:
            return None
        records = self._consumer.poll(limit, timeout=POLL_S)
        if self._ending is None:
            return records
        if records:
            self._is_over = all(r.offset >= self._ends.get(r.partition, 0) for r in records)
        elif self._ending.is_reached():
            return None
        else:
            self._ending.stall()
        return records

    def done(self, records: list[pymq.Record]) -> None:
        """Acknowledge the records."""
        self._consumer.ack(records)


class ReaderSource:
    """Records of some partitions, from *at* on, and up to *ends* if given."""

    def __init__(
        self, consumer: pymq.Consumer, at: dict[str, int], ends: dict[str, int] | None
    ) -> None:
        self._consumer = consumer
        self._at = at
        self._ends = ends

    def take(self, limit: int) -> list[pymq.Record] | None:
        """Return some records; None once the reader has reached all ends."""
        ends, consumer = self._ends, self._consumer
        if ends is None:
            return consumer.poll(limit, timeout=POLL_S)
        if all(self._at[name] >= end for name, end in ends.items()):
            return None
        records = consumer.poll(limit, timeout=POLL_S)
        for record in records:
            self._at[record.partition] = record.offset + 1
        if not records:
            # Compaction leaves gaps, even just before the end; the reader's position is after these
            # gaps.
            for name in self._at:
                self._at[name] = max(self._at[name], consumer.position(name))
        return [record for record in records if record.offset < ends[record.partition]]

    def done(self, records: list[pymq.Record]) -> None:
        """Do nothing: a reader acknowledges nothing."""
