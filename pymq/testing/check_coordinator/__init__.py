"""Checks that a coordinator backend keeps the contract of :mod:`pymq.coord.base`.

A backend's own test is one call::

    def test_contract(tmp_path):
        trees = {}

        def make(name):
            if name not in trees:
                trees[name] = SqliteTree(tmp_path / name)
            return SqliteCoordinator(trees[name])

        def restart(name):
            trees.pop(name).close()

        check_coordinator(make, restart=restart)

Backends may be remote and slow: the checks wait for answers, but never wait to see whether no
answer comes. To show that a backend does not report an event, a check waits for a later event.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from pymq.testing.check_coordinator import sessions, trees
from pymq.testing.check_coordinator.chance import check_random
from pymq.testing.check_coordinator.suite import CoordinatorSuite, Make, named

__all__ = ["check_coordinator"]


def check_coordinator(
    make: Make,
    *,
    restart: Callable[[str], None] | None = None,
    commits: int = 2_000,
    seed: int = 0,
    timeout_s: float = 10.0,
) -> None:
    """Raise :class:`AssertionError` with the broken rule if the backend breaks a rule.

    *make(name)* opens a new session on the tree called *name*; a new name means an empty tree. This
    function closes the sessions; the trees belong to the caller.

    *restart(name)*, for durable backends, drops a tree without open sessions from memory, as the
    end of the process would; the next *make(name)* must find the tree again.

    The function compares *commits* random commits, drawn from *seed*, with a plain dict. No answer
    may take longer than *timeout_s*.
    """
    suite = CoordinatorSuite(make, timeout_s)
    for check in _CHECKS:
        with named(check.__name__):
            check(suite)
    with named("random"):
        check_random(suite, commits, random.Random(seed))
    if restart is not None:
        with named("durability"):
            trees.check_durability(suite, restart)


_CHECKS: tuple[Callable[[CoordinatorSuite], None], ...] = (
    trees.check_versions,
    trees.check_load_order,
    trees.check_conflicts,
    sessions.check_sessions,
    trees.check_atomicity,
    trees.check_pipelining,
    sessions.check_watches,
    sessions.check_answer_before_change,
    sessions.check_race,
    trees.check_bad_requests,
)
