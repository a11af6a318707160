"""A node that takes nothing in until its standard input is closed; see ``test_zeromq.py``.

Without an argument, or with an endpoint of port 0, it listens and prints where; else it connects to
the node of that endpoint.
"""

from __future__ import annotations

import sys
import time

from pymq.core.message import Produced
from pymq.transport.zeromq.sockets import Tuning
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
        time.sleep(0.01)  # for libzmq's thread, to which draining gives work
    say("lives")
    node.close()


def say(what: str) -> None:
    """A line for whoever has started this."""
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def hear(node: ZmqTransport, *, is_asking: bool) -> None:
    """Wait until the other node is heard."""
    until = time.monotonic() + WAIT_S
    while not node.poll() and time.monotonic() < until:
        if is_asking:
            node.send("other", "stalled", Produced(1))
            node.flush()
        time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
