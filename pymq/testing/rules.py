"""All checkers together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymq.testing.checkers import Immutable, LogMatching, OneLeader, Watch, Watermark
from pymq.testing.copies import Copies
from pymq.testing.insync import InSync
from pymq.testing.metadata import Metadata
from pymq.testing.offsets import Offsets
from pymq.testing.orders import Orders
from pymq.testing.promises import Answers, Reads
from pymq.testing.sharing import Leases

if TYPE_CHECKING:
    from pymq.testing.cluster import Cluster

RULES = (
    "promise-survives",  # the ledger's
    "nothing-invented-on-disk",
    "recovered-is-whole",
    *LogMatching.rules,
    *Watermark.rules,
    *OneLeader.rules,
    *Immutable.rules,
    *Answers.rules,
    *Reads.rules,
    *InSync.rules,
    *Orders.rules,
    *Leases.rules,
    *Offsets.rules,
    *Metadata.rules,
    *Copies.rules,
)


def watch(cluster: Cluster) -> Watch:
    """Let all checkers watch a cluster from its beginning; their order matters."""
    found = Watch(cluster)
    immutable = Immutable(found)
    for checker in (
        LogMatching(found),
        OneLeader(found),  # before what relies on it having forgotten what may be lost
        Watermark(found),
        immutable,
        Answers(found, immutable),
        Reads(found),
        InSync(found),  # after what has made a sealed block's log known
        Orders(found),
        Leases(found),
        Offsets(found),
        Metadata(found),
        Copies(found),
    ):
        found.add(checker)
    return found
