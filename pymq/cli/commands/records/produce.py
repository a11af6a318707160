"""``pymq produce``: sends the lines of a file or of standard input as records."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pymq
from pymq.cli import connect
from pymq.cli.connect import opened
from pymq.cli.interrupt import Interrupt
from pymq.cli.record_text import from_json
from pymq.cli.show import INTERRUPTED, OK, Show
from pymq.cli.units import size_text
from pymq.core.counts import plural
from pymq.core.values import define
from pymq.errors import ConfigError, InvalidRequest

HELP = "send lines as records"
READ_BYTES = 1 << 18
LINE_MAX = 64 << 20
ACKS = ("raft", "leader", "none")

Answered = pymq.Delivery | pymq.Deliveries


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    connect.arguments(parser)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--file", metavar="FILE", help="read this file instead of standard input")
    parser.add_argument(
        "--format",
        choices=("lines", "json"),
        default="lines",
        help="lines, or an object a line, as 'pymq consume --json' prints them (%(default)s)",
    )
    parser.add_argument(
        "--key-separator", metavar="SEP", help="separates the key from the value in a line"
    )
    parser.add_argument(
        "--header", metavar="NAME=VALUE", action="append", default=[], help="of each record"
    )
    parser.add_argument("--partition", metavar="NAME", help="send all records to this partition")
    parser.add_argument("--acks", choices=ACKS, help="use this ack mode instead of the partition's")
    parser.add_argument("--compression", choices=("lz4", "zstd"))


def run(args: argparse.Namespace, show: Show) -> int:
    """Send all lines; after an interrupt, wait for the acknowledgements and return 130."""
    headers = _headers(args.header)
    if args.format == "json" and (args.key_separator or headers):
        raise ConfigError("records as JSON have keys and headers of their own")
    with Interrupt() as interrupt, _Input(args.file, interrupt) as source, opened(args) as mq:
        sending = _Sending(args, headers)
        began = time.perf_counter()
        with (
            mq.producer(acks=args.acks, compression=args.compression) as producer,
            show.progress(
                "sent", source.size, "byte", is_told=False, is_drawn=not source.is_typed
            ) as step,
        ):
            for lines in source:
                sending.send(producer, lines)
                step.at(source.taken)
            sending.wait()
            if not sending.records and not interrupt.is_asked:
                _check(mq, args)
    sent = sending.as_json() | {"seconds": round(time.perf_counter() - began, 3)}
    if show.is_json:
        show.result(sent)
    else:
        _tell(args.topic, sent, show)
    if interrupt.is_asked:
        show.interrupted("interrupted; all records sent before are written")
        return INTERRUPTED
    return OK


def _check(mq: pymq.Client, args: argparse.Namespace) -> None:
    """Check that records could be sent; called if no record was sent.

    Raises:
        PymqError: records could not be sent.
    """
    mq.describe_topic(args.topic)
    if args.partition is not None:
        mq.questions.partition_name(args.topic, args.partition)


def _headers(pairs: list[str]) -> list[tuple[str, bytes]]:
    found = []
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise ConfigError(f"--header {pair!r} is not NAME=VALUE")
        found.append((name, os.fsencode(text)))  # recovers the exact bytes of the argument
    return found


def _tell(topic: str, sent: dict[str, Any], show: Show) -> None:
    rate = sent["records"] / max(sent["seconds"], 1e-3)
    show.say(
        f"{plural(sent['records'], 'record')}, {size_text(sent['bytes'])}, into {topic} in "
        f"{sent['seconds']:.2f} s, {plural(round(rate), 'record')}/s"
    )
    for name, (first, last) in sorted(sent["offsets"].items()):
        show.say(f"  partition {name}: offsets {first:,} to {last:,}")


class _Input:
    """Reads lines as they arrive; for a file, the total size is known."""

    def __init__(self, path: str | None, interrupt: Interrupt) -> None:
        self._path = path
        self._interrupt = interrupt
        self._file = -1
        self.size: int | None = None  # bytes, for a file
        self.taken = 0
        # whether a user types the values at a terminal: then there is no progress bar
        self.is_typed = False

    def __enter__(self) -> _Input:
        if self._path is None:
            if sys.stdin is None:
                raise ConfigError("standard input is closed: give --file, or redirect a file")
            self._file = os.dup(sys.stdin.fileno())
            self.is_typed = sys.stdin.isatty()
            if self.is_typed:
                print("one record per line; Ctrl-D ends the input", file=sys.stderr)
        else:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._file)
        if stat.S_ISDIR(status.st_mode):
            os.close(self._file)
            raise ConfigError(f"{self._path} is a folder, not a file")
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def __iter__(self) -> Iterator[list[bytes]]:
        """Yield complete lines without line ends; an interrupt ends the iteration."""
        rest = b""
        while (data := self._read()) != b"":
            self.taken += len(data)
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LINE_MAX:
                raise InvalidRequest(f"a line has more than {size_text(LINE_MAX)}")
            if lines:
                yield [line.removesuffix(b"\r") for line in lines]
        if rest and not self._interrupt.is_asked:  # after an interrupt, drop an incomplete line
            yield [rest]

    def _read(self) -> bytes:
        try:
            with self._interrupt.breakable():
                return os.read(self._file, READ_BYTES)
        except KeyboardInterrupt:
            return b""


def _record(number: int, line: bytes) -> dict[str, Any]:
    try:
        return from_json(line)
    except InvalidRequest as error:
        raise InvalidRequest(f"line {number}: {error}") from None


@define
class _Written:
    """The acknowledged records of one partition."""

    first: int
    last: int


class _Sending:
    """Sends lines and collects their results."""

    def __init__(self, args: argparse.Namespace, headers: list[tuple[str, bytes]]) -> None:
        self._topic: str = args.topic
        self._partition: str | None = args.partition
        self._separator: bytes | None = os.fsencode(args.key_separator or "") or None
        self._headers = headers or None
        self._is_json: bool = args.format == "json"
        self._waiting: deque[Answered] = deque()
        self._written: dict[str, _Written] = {}
        self._lines = 0
        self.records = 0
        self.bytes = 0

    def send(self, producer: pymq.Producer, lines: list[bytes]) -> None:
        """Send some lines and note the answers that have arrived.

        Raises:
            PymqError: a record could not be sent, or written.
        """
        topic, partition, headers = self._topic, self._partition, self._headers
        if self._is_json:
            for number, line in enumerate(lines, self._lines + 1):
                if line.strip():
                    self._note(producer.send(topic, partition=partition, **_record(number, line)))
                    self.records += 1
        elif self._separator is None and headers is None:
            self._note(producer.send_many(topic, lines, partition=partition))
        else:
            rows = [self._split(line) for line in lines]
            if headers is None:
                keys, values = [key for key, _ in rows], [found for _, found in rows]
                self._note(producer.send_many(topic, values, keys, partition=partition))
            else:
                for key, found in rows:
                    self._note(
                        producer.send(topic, found, key=key, headers=headers, partition=partition)
                    )
        if not self._is_json:
            self.records += len(lines)
        self._lines += len(lines)
        self.bytes += sum(map(len, lines))
        while self._waiting and self._waiting[0].done():
            self._take(self._waiting.popleft())

    def _split(self, line: bytes) -> tuple[bytes | None, bytes]:
        assert self._separator is not None or self._headers is not None
        if self._separator is None:
            return None, line
        key, separator, found = line.partition(self._separator)
        return (key, found) if separator else (None, line)

    def _note(self, delivery: Answered) -> None:
        self._waiting.append(delivery)

    def wait(self) -> None:
        """Wait for all acknowledgements.

        Raises:
            PymqError: a record was not written.
        """
        while self._waiting:
            self._take(self._waiting.popleft())

    def _take(self, delivery: Answered) -> None:
        found = delivery.result()
        for record in found if isinstance(found, list) else [found]:
            if record.offset < 0:
                continue  # with acks=none there are no answers
            written = self._written.get(record.partition)
            if written is None:
                self._written[record.partition] = _Written(record.offset, record.offset)
            else:
                written.first = min(written.first, record.offset)
                written.last = max(written.last, record.offset)

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        offsets = {name: [found.first, found.last] for name, found in self._written.items()}
        return {
            "topic": self._topic,
            "records": self.records,
            "bytes": self.bytes,
            "offsets": offsets,
        }
