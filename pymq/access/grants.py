"""Whose a producer's id is, in a form that every broker can check by itself.

A cluster with keys gives out the ids of producers, with a grant for each: what it is for, and a MAC
under a secret that only brokers and zkservers know. A producer sends its grant with each batch,
and the door of the broker compares. So nothing is kept of who owns what, neither in a partition nor
in the tree, and it holds after a roll, a restart, and at a leader that is new to the producer.

Ids without a name are given out in blocks, to a principal (Kafka gives out blocks, too: KIP-730; it
binds none to a principal). The id of a named producer is random and stays with the name; its grant
holds for those who may write as that name, up to the epoch that was given out with it.
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
CACHED = 4_096  # grants that a door has checked; each is for a client, or for a name
GRANT_BYTES = 1_024  # a longer one is none


@value
class Grant:
    """*count* ids from *first* on belong to a principal, or to those who may use a name."""

    first: int
    count: int
    epoch: int  # the upper half of producer epochs: no higher one was given out
    principal: str
    name: str

    def covers(self, producer_id: int, epoch: int) -> bool:
        """Whether it is for that producer, under that (whole) epoch's upper half."""
        return self.first <= producer_id < self.first + self.count and epoch <= self.epoch


def new_block(new_id: Callable[[], str]) -> int:
    """The first of a block of ids that nobody else has; 46 random bits."""
    return (int(new_id()[16:], 16) & (NAMED - 1)) // BLOCK * BLOCK


def new_named(new_id: Callable[[], str]) -> int:
    """An id for a name, which cannot be derived from it."""
    return NAMED | (int(new_id()[16:], 16) & (NAMED - 1))


def seal(secret: bytes, grant: Grant) -> bytes:
    """Write a grant so that nobody without *secret* can make another."""
    fields = [grant.first, grant.count, grant.epoch, grant.principal, grant.name]
    packed = cbor.dumps(fields)
    return packed + _mac(secret, packed)


def unseal(secret: bytes, sealed: bytes) -> Grant | None:
    """Read a grant; None if it was not made with *secret*."""
    from hmac import compare_digest  # only now: OpenSSL comes with it

    packed, mac = sealed[:-MAC_SIZE], sealed[-MAC_SIZE:]
    if len(sealed) > GRANT_BYTES or not compare_digest(_mac(secret, packed), mac):
        return None
    try:
        first, count, epoch, principal, name = cbor.loads(packed)
    except (PymqError, TypeError, ValueError):
        return None
    return Grant(first, count, epoch, principal, name)


def give(secret: bytes, principal: str, new_id: Callable[[], str]) -> ProducerIds:
    """Give a block of ids to *principal*."""
    first = new_block(new_id)
    return ProducerIds(first, BLOCK, 0, seal(secret, Grant(first, BLOCK, 0, principal, "")))


def _mac(secret: bytes, packed: bytes) -> bytes:
    from hashlib import blake2b  # only now: OpenSSL comes with it

    return blake2b(packed, key=secret, digest_size=MAC_SIZE, person=b"pymq producers").digest()


class Grants:
    """The grants that a node gives and checks; each one is unsealed once, then found again."""

    def __init__(self, secret: Callable[[], bytes], new_id: Callable[[], str]) -> None:
        self._secret = secret
        self._new_id = new_id
        self._known_by = b""
        self._known: dict[bytes, Grant] = {}

    @property
    def is_able(self) -> bool:
        """Whether the node has the secret; a broker gets it from its zkserver."""
        return bool(self._secret())

    def give(self, principal: str) -> ProducerIds:
        """Give a block of ids to *principal*."""
        return give(self._secret(), principal, self._new_id)

    def read(self, sealed: bytes) -> Grant | None:
        """The grant in *sealed*, if this cluster has made it."""
        secret = self._secret()
        if secret != self._known_by:
            self._known, self._known_by = {}, secret
        found = self._known.get(sealed)
        if found is None and sealed and (found := unseal(secret, sealed)) is not None:
            if len(self._known) >= CACHED:
                self._known.clear()
            self._known[sealed] = found
        return found
