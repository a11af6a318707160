"""Reads a tree node by node; the result is a consistent snapshot.

ZooKeeper has no request for a whole tree, and the tree may change while it is read. But the root is
watched, and ZooKeeper sends the event of a change before any answer that reflects the change. So
this module reads each changed node again. When no reads are left, no node has changed after it was
read.
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
    """Read a node."""

    path: str


@value
class ListNode:
    """Read the names of a node's children."""

    path: str


class TreeReading:
    """One load of *root*; the result does not contain ``/`` itself."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._below = "/" if root == "/" else root + "/"
        self._todo: dict[GetNode | ListNode, None] = {}
        self._out = 0  # reads in flight
        self._listed: set[str] = set()  # paths whose children were requested
        self._found: dict[str, Entry] = {}
        self._todo[ListNode(root) if root == "/" else GetNode(root)] = None

    @property
    def is_done(self) -> bool:
        """Whether all nodes are read."""
        return not self._todo and not self._out

    def ask(self, at_most: int) -> list[GetNode | ListNode]:
        """Return the next reads, so that at most *at_most* are in flight."""
        asked = []
        while self._todo and self._out < at_most:
            question = next(iter(self._todo))
            del self._todo[question]
            self._out += 1
            asked.append(question)
        return asked

    def got(self, path: str, entry: Entry | None, has_children: bool) -> None:
        """Note a node: *entry*, or None if it is missing."""
        self._out -= 1
        if entry is None:
            self._found.pop(path, None)
            return
        self._found[path] = entry
        if has_children and path not in self._listed:
            # List a node only once, because new children are reported as changed.
            self._todo[ListNode(path)] = None

    def listed(self, path: str, names: Iterable[str] | None) -> None:
        """Note the names of a node's children; None if the node is missing."""
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
        """Read the node at *path* again, because it was created, changed or deleted."""
        if path == self._root != "/" or path.startswith(self._below):
            self._todo[GetNode(path)] = None

    def entries(self) -> tuple[Entry, ...]:
        """Return all nodes found, ordered by path."""
        return tuple(sorted(self._found.values(), key=_by_path))
