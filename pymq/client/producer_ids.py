"""Producer ids of one client, and the grants with which brokers check the owner of an id.

In a cluster with keys the zkserver assigns ids: the client requests a block of ids for its first
producer, and takes each further id from that block. Without keys the cluster cannot check owners,
so the client draws a random id for a producer without a name.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeGuard

from pymq.core import message as msg
from pymq.core.batch.header import NO_PRODUCER
from pymq.core.block.idempotence import NAMED, hashed_id
from pymq.core.message import Message
from pymq.core.metadata.nodes import ProducerIds
from pymq.errors import InternalError, InvalidName

Ask = Callable[[Callable[[int], Message]], object]


class ProducerIdentities:
    """The producer ids of one client; any thread may take one."""

    def __init__(self, ask: Ask, random_bytes: Callable[[int], bytes], *, has_keys: bool) -> None:
        self._ask = ask
        self._random_bytes = random_bytes
        self._has_keys = has_keys
        # blocks of ids that the zkserver has assigned; the last one is in use
        self._blocks: list[ProducerIds] = []
        self._left = 0  # unused ids of the last block
        self._named: dict[int, bytes] = {}  # grants, by id
        self._lock = Lock()

    def anonymous(self) -> int:
        """Return an id that no other producer has.

        Raises:
            RequestTimeout: the cluster has keys, and no zkserver answered.
            InternalError: the zkserver's answer is invalid.
        """
        if not self._has_keys:
            return self._by_lot()
        with self._lock:
            if not self._left:
                given = self._ask_for_block()
                if given is None:
                    return self._by_lot()
                self._blocks.append(given)
                self._left = given.count
            block = self._blocks[-1]
            self._left -= 1
            return block.first + block.count - 1 - self._left

    def _by_lot(self) -> int:
        return int.from_bytes(self._random_bytes(8), "big") & (NAMED - 1)

    def _ask_for_block(self) -> ProducerIds | None:
        """Request a block of ids; None if the zkserver is too old to assign ids."""
        try:
            given = self._ask(lambda request: msg.InitProducer(request, "", takes_ids=True))
        except InvalidName:
            return None  # An older zkserver considers "" a producer's name.
        return None if _is_epoch(given) else _checked(given)

    def named(self, name: str, run: str = "") -> tuple[int, int]:
        """Return a name's producer id and the upper half of its next epoch.

        The new epoch fences the previous producer of that name.


        A retry with the same *run* gets the same epoch.

        Raises:
            AuthorizationFailed: the policy protects the name.
            RequestTimeout: no zkserver answered.
            InternalError: the zkserver's answer is invalid.
        """
        given = self._ask(lambda request: msg.InitProducer(request, name, run, True))
        if _is_epoch(given):
            return hashed_id(name), given  # An older zkserver returns no grants.
        ids = _checked(given)
        self._named[ids.first] = ids.grant
        return ids.first, ids.epoch

    def grant(self, producer_id: int) -> bytes:
        """The grant to send with the batches of a producer."""
        if producer_id == NO_PRODUCER:
            return b""
        for block in reversed(self._blocks):
            if block.first <= producer_id < block.first + block.count:
                return block.grant
        return self._named.get(producer_id, b"")


def _is_epoch(given: object) -> TypeGuard[int]:
    """Whether the answer is only an epoch, from an older zkserver that assigns no ids."""
    return type(given) is int and given >= 0


def _checked(given: object) -> ProducerIds:
    """Return the ids in a zkserver's answer.

    Raises:
        InternalError: the answer is invalid.
    """
    if not isinstance(given, ProducerIds) or given.first < 0 or given.count < 1:
        raise InternalError(
            f"a zkserver answered {given!r} to a request for a producer's id; the zkserver "
            "may be of a version that this client does not know: use the same version for both"
        )
    return given
