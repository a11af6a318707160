"""``pymq broker``: runs a broker in this process."""

from __future__ import annotations

import argparse

import pymq
from pymq.cli.node_process import add_options, run_node
from pymq.cli.show import Show
from pymq.nodes.command_line import broker_arguments, broker_options

HELP = "run a broker: it stores the records of partitions and serves them"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    add_options(parser, broker_options)


def run(args: argparse.Namespace, show: Show) -> int:
    """Run the broker until SIGTERM or SIGINT."""
    return run_node(args, broker_options, lambda args: pymq.Broker(**broker_arguments(args)))
