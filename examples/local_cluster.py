"""A whole cluster on this machine: a coordinator, zkservers and three brokers, each a process.

python examples/local_cluster.py --data cluster    # Ctrl-C stops all of it

With keys, which "pymq keys" makes for zkserver, broker-0, broker-1 and so on:

python examples/local_cluster.py --data cluster --curve-dir keys

Then, elsewhere, as it says itself:

python examples/produce.py --url zmq+tcp://127.0.0.1:7878,127.0.0.1:7879
python examples/consume.py --url zmq+tcp://127.0.0.1:7878,127.0.0.1:7879
"""

import argparse
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from pymq.errors import MissingExtra
from pymq.testing.zookeeper import ZooKeeper

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Start all nodes, wait for the end, stop them all; returns 1 if a node did not start.

    A node that ends later may be restarted, as the tutorial does with one that it kills.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="cluster", type=Path, help="a folder (%(default)s)")
    parser.add_argument("--port", default=7878, type=int, help="of the first zkserver")
    parser.add_argument("--brokers", default=3, type=int)
    parser.add_argument("--http", metavar="HOST:PORT", help="where to serve the page (nowhere)")
    parser.add_argument("--coordinator", help="zookeeper://HOSTS/ROOT or sqlite:PATH")
    parser.add_argument("--curve-dir", type=Path, help="a folder of keys, with a policy")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stop.set())

    with ExitStack() as stack:
        # SQLite belongs to one process; any number of zkservers can share a ZooKeeper.
        coordinator = args.coordinator or start_coordinator(args.data, stack)
        count = 1 if coordinator.startswith("sqlite:") else 2
        servers = [f"127.0.0.1:{args.port + i}" for i in range(count)]
        zkservers = "tcp://" + ",".join(servers)
        common = {} if args.curve_dir is None else {"curve-dir": args.curve_dir}
        ended: list[str] = []
        nodes = [
            start(
                "zkserver.py",
                stack,
                ended,
                listen=f"tcp://{server}",
                coordinator=coordinator,
                **common,
                **({"http": args.http} if args.http and server == servers[0] else {}),
            )
            for server in servers
        ]
        for i in range(args.brokers):
            listen, name = f"tcp://127.0.0.1:{args.port + 10 + i}", f"broker-{i}"
            own = {"name": name, "listen": listen, "data": args.data / name, **common}
            nodes.append(start("broker.py", stack, ended, zkserver=zkservers, **own))
        for is_ready in nodes:
            is_ready.wait()
        if ended:
            print(f"{', '.join(ended)} did not start; it has said why", flush=True)
            return 1
        print(f"cluster is ready: zmq+{zkservers}", flush=True)
        stop.wait()
    print("cluster is stopped")
    return 0


def start_coordinator(data: Path, stack: ExitStack) -> str:
    """Start ZooKeeper if it is installed, or use a file; a later start uses the same one again."""
    file = data / "zkserver.db"
    if not file.exists():
        try:
            found = ZooKeeper(data, java=["-Dzookeeper.forceSync=yes"])
            return f"zookeeper://{stack.enter_context(found).hosts}/pymq"
        except MissingExtra as error:
            print(f"no ZooKeeper, so its place is taken by a file: {error}", flush=True)
    return f"sqlite:{file}"


def start(script: str, stack: ExitStack, ended: list[str], **options: object) -> threading.Event:
    """Start one node, which stops when the stack is left; the event says that it is ready.

    If the node ends, it is added to *ended*.
    """
    arguments = [part for name, found in options.items() for part in (f"--{name}", str(found))]
    command = [sys.executable, str(HERE / script), *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    is_ready = threading.Event()

    def follow() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            print(line, end="", flush=True)
            if '"ready"' in line:
                is_ready.set()
        ended.append(str(options.get("name", options["listen"])))
        is_ready.set()

    thread = threading.Thread(target=follow)
    thread.start()
    stack.callback(thread.join)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return is_ready


if __name__ == "__main__":
    sys.exit(main())
