"""Watches a connection that this node makes, through libzmq's monitor events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

from pymq.transport.zeromq.monitor_event import monitor_event

if TYPE_CHECKING:
    from pymq.transport.zeromq.sockets import Socket

EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)


class ConnectionWatch:
    """Follows the state of a connection; made before its socket connects."""

    def __init__(self, socket: Socket, endpoint: str) -> None:
        self.is_over = False  # whether the connection has failed, and libzmq will not retry
        self.is_up = False
        self._endpoint = endpoint
        self._watched = socket
        self.socket = socket.get_monitor_socket(EVENTS)
        # libzmq's descriptor signals events only after a first poll that found none.
        self.socket.poll(0)

    def problem(self) -> str | None:
        """Return the last problem since the last call.

        Empty for success, None if there was no event.
        """
        found: str | None = None
        while self.socket.poll(0):
            event = monitor_event(self.socket.recv_multipart()).event
            self.is_up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            # libzmq does not retry after the first two of these events, but does after the third.
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.is_over, found = True, f"{self._endpoint} does not know our key"
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self.is_over, found = True, f"{self._endpoint} does not speak CURVE as we do"
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                found = f"{self._endpoint} has another key than is known here, or hung up"
            elif self.is_up:
                found = ""
        return found

    def close(self) -> None:
        """Stop watching; to be called before the watched socket is closed."""
        self._watched.disable_monitor()
        self.socket.close(0)
