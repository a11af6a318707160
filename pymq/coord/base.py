"""The contract of a coordinator backend; :func:`pymq.testing.check_coordinator` tests it."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Protocol

from pymq.core.metadata.coordination import CoordEvent, CoordRequest


class Coordinator(Protocol):
    """A small versioned tree that several zkservers share.

    ``submit`` never blocks. The backend reports its decision as an event, never as an exception.
    ``poll`` returns all events, both answers and watch events, in the order in which they happened.
    A session gets the answer to its commit before the events of the commit's changes. Only the
    thread of its loop may use the object.

    All backends behave alike, even in their reasons to refuse a commit:

    **Nodes.** The root ``/`` always exists; it has no data, is in no :class:`Loaded` and cannot be
    changed. A node holds at most ``MAX_DATA_BYTES`` (:mod:`pymq.coord.tree`). A created node has
    version 0, even if its path existed before. Each :class:`Put` adds one to the version, even for
    the same data, and also twice within a commit.

    **Ephemeral nodes** belong to the session that created them. They are removed when the session
    ends, even if another session has changed them. Ephemeral nodes cannot have children:
    :class:`Create` of a child is refused with "no-parent". Ephemeral nodes do not survive a restart
    of the coordinator.

    **Commits** are atomic. The backend carries out commits and loads in the order of ``submit``.
    Each op sees the changes of earlier ops. :class:`Conflicted` names the first op whose condition
    fails, with the first of these reasons that applies:

    =============  =====================================================================
    ``Create``     "no-parent": the parent is missing or ephemeral; then "exists"
    ``Put``        "missing"; then "version"
    ``Delete``     "missing"; then "version"; then "not-empty": the node has children
    ``Check``      "missing"; then "version"
    =============  =====================================================================

    An empty commit succeeds. If one commit creates and deletes a node, other sessions never see the
    node, but may get a watch event for it.

    **Loads** are ordered by path, as code points. After the answer to a load, the backend reports
    each change at or below the root to the session. This includes changes by the session itself,
    and changes while the root is missing or when it is created again. A watch does not report other
    changes, or changes of a refused commit. A watch may report a change more than once.

    **Connections** to a remote backend may be lost.

    * :class:`Suspended`: the connection is lost. The event arrives at the latest when the session
      may have ended. From this event on, the backend keeps requests and does not send them.
    * :class:`Resumed`: the connection is back, in the same session. The backend sends the kept
      requests and reports each loaded root as changed, because it may have missed changes.
    * :class:`SessionExpired`: the session and its watches have ended. Kept commits are
      :class:`Uncertain`; kept loads are carried out in the new session.

    An :class:`Uncertain` commit was either carried out or never will be. A load that is submitted
    after that event shows which.

    :class:`Failed` answers a request that the backend refuses for its own reasons, such as an ACL;
    the commit has changed nothing.

    **Exceptions of submit:**

    * ``InvalidRequest``: no backend could carry out the request (:func:`pymq.coord.tree.validate`).
      Nothing was done, and no event follows.
    * ``Closed`` after ``close``, ``ForkedError`` in a child process.
    * ``StoreError``: the backend's own disk has failed. After ``StoreFull`` the commit was not
      carried out; after any other ``StoreError`` the outcome is unknown, and the backend must be
      opened again. If a remote backend can never be reached again, ``poll`` raises the error.

    **Names of sessions** are never used twice in a tree.
    """

    @property
    def session(self) -> str:
        """The name of this session, which owns the ephemeral nodes that it creates."""
        ...

    @property
    def arrivals(self) -> Sized:
        """Empty if ``poll`` would return no events; the loop reads this attribute in each turn."""
        ...

    def submit(self, request: CoordRequest) -> None:
        """Start *request*; a later ``poll`` returns its answer, with the same tag."""
        ...

    def poll(self) -> Sequence[CoordEvent]:
        """Return the events since the last call, without waiting; empty if there are none."""
        ...

    def close(self) -> None:
        """End the session; its ephemeral nodes are removed at once. Closing twice is allowed."""
        ...
