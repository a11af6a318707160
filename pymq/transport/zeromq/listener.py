"""The bound ROUTER socket of a node, which admits or refuses the peers that connect."""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING

import zmq

from pymq.core.types import CLIENT_PREFIX
from pymq.errors import ConfigError, InvalidRequest
from pymq.transport import wire
from pymq.transport.base import ANONYMOUS, OnRefused, Tuning
from pymq.transport.curve.key_ring import KeyRing
from pymq.transport.peers import node_of_identity
from pymq.transport.zeromq.connections import Connections
from pymq.transport.zeromq.peers import Peer, Peers
from pymq.transport.zeromq.sockets import (
    MORE,
    SOCKETS_MAX,
    descriptor,
    is_local,
    make_router,
    send_frames,
)
from pymq.transport.zeromq.zap import Authenticator, secure_server, self_test

if TYPE_CHECKING:
    from pymq.transport.zeromq.sockets import Context


class Listener:
    """The bound socket of a node, at *bound*.

    With keys, the listener admits only peers that have proved a known key with CurveZMQ, and only
    under their own names. Without keys, the listener admits every peer, so it listens only on this
    machine, unless *insecure* is set.

    Raises:
        ConfigError: without keys the listener would be open to the network, or it admits an unknown
            key.
    """

    def __init__(
        self,
        listen: str,
        context: Context,
        selector: selectors.BaseSelector,
        tuning: Tuning,
        *,
        keys: KeyRing | None,
        insecure: bool,
        on_refused: OnRefused | None,
    ) -> None:
        if keys is None and not insecure and not is_local(listen):
            raise ConfigError(
                f"{listen} is open to the network, and there are no keys: give a folder of "
                "keys (curve_dir), or set insecure to allow everybody everything"
            )
        self._keys = keys
        self._on_refused = on_refused
        # handles authentication; it is closed with its context
        self._doorman: Authenticator | None = None
        if keys is None:
            self.socket, self.bound = make_router(context, listen, tuning)
        else:
            # must be created before the ROUTER is bound
            doorman = self._doorman = Authenticator(context, keys, on_refused, tuning)
            selector.register(descriptor(doorman.socket), selectors.EVENT_READ, doorman.answer)
            self.socket, self.bound = make_router(
                context, listen, tuning, lambda socket: secure_server(socket, keys)
            )
            self_test(context, doorman, keys, self.bound)
        self.connections: Connections | None = None
        self._per_principal = tuning.per_principal if keys is not None else SOCKETS_MAX
        if self.bound.startswith("tcp://"):
            crowd = self.connections = Connections(self.socket, tuning.handshake_ms)
            selector.register(descriptor(crowd.socket), selectors.EVENT_READ, crowd.note)
            if self._doorman is not None:
                self._doorman.connections = crowd
        selector.register(descriptor(self.socket), selectors.EVENT_READ, None)

    def speaks(self, number: int, principal: str) -> bool:
        """Whether to accept a packet of *principal* from the connection *number*."""
        if self.connections is None:
            return True
        return self.connections.speaks(number, principal, self._per_principal)

    def admit(self, me: str, peers: Peers, identity: bytes, key: str) -> Peer:
        """Return the peer that has connected to node *me* with a routing id.

        *key* is the key that the connection has proved, if there are keys.

        Raises:
            InvalidRequest: the peer is refused, and a packet with the reason was sent to it.
        """
        keys, principal, problem = self._keys, ANONYMOUS, ""
        if keys is not None:
            principal = keys.principal(key) or ANONYMOUS
        if keys is not None and not principal:
            problem = "the key of this connection was revoked"
        elif (node := node_of_identity(identity)) is None:
            problem = "a routing id is NODE/ and 16 hex digits"
        elif identity in peers.fenced:
            problem = "another process has connected under the name of this node"
        elif node == me:
            problem = f"{node} is here"
        elif keys is not None and not self._may_be(keys, peers, principal, node):
            problem = f"{principal} may not use the name {node}"
        else:
            peer = peers.get(node)
            peers.admit(peer, identity)
            peer.key, peer.principal = key, principal
            # A client may use its principal's name as its node name, but is still a client.
            is_node = not node.startswith(CLIENT_PREFIX)
            peer.is_client = not (is_node and (keys is None or keys.is_node(principal)))
            peer.header_max = (
                wire.CLIENT_HEADER_BYTES_MAX if peer.is_client else wire.HEADER_BYTES_MAX
            )
            return peer
        refused = InvalidRequest(problem)
        self._refuse(identity, principal, refused)
        raise refused

    def _may_be(self, keys: KeyRing, peers: Peers, principal: str, node: str) -> bool:
        there = peers.by_name.get(node)
        is_taken = there is not None and there.route is not None and there.principal != principal
        return not is_taken and keys.may_be(principal, node)

    def _refuse(self, identity: bytes, principal: str, error: InvalidRequest) -> None:
        if self._on_refused is not None:
            self._on_refused(principal, repr(identity)[2:-1])
        try:
            self.socket.send(identity, MORE)
            send_frames(self.socket, wire.encode([("", "", wire.Refused(error))]))
        except zmq.ZMQError:
            pass  # the peer is gone or does not read, so it does not get the reason
