"""Hard state (term and vote), roles, and the counting of votes."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pymq.core import cbor
from pymq.errors import CorruptMetadata, InvalidRequest
from pymq.replication.quorum import majority

VERSION = 1


class RaftRole(Enum):
    """The role of a replica of a Raft block."""

    FOLLOWER = "follower"
    PRECANDIDATE = "precandidate"  # sends pre-votes: asks whether it would be elected (thesis 9.6)
    CANDIDATE = "candidate"
    LEADER = "leader"


class HardState(NamedTuple):
    """Term and vote: one value, so that they are saved together."""

    term: int
    vote: str | None

    def dumps(self) -> bytes:
        """Pack it for the disk."""
        return cbor.dumps([VERSION, self.term, self.vote])

    @classmethod
    def loads(cls, data: bytes) -> HardState:
        """Unpack it.

        Raises:
            CorruptMetadata: it is not a hard state, or a newer pymq wrote it.
        """
        try:
            match cbor.loads(data):
                case [1, int(term), None | str() as vote] if term >= 0:
                    return cls(term, vote)
        except InvalidRequest:
            pass  # as bad as what follows
        raise CorruptMetadata("what was saved of the elections of a block cannot be read")


class Ballot:
    """The votes, or pre-votes, of one election."""

    def __init__(self, members: int) -> None:
        self._needed = majority(members)
        self._members = members
        self._votes: dict[str, bool] = {}

    def cast(self, member: str, granted: bool) -> None:
        """Count a member's vote; only its first one counts."""
        self._votes.setdefault(member, granted)

    @property
    def is_won(self) -> bool:
        """Whether a majority has granted its vote."""
        return sum(self._votes.values()) >= self._needed

    @property
    def is_lost(self) -> bool:
        """Whether so many have refused that no majority is possible any more."""
        against = len(self._votes) - sum(self._votes.values())
        return against > self._members - self._needed
