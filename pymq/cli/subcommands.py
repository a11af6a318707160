"""Commands with commands of their own, as ``pymq topic list``, and what all of them understand."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from pymq.cli import connect

if TYPE_CHECKING:
    from pymq.cli.show import Show

    Words = argparse._SubParsersAction[argparse.ArgumentParser]

Run = Callable[[argparse.Namespace, "Show"], int]


def common(parser: argparse.ArgumentParser, *, is_leaf: bool = False) -> None:
    """Add ``--json`` and ``--debug``; of a leaf they count as well as those that stand before."""
    default: object = argparse.SUPPRESS if is_leaf else False
    parser.add_argument(
        "--json", action="store_true", default=default, help="print JSON, for programs"
    )
    parser.add_argument(
        "--debug", action="store_true", default=default, help="show where an error comes from"
    )


def words(parser: argparse.ArgumentParser) -> Words:
    """Where :func:`word` adds commands to a command that needs a queue."""
    connect.arguments(parser)
    return parser.add_subparsers(dest="word", metavar="WHAT", required=True)


def leaf(there: Words, name: str, help: str) -> argparse.ArgumentParser:
    """Add a command of a command; its options may stand behind its name or before it."""
    found = there.add_parser(name, help=help, description=help, allow_abbrev=False)
    common(found, is_leaf=True)
    return found


def word(there: Words, name: str, help: str, do: Run) -> argparse.ArgumentParser:
    """Add a command of a command that needs a queue."""
    found = leaf(there, name, help)
    connect.arguments(found, is_leaf=True)
    found.set_defaults(do=do)
    return found
