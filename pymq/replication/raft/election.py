"""What a member must never forget of elections, and the counting of one."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pymq.core import cbor
from pymq.errors import CorruptMetadata, InvalidRequest
from pymq.replication.quorum import majority

VERSION = 1


class RaftRole(Enum):
    """What a replica of a Raft block is at the moment."""

    FOLLOWER = "follower"
    PRECANDIDATE = "precandidate"  # asks whether it would be elected (thesis 9.6)
    CANDIDATE = "candidate"
    LEADER = "leader"


class HardState(NamedTuple):
    """The term, and whom the member has voted for in it: one value, so that it is saved as one."""

    term: int
    vote: str | None

    def dumps(self) -> bytes:
        """Pack it for the disk."""
        return cbor.dumps([VERSION, self.term, self.vote])

    @classmethod
    def loads(cls, data: bytes) -> HardState:
        """Unpack it.

        Raises:
            CorruptMetadata: it is none, or a newer pymq wrote it.
        """
        try:
            match cbor.loads(data):
                case [1, int(term), None | str() as vote] if term >= 0:
                    return cls(term, vote)
        except InvalidRequest:
            pass  # as bad as what follows
        raise CorruptMetadata("what was saved of the elections of a block cannot be read")


class Ballot:
    """The votes of one election, or of the question whether there should be one."""

    def __init__(self, members: int) -> None:
        self._needed = majority(members)
        self._members = members
        self._votes: dict[str, bool] = {}

    def cast(self, member: str, granted: bool) -> None:
        """Count a member's vote; its first one counts."""
        self._votes.setdefault(member, granted)

    @property
    def is_won(self) -> bool:
        """Whether a majority is in favour."""
        return sum(self._votes.values()) >= self._needed

    @property
    def is_lost(self) -> bool:
        """Whether so many are against that no majority can be in favour any more."""
        against = len(self._votes) - sum(self._votes.values())
        return against > self._members - self._needed
