"""Which zkserver is the active one.

Each looks whether there is one. If so, it stands by, and looks again when the coordinator hints at
a change, or after a while, because a hint may be lost (K4). If not, it reads the tree and makes
``/pymq/controller``, an ephemeral node, together with the next controller epoch: one commit, which
one zkserver wins.

Whoever is cut off from the coordinator has no power until the connection is back (K3); whoever
loses its session has lost the election too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from pymq.controller.state.image import Draft, Image
from pymq.controller.state.transactions import Backend
from pymq.controller.transitions.request_plans import folders
from pymq.coord import paths
from pymq.core.metadata.coordination import (
    Changed,
    Commit,
    Committed,
    Conflicted,
    CoordEvent,
    Entry,
    Failed,
    Load,
    Loaded,
    Resumed,
    SessionExpired,
    Suspended,
    Uncertain,
)
from pymq.core.metadata.nodes import ControllerEpoch, ControllerNode, decode_node
from pymq.core.observe.coverage import mark
from pymq.core.types import NEVER
from pymq.errors import PymqError


class ControllerRole(Enum):
    """What a zkserver does."""

    LOOKING = 0  # whether anybody is active
    READING = 1  # the tree, because nobody was
    CLAIMING = 2
    STANDBY = 3
    ACTIVE = 4


class Candidate(Protocol):
    """The zkserver around it."""

    def take_over(self, image: Image, now: int) -> None:
        """It is the active one now."""
        ...

    def reloaded(self, image: Image, now: int) -> None:
        """It asked for the tree anew, and is still the active one."""
        ...

    def resign(self) -> None:
        """It is active no more."""
        ...

    def stand_by(self) -> None:
        """Somebody else is active, or nobody can be."""
        ...


class Election:
    """One zkserver's part in it."""

    def __init__(
        self,
        node: ControllerNode,
        backend: Backend,
        host: Candidate,
        new_claim: Callable[[], str],
        standby_ms: int,
    ) -> None:
        self.role = ControllerRole.LOOKING
        self.active: ControllerNode | None = None  # as far as is known
        self.is_suspended = False
        self.problem: PymqError | None = None  # why it could not become active
        self.deadline = NEVER
        self._node = node
        self._backend = backend
        self._host = host
        self._new_claim = new_claim
        self._standby_ms = standby_ms
        self._claim = ""
        self._draft: Draft | None = None
        self._tag = 0
        self._is_rereading = False
        self._is_checking = False  # first whether it is still the active one
        self._look()

    @property
    def is_active(self) -> bool:
        """Whether this zkserver may decide anything."""
        return self.role is ControllerRole.ACTIVE and not self.is_suspended

    @property
    def is_open(self) -> bool:
        """Whether it is not known yet who is active, and will be soon."""
        return (
            self.role in (ControllerRole.LOOKING, ControllerRole.READING, ControllerRole.CLAIMING)
            and not self.is_suspended
        )

    def reread(self) -> None:
        """The active one's: the tree is not what it was taken to be.

        Perhaps because another zkserver is active, and then there is no need to read all of it.
        """
        self._is_rereading = self._is_checking = True
        self._load(paths.controller())

    def decided(self, event: CoordEvent, now: int) -> None:
        """Take in what the coordinator has to say."""
        match event:
            case Loaded():
                if event.tag == self._tag:
                    self._loaded(event.entries, now)
            case Committed() | Conflicted() | Uncertain():
                if event.tag == self._tag and self.role is ControllerRole.CLAIMING:
                    self._claimed(event, now)
            case Failed(error=error):
                if event.tag == self._tag:
                    self._failed(error, now)
            case Changed(path=path):
                if path == paths.controller() and self.role in (
                    ControllerRole.STANDBY,
                    ControllerRole.ACTIVE,
                ):
                    self.check()
            case Suspended():
                mark("election.suspended")
                self.is_suspended = True
            case Resumed():
                self.is_suspended = False
                if self.role in (ControllerRole.STANDBY, ControllerRole.ACTIVE):
                    self.check()
            case SessionExpired():
                self.is_suspended = False
                self._lose(self._claim if self.role is not ControllerRole.ACTIVE else "")

    def tick(self, now: int) -> None:
        """Do what is due."""
        if self.deadline <= now:
            self.deadline = NEVER
            if self._is_rereading:
                self.reread()
            else:
                self.check()

    def claim_failed(self, tag: int, error: PymqError, now: int) -> None:
        """The coordinator could not carry the claim out, and nothing is changed."""
        if self.role is ControllerRole.CLAIMING and tag == self._tag:
            self._failed(error, now)

    def _failed(self, error: PymqError, now: int) -> None:
        """The coordinator refuses to tell or to do what was asked last; try again later."""
        if self.role in (ControllerRole.STANDBY, ControllerRole.ACTIVE):
            self.problem, self.deadline = error, now + self._standby_ms
        else:
            self._stand_by(None, now, error)

    # --- the steps ------------------------------------------------------------------------------

    def _load(self, root: str) -> None:
        self._tag = self._backend.next_tag()
        self._backend.ask(Load(self._tag, root))

    def _look(self) -> None:
        self.role, self.deadline = ControllerRole.LOOKING, NEVER
        self._load(paths.controller())

    def check(self) -> None:
        """See whether all is as it was; nothing changes until the answer is here."""
        if not self._is_rereading:
            self._load(paths.controller())

    def _loaded(self, entries: Sequence[Entry], now: int) -> None:
        if self._is_checking:
            self._is_checking = False
            if entries and self._is_mine(decode_node(ControllerNode, entries[0].data)):
                self._load("/")
            else:
                self._lose()
            return
        if self.role is ControllerRole.READING or self._is_rereading:
            self._read(Image.load(entries), now)
            return
        found = decode_node(ControllerNode, entries[0].data) if entries else None
        if self.role is ControllerRole.ACTIVE:
            if not self._is_mine(found):
                self._lose()
        elif found is not None and not self._is_mine(found):
            self._stand_by(found, now)
        else:
            self.role = ControllerRole.READING
            self._load("/")

    def _read(self, image: Image, now: int) -> None:
        self._is_rereading = False
        if self.role is ControllerRole.ACTIVE:
            if self._is_mine(image.controller):
                self._host.reloaded(image, now)
            else:
                self._lose()
        elif image.controller is None:
            self._run(image)
        elif self._is_mine(image.controller):
            mark("election.was_won_already")
            self._win(image, now)
        else:
            self._stand_by(image.controller, now)

    def _is_mine(self, found: ControllerNode | None) -> bool:
        return found is not None and found.claim == self._claim != ""

    def _run(self, image: Image) -> None:
        """Become the active zkserver at the next controller epoch, or find that another has."""
        self.role, self._claim = ControllerRole.CLAIMING, self._new_claim()
        draft = self._draft = Draft(image)
        folders(draft)
        node = ControllerNode(self._node.name, self._node.endpoint, self._claim)
        draft.create(paths.controller(), node, ephemeral=True)
        path, epoch = paths.controller_epoch(), ControllerEpoch(image.controller_epoch + 1)
        if path in image.versions:
            draft.put(path, epoch)
        else:
            draft.create(path, epoch)
        self._tag = self._backend.next_tag()
        self._backend.ask(Commit(self._tag, tuple(draft.ops)))

    def _claimed(self, event: Committed | Conflicted | Uncertain, now: int) -> None:
        if isinstance(event, Committed):
            assert self._draft is not None
            self._draft.adopt(event.versions)
            self._win(self._draft.image, now)
        else:
            mark("election.lost_race")
            self._look()  # Somebody else was faster, or nobody knows who was.

    def _win(self, image: Image, now: int) -> None:
        self.role, self.active, self.problem = ControllerRole.ACTIVE, image.controller, None
        self._draft = None
        mark("election.won")
        self._host.take_over(image, now)

    def _stand_by(
        self, active: ControllerNode | None, now: int, problem: PymqError | None = None
    ) -> None:
        self.role, self.active, self.problem = ControllerRole.STANDBY, active, problem
        self.deadline = now + self._standby_ms
        self._draft = None
        mark("election.stands_by")
        self._host.stand_by()

    def _lose(self, claim: str = "") -> None:
        """Begin anew; a *claim* under way may still hold, if it is made in the next session."""
        was_active = self.role is ControllerRole.ACTIVE
        self._claim, self.active = claim, None
        self._is_rereading = self._is_checking = False
        self._look()
        if was_active:
            mark("election.resigned")
            self._host.resign()
