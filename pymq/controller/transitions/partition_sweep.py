"""Changes all partitions that a broker hosts, in slices."""

from __future__ import annotations

from collections.abc import Callable

from pymq.controller.state.hosting_index import Hosting
from pymq.controller.state.image import Draft
from pymq.core.observe.coverage import mark
from pymq.core.types import TopicPartition

LOOKS_MAX = 1_000  # partitions checked in a slice, some 5 ms

# Changes one partition; returns False if the draft is full and more is left.
Change = Callable[[Draft, TopicPartition], bool]

_Position = tuple[tuple[TopicPartition, ...], int, Hosting | None]


class Sweep:
    """The progress of a change in slices.

    Other changes are committed between two slices. So the sweep visits a partition again if one of
    its blocks changed meanwhile, or if the broker got a block of it. With the last slice, the sweep
    has seen the present state of all partitions.
    """

    def __init__(self, broker: str) -> None:
        self.changed: list[TopicPartition] = []  # by the latest planned slice
        self._broker = broker
        self._names: tuple[TopicPartition, ...] = ()
        self._at = 0  # position in the names, after the last committed slice
        self._hosting: Hosting | None = None  # index of the image that the names are from
        self._sequence = 0  # sequence of that index, after the last committed slice
        self._planned: _Position = ((), 0, None)

    def plan(self, draft: Draft, change: Change) -> bool:
        """Draft the next slice; returns whether nothing is left after it.

        Without :meth:`commit` in between, it drafts the same slice again.
        """
        names, at = self._left(draft.image.hosting)
        self.changed = []
        looks = 0
        is_whole = True
        while is_whole and at < len(names):
            if draft.is_full or looks == LOOKS_MAX:
                is_whole = False
                break
            looks += 1
            if draft.image.find(names[at]) is None:  # Its topic was deleted.
                at += 1
                continue
            before = len(draft.ops)
            is_whole = change(draft, names[at])
            if len(draft.ops) > before:
                self.changed.append(names[at])
            at += is_whole
        if not is_whole and not draft.ops:
            mark("sweep.nothing_to_change")
        self._planned = (names, at, draft.image.hosting)
        return is_whole

    def commit(self) -> list[TopicPartition]:
        """Take in that the latest slice is committed; returns the partitions that it changed.

        No other change may have been committed since the slice was planned.
        """
        self._names, self._at, self._hosting = self._planned
        self._sequence = self._hosting.sequence if self._hosting is not None else 0
        return self.changed

    def _left(self, hosting: Hosting) -> tuple[tuple[TopicPartition, ...], int]:
        """Return the partitions to visit, and the position of the next one."""
        late = None
        if hosting is self._hosting:  # Otherwise the tree was read again.
            late = hosting.changed(self._broker, self._sequence)
        if late is None:
            return hosting.hosted(self._broker), 0
        if late:
            mark("sweep.changed_meanwhile")
            return (*self._names[self._at :], *late), 0
        return self._names, self._at
