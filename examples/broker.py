"""A broker over ZeroMQ: keeps the records of partitions and serves them.

python examples/broker.py --name broker-0 --listen tcp://127.0.0.1:7774 \\
    --zkserver tcp://127.0.0.1:7878 --data data/broker-0
"""

import argparse
import sys

import pymq
from pymq.nodes.service import common, endpoints, limits, parse, secure, serve, web


def main() -> int:
    """Read the command line and run a broker until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="the broker's own, for ever")
    parser.add_argument("--listen", required=True, help="tcp://HOST:PORT or ipc://PATH")
    parser.add_argument("--advertise", help="where others reach it, if not at --listen")
    parser.add_argument(
        "--zkserver", required=True, type=endpoints, help="tcp://HOST:PORT, several with commas"
    )
    parser.add_argument("--data", required=True, help="its folder, or memory:")
    parser.add_argument("--rack", help="brokers of one rack fail together")
    parser.add_argument(
        "--copy-bytes-s",
        type=int,
        default=50 << 20,
        help="bytes a second of sealed blocks that move to it; 0: no bound (%(default)s)",
    )
    secure(parser)
    limits(parser)
    web(parser)
    args = parse(parser)
    try:
        node = pymq.Broker(
            args.name,
            zkservers=args.zkserver,
            data=args.data,
            rack=args.rack,
            copy_bytes_s=args.copy_bytes_s,
            fetch_max_bytes=args.fetch_max_bytes,
            fetch_memory_bytes=args.fetch_memory_bytes,
            group_max_members=args.group_max_members,
            **common(args),
        )
    except pymq.errors.PymqError as error:
        print(f"broker: {error}", file=sys.stderr)
        return 1
    return serve(node)


if __name__ == "__main__":
    sys.exit(main())
