"""The hard state with which a member of a Raft block begins, new or after a restart."""

from __future__ import annotations

from pymq.core.block.replicator import Replica
from pymq.core.observe.coverage import mark
from pymq.replication.raft.persistent_state import HardState


def hard_state(replica: Replica) -> tuple[HardState, bool]:
    """Return the hard state to begin with, and whether it is durable already."""
    state, log = replica.state, replica.log
    if replica.saved is None:
        # This member has promised nothing yet, and the metadata names the first leader. The term
        # is saved before the first append all the same, or a restart would find records without
        # one.
        hard, is_saved = HardState(state.epoch, state.leader), False
    else:
        hard, is_saved = HardState.loads(replica.saved), True
    newest = max(state.epoch, log.epoch_at(log.end))
    if newest > hard.term:
        # The epoch has a leader, for which this member has not voted.
        mark("raft.start.newer_term")
        hard, is_saved = HardState(newest, None), False
    return hard, is_saved


def is_appointed(replica: Replica) -> bool:
    """Whether this replica is the block's first leader, which needs no election.

    True only once: it begins to lead when its hard state is durable, and then it is not new any
    more. So no term has two leaders, whenever it crashes.
    """
    state, open_block = replica.state, replica.state.blocks[-1]
    return (
        replica.is_new
        and replica.saved is None
        and replica.host.me == state.leader == open_block.leader
        and state.epoch == open_block.epoch  # else another replica has been elected already
    )
