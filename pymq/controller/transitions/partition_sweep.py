"""A change of all partitions that a broker hosts, made in slices."""

from __future__ import annotations

from collections.abc import Callable

from pymq.controller.state.hosting_index import Hosting
from pymq.controller.state.image import Draft
from pymq.core.observe.coverage import mark
from pymq.core.types import TopicPartition

LOOKS_MAX = 1_000  # partitions that a slice looks at, which takes some 5 ms

# Changes one partition; returns whether that was all, or the draft is full.
Change = Callable[[Draft, TopicPartition], bool]

_Position = tuple[tuple[TopicPartition, ...], int, Hosting | None]


class Sweep:
    """How far such a change has got.

    Other changes are committed between two slices. So a partition one of whose blocks was changed
    meanwhile, or that the broker was given, is looked at again: the slice that says that it is the
    last one has seen all of them as they are then.
    """

    def __init__(self, broker: str) -> None:
        self.changed: list[TopicPartition] = []  # by the slice that was planned last
        self._broker = broker
        self._names: tuple[TopicPartition, ...] = ()
        self._at = 0  # in them, after the last committed slice
        self._hosting: Hosting | None = None  # of the image that they were found in
        self._sequence = 0  # of its changes, after the last committed slice
        self._planned: _Position = ((), 0, None)

    def plan(self, draft: Draft, change: Change) -> bool:
        """Draft the next slice; returns whether nothing is left after it.

        Planned again without :meth:`commit` between, it is the same slice once more.
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
        """The slice that was planned last is committed; returns what it has changed.

        Nobody else has changed anything since it was planned.
        """
        self._names, self._at, self._hosting = self._planned
        self._sequence = self._hosting.sequence if self._hosting is not None else 0
        return self.changed

    def _left(self, hosting: Hosting) -> tuple[tuple[TopicPartition, ...], int]:
        """What is to be looked at, and from where on."""
        late = None
        if hosting is self._hosting:  # Else the tree was read anew.
            late = hosting.changed(self._broker, self._sequence)
        if late is None:
            return hosting.hosted(self._broker), 0
        if late:
            mark("sweep.changed_meanwhile")
            return (*self._names[self._at :], *late), 0
        return self._names, self._at
