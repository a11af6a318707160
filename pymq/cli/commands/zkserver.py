"""``pymq zkserver``: runs a zkserver, the cluster's controller, in this process."""

from __future__ import annotations

import argparse

import pymq
from pymq.cli.node_process import add_options, run_node
from pymq.cli.show import Show
from pymq.nodes.command_line import zkserver_arguments, zkserver_options

HELP = "run a zkserver: it keeps the metadata and assigns leaders"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    add_options(parser, zkserver_options)


def run(args: argparse.Namespace, show: Show) -> int:
    """Run the zkserver until SIGTERM or SIGINT."""
    return run_node(args, zkserver_options, lambda args: pymq.ZkServer(**zkserver_arguments(args)))
