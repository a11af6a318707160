"""The packets for clients that have not left the process, and the clients that read none.

A broker asks this class before it reads records for a client, so that a slow client cannot fill its
memory (:class:`pymq.core.pending.fetch_limits.FetchOutbox`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic

from pymq.core.pending.fetch_limits import Loads
from pymq.transport.base import TransportQuotas
from pymq.transport.peers import P, PeerTable

LOOK_S = 1.0  # interval of searches for stalled clients


class ClientOutbox(Generic[P]):
    """The clients of one node with packets that have not left the process.

    *cut* ends the connection of a peer, and returns whether there was one.
    """

    def __init__(
        self,
        peers: PeerTable[P],
        cut: Callable[[P], bool],
        quotas: TransportQuotas | None,
        stalled_ms: int,
    ) -> None:
        self.loaded: dict[P, None] = {}  # clients with bytes that have not left the process
        self._peers = peers
        self._cut = cut
        self._quotas = quotas
        self._stalled_s = stalled_ms / 1000
        self._looked_at = 0.0  # time of the last search for stalled clients

    def loads(self) -> Loads:
        """The bytes that have not left the process, by principal and connection."""
        found, now = Loads(), time.monotonic()
        for peer in list(self.loaded):
            if size := self._unsent(peer, now):
                found.add(peer.principal or peer.name, peer.name, size)
        return found

    def owner(self, source: str) -> tuple[str, str]:
        """Return the principal of a machine (or its node if it has none), and its node."""
        peer = self._peers.find(source)[0]
        return peer.principal or peer.name, peer.name

    def is_there(self, connection: str) -> bool:
        """Whether a node is connected, or can be connected to."""
        peer = self._peers.by_name.get(connection)
        return peer is not None and (peer.is_connected or self._peers.endpoint(peer) is not None)

    def wait_ms(self, account: str) -> int:
        """Return the milliseconds until the quota of a principal allows a send to it; 0 if now."""
        return self._quotas.fetch_wait_ms(account) if self._quotas is not None else 0

    def write_wait_ms(self, account: str) -> int:
        """Return the milliseconds until the quota of a principal allows a write for it.

        0 if now.
        """
        return self._quotas.produce_wait_ms(account) if self._quotas is not None else 0

    def wrote(self, account: str, size: int) -> None:
        """Count bytes written for a principal in addition to those that it sent."""
        if self._quotas is not None:
            self._quotas.produced(account, size)

    def cut_stalled(self, now: float) -> list[P]:
        """End the connections of clients that have not read any of their packets for too long.

        This method searches at most once a second, and returns those clients.
        """
        if now - self._looked_at <= LOOK_S:
            return []
        self._looked_at = now
        connected = [
            peer for peer in list(self.loaded) if self._unsent(peer, now) and peer.has_come
        ]
        return [
            peer for peer in connected if now - peer.moved_at > self._stalled_s and self._cut(peer)
        ]

    def _unsent(self, peer: P, now: float) -> int:
        size = peer.waiting_bytes + peer.in_flight(now)
        if not size:
            del self.loaded[peer]
        return size
