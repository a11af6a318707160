"""How a node connects to others: a DEALER for each, that knows whom it wants."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pymq.transport.curve import KeyRing
from pymq.transport.curvezap import Watch, secure_client
from pymq.transport.peers import Link, Peer
from pymq.transport.sockets import Tuning, descriptor, make_dealer

if TYPE_CHECKING:
    from pymq.transport.sockets import Context, Socket

REFUSED_S = 1.0  # until a peer that has refused us, or whose key is missing, is tried again


class Dialer:
    """Makes the connections of the node with a routing id; *on_problem* hears why one fails."""

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

    def call(self, peer: Peer, endpoint: str) -> Link | None:
        """Connect to a peer, unless that is of no use now."""
        link = self._make(peer, endpoint)
        if link is not None:
            peer.link = link
            self._selector.register(descriptor(link.socket), selectors.EVENT_READ, link)
        return link

    def _make(self, peer: Peer, endpoint: str) -> Link | None:
        context, me, keys = self._context, self._identity, self._keys
        if keys is None:
            return Link(endpoint, make_dealer(context, endpoint, me, self._tuning), peer)
        now = time.monotonic()
        if now < peer.refused_until:
            return None
        expected = keys.at(peer.name, endpoint)
        if expected is None:
            peer.refused_until = now + REFUSED_S
            self._on_problem(f"{keys.folder} has no key for {peer.name} at {endpoint}")
            return None
        own, key = keys.own, expected.key
        watch: list[Watch] = []

        def secure(socket: Socket) -> None:
            secure_client(socket, own.public, own.secret, key)
            watch.append(Watch(socket, endpoint))

        socket = make_dealer(context, endpoint, me, self._tuning, secure)
        link = Link(endpoint, socket, peer, key, watch[0])
        peer.principal = expected.name
        self._selector.register(
            descriptor(watch[0].socket), selectors.EVENT_READ, lambda: self._watched(link)
        )
        return link

    def _watched(self, link: Link) -> None:
        """Something has become of a connection that we make."""
        assert link.watch is not None
        problem = link.watch.problem()
        if problem:
            self._on_problem(problem)
            if link.watch.is_over and link.peer.link is link:
                self.hang_up(link.peer)  # Our key may be known when it is tried again.
                link.peer.refused_until = time.monotonic() + REFUSED_S

    def hang_up(self, peer: Peer) -> None:
        """End the connection that was made to a peer, if there is one."""
        link, peer.link = peer.link, None
        if link is None:
            return
        if link.watch is not None:
            self._selector.unregister(descriptor(link.watch.socket))
            link.watch.close()
        self._selector.unregister(descriptor(link.socket))
        link.socket.close(0)

    def check(self, peer: Peer) -> None:
        """The keys have changed: hang up on a peer that would now need another one."""
        if peer.link is not None and self._keys is not None:
            expected = self._keys.at(peer.name, peer.link.endpoint)
            if expected is None or expected.key != peer.link.key:
                self.hang_up(peer)
