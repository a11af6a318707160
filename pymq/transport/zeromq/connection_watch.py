"""Watches a connection from this node, through libzmq's monitor events."""

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
    """Follows the state of a connection; must be created before the socket connects."""

    def __init__(self, socket: Socket, endpoint: str) -> None:
        self.is_over = False  # whether the connection has failed and libzmq will not retry
        self.is_up = False
        self._endpoint = endpoint
        self._watched = socket
        self.socket = socket.get_monitor_socket(EVENTS)
        # libzmq's descriptor signals events only after a first poll without events.
        self.socket.poll(0)

    def problem(self) -> str | None:
        """Return the latest problem after the last call.

        The result is empty for success, and None if there was no event.
        """
        found: str | None = None
        while self.socket.poll(0):
            event = monitor_event(self.socket.recv_multipart()).event
            self.is_up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            # libzmq does not retry after the first two of these events, but retries after the
            # third.
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.is_over, found = True, f"{self._endpoint} does not know our key"
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self.is_over, found = True, f"{self._endpoint} does not speak CURVE like this node"
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                found = f"{self._endpoint} has another key than expected, or hung up"
            elif self.is_up:
                found = ""
        return found

    def close(self) -> None:
        """Stop watching; must be called before the watched socket is closed."""
        self._watched.disable_monitor()
        self.socket.close(0)
