"""Settings for sockets."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from pymq.transport.base import Tuning
from pymq.transport.zeromq.sockets import make_context, make_dealer

WAIT_S = 20.0
BURSTS = """
import resource
from pymq.transport.zeromq.sockets import make_context

def burst():
    frames = [b"x" * (1 << 20) for _ in range(4)]

context = make_context()
burst()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    burst()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
context.destroy()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc has other ways")
def test_memory_of_frames_is_used_again() -> None:
    """libzmq reuses the memory of frames.

    Otherwise each burst would cost a page fault for each of its 1,024 pages.
    """
    command = [sys.executable, "-c", BURSTS]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) < 2 * 1024


def test_who_cannot_connect_tries_ever_more_slowly() -> None:
    """The pauses before reconnecting grow, so that thousands of clients do not overload a node that
    comes back.
    """
    tuning = Tuning(reconnect_ms=2, reconnect_max_ms=64)
    context = make_context()
    monitors: list[zmq.Socket[bytes]] = []

    def watch(socket: zmq.Socket[bytes]) -> None:
        monitors.append(socket.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED))

    pauses: list[int] = []
    try:
        dealer = make_dealer(
            context, "tcp://127.0.0.1:1", b"client-1/0123456789abcdef", tuning, watch
        )
        (monitor,) = monitors
        while len(pauses) < 12:
            assert monitor.poll(int(WAIT_S * 1000)), pauses
            pauses.append(int(recv_monitor_message(monitor)["value"]))
        dealer.disable_monitor()
    finally:
        context.destroy(linger=0)
    assert pauses[0] < 2 * tuning.reconnect_ms
    assert min(pauses[-4:]) >= tuning.reconnect_max_ms / 2
    assert max(pauses) <= tuning.reconnect_max_ms + tuning.reconnect_ms
