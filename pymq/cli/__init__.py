"""The command ``pymq``; each subcommand is a module of this package, listed in ``COMMANDS``.

A subcommand has three names: ``HELP``, one line; ``arguments(parser)``, which adds its own; and
``run(args, show)``, which does it and returns the exit code. What it does not catch is told in one
line by :func:`main`, with what to do next below it. A command with commands of its own adds each
with :func:`pymq.cli.subcommands.word`.

Exit codes: 0 it is done, 1 it failed, 2 it was called wrongly, 130 it was interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol, cast

import pymq
from pymq.cli.hints import hints
from pymq.cli.show import FAILED, INTERRUPTED, OK, USAGE, Show
from pymq.cli.subcommands import common
from pymq.cli.usage_errors import Parser, UsageError, is_for_programs
from pymq.errors import ConfigError, InvalidName, PymqError

COMMANDS = (
    "topic",
    "produce",
    "consume",
    "group",
    "cluster",
    "explain",
    "doctor",
    "ui",
    "bench",
    "verify",
    "keys",
    "demo",
    "completion",
)


class Command(Protocol):
    """What a module of a subcommand has."""

    HELP: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Show], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default the process's own, and return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        args = parser().parse_args(argv)
    except SystemExit:  # argparse has shown the help, or the version
        return OK
    except UsageError as error:
        _tell(error, Show(is_json=is_for_programs(argv)))
        return USAGE
    show = Show(is_json=args.json)
    try:
        code = cast(int, args.run(args, show))
        if sys.stdout is not None:  # as it is where the shell has closed it
            sys.stdout.flush()  # here, where a reader that has gone can still be told from a crash
        return code
    except KeyboardInterrupt:
        if args.debug:
            raise
        show.interrupted()
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain once more on leaving.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
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
    """The parser of the whole command line."""
    top = Parser(prog="pymq", description=pymq.__doc__.splitlines()[0], allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"pymq {pymq.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        command = cast(Command, import_module(f"pymq.cli.commands.{name}"))
        sub = commands.add_parser(
            name, help=command.HELP, description=command.HELP, allow_abbrev=False
        )
        common(sub)
        command.arguments(sub)
        sub.set_defaults(run=command.run)
    return top
