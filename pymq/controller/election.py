"""Controller election: at most one zkserver is active.

1. A zkserver reads ``/pymq/controller``, an ephemeral node.
2. If the node exists, the zkserver stands by. The standby zkserver reads the node again when the
   coordinator backend notifies it of a change, and periodically, because a notification may be lost
   (K4).
3. If the node does not exist, the zkserver reads the whole tree. The zkserver then submits one
   commit that creates the node and raises the controller epoch. Only one zkserver can win this
   commit.

A zkserver that is cut off from the coordinator backend decides nothing until it is reconnected
(K3). A zkserver whose session has expired is no longer active.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

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
from pymq.core.values import value
from pymq.errors import NotController, PymqError


class ControllerRole(Enum):
    """A zkserver's state in the election."""

    LOOKING = 0  # reading whether a zkserver is active
    READING = 1  # reading the tree, because no zkserver was active
    CLAIMING = 2  # the zkserver is committing its claim
    STANDBY = 3
    ACTIVE = 4


@value
class Elected:
    """The zkserver is active from now on."""

    image: Image


@value
class Reloaded:
    """The zkserver is still active, and has read the tree again."""

    image: Image


@value
class Resigned:
    """The zkserver is no longer active."""


@value
class StandsBy:
    """The zkserver stands by, because another zkserver is active or none can be."""


Outcome = Elected | Reloaded | Resigned | StandsBy


class Election:
    """The part of one zkserver in the election."""

    def __init__(
        self,
        me: str,
        endpoint: str,
        backend: Backend,
        new_claim: Callable[[], str],
        standby_ms: int,
    ) -> None:
        self.role = ControllerRole.LOOKING
        self.active: ControllerNode | None = None  # the active zkserver, if known
        self.is_suspended = False  # cut off from the coordinator backend
        # the error that kept the zkserver from becoming active
        self.problem: PymqError | None = None
        self.deadline = NEVER
        self._me = me
        self._endpoint = endpoint
        self._backend = backend
        self._new_claim = new_claim
        self._standby_ms = standby_ms
        self._claim = ""
        self._draft: Draft | None = None
        self._tag = 0
        self._is_rereading = False
        # whether the zkserver first checks that it is still active before it reads the tree again
        self._is_checking = False
        self._look()

    @property
    def is_active(self) -> bool:
        """Whether this zkserver is active and connected to the coordinator backend."""
        return self.role is ControllerRole.ACTIVE and not self.is_suspended

    @property
    def is_open(self) -> bool:
        """Whether the election is in progress."""
        return (
            self.role in (ControllerRole.LOOKING, ControllerRole.READING, ControllerRole.CLAIMING)
            and not self.is_suspended
        )

    def reread(self) -> None:
        """Read the tree again, because it differs from the image.

        Another zkserver may be active, so check ``/pymq/controller`` before reading the whole tree.
        """
        self._is_rereading = self._is_checking = True
        self._load(paths.controller())

    @property
    def refusal(self) -> PymqError:
        """Return the error for requests while this zkserver is not active."""
        return self.problem or self.not_controller()

    def not_controller(self) -> NotController:
        """Return the error that names the active zkserver, if known."""
        me, active = self._me, self.active
        if active is None or active.name == me:
            return NotController(f"{me} is not the active zkserver", controller=None, endpoint=None)
        return NotController(
            f"{me} is not the active zkserver; {active.name} is",
            controller=active.name,
            endpoint=active.endpoint,
        )

    def decided(self, event: CoordEvent, now: int) -> Outcome | None:
        """Handle an event of the coordinator; returns what the zkserver must do now."""
        match event:
            case Loaded():
                if event.tag == self._tag:
                    return self._loaded(event.entries, now)
            case Committed() | Conflicted() | Uncertain():
                if event.tag == self._tag and self.role is ControllerRole.CLAIMING:
                    return self._claimed(event)
            case Failed(error=error):
                if event.tag == self._tag:
                    return self._failed(error, now)
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
                return self._lose(self._claim if self.role is not ControllerRole.ACTIVE else "")
        return None

    def tick(self, now: int) -> None:
        """Act on the deadlines that have passed."""
        if self.deadline <= now:
            self.deadline = NEVER
            if self._is_rereading:
                self.reread()
            else:
                self.check()

    def claim_failed(self, tag: int, error: PymqError, now: int) -> Outcome | None:
        """Note that the backend could not carry out the claim; the tree is unchanged."""
        if self.role is ControllerRole.CLAIMING and tag == self._tag:
            return self._failed(error, now)
        return None

    def _failed(self, error: PymqError, now: int) -> Outcome | None:
        """Retry later, because the coordinator backend has refused the last request."""
        if self.role in (ControllerRole.STANDBY, ControllerRole.ACTIVE):
            self.problem, self.deadline = error, now + self._standby_ms
            return None
        return self._stand_by(None, now, error)

    # --- steps of the election ------------------------------------------------------------------

    def _load(self, root: str) -> None:
        self._tag = self._backend.next_tag()
        self._backend.ask(Load(self._tag, root))

    def _look(self) -> None:
        self.role, self.deadline = ControllerRole.LOOKING, NEVER
        self._load(paths.controller())

    def check(self) -> None:
        """Read ``/pymq/controller`` again; the role stays until the answer arrives."""
        if not self._is_rereading:
            self._load(paths.controller())

    def _loaded(self, entries: Sequence[Entry], now: int) -> Outcome | None:
        if self._is_checking:
            self._is_checking = False
            if not entries or not self._is_mine(decode_node(ControllerNode, entries[0].data)):
                return self._lose()
            self._load("/")
            return None
        if self.role is ControllerRole.READING or self._is_rereading:
            return self._read(Image.load(entries), now)
        found = decode_node(ControllerNode, entries[0].data) if entries else None
        if self.role is ControllerRole.ACTIVE:
            return None if self._is_mine(found) else self._lose()
        if found is not None and not self._is_mine(found):
            return self._stand_by(found, now)
        self.role = ControllerRole.READING
        self._load("/")
        return None

    def _read(self, image: Image, now: int) -> Outcome | None:
        self._is_rereading = False
        if self.role is ControllerRole.ACTIVE:
            return Reloaded(image) if self._is_mine(image.controller) else self._lose()
        if image.controller is None:
            self._run(image)
            return None
        if self._is_mine(image.controller):
            mark("election.was_won_already")
            return self._win(image)
        return self._stand_by(image.controller, now)

    def _is_mine(self, found: ControllerNode | None) -> bool:
        return found is not None and found.claim == self._claim != ""

    def _run(self, image: Image) -> None:
        """Claim the next controller epoch with one conditional commit."""
        self.role, self._claim = ControllerRole.CLAIMING, self._new_claim()
        draft = self._draft = Draft(image)
        folders(draft)
        node = ControllerNode(self._me, self._endpoint, self._claim)
        draft.create(paths.controller(), node, ephemeral=True)
        path, epoch = paths.controller_epoch(), ControllerEpoch(image.controller_epoch + 1)
        if path in image.versions:
            draft.put(path, epoch)
        else:
            draft.create(path, epoch)
        self._tag = self._backend.next_tag()
        self._backend.ask(Commit(self._tag, tuple(draft.ops)))

    def _claimed(self, event: Committed | Conflicted | Uncertain) -> Outcome | None:
        if isinstance(event, Committed):
            assert self._draft is not None
            self._draft.adopt(event.versions)
            return self._win(self._draft.image)
        mark("election.lost_race")
        self._look()  # Another zkserver has won, or the answer was lost.
        return None

    def _win(self, image: Image) -> Outcome:
        self.role, self.active, self.problem = ControllerRole.ACTIVE, image.controller, None
        self._draft = None
        mark("election.won")
        return Elected(image)

    def _stand_by(
        self, active: ControllerNode | None, now: int, problem: PymqError | None = None
    ) -> Outcome:
        self.role, self.active, self.problem = ControllerRole.STANDBY, active, problem
        self.deadline = now + self._standby_ms
        self._draft = None
        mark("election.stands_by")
        return StandsBy()

    def _lose(self, claim: str = "") -> Outcome | None:
        """Restart the election; a *claim* in flight may still be committed, in the next session."""
        was_active = self.role is ControllerRole.ACTIVE
        self._claim, self.active = claim, None
        self._is_rereading = self._is_checking = False
        self._look()
        if not was_active:
            return None
        mark("election.resigned")
        return Resigned()
