"""The state that must survive a crash of a member: its term and its vote (Raft, figure 2)."""

from __future__ import annotations

from typing import NamedTuple

from pymq.core import cbor
from pymq.core.message import Message
from pymq.core.observe.coverage import mark
from pymq.core.ready import Envelope, Ready, SaveState
from pymq.errors import CorruptMetadata, InvalidRequest
from pymq.replication.raft.group import RaftGroup

VERSION = 1


class HardState(NamedTuple):
    """Term and vote as one value, so that they are saved together."""

    term: int
    vote: str | None

    def dumps(self) -> bytes:
        """Pack the state for the disk."""
        return cbor.dumps([VERSION, self.term, self.vote])

    @classmethod
    def loads(cls, data: bytes) -> HardState:
        """Unpack the state.

        Raises:
            CorruptMetadata: the bytes are not a hard state, or a newer pymq wrote them.
        """
        try:
            match cbor.loads(data):
                case [1, int(term), None | str() as vote] if term >= 0:
                    return cls(term, vote)
        except InvalidRequest:
            pass  # Handled like the error below.
        raise CorruptMetadata("the saved term and vote of a block cannot be read")


class PersistentState:
    """The hard state, whether it is durable, and the messages that wait until it is."""

    def __init__(self, group: RaftGroup, hard: HardState, is_saved: bool) -> None:
        self._group = group
        self.hard = hard
        # whether the state is on disk, or part of the write in progress
        self.is_saved = is_saved
        self._saving: HardState | None = None  # the state that the write in progress saves
        self.held: list[Envelope] = []  # messages that leave when the hard state is durable

    @property
    def term(self) -> int:
        """The member's term."""
        return self.hard.term

    @property
    def vote(self) -> str | None:
        """The member's vote in its term."""
        return self.hard.vote

    @property
    def is_durable(self) -> bool:
        """Whether the hard state would survive a crash."""
        return self.is_saved and self._saving is None

    def change(self, term: int, vote: str | None) -> None:
        """Set term and vote; the next write saves them."""
        self.hard, self.is_saved = HardState(term, vote), False

    def send(self, peer: str, message: Message) -> None:
        """Send a message with this member's term, when the term is durable."""
        if self.is_saved and self._saving is None:
            self._group.host.send(peer, message)
        else:
            mark("raft.held_back")
            self.held.append((peer, message))

    def flush(self, ready: Ready) -> None:
        """Add the hard state to *ready*, and the messages that wait for this state."""
        if not self.is_saved:
            ready.write.append(SaveState(self._group.block, self.hard.dumps()))
            self._saving, self.is_saved = self.hard, True
        ready.after += self.held
        self.held = []

    def stable(self) -> HardState | None:
        """Note that the write is durable; returns the hard state in that write, if any."""
        saved, self._saving = self._saving, None
        return saved
