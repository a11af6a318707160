"""What a zkserver asks of its coordinator backend, and what comes back, as plain values.

The backend is a small tree of nodes with versions, kept in memory, in SQLite or in ZooKeeper. It is
asked through :class:`Commit` and :class:`Load`, each with a tag that its answer carries, and it
never blocks its caller: answers and watch events come back in order, as :data:`CoordEvent` values.
A watch event is a hint and nothing more; whoever gets one reads again with the version.

Paths are absolute, ``/``-separated, without a trailing slash. A node's version starts at 0 when it
is created and rises by one with each :class:`Put`. A node that is created again starts at 0 again.
"""

from __future__ import annotations

from pymq.core.values import value
from pymq.errors import PymqError


@value
class Create:
    """Make a node; fails when it exists or when its parent does not."""

    path: str
    data: bytes
    ephemeral: bool = False  # goes away with the session that made it


@value
class Put:
    """Replace a node's data, but only while its version is *version*."""

    path: str
    data: bytes
    version: int


@value
class Delete:
    """Remove a node without children, but only while its version is *version*."""

    path: str
    version: int


@value
class Check:
    """Change nothing, but fail the whole commit unless the node's version is *version*."""

    path: str
    version: int


Op = Create | Put | Delete | Check


@value
class Commit:
    """Do all of *ops* in their order, or none of them."""

    tag: int
    ops: tuple[Op, ...]


@value
class Load:
    """Read *root* and everything below it, and report every later change below it."""

    tag: int
    root: str


CoordRequest = Commit | Load


@value
class Entry:
    """A node as it was read."""

    path: str
    data: bytes
    version: int
    owner: str | None = None  # the session that keeps an ephemeral node alive


@value
class Committed:
    """The commit was done; *versions* holds the new version of each op's node (-1 once deleted)."""

    tag: int
    versions: tuple[int, ...]


@value
class Conflicted:
    """The commit was refused and changed nothing; *index* is the first op that did not hold."""

    tag: int
    index: int
    reason: str  # "exists", "missing", "version", "not-empty", "no-parent"


@value
class Uncertain:
    """The connection broke while the commit was under way: it was done whole, or never will be."""

    tag: int


@value
class Failed:
    """The backend will not do it, and nothing has changed: *error* says what stands in the way."""

    tag: int
    error: PymqError


@value
class Loaded:
    """The answer to :class:`Load`, ordered by path; empty when the root does not exist."""

    tag: int
    entries: tuple[Entry, ...]


@value
class Changed:
    """Something at *path* was created, changed or deleted. Only a hint: read it again."""

    path: str


@value
class Suspended:
    """The backend cannot be reached; until :class:`Resumed` nothing can be known or decided."""


@value
class Resumed:
    """The backend is reachable again and the session has survived."""


@value
class SessionExpired:
    """The session is gone and its ephemeral nodes with it; *session* names the new one."""

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
