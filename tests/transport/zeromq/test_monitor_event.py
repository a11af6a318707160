"""Monitor events are decoded as pyzmq decodes them, without what pyzmq imports for that."""

from __future__ import annotations

import subprocess
import sys

import zmq
from zmq.utils.monitor import parse_monitor_message

from pymq.transport.zeromq.monitor_event import monitor_event


def test_an_event_is_what_pyzmq_says() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
        port = server.bind_to_random_port("tcp://127.0.0.1")
        with context.socket(zmq.DEALER) as client:
            monitor = client.get_monitor_socket(zmq.EVENT_CONNECTED)
            client.connect(f"tcp://127.0.0.1:{port}")
            frames = monitor.recv_multipart()
            client.disable_monitor()
            monitor.close()
    found, wanted = monitor_event(frames), parse_monitor_message(frames)
    assert found == (wanted["event"], wanted["value"])
    assert found.event == zmq.EVENT_CONNECTED
    assert found.value > 2  # a descriptor


def test_a_transport_does_not_load_asyncio() -> None:
    """asyncio took a third of the time in which a node starts."""
    script = "import sys, pymq.transport.zeromq.transport; print('asyncio' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert run.stdout == "False\n"
