"""A whole cluster on this machine: ZooKeeper, two zkservers and three brokers, each a process.

python examples/local_cluster.py --data cluster    # Ctrl-C stops all of it

"pymq cluster start" does the same without ZooKeeper. With keys, which "pymq keys" makes for
zkserver, broker-0, broker-1 and so on:

python examples/local_cluster.py --data cluster --curve-dir keys

Then run these in another terminal, as the program prints:

python examples/produce.py --url zmq+tcp://127.0.0.1:7878,127.0.0.1:7879
python examples/consume.py --url zmq+tcp://127.0.0.1:7878,127.0.0.1:7879
"""

import argparse
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from pymq.errors import MissingExtra
from pymq.nodes.local_cluster import LocalCluster, run
from pymq.testing.zookeeper import ZooKeeper


def main() -> int:
    """Start all nodes, wait for the end, stop them all; return 1 if a node did not start.

    A node may end later, and be restarted by hand: the tutorial kills one.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="cluster", type=Path, help="a folder (%(default)s)")
    parser.add_argument("--port", default=7878, type=int, help="of the first zkserver")
    parser.add_argument("--brokers", default=3, type=int)
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="address of the web page (default: none)"
    )
    parser.add_argument("--coordinator", help="zookeeper://HOSTS/ROOT or sqlite:PATH")
    parser.add_argument("--curve-dir", type=Path, help="a folder of keys, with a policy")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stop.set())
    with ExitStack() as stack:
        args.coordinator = args.coordinator or start_coordinator(args.data, stack)
        return run(LocalCluster(**vars(args)), stop, lambda line: print(line, flush=True))


def start_coordinator(data: Path, stack: ExitStack) -> str:
    """Start ZooKeeper if it is installed, or use a file; later starts use the same one."""
    file = data / "zkserver.db"
    if not file.exists():
        try:
            found = ZooKeeper(data, java=["-Dzookeeper.forceSync=yes"])
            return f"zookeeper://{stack.enter_context(found).hosts}/pymq"
        except MissingExtra as error:
            print(f"no ZooKeeper, so its place is taken by a file: {error}", flush=True)
    return f"sqlite:{file}"


if __name__ == "__main__":
    sys.exit(main())
