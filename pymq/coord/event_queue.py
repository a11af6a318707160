"""The queue of a backend's events for its zkserver, in order and without repeated changes."""

from __future__ import annotations

from collections import deque

from pymq.core.metadata.coordination import Changed, CoordEvent

__all__ = ["News"]


class News:
    """Events that the zkserver has not taken yet."""

    def __init__(self) -> None:
        self._events: deque[CoordEvent] = deque()
        self._told: set[str] = set()  # paths changed since the last event of another kind
        self._held: list[Changed] = []

    def tell(self, event: CoordEvent) -> None:
        """Append *event*, unless it repeats a change that is still in the queue."""
        if not isinstance(event, Changed):
            self._told.clear()
        elif event.path in self._told:
            # After the first report the zkserver reads the node anyway; dropping repeats bounds the
            # memory.
            return
        else:
            self._told.add(event.path)
        self._events.append(event)

    def hold(self, change: Changed) -> None:
        """Keep *change* back until :meth:`release`."""
        self._held.append(change)

    def release(self) -> None:
        """Append the changes that :meth:`hold` has kept back."""
        held, self._held = self._held, []
        for change in held:
            self.tell(change)

    def take(self) -> list[CoordEvent]:
        """Remove and return the events since the last call."""
        events = list(self._events)
        self._events.clear()
        self._told.clear()
        return events
