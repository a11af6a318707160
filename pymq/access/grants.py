"""Grants bind producer ids to principals, in a form that each broker can check by itself.

A cluster with keys issues producer ids with a grant: the ids, their owner, and a MAC under a secret
that only brokers and zkservers know. A producer sends its grant with each batch, and the broker's
guard checks the grant. So neither partitions nor the metadata tree need to store owners, and the
check works after a roll, a restart or a change of leader.

==============  ====================================================================================
unnamed ids     issued in blocks to a principal (Kafka issues blocks too, KIP-730, without binding
                them to a principal)
named producer  its random id stays with the name; the grant is valid for all principals that
                may write under that name, up to the epoch in the grant
==============  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable

from pymq.core import cbor
from pymq.core.block.idempotence import NAMED
from pymq.core.metadata.nodes import ProducerIds
from pymq.core.values import value
from pymq.errors import PymqError

BLOCK = 1 << 16  # ids that a client gets at a time
MAC_SIZE = 16
CACHED = 4_096  # most checked grants that a guard caches; each client or name has one
GRANT_BYTES = 1_024  # no valid grant is longer


@value
class Grant:
    """*count* ids from *first* on, which belong to a principal or to a producer name."""

    first: int
    count: int
    epoch: int  # the highest assigned epoch, as the upper half of producer epochs
    principal: str
    name: str

    def covers(self, producer_id: int, epoch: int) -> bool:
        """Whether the grant includes an id with *epoch*, the upper half of a producer epoch."""
        return self.first <= producer_id < self.first + self.count and epoch <= self.epoch


def new_block(new_id: Callable[[], str]) -> int:
    """Return the first id of a new block, from 46 random bits."""
    return (int(new_id()[16:], 16) & (NAMED - 1)) // BLOCK * BLOCK


def new_named(new_id: Callable[[], str]) -> int:
    """Return a random id for a name, which cannot be derived from the name."""
    return NAMED | (int(new_id()[16:], 16) & (NAMED - 1))


def seal(secret: bytes, grant: Grant) -> bytes:
    """Encode a grant with a MAC, so that nobody can forge it without *secret*."""
    fields = [grant.first, grant.count, grant.epoch, grant.principal, grant.name]
    packed = cbor.dumps(fields)
    return packed + _mac(secret, packed)


def unseal(secret: bytes, sealed: bytes) -> Grant | None:
    """Decode a grant; None if it was not sealed with *secret*."""
    from hmac import compare_digest  # on demand: it loads OpenSSL

    packed, mac = sealed[:-MAC_SIZE], sealed[-MAC_SIZE:]
    if len(sealed) > GRANT_BYTES or not compare_digest(_mac(secret, packed), mac):
        return None
    try:
        first, count, epoch, principal, name = cbor.loads(packed)
    except (PymqError, TypeError, ValueError):
        return None
    return Grant(first, count, epoch, principal, name)


def give(secret: bytes, principal: str, new_id: Callable[[], str]) -> ProducerIds:
    """Issue a block of ids to *principal*."""
    first = new_block(new_id)
    return ProducerIds(first, BLOCK, 0, seal(secret, Grant(first, BLOCK, 0, principal, "")))


def _mac(secret: bytes, packed: bytes) -> bytes:
    from hashlib import blake2b  # on demand: it loads OpenSSL

    return blake2b(packed, key=secret, digest_size=MAC_SIZE, person=b"pymq producers").digest()


class Grants:
    """Issues and checks the grants of one node, with a cache of checked grants."""

    def __init__(self, secret: Callable[[], bytes], new_id: Callable[[], str]) -> None:
        self._secret = secret
        self._new_id = new_id
        self._known_by = b""
        self._known: dict[bytes, Grant] = {}

    @property
    def is_able(self) -> bool:
        """Whether the node has the secret, which a broker gets from the controller."""
        return bool(self._secret())

    def give(self, principal: str) -> ProducerIds:
        """Issue a block of ids to *principal*."""
        return give(self._secret(), principal, self._new_id)

    def read(self, sealed: bytes) -> Grant | None:
        """Return the grant in *sealed*, or None if this cluster did not issue it."""
        secret = self._secret()
        if secret != self._known_by:
            self._known, self._known_by = {}, secret
        found = self._known.get(sealed)
        if found is None and sealed and (found := unseal(secret, sealed)) is not None:
            if len(self._known) >= CACHED:
                self._known.clear()
            self._known[sealed] = found
        return found
