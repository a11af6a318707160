"""``pymq kafka``: serves a folder, or a queue in memory, to Kafka's clients."""

from __future__ import annotations

import argparse
import sys
import threading

from pymq.cli import connect
from pymq.cli.interrupt import Interrupt
from pymq.cli.show import OK, Show
from pymq.kafka.addresses import parse_address

HELP = "serve a folder, or a queue in memory, to Kafka's clients"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    connect.arguments(parser)
    parser.add_argument("where", metavar="WHERE", nargs="?", help="a folder or memory:, as --url")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default="127.0.0.1:9092", help="(%(default)s)"
    )
    parser.add_argument(
        "--partitions",
        type=int,
        default=1,
        help="of a topic that a client creates without a number (%(default)s)",
    )
    parser.add_argument(
        "--no-auto-create",
        action="store_true",
        help="do not create a topic that a client asks for",
    )


def run(args: argparse.Namespace, show: Show) -> int:
    """Serve Kafka's clients until interrupted."""
    args.url = args.where or args.url
    host, port = parse_address(args.listen, "--listen")
    with (
        connect.opened(args, makes=True) as client,
        client.kafka(
            host, port, partitions=args.partitions, auto_create=not args.no_auto_create
        ) as kafka,
    ):
        if show.is_json:
            show.result({"bootstrap": kafka.bootstrap})
        else:
            show.say(f"bootstrap.servers={kafka.bootstrap}")
            show.say("Ctrl-C stops it")
        if sys.stdout is not None:
            sys.stdout.flush()
        with Interrupt() as interrupt:
            try:
                with interrupt.breakable():
                    threading.Event().wait()
            except KeyboardInterrupt:
                pass  # Ctrl-C ends the command
    return OK
