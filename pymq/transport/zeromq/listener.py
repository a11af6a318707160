"""Where others connect to a node: a ROUTER that is bound, and who of those who come is heard."""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING

import zmq

from pymq.errors import ConfigError, InvalidRequest
from pymq.transport import wire
from pymq.transport.base import ANONYMOUS, CLIENT_PREFIX
from pymq.transport.curve.key_ring import KeyRing
from pymq.transport.zeromq.connections import Connections
from pymq.transport.zeromq.peers import Peer, Peers, node_of_identity
from pymq.transport.zeromq.sockets import (
    MORE,
    SOCKETS_MAX,
    Tuning,
    descriptor,
    is_local,
    make_router,
    send_frames,
)
from pymq.transport.zeromq.zap import Authenticator, OnRefused, secure_server, self_test

if TYPE_CHECKING:
    from pymq.transport.zeromq.sockets import Context


class Listener:
    """The bound socket of a node, at *bound*.

    With keys, only who has proved with CurveZMQ to have one that is known is let in at all, and
    heard under no name but its own. Without, everybody is, so it is not open to the network unless
    it is *insecure* knowingly.

    Raises:
        ConfigError: it would be open to the network; or who has no key was let in.
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
                "keys (curve_dir), or say insecure to let anybody do anything"
            )
        self._keys = keys
        self._on_refused = on_refused
        self._doorman: Authenticator | None = None  # the end of the context closes its sockets
        if keys is None:
            self.socket, self.bound = make_router(context, listen, tuning)
        else:
            # Before there is a door.
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
        """Whether a packet of *principal* is heard that has come by the descriptor *number*."""
        if self.connections is None:
            return True
        return self.connections.speaks(number, principal, self._per_principal)

    def admit(self, me: str, peers: Peers, identity: bytes, key: str) -> Peer:
        """The peer that has connected to node *me* under a routing id.

        *key* is what the connection has proved to have, when there are keys.

        Raises:
            InvalidRequest: it is not to be heard, and has been told why.
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
            problem = f"{principal} may not go by the name of {node}"
        else:
            peer = peers.get(node)
            peers.admit(peer, identity)
            peer.key, peer.principal = key, principal
            # A client may go by its principal's name as well, and is a client all the same.
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
            pass  # It has gone, or does not listen: so it stays without an explanation.
