"""Bugs in moves of sealed blocks and of leaders."""

from __future__ import annotations

from typing import Any

import attrs

from pymq.controller.operations.block_copying import BlockCopying
from pymq.controller.state.image import Draft, Image
from pymq.controller.transitions import leader_leveling, replica_moves
from pymq.coord import paths
from pymq.core.metadata.coordination import Put
from pymq.core.metadata.nodes import BlockNode, Move, encode_node
from pymq.core.types import TopicPartition
from tests.testing.planted.bug import bug, plant
from tests.testing.planted.control import ROLLS

TESTS = "tests/testing/test_rereplication.py"


def _rewrite(draft: Draft, path: str, change: Any) -> None:
    """Change the node that a draft writes at *path*."""
    for index, (found, node, _) in enumerate(draft.edits):
        op = draft.ops[index]
        if found == path and isinstance(node, BlockNode) and isinstance(op, Put):
            changed = change(node)
            draft.ops[index] = Put(path, encode_node(changed), op.version)
            draft.edits[index] = (path, changed, False)


bug(
    "copy-counts-early",
    ROLLS,
    "a copy of a sealed block counts as whole when it is begun",
    "KAFKA-9752, CASSANDRA-8838: replicas that count while they still stream",
    test=f"{TESTS}::test_what_a_lost_broker_held_is_copied_and_not_before[leader]",
)


@plant("copy-counts-early", replica_moves, "begin")
def begin_as_whole(begin: Any, draft: Draft, name: TopicPartition, number: int, move: Move) -> None:
    begin(draft, name, number, move)
    path = paths.block(*name, number)
    _rewrite(draft, path, lambda node: attrs.evolve(node, in_sync=(*node.in_sync, move.adding)))


bug(
    "old-copy-leaves-first",
    ROLLS,
    "a replica leaves a sealed block before the one that takes its place is whole",
    "HDFS-1312 and every hand-made rebalancer",
    test=f"{TESTS}::test_a_decommission_ends_with_an_empty_broker",
)


@plant("old-copy-leaves-first", replica_moves, "begin")
def begin_without_the_old(
    begin: Any, draft: Draft, name: TopicPartition, number: int, move: Move
) -> None:
    begin(draft, name, number, move)
    path = paths.block(*name, number)
    _rewrite(draft, path, lambda node: replica_moves._without(node, move.removing))


bug(
    "moves-unasked",
    ROLLS,
    "sealed blocks move off any broker, whether it is lost or not",
    "K8: no data ever moves to rebalance",
    test=f"{TESTS}::test_no_data_moves_unless_somebody_asks",
)


@plant("moves-unasked", BlockCopying, "lost")
def all_are_lost(lost: Any, self: BlockCopying, now: int) -> tuple[str, ...]:
    return tuple(self._commits.image.brokers)


bug(
    "balance-to-anybody",
    ROLLS,
    "leadership is to be handed to replicas that are not in sync",
    "KAFKA-4084: preferred leaders that are elected before they have caught up",
    test="tests/testing/test_balance.py::test_who_is_not_in_sync_is_given_nothing_to_lead",
)


@plant("balance-to-anybody", leader_leveling, "targets")
def any_target(
    targets: Any, image: Image, name: TopicPartition, block: BlockNode, can_lead: Any
) -> tuple[str, ...]:
    return tuple(broker for broker in block.replicas if broker != block.leader)
