"""Runs a node as a process: options from the command line and a file, JSON log lines, signals.

Options on the command line take precedence over options in the file. Options in the file have the
same names without dashes: ``zkserver = "tcp://10.0.0.1:7878"`` in TOML means ``--zkserver
tcp://10.0.0.1:7878``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymq import descriptors
from pymq.errors import ConfigError, PymqError
from pymq.runtime import garbage

if TYPE_CHECKING:
    from pymq.nodes.node import Node

log = logging.getLogger("pymq")


class JsonLines(logging.Formatter):
    """Formats a log message as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``--config FILE.toml`` provides options that are not on the command
    line.

    An error in the command line or the file ends the process with status 2.
    """
    parser.add_argument("--config", metavar="FILE.toml", help="options by their names, in TOML")
    # The file may contain a required option.
    required = [action for action in parser._actions if action.required]
    for action in required:
        action.required = False
    first, _ = parser.parse_known_args(argv)
    if first.config is not None:
        try:
            options = tomllib.loads(Path(first.config).read_text())
        except (OSError, ValueError) as error:
            parser.error(f"{first.config}: {error}")
        known = {action.dest for action in parser._actions} - {"help", "config"}
        given = {name.replace("-", "_"): found for name, found in options.items()}
        if unknown := sorted(set(given) - known):
            parser.error(
                f"{first.config}: unknown option {unknown[0]!r}; known are {sorted(known)}"
            )
        actions = {action.dest: action for action in parser._actions}
        for name, found in given.items():
            # Pass the value as text, so that argparse checks it like a value on the command line.
            is_switch = actions[name].nargs == 0
            if is_switch != isinstance(found, bool) or isinstance(found, dict):
                kind = "true or false" if is_switch else "a text, a number or a list"
                parser.error(f"{first.config}: {name!r} is {kind}, not {found!r}")
            text = ",".join(map(str, found)) if isinstance(found, list) else str(found)
            parser.set_defaults(**{name: found if is_switch else text})
    args = parser.parse_args(argv)
    missing = [action.option_strings[0] for action in required if not getattr(args, action.dest)]
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    return args


def secure(parser: argparse.ArgumentParser) -> None:
    """Add the security options of a node."""
    parser.add_argument(
        "--curve-dir", metavar="DIR", help="folder of 'pymq keys': encrypt, and authenticate by key"
    )
    parser.add_argument(
        "--tls-dir", metavar="DIR", help="certificates, for --listen tls://HOST:PORT"
    )
    parser.add_argument(
        "--policy",
        metavar="FILE.toml",
        help="access rules (policy.toml in --curve-dir)",
    )
    parser.add_argument("--audit", metavar="FILE", help="write refused requests to FILE (the log)")
    parser.add_argument(
        "--insecure", action="store_true", help="allow listening to the network without keys"
    )
    parser.add_argument(
        "--connections-per-address",
        type=int,
        metavar="N",
        help="limit of connections from one address, with keys (1000)",
    )
    parser.add_argument(
        "--connections-per-principal",
        type=int,
        metavar="N",
        help="limit of connections of one principal, with keys (500)",
    )


def common(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options common to all nodes as arguments of a node."""
    names = ("listen", "advertise", "curve_dir", "tls_dir", "policy", "audit", "insecure")
    more = ("connections_per_address", "connections_per_principal", "http", "http_cert")
    return {name: getattr(args, name) for name in (*names, *more)}


def limits(parser: argparse.ArgumentParser) -> None:
    """Add the options of a broker that limit its clients."""
    parser.add_argument(
        "--fetch-max-bytes",
        type=int,
        metavar="N",
        help="limit of one answer to a fetch (4194304)",
    )
    parser.add_argument(
        "--fetch-memory-bytes",
        type=int,
        metavar="N",
        help="limit of all answers that clients have not received yet (33554432)",
    )
    parser.add_argument(
        "--group-max-members", type=int, metavar="N", help="limit of a consumer group (1000)"
    )


def web(parser: argparse.ArgumentParser, *, has_page: bool = False) -> None:
    """Add the HTTP options of a node."""
    what = "metrics and the cluster page" if has_page else "metrics"
    parser.add_argument("--http", metavar="HOST:PORT", help=f"serve {what} at this address")
    parser.add_argument(
        "--http-cert", metavar="FILE.pem", help="certificate and key, required except for loopback"
    )
    if has_page:
        parser.add_argument(
            "--http-writable", action="store_true", help="allow changes on the page"
        )


def serve(node: Node) -> int:
    """Run *node* in this process until SIGTERM or SIGINT; returns the process's exit status.

    Events are logged to stderr, one line of JSON each (:data:`pymq.core.observe.events.EVENTS`).
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    note = node.journal.note
    node.journal.listener = write_event(node.name)
    limit = descriptors.keep_back()
    garbage.freeze_old()
    fields = {"node": node.name, "endpoint": node.endpoint, "pid": os.getpid(), "http": node.http}
    if node.kafka:
        fields["kafka"] = node.kafka
    node.on_ready = lambda: note("ready", **fields, descriptors=limit.all)
    if limit.all < descriptors.SMALL:
        note("few_descriptors", limit=limit.all, wanted=descriptors.SMALL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: node.stop())
    try:
        node.run()
    except PymqError as error:
        note("failed", **fields, code=error.code, why=str(error))
        return 1
    note("stopped", **fields)
    return 0


_LEVELS = {
    "failed": logging.ERROR,
    "partition_failed": logging.ERROR,
    "unclean_election": logging.ERROR,
    "change_refused": logging.ERROR,
    "registration_refused": logging.ERROR,
    "broker_dead": logging.WARNING,
    "replica_offline": logging.WARNING,
    "isr_shrunk": logging.WARNING,
    "few_descriptors": logging.WARNING,
    "connections_crowded": logging.WARNING,
}


def write_event(node: str) -> Callable[[str, dict[str, object]], None]:
    """Return a journal listener that logs each event of *node* as a line."""

    def write(event: str, fields: dict[str, object]) -> None:
        log.log(_LEVELS.get(event, logging.INFO), event, extra={"fields": {"node": node, **fields}})

    return write


def endpoints(text: str) -> list[str]:
    """Parse a comma-separated list of endpoints; the type of an argument."""
    from pymq.nodes.remote import endpoints as parse_endpoints

    try:
        return parse_endpoints(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
