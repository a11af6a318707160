"""A node that reads nothing until its standard input is closed; see ``test_zeromq.py``.

Without an argument, or with an endpoint of port 0, it listens and prints its endpoint. With another
endpoint it connects to that node.
"""

from __future__ import annotations

import sys
import time

from pymq.core.message import Produced
from pymq.transport.base import Tuning
from pymq.transport.zeromq.transport import ZmqTransport

WAIT_S = 20.0


def main(endpoint: str | None = None) -> None:
    tuning = Tuning(packets=4)
    listen = endpoint or "tcp://127.0.0.1:0"
    listens = listen.endswith(":0")
    node = ZmqTransport("stalled", listen=listen if listens else None, tuning=tuning, insecure=True)
    if listens:
        say(node.endpoint)
    else:
        node.learn("other", listen)
    hear(node, is_asking=not listens)
    say("stalls")
    sys.stdin.read()
    for _ in range(10):
        node.poll()
        time.sleep(0.01)  # give libzmq's thread time to work while its queue is drained
    say("lives")
    node.close()


def say(what: str) -> None:
    """Print a line for the parent process."""
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def hear(node: ZmqTransport, *, is_asking: bool) -> None:
    """Wait for a message of the other node."""
    until = time.monotonic() + WAIT_S
    while not node.poll() and time.monotonic() < until:
        if is_asking:
            node.send("other", "stalled", Produced(1))
            node.flush()
        time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
