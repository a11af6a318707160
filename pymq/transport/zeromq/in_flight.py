"""What libzmq holds for a peer: packets that were handed to it and have not left the process.

libzmq bounds their number and not their bytes, and tells nothing of either. But of a part that it
shares instead of copying it says when it is done with it, and it sends packets in their order. So
of each run of packets with TRACK_BYTES the last part is shared, and when libzmq is done with that,
the whole run has left.
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

TRACK_BYTES = 64 << 10  # of packets for one peer; what comes after the last such run is not counted


class InFlight:
    """The packets for one peer that libzmq holds."""

    __slots__ = ("_runs", "_since", "bytes", "moved_at")

    def __init__(self) -> None:
        self._runs: deque[tuple[zmq.MessageTracker, int]] = deque()
        self._since = 0  # bytes since the last run ended
        self.bytes = 0  # of the runs that have not left
        self.moved_at = 0.0  # when the last one did, or when there was none

    def is_over(self, size: int) -> bool:
        """Whether a run ends with a packet of *size* bytes: then its last part is to be shared."""
        return self._since + size >= TRACK_BYTES

    def add(self, size: int, tracker: zmq.MessageTracker | None, now: float) -> None:
        """A packet was handed over; *tracker* is that of its last part, if a run ends there."""
        self._since += size
        if tracker is not None:
            if not self._runs:
                self.moved_at = now
            self._runs.append((tracker, self._since))
            self.bytes += self._since
            self._since = 0

    def look(self, now: float) -> int:
        """How many bytes have not left by now."""
        runs = self._runs
        while runs and runs[0][0].done:
            self.bytes -= runs.popleft()[1]
            self.moved_at = now
        return self.bytes


def send_tracked(socket: Socket, frames: Sequence[Buffer]) -> zmq.MessageTracker:
    """Send the parts of a packet, the last one shared; returns what tells when that has left."""
    for frame in frames[:-1]:
        socket.send(frame, MORE, copy=len(frame) <= COPY_MAX)
    # What is short would be copied, and of that nothing is told.
    shared = zmq.Frame(frames[-1], track=True, copy=False, copy_threshold=0)
    tracker = socket.send(shared, LAST, copy=False, track=True)
    assert isinstance(tracker, zmq.MessageTracker)
    return tracker
