"""A change of all partitions that a broker hosts, made in slices."""

from __future__ import annotations

from collections.abc import Callable

from pymq.core.types import TopicPartition
from pymq.node.image import Draft, Image

# Changes one partition; returns whether that was all, or the draft is full.
Change = Callable[[Draft, TopicPartition], bool]

_Seen = dict[TopicPartition, tuple[str, int]]  # topic id and version
_Position = tuple[tuple[TopicPartition, ...], int, _Seen]


class Sweep:
    """How far such a change has got.

    Other changes are committed between two slices. So a partition that was changed after it was
    looked at, or that the broker was given meanwhile, is looked at again: the slice that says that
    it is the last one has seen all of them as they are then.
    """

    def __init__(self, broker: str) -> None:
        self.changed: list[TopicPartition] = []  # by the slice that was planned last
        self._broker = broker
        self._names: tuple[TopicPartition, ...] = ()
        self._at = 0  # in them, after the last committed slice
        self._seen: _Seen = {}
        self._planned: _Position = (self._names, 0, self._seen)

    def plan(self, draft: Draft, change: Change) -> bool:
        """Draft the next slice; returns whether nothing is left after it.

        Planned again without :meth:`commit` between, it is the same slice once more.
        """
        names, at, seen = self._names, self._at, _Seen()
        self.changed = []
        is_whole = True
        while is_whole:
            if at == len(names):
                names, at = self._left(draft.image, seen), 0
                if not names:
                    break
            name = names[at]
            state = _state(draft.image, name)
            if state is None:  # Its topic was deleted.
                at += 1
                continue
            if draft.is_full:
                is_whole = False
                break
            before = len(draft.ops)
            is_whole = change(draft, name)
            if len(draft.ops) > before:
                self.changed.append(name)
                state = (state[0], state[1] + 1)
            if is_whole:
                seen[name] = state
                at += 1
        self._planned = (names, at, seen)
        return is_whole

    def commit(self) -> list[TopicPartition]:
        """The slice that was planned last is committed; returns what it has changed."""
        self._names, self._at, seen = self._planned
        self._seen.update(seen)
        return self.changed

    def _left(self, image: Image, seen: _Seen) -> tuple[TopicPartition, ...]:
        return tuple(
            name
            for name in image.hosting.hosted(self._broker)
            if name not in seen and self._seen.get(name) != _state(image, name)
        )


def _state(image: Image, name: TopicPartition) -> tuple[str, int] | None:
    found = image.find(name)
    return (image.topics[name.topic].node.id, found.node.version) if found is not None else None
