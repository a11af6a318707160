"""The hard state with which a member of a Raft block starts, at first or after a restart."""

from __future__ import annotations

from pymq.core.block.replicator import Replica
from pymq.core.observe.coverage import mark
from pymq.replication.raft.persistent_state import HardState


def hard_state(replica: Replica) -> tuple[HardState, bool]:
    """Return the hard state at the start, and whether it is already durable."""
    state, log = replica.state, replica.log
    if replica.saved is None:
        # This member has not voted yet, and the metadata names the first leader. Nevertheless the
        # member saves the term before the first append: otherwise a restart would find records
        # without a term.
        hard, is_saved = HardState(state.epoch, state.leader), False
    else:
        hard, is_saved = HardState.loads(replica.saved), True
    newest = max(state.epoch, log.epoch_at(log.end))
    if newest > hard.term:
        # This member has not voted in that later term.
        mark("raft.start.newer_term")
        hard, is_saved = HardState(newest, None), False
    return hard, is_saved


def is_appointed(replica: Replica) -> bool:
    """Whether this replica is the block's first leader, which needs no election.

    The result is true only once: when its hard state is durable, the replica begins to lead and is
    no longer new. So no term has two leaders, even after a crash.
    """
    state, open_block = replica.state, replica.state.blocks[-1]
    return (
        replica.is_new
        and replica.saved is None
        and replica.host.me == state.leader == open_block.leader
        and state.epoch == open_block.epoch  # otherwise another replica was elected
    )
