"""The command ``pymq``; each subcommand is a module of :mod:`pymq.cli.commands`.

The module of a subcommand has three names: ``HELP``, one line; ``arguments(parser)``, which adds
its arguments; and ``run(args, show)``, which returns the exit code. :func:`main` prints an uncaught
error as one line with hints below it. :func:`pymq.cli.subcommands.word` adds nested commands.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol, cast

import pymq
from pymq.cli import connect
from pymq.cli.hints import hints
from pymq.cli.show import FAILED, INTERRUPTED, OK, USAGE, Show
from pymq.cli.subcommands import common
from pymq.cli.usage_errors import Parser, UsageError, is_for_programs
from pymq.errors import ConfigError, InvalidName, PymqError

# The modules of the subcommands, in the order of the help.
COMMANDS = (
    "topic",
    "records.produce",
    "records.consume",
    "group",
    "records.dlq",
    "records.table",
    "records.mirror",
    "cluster",
    "broker",
    "zkserver",
    "records.explain",
    "doctor",
    "ui",
    "kafka",
    "bench",
    "verify",
    "keys",
    "demo",
    "completion",
)


class Command(Protocol):
    """The interface of a subcommand's module."""

    HELP: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Show], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default the process's own, and return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        top = parser()
        args = top.parse_args(argv)
        # for commands that parse their arguments again
        args.typed = argv[argv.index(args.command) + 1 :]
        if args.url is not None and not args.takes_url:
            top.error(f"--url: 'pymq {args.command}' uses no queue")
    except SystemExit:  # argparse has printed the help or the version
        return OK
    except UsageError as error:
        _tell(error, Show(is_json=is_for_programs(argv)))
        return USAGE
    show = Show(is_json=args.json)
    try:
        code = cast(int, args.run(args, show))
        if sys.stdout is not None:  # None if the shell has closed standard output
            sys.stdout.flush()  # flush here, so that a closed pipe is caught below
        return code
    except KeyboardInterrupt:
        if args.debug:
            raise
        show.interrupted()
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output, such as `head`, has closed the pipe, so Python must not flush
        # the remaining output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # An interrupted check has not shown that all is well, so it fails.
        return FAILED if args.command in ("verify", "doctor") else OK
    except (PymqError, OSError) as error:
        if args.debug:
            raise
        _tell(error, show)
        return USAGE if isinstance(error, (ConfigError, InvalidName)) else FAILED


def _tell(error: PymqError | OSError, show: Show) -> None:
    code, retriable = "OS_ERROR", False
    if isinstance(error, PymqError):
        code, retriable = error.code, error.retriable
    show.error(str(error), code, retriable=retriable, hints=hints(error))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = Parser(prog="pymq", description=pymq.__doc__.splitlines()[0], allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"pymq {pymq.__version__}")
    common(top, is_top=True)
    connect.arguments(top, is_top=True)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS:
        command = cast(Command, import_module(f"pymq.cli.commands.{module}"))
        sub = commands.add_parser(
            module.rpartition(".")[2],
            help=command.HELP,
            description=command.HELP,
            allow_abbrev=False,
        )
        common(sub)
        command.arguments(sub)
        takes_url = any("--url" in action.option_strings for action in sub._actions)
        sub.set_defaults(run=command.run, takes_url=takes_url)
    return top
