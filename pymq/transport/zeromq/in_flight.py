"""Counts the bytes of packets that libzmq holds for a peer.

libzmq limits the number of these packets but not their bytes, and reports neither number. But
libzmq sends packets in order, and it reports when it has released a part that it shares with the
transport instead of copying it. So the transport divides the packets into runs of TRACK_BYTES and
shares the last part of each run. When libzmq releases that part, the whole run has left the
process.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import zmq

from pymq.transport.zeromq.sockets import COPY_MAX, LAST, MORE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymq.transport.shapes import Buffer
    from pymq.transport.zeromq.sockets import Socket

# length of a run in bytes; bytes after the last complete run are not counted
TRACK_BYTES = 64 << 10


class InFlight:
    """The packets that libzmq holds for one peer."""

    __slots__ = ("_runs", "_since", "bytes", "moved_at")

    def __init__(self) -> None:
        self._runs: deque[tuple[zmq.MessageTracker, int]] = deque()
        self._since = 0  # bytes after the end of the last run
        self.bytes = 0  # bytes of the runs that have not left the process
        self.moved_at = 0.0  # the last time when a run left, or when there was no run

    def is_over(self, size: int) -> bool:
        """Whether a packet of *size* bytes ends a run, so that its last part must be shared."""
        return self._since + size >= TRACK_BYTES

    def add(self, size: int, tracker: zmq.MessageTracker | None, now: float) -> None:
        """Add a sent packet; if it ends a run, *tracker* is that of the packet's last part."""
        self._since += size
        if tracker is not None:
            if not self._runs:
                self.moved_at = now
            self._runs.append((tracker, self._since))
            self.bytes += self._since
            self._since = 0

    def look(self, now: float) -> int:
        """Return the bytes that have not left the process by *now*."""
        runs = self._runs
        while runs and runs[0][0].done:
            self.bytes -= runs.popleft()[1]
            self.moved_at = now
        return self.bytes


def send_tracked(socket: Socket, frames: Sequence[Buffer]) -> zmq.MessageTracker:
    """Send the parts of a packet and share the last part; return the tracker of that part."""
    for frame in frames[:-1]:
        socket.send(frame, MORE, copy=len(frame) <= COPY_MAX)
    # with threshold 0, because pyzmq would otherwise copy a short part, and copies have no tracker
    shared = zmq.Frame(frames[-1], track=True, copy=False, copy_threshold=0)
    tracker = socket.send(shared, LAST, copy=False, track=True)
    assert isinstance(tracker, zmq.MessageTracker)
    return tracker
