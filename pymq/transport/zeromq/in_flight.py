"""Counts the bytes of packets that libzmq holds for a peer.

libzmq limits the number of these packets but not their bytes, and reports neither. But libzmq sends
packets in order, and reports when it has released a part that is shared instead of copied. So the
transport divides the packets into runs of TRACK_BYTES and shares the last part of each run. When
libzmq releases that part, the whole run has left the process.
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

TRACK_BYTES = 64 << 10  # length of a run; bytes after the last complete run are not counted


class InFlight:
    """The packets that libzmq holds for one peer."""

    __slots__ = ("_runs", "_since", "bytes", "moved_at")

    def __init__(self) -> None:
        self._runs: deque[tuple[zmq.MessageTracker, int]] = deque()
        self._since = 0  # bytes since the last run ended
        self.bytes = 0  # bytes of runs that have not left the process
        self.moved_at = 0.0  # when a run last left, or when there was none

    def is_over(self, size: int) -> bool:
        """Whether a packet of *size* bytes ends a run, so that its last part has to be shared."""
        return self._since + size >= TRACK_BYTES

    def add(self, size: int, tracker: zmq.MessageTracker | None, now: float) -> None:
        """Add a sent packet; *tracker* is that of its last part, if it ends a run."""
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
    """Send the parts of a packet, the last one shared; return the tracker of that part."""
    for frame in frames[:-1]:
        socket.send(frame, MORE, copy=len(frame) <= COPY_MAX)
    # with threshold 0, because pyzmq would copy a short part, and copies have no tracker
    shared = zmq.Frame(frames[-1], track=True, copy=False, copy_threshold=0)
    tracker = socket.send(shared, LAST, copy=False, track=True)
    assert isinstance(tracker, zmq.MessageTracker)
    return tracker
