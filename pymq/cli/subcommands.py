"""Adds nested commands, as ``pymq topic list``, and the options common to all."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from pymq.cli import connect

if TYPE_CHECKING:
    from pymq.cli.show import Show

    Words = argparse._SubParsersAction[argparse.ArgumentParser]

Run = Callable[[argparse.Namespace, "Show"], int]


def common(parser: argparse.ArgumentParser, *, is_top: bool = False) -> None:
    """Add ``--json`` and ``--debug``, which may stand before or after each word of a command."""
    default: object = False if is_top else argparse.SUPPRESS
    parser.add_argument(
        "--json", action="store_true", default=default, help="print JSON, for programs"
    )
    parser.add_argument(
        "--debug", action="store_true", default=default, help="show the traceback of an error"
    )


def words(parser: argparse.ArgumentParser) -> Words:
    """Return the subparsers to which :func:`word` adds commands that need a queue."""
    connect.arguments(parser)
    return parser.add_subparsers(dest="word", metavar="WHAT", required=True)


def leaf(there: Words, name: str, help: str) -> argparse.ArgumentParser:
    """Add a nested command; common options may stand after its name or before it."""
    found = there.add_parser(name, help=help, description=help, allow_abbrev=False)
    common(found)
    return found


def word(there: Words, name: str, help: str, do: Run) -> argparse.ArgumentParser:
    """Add a nested command that needs a queue."""
    found = leaf(there, name, help)
    connect.arguments(found)
    found.set_defaults(do=do)
    return found
