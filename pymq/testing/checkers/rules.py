"""All checkers together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymq.testing.checkers.base import StoreWatch
from pymq.testing.checkers.copies import CopyRules
from pymq.testing.checkers.groups.leases import LeaseRules
from pymq.testing.checkers.groups.offsets import OffsetRules
from pymq.testing.checkers.groups.priorities import PriorityRules
from pymq.testing.checkers.groups.returned import ReturnedRules
from pymq.testing.checkers.immutable import Immutable
from pymq.testing.checkers.in_sync import InSyncRules
from pymq.testing.checkers.logs import LogMatching, OneLeader, Watermark
from pymq.testing.checkers.metadata import MetadataRules
from pymq.testing.checkers.orders import OrderRules
from pymq.testing.checkers.promises import AnswerRules, ReadRules

if TYPE_CHECKING:
    from pymq.testing.cluster import Cluster

RULES = (
    "promise-survives",  # a rule of the ledger
    "nothing-invented-on-disk",
    "recovered-is-whole",
    *LogMatching.rules,
    *Watermark.rules,
    *OneLeader.rules,
    *Immutable.rules,
    *AnswerRules.rules,
    *ReadRules.rules,
    *InSyncRules.rules,
    *OrderRules.rules,
    *LeaseRules.rules,
    *OffsetRules.rules,
    *ReturnedRules.rules,
    *PriorityRules.rules,
    *MetadataRules.rules,
    *CopyRules.rules,
)


def watch(cluster: Cluster) -> StoreWatch:
    """Let all checkers watch a cluster from its beginning; their order matters."""
    found = StoreWatch(cluster)
    immutable = Immutable(found)
    for checker in (
        LogMatching(found),
        # this checker forgets records that may be lost; it runs before the checkers that must not
        # see these records
        OneLeader(found),
        Watermark(found),
        immutable,
        AnswerRules(found, immutable),
        ReadRules(found),
        InSyncRules(found),  # this checker runs after the checkers that find a sealed block's log
        OrderRules(found),
        LeaseRules(found),
        OffsetRules(found),
        ReturnedRules(found),
        PriorityRules(found),
        MetadataRules(found),
        CopyRules(found),
    ):
        found.add(checker)
    return found
