"""Random commits, compared with a plain dict."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pymq.core.metadata.coordination import (
    Check,
    Committed,
    Conflicted,
    Create,
    Delete,
    Entry,
    Op,
    Put,
)
from pymq.testing.check_coordinator.suite import CoordinatorSuite, listed, same


def check_random(suite: CoordinatorSuite, commits: int, rng: random.Random) -> None:
    """Random commits by three sessions have the same result as on a plain dict."""
    with suite.clients("random", 3) as clients:
        twin = Twin()
        paths = ["/r", *(f"/r/{a}" for a in "abc"), *(f"/r/{a}/{b}" for a in "abc" for b in "xy")]
        clients[0].load("/r")
        for number in range(commits):
            client = rng.choice(clients)
            ops = tuple(twin.draw(rng, paths) for _ in range(rng.randint(1, 5)))
            wanted = twin.do(ops, client.backend.session)
            answer = client.commit(*ops)
            got: object = answer
            if isinstance(answer, Committed):
                got = answer.versions
            elif isinstance(answer, Conflicted):
                got = (answer.index, answer.reason)
            assert got == wanted, f"random commit {number}, {listed(ops)}: {answer} but {wanted}"
            client.seen.clear()
            if rng.random() < 0.05:
                same(client.load("/r"), twin.entries(), f"after random commit {number}")


class Twin:
    """A simple copy of the tree: a dict that is copied for each commit."""

    def __init__(self) -> None:
        self.nodes: dict[str, Entry] = {}

    def draw(self, rng: random.Random, paths: Sequence[str]) -> Op:
        path = rng.choice(paths)
        known = self.nodes.get(path)
        version = known.version if known and rng.random() < 0.9 else rng.randint(0, 3)
        kind = rng.random()
        if kind < 0.4 or (known is None and kind < 0.8):
            return Create(path, rng.randbytes(3), ephemeral=rng.random() < 0.2)
        if kind < 0.7:
            return Put(path, rng.randbytes(3), version)
        return Delete(path, version) if kind < 0.9 else Check(path, version)

    def do(self, ops: Sequence[Op], session: str) -> object:
        nodes, versions = dict(self.nodes), []
        for index, op in enumerate(ops):
            reason = self._refuse(nodes, op)
            if reason:
                return (index, reason)
            if isinstance(op, Create):
                nodes[op.path] = Entry(op.path, op.data, 0, session if op.ephemeral else None)
            elif isinstance(op, Put):
                owner = nodes[op.path].owner
                nodes[op.path] = Entry(op.path, op.data, op.version + 1, owner)
            elif isinstance(op, Delete):
                del nodes[op.path]
            versions.append(nodes[op.path].version if op.path in nodes else -1)
        self.nodes = nodes
        return tuple(versions)

    def _refuse(self, nodes: dict[str, Entry], op: Op) -> str | None:
        parent = op.path.rpartition("/")[0]
        if isinstance(op, Create):
            if parent and (parent not in nodes or nodes[parent].owner):
                return "no-parent"
            return "exists" if op.path in nodes else None
        if op.path not in nodes:
            return "missing"
        if nodes[op.path].version != op.version:
            return "version"
        if isinstance(op, Delete) and any(path.startswith(op.path + "/") for path in nodes):
            return "not-empty"
        return None

    def entries(self) -> list[Entry]:
        return [self.nodes[path] for path in sorted(self.nodes)]
