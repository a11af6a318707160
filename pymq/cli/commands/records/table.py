"""``pymq table``: keeps a table of a topic."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pymq.cli.connect import opened
from pymq.cli.interrupt import Interrupt
from pymq.cli.show import OK, Show
from pymq.cli.subcommands import leaf
from pymq.cli.units import duration_ms, size_bytes
from pymq.core.counts import plural
from pymq.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from pymq.table.view import TableProgress

HELP = "keep a table of a topic: Parquet files, Delta Lake or Iceberg"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    there = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    sync = leaf(there, "sync", "append the records of a topic to a table, each exactly once")
    sync.add_argument(
        "queue", metavar="URL", help="a folder, or zmq+tcp://HOST:PORT,HOST:PORT of zkservers"
    )
    sync.add_argument("topic", metavar="TOPIC")
    sync.add_argument("location", metavar="LOCATION", help="folder, or what the format takes")
    sync.add_argument(
        "--format",
        choices=("parquet", "delta", "iceberg"),
        default="parquet",
        help="(%(default)s)",
    )
    sync.add_argument("--once", action="store_true", help="end with the records that exist now")
    sync.add_argument(
        "--columns",
        metavar="COLUMNS",
        help="of JSON values, as 'carrier string, delay long'; raw: keep bytes. By default those "
        "of the registered schemas",
    )
    sync.add_argument("--headers", action="store_true", help="keep headers")
    sync.add_argument(
        "--prefix", default="", metavar="TEXT", help="before the table's own columns, as _"
    )
    sync.add_argument(
        "--every",
        default="1m",
        metavar="TIME",
        help="commit after so long at the latest (%(default)s)",
    )
    sync.add_argument(
        "--commit-bytes", default="64MiB", metavar="SIZE", help="or after so much (%(default)s)"
    )
    sync.add_argument(
        "--file-bytes", default="128MiB", metavar="SIZE", help="size of a file (%(default)s)"
    )
    sync.add_argument("--catalog", metavar="NAME", help="a catalog of pyiceberg's configuration")
    sync.add_argument(
        "--skip-gaps", action="store_true", help="go on if retention has removed records"
    )
    sync.add_argument("--curve-dir", metavar="DIR", help="the folder of keys")
    sync.add_argument("--principal", metavar="NAME", help="the name of our own key")


def run(args: argparse.Namespace, show: Show) -> int:
    """Keep the table until an interrupt; a second run continues where this run ends."""
    try:
        from pymq.table.view import table_view
    except ImportError as error:
        raise MissingExtra.of(f"{error.name} is missing", "arrow") from error

    def told(progress: TableProgress) -> None:
        show.say(f"{args.location}: {plural(progress.rows, 'new row')}", style="dim")

    args.url = args.queue
    with Interrupt() as interrupt, opened(args) as mq:
        view = table_view(
            args.topic,
            args.location,
            args.format,
            url=mq,
            schema=args.columns,
            headers=args.headers,
            prefix=args.prefix,
            commit_s=_duration("--every", args.every) / 1000,
            commit_bytes=_size("--commit-bytes", args.commit_bytes),
            file_bytes=_size("--file-bytes", args.file_bytes),
            on_gap="continue" if args.skip_gaps else "error",
            catalog=args.catalog,
        )
        with view:
            done = view.sync(told) if args.once else view.run(lambda: interrupt.is_asked, told)
    if show.is_json:
        show.result(
            {
                "rows": done.rows,
                "commits": done.commits,
                "undecoded": done.undecoded,
                "positions": dict(done.positions),
            }
        )
        return OK
    bad = f", {plural(done.undecoded, 'value')} not of the schema" if done.undecoded else ""
    rows, commits = plural(done.rows, "new row"), plural(done.commits, "commit")
    show.say(f"{args.location}: {rows} in {commits}{bad}")
    return OK


def _duration(name: str, text: str) -> int:
    found = duration_ms(text)
    if found is None:
        raise ConfigError(f"{name} {text!r} is no duration; give one as 500ms, 10s or 1m")
    return found


def _size(name: str, text: str) -> int:
    found = size_bytes(text)
    if not found:
        raise ConfigError(f"{name} {text!r} is no size; give one as 64MiB or 1GiB")
    return found
