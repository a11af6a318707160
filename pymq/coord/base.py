"""The contract of a coordinator backend; :func:`pymq.testing.check_coordinator` proves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pymq.core.coordination import CoordEvent, CoordRequest


class Coordinator(Protocol):
    """A small versioned tree that several zkservers share.

    ``submit`` never blocks and never raises for what the backend decides: the answer is an event.
    All events, answers and watches alike, come out of ``poll`` in the order in which they happened,
    and a change is never reported before the commit that made it is answered to its own submitter.
    An object belongs to the thread of its loop.
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
