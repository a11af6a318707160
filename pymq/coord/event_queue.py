"""What a backend has to tell its zkserver, in order, and no more of it than must be told. Pure."""

from __future__ import annotations

from collections import deque

from pymq.core.metadata.coordination import Changed, CoordEvent

__all__ = ["News"]


class News:
    """Events that wait to be taken."""

    def __init__(self) -> None:
        self._events: deque[CoordEvent] = deque()
        self._told: set[str] = set()  # changes told since the last event of another kind
        self._held: list[Changed] = []

    def tell(self, event: CoordEvent) -> None:
        """Tell of *event* after all that was told before."""
        if not isinstance(event, Changed):
            self._told.clear()
        elif event.path in self._told:
            return  # It will be read after this anyway: a storm of changes takes no more room.
        else:
            self._told.add(event.path)
        self._events.append(event)

    def hold(self, change: Changed) -> None:
        """Tell of *change*, but not before :meth:`release`."""
        self._held.append(change)

    def release(self) -> None:
        """Tell of the changes that were held back."""
        held, self._held = self._held, []
        for change in held:
            self.tell(change)

    def take(self) -> list[CoordEvent]:
        """What was told since the last call."""
        events = list(self._events)
        self._events.clear()
        self._told.clear()
        return events
