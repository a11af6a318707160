"""A producer id belongs to a principal, or to the principals that may use a name."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from pymq.access.audit import Audit
from pymq.access.grants import BLOCK, Grant, Grants, seal, unseal
from pymq.access.guard import Guard
from pymq.access.rules import parse_policy
from pymq.controller.state.image import Draft, Image
from pymq.controller.transitions import request_plans
from pymq.coord import paths
from pymq.core import message as msg
from pymq.core.batch.header import EPOCH_HALF
from pymq.core.batch.record import EncodedBatch
from pymq.core.block.idempotence import NAMED, hashed_id
from pymq.core.metadata.nodes import ProducerIds, ProducerNode
from pymq.core.types import AckMode
from pymq.errors import (
    AuthorizationFailed,
    InvalidRequest,
    NoBrokers,
    PymqError,
    ReplicaNotAvailable,
)

SECRET = bytes(range(16))
POLICY = {
    "rule": [
        {"principal": "*", "operations": ["Read", "Write"], "resources": ["topic:*"]},
        {
            "principal": ["good", "heir"],
            "operations": ["Write"],
            "resources": ["producer:orders"],
        },
    ]
}


class Node:
    """The access check of a node, and a client that sends to it."""

    def __init__(self, secret: bytes = SECRET) -> None:
        self.guard = Guard(parse_policy(POLICY), Audit(lambda line: None, lambda: 0), lambda: 0)
        self.guard.grants = Grants(lambda: secret, ids().__next__)

    def give(self, principal: str) -> ProducerIds:
        (answer,) = self.ask(principal, msg.InitProducer(1, "", takes_ids=True))
        assert isinstance(answer.result, ProducerIds)
        return answer.result

    def ask(self, principal: str, message: Any) -> Any:
        return self.guard(principal, f"client-{principal}", message)

    def refusal(
        self, principal: str, producer_id: int, grant: bytes, epoch: int = 0
    ) -> PymqError | None:
        batch = EncodedBatch.encode(
            [b"x"],
            timestamp_ms=0,
            producer_id=producer_id,
            producer_epoch=epoch << EPOCH_HALF,
            base_sequence=0,
        )
        produce = msg.Produce(7, "t", "0", AckMode.LEADER, batch, grant=grant)
        piece = msg.Piece("0", 0, 1)
        numbers = producer_id, epoch << EPOCH_HALF, 0
        copy = msg.Copy(7, "t", "0", AckMode.LEADER, *numbers, "s", (piece,), grant=grant)
        found = []
        for message in (produce, copy):
            answers = self.ask(principal, message)
            found.append(answers[0].error if answers is not None else None)
        assert type(found[0]) is type(found[1])
        error: PymqError | None = found[0]
        return error


def ids(seed: int = 1) -> Iterator[str]:
    """Return ids of 32 hex digits."""
    rng = Random(seed)
    while True:
        yield f"{rng.getrandbits(128):032x}"


def named(epoch: int = 0, name: str = "orders") -> ProducerIds:
    grant = seal(SECRET, Grant(NAMED | 5, 1, epoch, "", name))
    return ProducerIds(NAMED | 5, 1, epoch, grant)


def test_who_was_given_an_id_writes_under_it() -> None:
    node = Node()
    given = node.give("good")
    assert given.count == BLOCK
    assert given.first + BLOCK <= NAMED
    for producer in (given.first, given.first + BLOCK - 1):
        assert node.refusal("good", producer, given.grant) is None
    # another node accepts the grant, too
    assert Node().refusal("good", given.first, given.grant) is None


def test_nobody_else_writes_under_it() -> None:
    """Another principal cannot use the ids and grants that it reads in a topic."""
    node = Node()
    given, other = node.give("good"), node.give("mallory")
    assert given.first != other.first
    for grant in (given.grant, other.grant, b"", b"x" * 40):
        error = node.refusal("mallory", given.first, grant)
        assert isinstance(error, AuthorizationFailed)
        assert not error.retriable
    assert isinstance(node.refusal("good", given.first + BLOCK, given.grant), AuthorizationFailed)


def test_a_named_producer_is_everybodys_who_may_use_the_name_and_nobody_elses() -> None:
    """A named producer belongs to all principals that may use its name, before its first use and
    after a change.
    """
    node, given = Node(), named()
    for principal in ("good", "heir"):
        assert node.refusal(principal, given.first, given.grant) is None
    assert isinstance(node.refusal("mallory", given.first, given.grant), AuthorizationFailed)
    grant = seal(SECRET, Grant(given.first, 1, 0, "", "another"))
    assert isinstance(node.refusal("good", given.first, grant), AuthorizationFailed)


def test_no_epoch_is_used_that_was_not_given_out() -> None:
    """A producer cannot use a higher epoch than granted.

    Otherwise a producer could fence all later producers forever.
    """
    node, given = Node(), named(3)
    assert node.refusal("good", given.first, given.grant, 3) is None
    assert node.refusal("good", given.first, given.grant, 2) is None
    for epoch in (4, (1 << 32) - 1):
        assert isinstance(
            node.refusal("good", given.first, given.grant, epoch), AuthorizationFailed
        )
    block = node.give("good")
    assert isinstance(node.refusal("good", block.first, block.grant, 1), AuthorizationFailed)


def test_a_policy_that_changes_holds_for_grants_of_before() -> None:
    node, given = Node(), named()
    assert node.refusal("good", given.first, given.grant) is None
    node.guard.replace(parse_policy({"rule": POLICY["rule"][:1]}))
    assert isinstance(node.refusal("good", given.first, given.grant), AuthorizationFailed)


def test_a_grant_cannot_be_changed_nor_made_without_the_secret() -> None:
    sealed = seal(SECRET, Grant(0, BLOCK, 0, "good", ""))
    assert unseal(SECRET, sealed) == Grant(0, BLOCK, 0, "good", "")
    for at in range(len(sealed)):
        for bit in range(8):
            changed = bytearray(sealed)
            changed[at] ^= 1 << bit
            assert unseal(SECRET, bytes(changed)) is None
    assert unseal(bytes(16), sealed) is None
    assert all(unseal(SECRET, sealed[:end]) is None for end in range(len(sealed)))


def test_a_broker_that_knows_no_secret_yet_says_come_again() -> None:
    """A broker that is not registered has no secret yet, so its error is retriable."""
    given = Node().give("good")
    error = Node(b"").refusal("good", given.first, given.grant)
    assert isinstance(error, ReplicaNotAvailable)
    assert error.retriable


def test_what_has_no_number_needs_no_grant() -> None:
    node = Node()
    batch = EncodedBatch.encode([b"x"], timestamp_ms=0)
    assert node.ask("mallory", msg.Produce(7, "t", "0", AckMode.LEADER, batch)) is None


# --- what the zkserver gives out ----------------------------------------------------------------


class Tree:
    """Image and grants, changed by the same plans as in a zkserver."""

    def __init__(self) -> None:
        self.image = Image()
        self.ids = ids()
        self.change(request_plans.folders)

    def change(self, plan: Any) -> Any:
        draft = Draft(self.image)
        return plan(draft)

    def init(self, name: str, takes_ids: bool = True) -> Any:
        m = msg.InitProducer(1, name, takes_ids=takes_ids)
        return self.change(lambda draft: request_plans.init_producer(draft, m, self.ids.__next__))

    def know(self, node: ProducerNode) -> None:
        self.image.set(paths.producer(node.name), node, 1)


def test_the_id_of_a_name_is_random_and_stays() -> None:
    tree, other = Tree(), Tree()
    other.ids = ids(2)
    first = tree.init("orders")
    assert first.first & NAMED
    assert first.first not in (hashed_id("orders"), other.init("orders").first)
    assert first.epoch == 0
    tree.know(ProducerNode("orders", 0, "", first.first))
    again = tree.init("orders")
    assert (again.first, again.epoch) == (first.first, 1)


def test_a_name_of_before_goes_on_under_the_number_that_it_had() -> None:
    """An old name keeps its number, since its sequences are in the logs under that number."""
    tree = Tree()
    tree.know(ProducerNode("orders", 4))
    given = tree.init("orders")
    assert (given.first, given.epoch) == (hashed_id("orders"), 5)
    tree.know(ProducerNode("orders", 5))
    assert tree.init("orders", takes_ids=False) == 6  # a client of an earlier version


def test_a_client_of_before_does_not_take_a_hash_for_an_id() -> None:
    """The zkserver refuses a client that is too old to use the name's id: it would begin at
    sequence 0 under another number.
    """
    tree = Tree()
    tree.know(ProducerNode("orders", 0, id=NAMED | 5))
    with pytest.raises(InvalidRequest, match="too old"):
        tree.init("orders", takes_ids=False)


def test_no_ids_are_given_out_before_the_secret_is_kept() -> None:
    """No producer ids are assigned before the secret is saved: every broker would refuse them."""
    tree = Tree()
    with pytest.raises(NoBrokers):
        tree.init("")
    tree.image.secret = SECRET
    given = tree.init("")
    assert unseal(SECRET, given.grant) == Grant(given.first, BLOCK, 0, "", "")
