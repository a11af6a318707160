"""The versioned tree of the embedded backends: pure, without files, clock or threads.

A commit takes two steps, so that a backend can make the commit durable in between:

1. :meth:`Tree.plan` computes the changes and leaves the tree as it is.
2. :meth:`Tree.adopt` carries out the planned changes. If a plan is not adopted, the commit has no
   effect.

:meth:`Tree.apply` does both steps.

The root ``/`` always exists. The root holds no data, is never listed and cannot be changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import assert_never

from pymq.core.metadata.coordination import (
    Changed,
    Check,
    Commit,
    Committed,
    Conflicted,
    CoordRequest,
    Create,
    Delete,
    Entry,
    Load,
    Op,
    Put,
)
from pymq.core.values import Factory, define, value
from pymq.errors import CorruptMetadata, InvalidRequest

__all__ = ["MAX_DATA_BYTES", "CommitPlan", "Tree", "TreeWatches", "validate"]

# ZooKeeper refuses requests of 1 MiB; half of that leaves space for the other fields
MAX_DATA_BYTES = 1 << 19

# This refuses all paths that ZooKeeper refuses, so that a tree can move between backends: "." and
# ".." as names, control characters, surrogates, private-use characters and the specials from
# U+FFF0.
_PATH = re.compile(r"(?:/(?!\.\.?(?:/|\Z))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+")
_by_path = attrgetter("path")


def validate(request: CoordRequest) -> None:
    """Raise :class:`InvalidRequest` for a request that no backend could carry out.

    The function refuses a bad path, more than :data:`MAX_DATA_BYTES` of data, and a negative
    version (which means "any" to ZooKeeper). Every backend calls it in ``submit``; such a request
    is a bug of the caller.
    """
    match request:
        case Load(root=root):
            if root != "/":
                _validate_path(root)
        case Commit(ops=ops):
            for op in ops:
                _validate_op(op)
        case _:
            raise InvalidRequest(f"a coordinator takes Commit and Load, not {request!r}")


def _validate_op(op: Op) -> None:
    if not isinstance(op, (Create, Put, Delete, Check)):
        raise InvalidRequest(f"a commit takes Create, Put, Delete and Check, not {op!r}")
    _validate_path(op.path)
    if isinstance(op, (Create, Put)):
        if not isinstance(op.data, bytes):
            raise InvalidRequest(f"the data of {op.path} must be bytes, not {type(op.data)}")
        if len(op.data) > MAX_DATA_BYTES:
            raise InvalidRequest(
                f"{len(op.data)} bytes for {op.path}; a node holds at most {MAX_DATA_BYTES}",
                path=op.path,
            )
    if not isinstance(op, Create) and op.version < 0:
        raise InvalidRequest(f"version {op.version} of {op.path}; versions start at 0")


def _validate_path(path: str) -> None:
    if _PATH.fullmatch(path) is None:
        raise InvalidRequest(
            f"bad path {path!r}; it must look like /a/b: absolute, no empty name, no trailing slash"
        )


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


@value
class CommitPlan:
    """The effect of a commit: the versions for its answer, and the new entry of each touched node.

    ``None`` means that the node is removed. New parents come before their children.
    """

    versions: tuple[int, ...]
    changes: dict[str, Entry | None] = Factory(dict)


@define
class _Node:
    entry: Entry
    children: dict[str, _Node] = Factory(dict)  # by full path, in order of insertion


class Tree:
    """Nodes with data, a version and an optional owner; only whole commits change the tree."""

    def __init__(self) -> None:
        self._root = _Node(Entry("/", b"", 0))
        self._nodes: dict[str, _Node] = {"/": self._root}
        self._owned: dict[str, dict[str, None]] = {}  # paths of ephemeral nodes, by session

    def __len__(self) -> int:
        """Return the number of nodes without the root."""
        return len(self._nodes) - 1

    def get(self, path: str) -> Entry | None:
        """Return the node at *path*, if it exists."""
        node = self._nodes.get(path)
        return None if node is None else node.entry

    def load(self, root: str) -> tuple[Entry, ...]:
        """Return *root* and all nodes below it, ordered by path; empty if *root* does not exist."""
        start = self._nodes.get(root)
        if start is None:
            return ()
        found: list[Entry] = [] if start is self._root else [start.entry]
        level = [start]
        while level:
            level = [child for node in level for child in node.children.values()]
            found += [node.entry for node in level]
        found.sort(key=_by_path)
        return tuple(found)

    def apply(self, commit: Commit, session: str) -> Committed | Conflicted:
        """Carry out *commit* for *session*, completely or not at all."""
        plan = self.plan(commit, session)
        if isinstance(plan, Conflicted):
            return plan
        self.adopt(plan)
        return Committed(commit.tag, plan.versions)

    def plan(self, commit: Commit, session: str) -> CommitPlan | Conflicted:
        """Return the effect of *commit*, or its first op that fails.

        The tree stays unchanged.
        """
        draft = _Draft(self._nodes, session)
        versions = []
        for index, op in enumerate(commit.ops):
            outcome = draft.do(op)
            if isinstance(outcome, str):
                return Conflicted(commit.tag, index, outcome)
            versions.append(outcome)
        return CommitPlan(tuple(versions), draft.changes)

    def plan_expiry(self, session: str) -> CommitPlan:
        """Return the effect of the end of *session*: its ephemeral nodes are removed.

        The tree stays unchanged.
        """
        # Ephemeral nodes never have children, so all of them can be removed.
        return CommitPlan((), dict.fromkeys(self._owned.get(session, ())))

    def expire(self, session: str) -> tuple[str, ...]:
        """Remove the ephemeral nodes of *session*; return their paths in the order of creation."""
        plan = self.plan_expiry(session)
        self.adopt(plan)
        return tuple(plan.changes)

    def adopt(self, plan: CommitPlan) -> None:
        """Carry out *plan*, which must have been made from the current tree."""
        for path, entry in plan.changes.items():
            if entry is None:
                self._remove(path)
            else:
                self._set(entry)

    def restore(self, entries: Iterable[Entry]) -> None:
        """Fill an empty tree with *entries*, parents first.

        Raises :class:`CorruptMetadata` for an entry without a parent, or a repeated entry.
        """
        for entry in entries:
            if entry.path in self._nodes or _parent(entry.path) not in self._nodes:
                raise CorruptMetadata(f"node {entry.path} exists twice or has no parent")
            self._set(entry)

    def _set(self, entry: Entry) -> None:
        path = entry.path
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = _Node(entry)
            self._nodes[_parent(path)].children[path] = node
        else:
            self._disown(node.entry)
            node.entry = entry
        if entry.owner is not None:
            self._owned.setdefault(entry.owner, {})[path] = None

    def _remove(self, path: str) -> None:
        node = self._nodes.pop(path, None)
        if node is None:
            return  # created and deleted within one commit
        self._disown(node.entry)
        # The parent is already removed if the commit changed it first and deleted it later.
        if (parent := self._nodes.get(_parent(path))) is not None:
            del parent.children[path]

    def _disown(self, entry: Entry) -> None:
        if entry.owner is None:
            return
        owned = self._owned[entry.owner]
        del owned[entry.path]
        if not owned:
            del self._owned[entry.owner]


class _Draft:
    """The tree during a commit: the nodes with the changes of earlier ops of the commit."""

    def __init__(self, nodes: dict[str, _Node], session: str) -> None:
        self.changes: dict[str, Entry | None] = {}
        self._nodes = nodes
        self._session = session
        # number of children gained or lost in earlier ops, by path
        self._grown: dict[str, int] = {}

    def do(self, op: Op) -> int | str:
        """Return the new version of the op's node (-1 if deleted), or the reason of its failure."""
        match op:
            case Create():
                return self._create(op)
            case Put(path, data, version):
                if (found := self._expect(path, version)) is None:
                    return self._refusal(path)
                self.changes[path] = Entry(path, data, version + 1, found.owner)
                return version + 1
            case Delete(path, version):
                if self._expect(path, version) is None:
                    return self._refusal(path)
                if self._has_children(path):
                    return "not-empty"
                self.changes[path] = None
                self._grow(path, -1)
                return -1
            case Check(path, version):
                return self._refusal(path) if self._expect(path, version) is None else version
            case _:
                assert_never(op)

    def _create(self, op: Create) -> int | str:
        parent = self._entry(_parent(op.path))
        if parent is None or parent.owner is not None:
            return "no-parent"  # An ephemeral node cannot be a parent, as in ZooKeeper.
        if self._entry(op.path) is not None:
            return "exists"
        self.changes[op.path] = Entry(op.path, op.data, 0, self._session if op.ephemeral else None)
        self._grow(op.path, +1)
        return 0

    def _entry(self, path: str) -> Entry | None:
        if path in self.changes:
            return self.changes[path]
        node = self._nodes.get(path)
        return None if node is None else node.entry

    def _expect(self, path: str, version: int) -> Entry | None:
        found = self._entry(path)
        return found if found is not None and found.version == version else None

    def _refusal(self, path: str) -> str:
        return "missing" if self._entry(path) is None else "version"

    def _has_children(self, path: str) -> bool:
        node = self._nodes.get(path)
        return (len(node.children) if node else 0) + self._grown.get(path, 0) > 0

    def _grow(self, path: str, by: int) -> None:
        parent = _parent(path)
        self._grown[parent] = self._grown.get(parent, 0) + by


class TreeWatches:
    """The roots that each session watches."""

    def __init__(self) -> None:
        # prefix of the paths below each root, by session and root
        self._roots: dict[str, dict[str, str]] = {}

    def add(self, session: str, root: str) -> None:
        """Watch *root* and everything below it for *session*."""
        self._roots.setdefault(session, {})[root] = "/" if root == "/" else root + "/"

    def drop(self, session: str) -> None:
        """Remove all watches of *session*."""
        self._roots.pop(session, None)

    def roots(self, session: str) -> tuple[str, ...]:
        """Return the roots that *session* watches, in the order of its loads."""
        return tuple(self._roots.get(session, ()))

    def match(self, session: str, changes: Sequence[Changed]) -> Sequence[Changed]:
        """Return the *changes* that *session* watches, in the same order, each once."""
        roots = self._roots.get(session)
        if roots is None:
            return ()
        prefixes = tuple(roots.values())
        return [c for c in changes if c.path.startswith(prefixes) or c.path in roots]
