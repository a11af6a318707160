"""The contract of a coordinator backend; :func:`pymq.testing.check_coordinator` proves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymq.core.metadata.coordination import CoordEvent, CoordRequest


class Coordinator(Protocol):
    """A small versioned tree that several zkservers share.

    ``submit`` never blocks and never raises for what the backend decides: the answer is an event.
    All events, answers and watches alike, come out of ``poll`` in the order in which they happened,
    and a change is never reported before the commit that made it is answered to its own submitter.
    An object belongs to the thread of its loop.

    What backends have in common, down to the reason for which a commit is refused, is this:

    **Nodes.** The root ``/`` is always there; it has no data, is in no :class:`Loaded` and cannot
    be changed. A node holds at most ``MAX_DATA_BYTES`` (:mod:`pymq.coord.tree`). Its version is 0
    when it is made, also when there was one of its path before, and rises by one with each
    :class:`Put`, also of the same data and also twice within a commit.

    **Ephemeral nodes** belong to the session that made them and go when it ends, whoever has
    changed them since. They cannot have children: to :class:`Create` one is "no-parent". They are
    not kept over a restart.

    **Commits** are done whole or not at all, and in the order of ``submit``, also between loads.
    Each op sees what the ops before it did. The first that does not hold is told in
    :class:`Conflicted`, with the first of these reasons that is true of it:

    =============  =====================================================================
    ``Create``     "no-parent": there is none, or it is ephemeral; then "exists"
    ``Put``        "missing"; then "version"
    ``Delete``     "missing"; then "version"; then "not-empty": it has children
    ``Check``      "missing"; then "version"
    =============  =====================================================================

    An empty commit is done, too. A node that a commit makes and deletes again was never there for
    anybody else, though it may be told as changed.

    **Loads** are ordered by path, as code points. From the answer on the session hears of every
    change at or below the root, whoever makes it, itself included, and also when the root is not
    there yet or goes and comes again. It hears of nothing else, and of nothing that a refused
    commit would have done. A change may be told more than once.

    **Connections.** A backend elsewhere may be lost. :class:`Suspended` says so, at the latest when
    the session may have ended; from then on requests are kept. :class:`Resumed` says that the
    session has survived: what was kept is sent, and each loaded root is told as changed, since
    nobody knows what has happened. :class:`SessionExpired` says that it has not: earlier watches
    are gone, commits that were kept are :class:`Uncertain`, loads that were kept are carried out.

    An :class:`Uncertain` commit was done or will never be. The answer to a load that is submitted
    after it tells which.

    :class:`Failed` answers a request that the backend refuses for a reason of its own, such as an
    ACL; the commit has changed nothing.

    **What submit raises.** ``InvalidRequest`` for what no backend could ever do
    (:func:`pymq.coord.tree.validate`; then it has done nothing, and no event comes), ``Closed``
    after ``close``, ``ForkedError`` in a child process, and a ``StoreError`` when the backend's
    own disk fails: after ``StoreFull`` the commit is known not to be done, after any other nothing
    is known and the backend must be opened again. A backend elsewhere that can never come back
    raises that from ``poll``.

    **Names of sessions** are never used twice on a tree.
    """

    @property
    def session(self) -> str:
        """The name of this connection's session; ephemeral nodes made through it carry it."""
        ...

    def submit(self, request: CoordRequest) -> None:
        """Start *request*; its answer, with the same tag, comes out of a later ``poll``."""
        ...

    def poll(self) -> Sequence[CoordEvent]:
        """Hand over what happened since the last call; empty when nothing did. Does not wait."""
        ...

    def close(self) -> None:
        """End the session; its ephemeral nodes go away at once. Closing twice is allowed."""
        ...
