"""Reads a tree node by node, so that the result was true at one moment. Pure.

ZooKeeper has no request for a whole tree, which may change while it is read. But its root is
watched, and the event of a change comes before any answer that knows of it. So a node that is told
as changed is read again; when nothing is left to be read, none has changed since its last reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from pymq.core.metadata.coordination import Entry
from pymq.core.values import value

__all__ = ["GetNode", "ListNode", "TreeReading"]

_by_path = attrgetter("path")


@value
class GetNode:
    """Ask for a node itself."""

    path: str


@value
class ListNode:
    """Ask for the names of a node's children."""

    path: str


class TreeReading:
    """One load of *root*; ``/`` itself is not part of what is loaded."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._below = "/" if root == "/" else root + "/"
        self._todo: dict[GetNode | ListNode, None] = {}
        self._out = 0  # questions that were asked and not answered
        self._listed: set[str] = set()  # only ever asked for what is in it
        self._found: dict[str, Entry] = {}
        self._todo[ListNode(root) if root == "/" else GetNode(root)] = None

    @property
    def is_done(self) -> bool:
        """Whether all is known."""
        return not self._todo and not self._out

    def ask(self, at_most: int) -> list[GetNode | ListNode]:
        """What to ask next, while fewer than *at_most* questions are out."""
        asked = []
        while self._todo and self._out < at_most:
            question = next(iter(self._todo))
            del self._todo[question]
            self._out += 1
            asked.append(question)
        return asked

    def got(self, path: str, entry: Entry | None, has_children: bool) -> None:
        """The node at *path* is *entry*, or is not there."""
        self._out -= 1
        if entry is None:
            self._found.pop(path, None)
            return
        self._found[path] = entry
        if has_children and path not in self._listed:
            # Once is enough: a child that comes later is told as changed.
            self._todo[ListNode(path)] = None

    def listed(self, path: str, names: Iterable[str] | None) -> None:
        """The node at *path* has children of these names, or is not there."""
        self._out -= 1
        if names is None:
            return
        self._listed.add(path)
        above = path.rstrip("/")
        for name in names:
            child = f"{above}/{name}"
            if child not in self._found:
                self._todo[GetNode(child)] = None

    def changed(self, path: str) -> None:
        """The node at *path* was made, changed or deleted."""
        if path == self._root != "/" or path.startswith(self._below):
            self._todo[GetNode(path)] = None

    def entries(self) -> tuple[Entry, ...]:
        """All that was found, ordered by path."""
        return tuple(sorted(self._found.values(), key=_by_path))
