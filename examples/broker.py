"""A broker over ZeroMQ, which stores the records of partitions and serves them.

``pymq broker`` runs the same.

python examples/broker.py --name broker-0 --listen tcp://127.0.0.1:7774 \\
    --zkserver tcp://127.0.0.1:7878 --data data/broker-0
"""

import argparse
import sys

import pymq
from pymq.nodes.command_line import broker_arguments, broker_options
from pymq.nodes.service import parse, serve


def main() -> int:
    """Read the command line and run a broker until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    broker_options(parser)
    args = parse(parser)
    try:
        node = pymq.Broker(**broker_arguments(args))
    except pymq.errors.PymqError as error:
        print(f"broker: {error}", file=sys.stderr)
        return 1
    return serve(node)


if __name__ == "__main__":
    sys.exit(main())
