"""A zkserver over ZeroMQ, which keeps the metadata and assigns leaders.

``pymq zkserver`` runs the same.

Several zkservers may share a ZooKeeper as their coordinator backend.

python examples/zkserver.py --listen tcp://127.0.0.1:7878 --coordinator sqlite:zkserver.db
"""

import argparse
import sys

import pymq
from pymq.nodes.command_line import zkserver_arguments, zkserver_options
from pymq.nodes.service import parse, serve


def main() -> int:
    """Read the command line and run a zkserver until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    zkserver_options(parser)
    args = parse(parser)
    try:
        node = pymq.ZkServer(**zkserver_arguments(args))
    except pymq.errors.PymqError as error:
        print(f"zkserver: {error}", file=sys.stderr)
        return 1
    return serve(node)


if __name__ == "__main__":
    sys.exit(main())
