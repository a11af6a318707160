"""Decodes libzmq's monitor events.

pyzmq has the same in ``zmq.utils.monitor``, which imports asyncio: a third of the time in which a
node starts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

_EVENT = struct.Struct("=Hi")


class MonitorEvent(NamedTuple):
    """A change of a connection's state."""

    event: int  # one of zmq.EVENT_*
    value: int  # for most kinds the descriptor of the connection


def monitor_event(frames: Sequence[bytes]) -> MonitorEvent:
    """Decode a message of a monitor socket: the event in six bytes, and the endpoint.

    Source: zmq_socket_monitor(3).
    """
    event, _ = frames
    return MonitorEvent(*_EVENT.unpack(event))
