"""Runs a node as the process of a command: ``pymq broker`` and ``pymq zkserver``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from pymq.cli.subcommands import common
from pymq.cli.usage_errors import Parser
from pymq.nodes.service import parse, serve

if TYPE_CHECKING:
    from pymq.nodes.node import Node

Options = Callable[[argparse.ArgumentParser], None]


def add_options(parser: argparse.ArgumentParser, options: Options) -> None:
    """Add a node's options for the help text; a configuration file may set required options."""
    options(parser)
    parser.add_argument("--config", metavar="FILE.toml", help="options by their names, in TOML")
    for action in parser._actions:
        action.required = False


def run_node(
    args: argparse.Namespace, options: Options, make: Callable[[argparse.Namespace], Node]
) -> int:
    """Run the node that *make* creates from the command line and its configuration file.

    Returns the exit status, after SIGTERM or SIGINT.

    Raises:
        PymqError: an option is wrong, or the node cannot listen.
    """
    parser = Parser(prog=f"pymq {args.command}", allow_abbrev=False)
    common(parser)
    options(parser)
    return serve(make(parse(parser, args.typed)))
