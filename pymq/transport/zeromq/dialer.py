"""Connects a node to its peers, with a DEALER for each, which accepts only the expected key."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq

from pymq.descriptors import lent
from pymq.errors import ConfigError
from pymq.transport.base import Tuning
from pymq.transport.curve.key_ring import KeyRing
from pymq.transport.zeromq.connection_watch import ConnectionWatch
from pymq.transport.zeromq.peers import Peer, PeerLink
from pymq.transport.zeromq.sockets import descriptor, make_dealer
from pymq.transport.zeromq.zap import secure_client

if TYPE_CHECKING:
    from pymq.transport.zeromq.sockets import Context, Secure, Socket

# pause after a refusal, a missing key or an invalid endpoint, before the next try
REFUSED_S = 1.0


class Dialer:
    """Makes the connections of a node; *on_problem* is called with the reason for a failure."""

    def __init__(
        self,
        identity: bytes,
        context: Context,
        selector: selectors.BaseSelector,
        tuning: Tuning,
        keys: KeyRing | None,
        on_problem: Callable[[str], None],
    ) -> None:
        self._identity = identity
        self._context = context
        self._selector = selector
        self._tuning = tuning
        self._keys = keys
        self._on_problem = on_problem
        self.on_lost: Callable[[str, bool], None] | None = None

    def call(self, peer: Peer, endpoint: str) -> PeerLink | None:
        """Connect to a peer; return None if this fails or a try would come too soon."""
        link = self._make(peer, endpoint)
        if link is not None:
            peer.link = link
            self._selector.register(descriptor(link.socket), selectors.EVENT_READ, link)
        return link

    def _make(self, peer: Peer, endpoint: str) -> PeerLink | None:
        now = time.monotonic()
        if now < peer.refused_until:
            return None
        try:
            with lent():
                return self._link(peer, endpoint, now)
        except (ConfigError, zmq.ZMQError) as error:
            # Endpoints come from other nodes: an invalid one must not stop this node.
            peer.refused_until = now + REFUSED_S
            self._on_problem(f"{peer.name}: {error}")
            return None

    def _link(self, peer: Peer, endpoint: str, now: float) -> PeerLink | None:
        keys = self._keys
        if keys is None:
            return self._watched_link(peer, endpoint)
        expected = keys.at(peer.name, endpoint)
        if expected is None:
            peer.refused_until = now + REFUSED_S
            self._on_problem(f"{keys.folder} has no key for {peer.name} at {endpoint}")
            return None
        own, key = keys.own, expected.key
        peer.principal = expected.name
        return self._watched_link(
            peer, endpoint, key, lambda socket: secure_client(socket, own.public, own.secret, key)
        )

    def _watched_link(
        self, peer: Peer, endpoint: str, key: str = "", secure: Secure | None = None
    ) -> PeerLink:
        watch: list[ConnectionWatch] = []

        def prepare(socket: Socket) -> None:
            if secure is not None:
                secure(socket)
            if secure is not None or self.on_lost is not None:
                watch.append(ConnectionWatch(socket, endpoint))

        try:
            socket = make_dealer(self._context, endpoint, self._identity, self._tuning, prepare)
        except BaseException:
            for each in watch:
                each.socket.close(0)
            raise
        link = PeerLink(endpoint, socket, peer, key, watch[0] if watch else None)
        if watch:
            self._selector.register(
                descriptor(watch[0].socket), selectors.EVENT_READ, lambda: self._watched(link)
            )
        return link

    def _watched(self, link: PeerLink) -> None:
        """Handle the events of a connection that this node makes."""
        watch, peer = link.watch, link.peer
        assert watch is not None
        was_up, problem = watch.is_up, watch.problem()
        if watch.is_up != was_up and self.on_lost is not None:
            self.on_lost(peer.name, not watch.is_up)
        if problem:
            self._on_problem(problem)
            if watch.is_over and peer.link is link:
                self.hang_up(peer)  # the peer may know this node's key at the next try
                peer.refused_until = time.monotonic() + REFUSED_S

    def hang_up(self, peer: Peer) -> None:
        """Close the connection that this node made to a peer, if any."""
        link, peer.link = peer.link, None
        if link is None:
            return
        if link.watch is not None:
            self._selector.unregister(descriptor(link.watch.socket))
            link.watch.close()
        self._selector.unregister(descriptor(link.socket))
        link.socket.close(0)

    def check(self, peer: Peer) -> None:
        """After a change of keys: disconnect from a peer if another key is now expected of it."""
        if peer.link is not None and self._keys is not None:
            expected = self._keys.at(peer.name, peer.link.endpoint)
            if expected is None or expected.key != peer.link.key:
                self.hang_up(peer)
