"""What a member of a Raft block begins with, new or after a restart."""

from __future__ import annotations

from pymq.core.block.replicator import Replica
from pymq.core.observe.coverage import mark
from pymq.replication.raft.election import HardState


def hard_state(replica: Replica) -> tuple[HardState, bool]:
    """The hard state to begin with, and whether it is on the disk or follows from what is there."""
    state, log = replica.state, replica.log
    if replica.saved is None:
        # Nothing was promised yet, and who leads the block to begin with is known to all. That is
        # saved all the same before anything is taken in, or a restart finds records and no term.
        hard, is_saved = HardState(state.epoch, state.leader), False
    else:
        hard, is_saved = HardState.loads(replica.saved), True
    newest = max(state.epoch, log.epoch_at(log.end))
    if newest > hard.term:
        mark("raft.start.newer_term")  # A leader of it exists; nobody here has voted in it.
        hard, is_saved = HardState(newest, None), False
    return hard, is_saved


def is_appointed(replica: Replica) -> bool:
    """Whether this is the block's first leader, which needs no election.

    Once only: it begins to lead when that it does is saved, and what was saved is there for good.
    So no term is ever led twice, whenever it crashes.
    """
    state, open_block = replica.state, replica.state.blocks[-1]
    return (
        replica.is_new
        and replica.saved is None
        and replica.host.me == state.leader == open_block.leader
        and state.epoch == open_block.epoch  # else somebody has been elected already
    )
