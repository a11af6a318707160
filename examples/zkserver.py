"""A zkserver over ZeroMQ: keeps the metadata and assigns leaders. Several share a coordinator.

python examples/zkserver.py --listen tcp://127.0.0.1:7878 --coordinator sqlite:zkserver.db
"""

import argparse
import sys

import pymq
from pymq.nodes.service import common, parse, secure, serve, web


def main() -> int:
    """Read the command line and run a zkserver until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--listen", required=True, help="tcp://HOST:PORT or ipc://PATH")
    parser.add_argument("--advertise", help="where others reach it, if not at --listen")
    parser.add_argument(
        "--coordinator",
        default="memory:",
        help="memory:, sqlite:PATH or zookeeper://HOSTS/ROOT (%(default)s)",
    )
    parser.add_argument(
        "--session-ms",
        type=int,
        default=2_000,
        help="a broker that is silent for longer is dead (%(default)s)",
    )
    parser.add_argument(
        "--replica-lost-s",
        type=float,
        default=600.0,
        help="a broker that is dead for longer is lost: its sealed blocks are copied (%(default)s)",
    )
    parser.add_argument(
        "--copies-at-once",
        type=int,
        default=8,
        help="sealed blocks that are copied at the same time (%(default)s)",
    )
    parser.add_argument(
        "--leader-balance-s",
        type=float,
        default=300.0,
        help="how often leaders are spread evenly again; 0: only when asked (%(default)s)",
    )
    secure(parser)
    web(parser, has_page=True)
    args = parse(parser)
    try:
        node = pymq.ZkServer(
            coordinator=args.coordinator,
            session_ms=args.session_ms,
            replica_lost_s=args.replica_lost_s,
            copies_at_once=args.copies_at_once,
            leader_balance_s=args.leader_balance_s,
            http_writable=args.http_writable,
            **common(args),
        )
    except pymq.errors.PymqError as error:
        print(f"zkserver: {error}", file=sys.stderr)
        return 1
    return serve(node)


if __name__ == "__main__":
    sys.exit(main())
