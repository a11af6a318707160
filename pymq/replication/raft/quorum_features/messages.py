"""Messages of ReadIndex and of snapshots; see the package's docstring."""

from __future__ import annotations

from pymq.core.message import RaftAppend, RaftAppended
from pymq.core.types import BlockId
from pymq.core.values import value


@value
class RoundAppend(RaftAppend):
    """RaftAppend of a leader with reads to confirm; the follower's answer has the same *round*."""

    round: int = 0


@value
class RoundAppended(RaftAppended):
    """The answer to RoundAppend, with the latest round of this term."""

    round: int = 0


@value
class RaftSnapshot:
    """InstallSnapshot: the state before *end*, for a follower whose log ends before the leader's
    start.
    """

    block: BlockId
    epoch: int
    end: int
    last_epoch: int
    data: bytes
