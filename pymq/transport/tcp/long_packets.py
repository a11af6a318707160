"""Bounds the memory of long packets that have arrived incompletely."""

from __future__ import annotations

from pymq.errors import InvalidRequest
from pymq.transport.tcp.connection import Connection

RECEIVING_MAX = 512 << 20  # bytes of all connections; one principal may take half of them


class LongPackets:
    """The connections on which a long packet is arriving."""

    def __init__(self) -> None:
        # (bytes of the packet so far, the time when they last grew)
        self._arriving: dict[Connection, tuple[int, float]] = {}

    def check(self, found: Connection, now: float) -> None:
        """Count a connection with an incomplete long packet.

        Raises:
            InvalidRequest: such packets take too much memory, in total or of one principal.
        """
        self._arriving.setdefault(found, (0, now))
        principal = found.peer.principal if found.peer is not None else ""
        total = own = 0
        for each in list(self._arriving):
            held = each.reader.held if each.reader.is_long else 0
            if not held:
                del self._arriving[each]
            total += held
            if each.peer is not None and each.peer.principal == principal:
                own += held
        if total > RECEIVING_MAX or (principal and own > RECEIVING_MAX // 2):
            raise InvalidRequest(f"incomplete packets take {total} bytes, of {principal!r} {own}")

    def forget(self, found: Connection) -> None:
        """Stop counting a connection that was closed."""
        self._arriving.pop(found, None)

    def stalled(self, now: float, patience_s: float) -> list[Connection]:
        """Return the connections whose packet has not grown for too long."""
        found = []
        for each, (filled, since) in list(self._arriving.items()):
            if not each.reader.is_long:
                del self._arriving[each]
            elif each.reader.filled != filled:
                self._arriving[each] = each.reader.filled, now
            elif now - since > patience_s:
                found.append(each)
        return found
