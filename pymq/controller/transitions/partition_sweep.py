"""Changes all partitions that a broker hosts, in several commits."""

from __future__ import annotations

from collections.abc import Callable

from pymq.controller.state.hosting_index import Hosting
from pymq.controller.state.image import Draft
from pymq.core.observe.coverage import mark
from pymq.core.types import TopicPartition
from pymq.core.values import define

LOOKS_MAX = 1_000  # partitions checked for one commit, which takes about 5 ms

# changes one partition; returns False if the draft is full before the change is complete
Change = Callable[[Draft, TopicPartition], bool]


@define
class _Position:
    """The position after one part of a sweep."""

    names: tuple[TopicPartition, ...] = ()
    at: int = 0  # position in the names
    hosting: Hosting | None = None  # index of the image from which the names were read
    looks: int = 0  # number of partitions that the next part may check
    left: int = 0  # number of partitions that were left before this part; 0: this is the first part


class Sweep:
    """The progress of a change that takes several commits.

    Other changes may be committed between two parts. So the sweep visits a partition again if one
    of its blocks has changed meanwhile, or if the broker got another block of it. After the last
    part, the sweep has seen the current state of all partitions.

    A sweep always ends: if a part did not reduce the number of remaining partitions, the next part
    may check twice as many, and finally all of them.
    """

    def __init__(self, broker: str) -> None:
        self.changed: list[TopicPartition] = []  # partitions changed by the latest planned part
        self._broker = broker
        self._done = _Position(looks=LOOKS_MAX)  # position after the last committed part
        self._planned = self._done
        self._sequence = 0  # sequence of the hosting index after the last committed part

    def plan(self, draft: Draft, change: Change) -> bool:
        """Draft the next part; returns whether it is the last one.

        Without a :meth:`commit` in between, a second call drafts the same part again.
        """
        names, at = self._left(draft.image.hosting)
        left, looks_max = len(names) - at, self._done.looks
        if 0 < self._done.left <= left:
            mark("sweep.gets_nowhere")
            looks_max *= 2
        self.changed = []
        looks = 0
        is_whole = True
        while is_whole and at < len(names):
            if draft.is_full or looks == looks_max:
                is_whole = False
                break
            looks += 1
            if draft.image.find(names[at]) is None:  # the topic was deleted
                at += 1
                continue
            before = len(draft.ops)
            is_whole = change(draft, names[at])
            if len(draft.ops) > before:
                self.changed.append(names[at])
            at += is_whole
        if not is_whole and not draft.ops:
            mark("sweep.nothing_to_change")
        self._planned = _Position(names, at, draft.image.hosting, looks_max, left)
        return is_whole

    def commit(self) -> list[TopicPartition]:
        """Note that the latest part is committed; returns the partitions that it changed.

        No other change may be committed between :meth:`plan` and this call.
        """
        self._done = self._planned
        hosting = self._done.hosting
        self._sequence = hosting.sequence if hosting is not None else 0
        return self.changed

    def _left(self, hosting: Hosting) -> tuple[tuple[TopicPartition, ...], int]:
        """Return the partitions to visit, and the position of the next one."""
        done, late = self._done, None
        if hosting is done.hosting:  # otherwise the zkserver has read the tree again
            late = hosting.changed(self._broker, self._sequence)
        if late is None:
            return hosting.hosted(self._broker), 0
        if late:
            mark("sweep.changed_meanwhile")
            return tuple(dict.fromkeys((*done.names[done.at :], *late))), 0
        return done.names, done.at
