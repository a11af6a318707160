"""Requests to a coordinator backend and their answers, as plain values.

The backend is a small tree of nodes with versions, kept in memory, in SQLite or in ZooKeeper. The
controller sends :class:`Commit` and :class:`Load`, each with a tag; the answer has the same tag.
The backend never blocks its caller: answers and watch events come back in order, as
:data:`CoordEvent` values. A watch event is only a hint: the controller then reads the node and its
version again.

Paths are absolute, ``/``-separated, without a trailing slash. A node's version starts at 0 when it
is created and rises by one with each :class:`Put`. A node that is deleted and created again starts
at 0 again.
"""

from __future__ import annotations

from pymq.core.values import value
from pymq.errors import PymqError


@value
class Create:
    """Create a node; fails if the node exists or its parent does not exist."""

    path: str
    data: bytes
    ephemeral: bool = False  # whether the node is removed with the session that created it


@value
class Put:
    """Replace a node's data if its version is *version*."""

    path: str
    data: bytes
    version: int


@value
class Delete:
    """Remove a node without children if its version is *version*."""

    path: str
    version: int


@value
class Check:
    """Fail the whole commit unless the node's version is *version*."""

    path: str
    version: int


Op = Create | Put | Delete | Check


@value
class Commit:
    """Do all of *ops* in order, or none of them."""

    tag: int
    ops: tuple[Op, ...]


@value
class Load:
    """Read *root* and all nodes below it, and watch them for changes."""

    tag: int
    root: str


CoordRequest = Commit | Load


@value
class Entry:
    """A node that was read."""

    path: str
    data: bytes
    version: int
    owner: str | None = None  # the session that keeps an ephemeral node alive


@value
class Committed:
    """The commit succeeded; *versions* holds the new version of each op's node (-1 if deleted)."""

    tag: int
    versions: tuple[int, ...]


@value
class Conflicted:
    """The commit failed and changed nothing; *index* is the first op that failed."""

    tag: int
    index: int
    reason: str  # "exists", "missing", "version", "not-empty", "no-parent"


@value
class Uncertain:
    """The connection broke during the commit, which was done completely or never will be done."""

    tag: int


@value
class Failed:
    """The backend refused the request and changed nothing; *error* is the reason."""

    tag: int
    error: PymqError


@value
class Loaded:
    """The answer to :class:`Load`, ordered by path; empty when the root does not exist."""

    tag: int
    entries: tuple[Entry, ...]


@value
class Changed:
    """The node at *path* was created, changed or deleted. This is a hint: read the node again."""

    path: str


@value
class Suspended:
    """The backend cannot be reached; the controller makes no decisions until :class:`Resumed`."""


@value
class Resumed:
    """The backend can be reached again, in the same session."""


@value
class SessionExpired:
    """The session and its ephemeral nodes have expired; *session* is the new one."""

    session: str


CoordEvent = (
    Committed
    | Conflicted
    | Uncertain
    | Failed
    | Loaded
    | Changed
    | Suspended
    | Resumed
    | SessionExpired
)
